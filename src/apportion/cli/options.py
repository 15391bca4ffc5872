"""The options that `train` and `compare` share, and how they become settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apportion.errors import InvalidArgument

if TYPE_CHECKING:
    from apportion.strategies.recipes import Recipe

Data = Annotated[
    str | None,
    typer.Option(
        help="Built-in name (`apportion data list`), folder:PATH, or your own module:function.", show_default=False
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="linear, mlp, cnn, lstm, embedding, or your own module:function.",
        show_default="by the kind of data",
    ),
]
Activation = Annotated[
    str | None, typer.Option(help="relu or tanh, for a built-in model.", show_default="the model's own")
]
DEFAULT_RECIPE = "default"
DEFAULT_RECIPE_SHOWN = "the one called default; `apportion recipes default` explains it"
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="ROLE.PARAMETER=VALUE", help="A hyper-parameter, e.g. clip.start=0.5. Repeatable."),
]
Epsilon = Annotated[float | None, typer.Option(help="ε, the privacy loss to spend.", show_default=False)]
Delta = Annotated[float | None, typer.Option(help="δ, below 1/population.", show_default=False)]
Unit = Annotated[str | None, typer.Option(help="Whom the guarantee protects: record.", show_default=False)]
Population = Annotated[
    int | None, typer.Option(help="Declared number of records: a public figure, never counted.", show_default=False)
]
SampleRate = Annotated[
    float | None, typer.Option(help="q, the probability of a record to join a batch.", show_default="of digits 0.2")
]
Steps = Annotated[int | None, typer.Option(help="Number of updates.", show_default="of digits 200")]
Epochs = Annotated[
    float | None, typer.Option(help="Instead of --steps; an epoch is round(1/q) steps.", show_default="10")
]
BatchSize = Annotated[
    int | None, typer.Option(help="Instead of --sample-rate: expected batch size.", show_default="512")
]
LearningRate = Annotated[float | None, typer.Option("--lr", help="Learning rate.", show_default="0.5; of digits 2.0")]
Optimizer = Annotated[str | None, typer.Option(help="sgd, momentum (0.9), adam, adamw or rmsprop.", show_default="sgd")]
Momentum = Annotated[float | None, typer.Option(help="Of the optimiser sgd.", show_default="0")]
MicroBatch = Annotated[
    int | None, typer.Option(help="Records held in memory at a time; changes no result.", show_default=False)
]
DataDir = Annotated[Path | None, typer.Option(help="A place to look for data before all others.", show_default=False)]
Spare = Annotated[
    int | None,
    typer.Option(
        help="Steps that can be taken again after a crash; they are paid for.", show_default="a hundredth of the run"
    ),
]
LedgerFile = Annotated[
    Path | None,
    typer.Option("--ledger", help="The shared ledger of the data set (`apportion ledger limit`).", show_default=False),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON on the last line of standard output, all else elsewhere.")
]


BUDGET = ("epsilon", "delta", "unit")
SAMPLING = ("population", "sample_rate", "batch_size", "steps", "epochs")
SETTINGS = ("data", "model", "activation", *BUDGET, *SAMPLING, "lr", "optimizer", "momentum", "micro_batch")
"""What an experiment may say, by the names of the options."""


def default_spare(recipe: Recipe, steps: int) -> int:
    """Spare steps of a run of `steps`: a hundredth of it, which is enough for one crash between two checkpoints. A filter has none."""
    from apportion.training.storage import CHECKPOINTS

    return 0 if recipe.needs_filter else steps // CHECKPOINTS


def parse_settings(settings: list[str] | None) -> dict[str, Any]:
    """["clip.threshold=0.5"] → {"clip.threshold": 0.5}."""
    parsed: dict[str, Any] = {}
    for setting in settings or ():
        key, equals, text = setting.partition("=")
        role, dot, parameter = key.partition(".")
        if not (equals and dot and role and parameter and text):
            raise InvalidArgument(
                "set", setting, "it is not of the form ROLE.PARAMETER=VALUE", "Try --set clip.threshold=0.5"
            )
        parsed[key] = _value(text)
    return parsed


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def given(**options: Any) -> dict[str, Any]:
    """The options that a person gave."""
    return {name: value for name, value in options.items() if value is not None}


def given_settings(arguments: Mapping[str, Any], *others: str) -> dict[str, Any]:
    """The settings of an experiment that a person gave, out of all `arguments` of a command (its `locals()`), and `others` beside them."""
    return given(**{name: arguments.get(name) for name in (*SETTINGS, *others)})


def with_own_strategies(recipe: Recipe, **functions: str | None) -> Recipe:
    """The recipe with strategies of a person's own, each by role from `module:function`."""
    from dataclasses import replace

    from apportion.compare.resolve import call_own

    own = {role: call_own(role, name) for role, name in functions.items() if name is not None}
    if "clip" in own:
        own.setdefault("noise", None)  # such a clip may own both roles
    return replace(recipe, **own)
