"""An experiment as `apportion compare` runs it, with what its source printed, and one run of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from pydantic import Field

from apportion import validate
from apportion.compare.experiment import Experiment, RecipeChoice, Seed, StrictModel
from apportion.errors import InvalidArgument
from apportion.strategies.descriptions import describe
from reproduction.study.distorted_clients import ClientChoice

Percent = Field(default=None, ge=0, le=100)


class PaperChoice(RecipeChoice):
    """A recipe beside a published figure.

    Args:
        control_of: the label of the recipe that this one is a control of.
        calibrated_by: "pld" solves the noise from the true ε; "clt" from the limit theorem of Du et al., which is not an upper bound, so
            that the run really spends more than the experiment's ε; "zcdp" and "tcdp" from bounds that are far from it, so that it
            spends less.
        paper: the accuracy that the source printed, in percent, and `paper_std` what it printed after ±.
        seeds, epochs, batch_size: instead of the experiment's.
    """

    control_of: str | None = None
    calibrated_by: Literal["pld", "clt", "zcdp", "tcdp"] = "pld"
    paper: float | None = Percent
    paper_std: float | None = Field(default=None, ge=0)
    seeds: tuple[Seed, ...] | None = None
    epochs: float | None = None
    batch_size: int | None = None


class Later(StrictModel):
    """A published figure that cannot be run yet, listed so that its absence shows.

    Args:
        label: the method.
        paper: the accuracy that the source printed, in percent.
        reason: why it is not run.
    """

    label: str
    paper: float | None = Percent
    reason: str


class PaperExperiment(Experiment):
    """Recipes on one data set with one model at one budget, as a paper reports them.

    Args:
        label: what it is called in its study.
        kind: "training" trains; "price" only computes what the plan costs from step to step; "norms" trains on data that is a published
            benchmark, and therefore public, and records the median norm of its unclipped gradients.
        clients: the run is federated, over as many clients as the population says, and a client is the unit of privacy.
        paper_epsilon: what the source claims to have spent, where it is not `epsilon`.
        count_usable: off: the records are known to be good, and kept cells can be repeated to the bit.
    """

    label: str | None = None
    kind: Literal["training", "price", "norms"] = "training"
    recipe: tuple[PaperChoice, ...] = ()
    later: tuple[Later, ...] = ()
    clients: ClientChoice | None = None
    paper_epsilon: float | None = None
    count_usable: bool = False

    @property
    def shown(self) -> str:
        """Its label, or data and budget."""
        return self.label or (self.data if self.epsilon is None else f"{self.data}, ε = {self.epsilon:g}")

    def of(self, choice: RecipeChoice) -> Self:
        """What is said for this recipe: its length and batch size too."""
        own = {name: getattr(choice, name, None) for name in ("epochs", "batch_size")}
        return super().of(choice).model_copy(update={name: value for name, value in own.items() if value is not None})

    def check(self) -> None:
        """Raise for everything that can be seen to be wrong before data is read."""
        if self.recipe or not self.later:
            super().check()
        self.sampling()
        if self.clients is not None and self.unit != "user":
            raise InvalidArgument("unit", self.unit, "of a federated run a client is the unit", 'Write unit = "user"')
        labels = [choice.shown for choice in self.recipe]
        for choice in self.recipe:
            if choice.control_of is not None:
                reason = "no recipe of this experiment is called so"
                validate.known(f"{choice.shown}.control_of", choice.control_of, labels, reason)

    def cells(self) -> list[Cell]:
        """Its runs: recipes in order, and their seeds."""
        return [Cell(self, choice, seed) for choice in self.recipe for seed in self._seeds(choice)]

    def _seeds(self, choice: PaperChoice) -> tuple[int | None, ...]:
        if self.kind == "price":
            return (None,)
        seeds = self.seeds if choice.seeds is None else choice.seeds
        if not seeds:
            raise InvalidArgument(
                "seeds",
                (),
                f"the results of {self.shown} are kept, so they must be reproducible",
                "Write seeds = [1, 2]",
            )
        return seeds


@dataclass(frozen=True)
class Cell:
    """One run: a recipe of an experiment with one seed, or without a seed if it is only priced."""

    experiment: PaperExperiment
    choice: PaperChoice
    seed: int | None

    @property
    def place(self) -> tuple[str, str, int | None]:
        """Where it stands in its study: labels and seed, whatever the settings are."""
        return self.experiment.shown, self.choice.shown, self.seed

    @property
    def title(self) -> str:
        """The place in words."""
        experiment, recipe, seed = self.place
        return f"{experiment}: {recipe}" + ("" if seed is None else f", seed {seed}")

    @property
    def needs_data(self) -> bool:
        """A price needs none."""
        return self.experiment.kind != "price"

    def configuration(self) -> dict[str, Any]:
        """All that decides the result, as data. Labels and published figures do not."""
        experiment, choice, recipe = self.experiment.of(self.choice), self.choice, self.choice.recipe()
        followed = experiment.followed(choice)
        plan = {
            "kind": experiment.kind,
            "clip": None if recipe.clip is None else describe(recipe.clip),
            "noise": None if recipe.noise is None else describe(recipe.noise),
            "calibrated_by": choice.calibrated_by,
            "epsilon": experiment.epsilon if recipe.private else None,
            "delta": experiment.delta if recipe.private else None,
            "unit": experiment.unit if recipe.private else None,
            **asdict(experiment.sampling()),
        }
        if experiment.kind == "price":
            return plan
        return plan | {
            "data": experiment.data,
            "model": experiment.model,
            "activation": choice.activation or experiment.activation,
            "tempered": None if recipe.model is None else asdict(recipe.model),
            "update": describe(recipe.update),
            "lr": choice.lr or experiment.lr,
            "lr_follows": None if followed is None else describe(followed),
            "optimizer": choice.optimizer or experiment.optimizer,
            "momentum": experiment.momentum if choice.momentum is None else choice.momentum,
            "micro_batch": experiment.micro_batch,
            "seed": self.seed,
            **self._people(),
            **({} if experiment.loss is None else {"loss": experiment.loss.model_dump()}),
            **({} if experiment.metric is None else {"metric": experiment.metric}),
            **({} if experiment.clients is None else {"clients": experiment.clients.model_dump()}),
            **({} if experiment.features is None else {"features": experiment.features.model_dump()}),
            **({} if experiment.views is None else {"views": experiment.views.model_dump(mode="json")}),
            **(
                {}
                if (stop := experiment.stopping()) is None
                else {"stop": asdict(stop), "every": experiment.evaluate_every}
            ),
        }

    def _people(self) -> dict[str, Any]:
        """Groups, users and what they get, where an experiment has them."""
        experiment, people = self.experiment, self.choice.recipe().people
        users = {name: getattr(experiment, name) for name in ("user_column", "k_max", "pooling", "coins")}
        return {
            **({} if people is None else {"people": describe(people)}),
            **({"groups": [one.model_dump() for one in experiment.group]} if experiment.group else {}),
            **({"users": users} if experiment.unit == "user" else {}),
        }

    @property
    def key(self) -> str:
        """A fingerprint of the configuration: a kept run with the same key is not run again."""
        text = json.dumps(self.configuration(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
