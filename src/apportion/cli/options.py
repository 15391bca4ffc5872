"""The options that several commands share, how a command takes them, and how they become settings."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from apportion.errors import InvalidArgument
from apportion.training.storage import CHECKPOINTS

if TYPE_CHECKING:
    from apportion.compare.table_subject import TableChoice
    from apportion.planning import Plan
    from apportion.strategies.recipes import Recipe

Command = Callable[..., None]
DEFAULT_RECIPE = "default"
DEFAULT_RECIPE_SHOWN = "the one called default; `apportion recipes default` explains it"


def option(about: str, default: str | bool = True, *, name: str | None = None, **more: Any) -> Any:
    """An option of a command: what it is about, the words for its default, if the value is not to be shown, and another name.

    A parameter of a command has it in `Annotated`; a class for `declared_in` assigns it to an annotated name.
    """
    return typer.Option(*([name] if name else []), help=about, show_default=default, **more)


Data = Annotated[
    str | None,
    option(
        "Built-in name (`apportion data list`), folder:PATH, a CSV or Parquet file with --schema and --target, or your own module:function."
    ),
]
NoTable = Annotated[
    str | None, option("Built-in name (`apportion data list`), folder:PATH, or your own module:function.")
]
"""Of commands that do not read tables by a schema."""
Model = Annotated[
    str | None,
    option(
        "linear, additive, mlp, spread-mlp, cnn, lstm, embedding, or your own module:function.", "by the kind of data"
    ),
]
Settings = Annotated[
    list[str] | None,
    option("A hyper-parameter, e.g. clip.start=0.5. Repeatable.", name="--set", metavar="ROLE.PARAMETER=VALUE"),
]
MicroBatch = Annotated[
    int | None, option("Records held in memory at a time; gradients are accumulated, and no result changes.")
]
DataDir = Annotated[Path | None, option("A place to look for data before all others.")]
Json = Annotated[bool, option("Print JSON on the last line of standard output, all else elsewhere.", name="--json")]


class Subject:
    """What is trained on what."""

    data: Data
    model: Model
    activation: str = option("relu or tanh, for a built-in model.", "the model's own")


class Featured:
    """What inputs go through before anything is trained."""

    features: str = option(
        'A public feature map that costs nothing: scatter, none, or your own module:Class; "scatter norm=channel" pays for mean and '
        "variance of each channel.",
        "scatter, of large images in `train`",
    )
    views: str = option(
        'Random views of each record whose gradients are averaged before clipping, at no price: "8 flip shift=4", or your own '
        "module:function of one record.",
        "the record itself",
    )


class Optimiser:
    """How a model is updated."""

    lr: float = option("Learning rate.", "0.5; of digits and tables 2.0")
    optimizer: str = option("sgd, momentum (0.9), adam, adamw or rmsprop.", "sgd")
    momentum: float = option("Of the optimiser sgd.", "0")


class Planned:
    """What a plan says."""

    recipe: list[str] = option("A name from `apportion recipes`.", DEFAULT_RECIPE_SHOWN)
    set: Settings
    epsilon: float = option("ε, the privacy loss to spend.")
    delta: float = option("δ, below 1/population.")
    unit: str = option(
        "Whom the guarantee protects: record, or user (with --user-ids, --user-column, or the schema's unit column)."
    )
    group: list[str] = option(
        "People with a budget of their own, instead of --epsilon: their ε and their share of the population. Repeatable.",
        metavar="[NAME:]EPSILON:SHARE",
    )
    people: str = option("How groups are treated: uniform, sample (rates) or scale (thresholds).", "scale")
    k_max: int = option("Records of a user that are used at most.", "all")
    pooling: str = option("mean or sum of the gradients of a user's records, before clipping.", "mean")
    coins: str = option("Tossed for each user, or for each record of a user.", "user")
    population: int = option("Declared number of records (of users): a public figure, never counted.")
    sample_rate: float = option("q, the probability of a record to join a batch.", "of digits 0.2, of tables 0.1")
    steps: int = option("Number of updates.", "of digits 200, of tables 100")
    epochs: float = option("Instead of --steps; an epoch is round(1/q) steps.", "10 where --steps has no default")
    batch_size: int = option("Instead of --sample-rate: expected batch size.", "512 where --sample-rate has no default")
    count_usable: bool = option(
        "A noisy count of usable records, at a hundredth of the price of the first few steps, stops a run in which most fail.",
        "counted",
        name="--count-usable/--no-count-usable",
    )


class Owners:
    """Whose each record is."""

    group_labels: Path = option("A file with the group of each record: a name or a number a line, or a NumPy array.")
    group_column: str = option("Instead: the name or number of the input that holds it.")
    user_ids: Path = option("A file that says whose each record is, likewise.")
    user_column: str = option("Instead: the name or number of the input that holds it; of MNIST, writers.")


class Scoring:
    """What is minimised, and what is measured."""

    loss: str = option(
        "cross-entropy, bce, mse, huber, or your own module:function. Weights of classes: --set loss.weights=[1,5].",
        "cross-entropy",
    )
    metric: str = option(
        "On test data: accuracy, auc, f1, mae, rmse, r2, or your own module:function.", "accuracy; of numbers rmse"
    )
    evaluate_every: str = option('Measure after so many steps, or epochs: 50, "1 epoch".', "about 25 times a run")
    patience: int = option(
        "Stop after so many measurements without a better one; the price is the whole plan's.", "all steps"
    )
    min_delta: float = option("By how much a score must be better, for --patience.", "0")


class Columns:
    """How a CSV or Parquet file is read."""

    target: str = option("Of a table: the column to be predicted.")
    schema: Path = option("Of a table: a TOML file that declares its columns; see `apportion data schema`.")


class Table(Columns):
    """And on what is measured."""

    test: Path = option("Of a table: another one of the same form, declared public, to measure on.")


class Training(Optimiser, Owners, Planned, Subject):
    """What an experiment may say."""

    micro_batch: MicroBatch


def declared_in(kind: type) -> Callable[[Command], Command]:
    """Give a command the options that `kind` and its bases declare, before its own. Its `**said` has those that a person gave."""
    declared = get_type_hints(kind, include_extras=True)
    for name in {name for name in declared if hasattr(kind, name)}:
        declared[name] = Annotated[declared[name] | None, getattr(kind, name)]
    options = [Parameter(name, Parameter.KEYWORD_ONLY, annotation=one, default=None) for name, one in declared.items()]

    def decorate(command: Command) -> Command:
        @wraps(command)
        def call(**arguments: Any) -> None:
            unsaid = {name for name in declared if arguments[name] in (None, [])}
            command(**{name: value for name, value in arguments.items() if name not in unsaid})

        own = [one for one in signature(command, eval_str=True).parameters.values() if one.name != "said"]
        parameters = [*options, *(one.replace(kind=Parameter.KEYWORD_ONLY) for one in own)]
        call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return call

    return decorate


def with_table(said: dict[str, Any]) -> dict[str, Any]:
    """What was said, with that about a table in one place."""
    given: dict[str, Any] = {name: said[name] for name in ("target", "schema", "test") if name in said}
    if not given:
        return said
    for name, example in (("schema", "patients.toml"), ("target", "outcome")):
        if name not in given:
            reason = "a table needs a schema, and one of its columns as the target"
            raise InvalidArgument(name, None, reason, f"Pass --{name} {example}")
    table = {name: value if name == "target" else value.resolve() for name, value in given.items()}
    table |= {"path": Path(said["data"]).resolve()} if "data" in said else {}
    return {name: value for name, value in said.items() if name not in given} | {"table": table}


def read_table_choice(said: dict[str, Any]) -> TableChoice | None:
    """What was said about a table, checked, for a command that is no experiment; `None` if nothing was."""
    from apportion.compare.table_subject import choose_table

    return choose_table(with_table(said).get("table"))


LONG_RUN = 5_000
"""Steps from which on spare ones for charges in advance cost at most a hundredth of ε."""


def default_spare(recipe: Recipe, steps: int) -> int:
    """Spare steps of a run of `steps`: a hundredth of it, which is enough for one crash between two checkpoints; of a long run half a
    hundred more, so that as many can be charged in advance. A filter has none."""
    from apportion.accounting.account import BLOCK  # imports numpy

    return 0 if recipe.needs_filter else steps // CHECKPOINTS + (BLOCK if steps >= LONG_RUN else 0)


def parse_settings(settings: list[str] | None) -> dict[str, Any]:
    """["clip.threshold=0.5"] → {"clip.threshold": 0.5}."""
    parsed: dict[str, Any] = {}
    for setting in settings or ():
        key, equals, text = setting.partition("=")
        role, dot, parameter = key.partition(".")
        if not (equals and dot and role and parameter and text):
            reason = "it is not of the form ROLE.PARAMETER=VALUE"
            raise InvalidArgument("set", setting, reason, "Try --set clip.threshold=0.5")
        parsed[key] = parse_value(text)
    return parsed


def split_settings(settings: list[str] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those of the recipe's roles, and those of the loss."""
    parsed = parse_settings(settings)
    loss = {key.removeprefix("loss."): value for key, value in parsed.items() if key.startswith("loss.")}
    return {key: value for key, value in parsed.items() if not key.startswith("loss.")}, loss


def with_loss(values: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The values of an experiment with settings of the loss, whether that is a name or a table of a file."""
    if not settings:
        return values
    said = values.get("loss", {})
    return values | {"loss": ({"name": said} if isinstance(said, str) else said) | settings}


def parse_value(text: str) -> Any:
    """A number, a truth value or a list as in JSON; anything else is a text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def read_plan(path: Path) -> Plan:
    """The plan in a file that `apportion plan --out` wrote."""
    from apportion.planning import Plan

    try:
        return Plan.from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise InvalidArgument("plan", str(path), f"it cannot be read: {reason}", "Check the path") from None
    except InvalidArgument as error:
        if error.argument != "plan":  # it names the part of the plan that is invalid
            raise
        raise InvalidArgument("plan", str(path), error.reason, error.fix) from None
