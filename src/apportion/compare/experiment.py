"""What an experiment file or a command line may say, checked in one place."""

from __future__ import annotations

import tomllib
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from apportion import validate
from apportion.budget import Budget
from apportion.channel_norm import ChannelNorm
from apportion.compare.feature_choice import FeatureChoice
from apportion.compare.people import KINDS, PeopleSettings
from apportion.compare.resolve import call_own, find_own, is_own
from apportion.compare.table_subject import TableChoice
from apportion.compare.view_choice import ViewChoice
from apportion.errors import InvalidArgument
from apportion.execution import ACCUMULATION
from apportion.planning import Plan, plan_steps
from apportion.sampling import Sampling
from apportion.strategies.clip.clip_schedule import ClipSchedule
from apportion.strategies.recipes import ROLES, Recipe, named

if TYPE_CHECKING:  # what trains needs torch, and to plan needs none
    from apportion.curator.gradients.losses import LossFunction
    from apportion.training.early_stopping import EarlyStopping
    from apportion.training.metrics import Metric

Seed = Annotated[int, Field(ge=0, lt=2**63)]


class StrictModel(BaseModel):
    """Settings from a file: every name must be known."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def as_choice(value: Any) -> Any:
    """One recipe as a table: a name alone is that recipe, and a name in a role is a kind, such as a person's own `module:Class`."""
    if isinstance(value, str):
        return {"name": value}
    if not isinstance(value, dict):
        return value
    return value | {role: {"kind": value[role]} for role in ROLES if isinstance(value.get(role), str)}


class RecipeChoice(StrictModel):
    """One recipe of a comparison, with its own hyper-parameters where they differ from the experiment's.

    Args:
        clip, noise, update, people: hyper-parameters of the role; with `kind`, or by the kind alone, another strategy: a built-in one, or a
            person's own `module:Class`.
        label: what it is called in results; its name if nothing is said.
        lr_follows: the label of another recipe of the experiment, whose clip is known in advance. The learning rate then is η·C_t/C_1 with
            its C_t, so that a fixed clip stands beside a decaying one as its control.
        features: instead of the experiment's, with one layer in the place of its model.
    """

    name: str
    label: str | None = None
    clip: dict[str, Any] = Field(default_factory=dict)
    noise: dict[str, Any] = Field(default_factory=dict)
    update: dict[str, Any] = Field(default_factory=dict)
    people: dict[str, Any] = Field(default_factory=dict)
    lr: float | None = None
    lr_follows: str | None = None
    optimizer: str | None = None
    momentum: float | None = Field(default=None, ge=0, lt=1)
    activation: str | None = None
    features: FeatureChoice | None = None

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        """A name alone is a recipe with its defaults."""
        return as_choice(value)

    @property
    def shown(self) -> str:
        """What the recipe is called in results: its label, to tell two settings of one recipe apart."""
        return self.label or self.name

    def recipe(self) -> Recipe:
        settings = {f"{role}.{key}": value for role in ROLES for key, value in getattr(self, role).items()}
        recipe = named(self.name).with_settings(settings)
        recipe.require_complete()
        return recipe


class LossChoice(StrictModel):
    """What is minimised: the name of a loss, or a person's own `module:function`; `weights` as of `apportion.Loss`."""

    name: str = "cross-entropy"
    weights: tuple[float, ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        """A name alone is a loss without weights."""
        return {"name": value} if isinstance(value, str) else value

    def loss(self) -> LossFunction:
        """The loss itself."""
        from apportion.training.named_losses import Loss

        if not is_own(self.name):
            return Loss(self.name, self.weights)
        if self.weights is not None:
            raise InvalidArgument("loss.weights", self.weights, "your own function is the loss", "Weight it there")
        own: LossFunction = _own_function("loss", self.name)
        return own


class Experiment(PeopleSettings):
    """Recipes on one data set with one model, at one budget, or at one for each group of people.

    Args:
        momentum: of the optimiser "sgd".
        count_usable: whether plans count usable records in their first steps.
        metric, evaluate_every: as of `apportion.train`; a metric may also be a person's own `module:function`.
        table: how `data` is read if it is a CSV or Parquet file.
        features: the public feature map that inputs go through before anything is trained.
        views: random views of each record whose gradients are averaged, such as "8 flip shift=4".
        patience, min_delta: as of `apportion.EarlyStopping`; without a patience all steps are taken.
    """

    title: str = "Comparison"
    data: str
    table: TableChoice | None = None
    features: FeatureChoice | None = None
    views: ViewChoice | None = None
    model: str | None = None
    activation: str | None = None
    recipe: tuple[RecipeChoice, ...] = ()
    epsilon: float | None = None
    delta: float | None = None
    population: int | None = None
    batch_size: int | None = None
    sample_rate: float | None = None
    epochs: float | None = None
    steps: int | None = None
    lr: float
    optimizer: str = "sgd"
    momentum: float = Field(default=0.0, ge=0, lt=1)
    loss: LossChoice | None = None
    metric: str | None = None
    evaluate_every: int | str | None = None
    patience: int | None = None
    min_delta: float | None = None
    seeds: tuple[Seed, ...] = ()
    micro_batch: int | Literal["auto"] = "auto"
    count_usable: bool = True

    @model_validator(mode="before")
    @classmethod
    def _treat_people(cls, values: Any) -> Any:
        """How groups are treated is the same for all recipes that do not say it themselves."""
        if not isinstance(values, dict) or values.get("people") is None or not values.get("recipe"):
            return values
        kind: dict[str, Any] = {"kind": KINDS[validate.known("people", values["people"], KINDS)]}
        treated: list[Any] = []
        for one in values["recipe"]:
            choice = as_choice(one)
            if isinstance(choice, dict) and choice.get("name") != "non-private":
                choice = choice | {"people": kind | choice.get("people", {})}
            treated.append(choice)
        return values | {"recipe": treated}

    def sampling(self) -> Sampling:
        """The public facts of every run of the experiment."""
        declared = ("population", "batch_size", "epochs", "sample_rate", "steps")
        return Sampling.declare(**{name: getattr(self, name) for name in declared})

    def _chosen_loss(self) -> LossChoice:
        if self.table is None:
            return self.loss or LossChoice()
        said = self.loss
        return LossChoice(
            **(self.table.default_loss() if said is None else self.table.fitting_loss(said.name, said.weights))
        )

    def loss_function(self) -> LossFunction:
        """What is minimised: cross-entropy if nothing was said, of a table what fits its target."""
        return self._chosen_loss().loss()

    def describe_loss(self) -> dict[str, Any]:
        """What is minimised, as results have it."""
        chosen = self._chosen_loss()
        return {"loss": chosen.name} | ({} if chosen.weights is None else {"loss_weights": list(chosen.weights)})

    def measured_by(self) -> Metric:
        """The metric: by its name, a person's own, or what fits the loss."""
        from apportion.training.metrics import as_metric

        own = self.metric is not None and is_own(self.metric)
        return as_metric(_own_function("metric", self.metric or "") if own else self.metric, self.loss_function())

    def stopping(self) -> EarlyStopping | None:
        """What ends runs early; `None` if nothing does."""
        if self.patience is None:
            if self.min_delta is not None:
                reason = "it belongs to a patience, and without one all steps are taken"
                raise InvalidArgument("min_delta", self.min_delta, reason, "Say patience too, such as patience = 5")
            return None
        from apportion.training.early_stopping import EarlyStopping

        return EarlyStopping(self.patience, self.min_delta or 0.0)

    def budget(self) -> Budget:
        """The budget; each of its three parts must have been said."""
        share = "for which part of probability e^ε need not bound the ratio is your decision; below 1/population"
        for argument, example, reason in (
            ("epsilon", "3.0", "how much privacy may be lost is your decision"),
            ("delta", "1e-5", share),
            ("unit", "record", "it must say whom the guarantee protects"),
        ):
            if getattr(self, argument) is None and not (argument == "epsilon" and self.group):
                fix = f"Pass --{argument} {example} (or {argument} in the file)"
                raise InvalidArgument(argument, None, reason, fix)
        grouped = self.group_budget(self.delta or 0.0, self.epsilon)
        return grouped or Budget(epsilon=self.epsilon or 0.0, delta=self.delta or 0.0, unit=self.declared_unit())

    def plan(self, recipe: Recipe, spare: int = 0) -> Plan:
        """What a run of one of its recipes executes."""
        plan = plan_steps(recipe, self.budget(), self.sampling(), spare, norm=self.channel_norm())
        return plan.with_usable_count() if self.count_usable else plan

    def channel_norm(self) -> ChannelNorm | None:
        """What plans ask before their first step, for the normalisation of features."""
        return None if self.features is None else self.features.channel_norm()

    def of(self, choice: RecipeChoice) -> Self:
        """What is said for this recipe: with features of its own it trains one layer on them."""
        return self if choice.features is None else self.model_copy(update={"features": choice.features, "model": None})

    def check(self) -> None:
        """Raise for everything that can be seen to be wrong before data is read."""
        if not self.recipe:
            raise InvalidArgument("recipe", (), "there is nothing to run", 'Write recipe = ["abadi"], or [[recipe]]')
        for choice in self.recipe:
            self.of(choice).channel_norm()
        self._check_evaluation(self.sampling())
        self.stopping()
        shown = [choice.shown for choice in self.recipe]
        if twice := sorted({name for name in shown if shown.count(name) > 1}):
            reason = "two entries have the same name, and their results would be mixed up"
            raise InvalidArgument("recipe", twice, reason, "Give each a label of its own")
        recipes = [choice.recipe() for choice in self.recipe]
        if any(recipe.private for recipe in recipes):
            self.budget()
        for choice in self.recipe:
            if choice.lr_follows is not None:
                reason = "no recipe of this experiment is called so"
                validate.known(f"{choice.shown}.lr_follows", choice.lr_follows, shown, reason)
            self.followed(choice)
            if momentum := self.momentum if choice.momentum is None else choice.momentum:
                from apportion.training.optimizers import require_momentum

                require_momentum(choice.optimizer or self.optimizer, momentum)

    def _check_evaluation(self, sampling: Sampling) -> None:
        """What was said of loss, metric and measurements; the defaults fit each other."""
        said = (self.loss, self.metric, self.evaluate_every, self.table)
        if any(one is not None for one in said):
            from apportion.training.evaluation import choose_evaluation

            choose_evaluation(None, self.measured_by(), self.evaluate_every, sampling)

    def followed(self, choice: RecipeChoice) -> ClipSchedule | None:
        """The clip that the learning rate of `choice` follows; it must be known in advance."""
        if choice.lr_follows is None:
            return None
        clip = next(other for other in self.recipe if other.shown == choice.lr_follows).recipe().clip
        if not isinstance(clip, ClipSchedule):
            reason, fix = (
                "its thresholds are not known before the run",
                "Name a recipe whose clip is a formula or a sequence",
            )
            raise InvalidArgument("lr_follows", choice.lr_follows, reason, fix)
        return clip


def _own_function(argument: str, name: str) -> Any:
    """A person's own function of outputs and targets; or what makes one without arguments, such as `torch.nn:L1Loss`."""
    from apportion.training.metrics import Metric

    found = find_own(argument, name)
    if callable(found) and _needs_nothing(found):
        found = call_own(argument, name)
    if not callable(found) and not isinstance(found, Metric):
        fix = "Name a function of outputs and targets"
        raise InvalidArgument(argument, name, f"it is a {type(found).__name__}, which cannot be called", fix)
    return found


def _needs_nothing(function: Any) -> bool:
    try:
        signature(function).bind()
    except (TypeError, ValueError):
        return False
    return True


Kind = TypeVar("Kind", bound=Experiment)


def experiment(values: dict[str, Any]) -> Experiment:
    """Validate values from any source; the first problem becomes one clear line."""
    return validated(Experiment, values)


def validated(kind: type[Kind], values: dict[str, Any]) -> Kind:
    """Validate values as an experiment of this kind."""
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors()[0]
        if isinstance(ours := first.get("ctx", {}).get("error"), InvalidArgument):
            raise ours from None
        loc = [str(part) for part in first["loc"]]
        place = ".".join(loc)
        if first["type"] == "extra_forbidden":
            if loc[-1] in ("accumulate", "accumulation_steps", "gradient_accumulation_steps"):
                fix = "Set micro_batch, or leave it out"
                raise InvalidArgument(place, validate.shown(first.get("input")), ACCUMULATION, fix) from None
            owner = kind if len(loc) == 1 else _part_of(kind.model_fields[loc[0]].annotation)
            validate.known(place, loc[-1], owner.model_fields, "there is no such setting")
        raise InvalidArgument(place, first.get("input"), first["msg"].lower(), "Correct this setting") from None


def _part_of(annotation: Any) -> Any:
    """The settings of one entry: of a list of them, or of a single one."""
    return (get_args(annotation) or (annotation,))[0]


def find_file(name: str) -> Path:
    """A TOML file by its path, or the packaged one, `demo`, by its name."""
    if Path(name).is_file() or name.endswith(".toml"):
        return Path(name)
    packaged = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.toml"))}
    reason = "there is no such file and no packaged experiment of that name"
    return packaged[validate.known("file", name, packaged, reason)]


def read_file(path: Path) -> dict[str, Any]:
    """The settings of a TOML file."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise InvalidArgument("file", str(path), f"it cannot be read: {error.strerror}", "Check the path") from error
    except (ValueError, RecursionError) as error:  # of TOML, of UTF-8, of a number with thousands of digits
        raise InvalidArgument("file", str(path), f"it is not valid TOML: {error}", "Correct that line") from error
