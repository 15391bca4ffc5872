"""One run of a study, and the fingerprint of all that decides its result."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from apportion.compare.experiment import Experiment, RecipeChoice
from apportion.strategies.descriptions import describe


@dataclass(frozen=True)
class Cell:
    """A recipe of an experiment, with one seed; without one if it is only priced."""

    experiment: Experiment
    choice: RecipeChoice
    seed: int | None

    @property
    def place(self) -> tuple[str, str, int | None]:
        """Where it stands in its study: labels and seed, whatever the settings are."""
        from reproduction.study.study import label

        return label(self.experiment), self.choice.shown, self.seed

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
        experiment, choice, recipe = self.experiment, self.choice, self.choice.recipe()
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
        }

    @property
    def key(self) -> str:
        """A fingerprint of the configuration."""
        text = json.dumps(self.configuration(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
