"""What a search is asked to do. An interrupted search goes on only under the same settings."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from apportion import validate
from apportion.search.search_rules import Greedy, Rule
from apportion.training.optimizers import NAMED, require_momentum


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """A search on public data, for a private run with the same model, multiplier, batch size and optimiser.

    Args:
        data, model, activation: what is trained on what, by name.
        public: a person declares that anything about this data may be published. Published benchmarks need no such word, nor does data
            that a person's own function returns as `Public`.
        noise_multiplier: z of the private run that the thresholds are for (`apportion plan` tells it).
        batch_size, lr, optimizer, momentum: as in that run.
        epochs: E: how many thresholds to find.
        runs: how many times the first epoch is searched, with fresh weights and noise. The mean of the results is C₀ of the decay. The
            first run alone goes on to the later epochs.
        rule: which candidates are tried.
        seed: the same seed gives the same search, whatever the number of processes.
    """

    data: str
    noise_multiplier: float
    public: bool = False
    model: str | None = None
    activation: str | None = None
    batch_size: int = 1024
    lr: float = 1.0
    optimizer: str = "sgd"
    momentum: float = 0.0
    epochs: int = 1
    runs: int = 5
    rule: Rule = field(default_factory=Greedy)
    seed: int = 0

    def __post_init__(self) -> None:
        reason, fix = "it is that of the private run", "Ask `apportion plan` for the multiplier of that run"
        validate.store(
            self,
            noise_multiplier=validate.positive("noise_multiplier", self.noise_multiplier, reason, fix),
            batch_size=validate.whole("batch_size", self.batch_size, "it counts records", "Try batch_size=1024"),
            lr=validate.positive("lr", self.lr, "it scales every update", "Try lr=1.0"),
            epochs=validate.whole("epochs", self.epochs, "each has a threshold", "Try epochs=10"),
            runs=validate.whole("runs", self.runs, "their mean is taken", "Use 5, or 1 to save time"),
            seed=validate.whole("seed", self.seed, "it names a reproducible search", "Use seed=0", least=0),
        )
        validate.known("optimizer", self.optimizer, NAMED)
        require_momentum(self.optimizer, self.momentum)

    def describe(self) -> dict[str, Any]:
        """The settings as data."""
        return {**vars(self), "rule": self.rule.describe()}

    def seed_of(self, run: int, epoch: int = 0, number: int = 0) -> int:
        """The seed of a candidate, and for epoch 0 that of the initial weights of a run."""
        place = f"{self.seed} {run} {epoch} {0 if self.rule.paired else number}"
        return int.from_bytes(hashlib.blake2b(place.encode(), digest_size=6, person=b"search").digest(), "big")
