"""Noise that falls when accuracy on public data stalls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from apportion.errors import InvalidArgument
from apportion.request import Released
from apportion.strategies.context import Context
from apportion.strategies.noise.noise_schedule import MULTIPLIER
from apportion.validate import Checked, checked, in_open_unit, instance_of, non_negative, shown, whole


def _counts(argument: str, value: Any, why: str, fix: str) -> tuple[int, ...]:
    if not isinstance(value, (tuple, list)) or not value:
        raise InvalidArgument(argument, shown(value), why, fix)
    return tuple(whole(argument, one, why, fix) for one in value)


@dataclass(frozen=True)
class Validation(Checked):
    """σ ← k·σ when S_e − S_{e−1} ≤ threshold, where S_e is the mean of the last m accuracies on public data, S_0 = 0.

    The levels σ_j = σ₀·k^j are declared with how many blocks of steps may have each, so the price is that of all blocks together, in
    whatever order they come (rule: multiset). After a block that brought no progress, or when a level is used up, the next level
    begins. Blocks of earlier levels that are left over are spent last, the least noisy first.

    Args:
        counts: n_0, n_1, …: how many blocks each level has.
        factor: k.
        threshold: the least progress of S_e, as a fraction.
        window: m; accuracy is measured m times in a block.
        absolute: compare |S_e − S_{e−1}|, as printed. Then a collapse of accuracy does not lower the noise.
        warmup: blocks after which noise may fall first.
        multiplier: σ₀; `None`: the smallest that the budget allows.

    Source: Yu L. et al., Differentially Private Model Publishing for Deep Learning, S&P 2019, validation-based schedule. Corrected: the
    comparison is signed, the left side of the printed rule is the next σ and its bare S is S_e.
    Guarantee: accuracy on public data is post-processing of a private model. No record of the public data may be a private one.

    Examples:
        >>> from apportion.strategies import noise
        >>> noise.Validation(counts=(2, 1), factor=0.5).levels(6)
        (1.0, 1.0, 1.0, 1.0, 0.5, 0.5)
    """

    prefix = "noise"
    counts: tuple[int, ...] = checked((4, 3, 2, 1), _counts, "it is how many blocks each level has", "Try (4, 3, 2, 1)")
    factor: float = checked(0.7, in_open_unit, "noise falls by it")
    threshold: float = checked(0.01, non_negative, "it is the least progress that counts")
    window: int = checked(5, whole, "it is a number of measurements")
    absolute: bool = checked(False, instance_of(bool), "it is a choice", "Use true or false")
    warmup: int = checked(0, whole, "it is a number of blocks", least=0)
    multiplier: float | None = field(default=None, kw_only=True, metadata=MULTIPLIER)

    def block(self, steps: int) -> int:
        """How many steps a block has in a run of `steps`."""
        if steps < sum(self.counts):
            raise InvalidArgument(
                "noise.counts",
                self.counts,
                f"{sum(self.counts)} blocks do not fit into {steps} steps",
                "Declare fewer blocks, or more steps",
            )
        return steps // sum(self.counts)

    def levels(self, steps: int) -> tuple[float, ...]:
        """k^j for every step of the n_j blocks of level j."""
        length = self.block(steps)
        return tuple(self.factor**level for level, count in enumerate(self.counts) for _ in range(count * length))

    def init(self, context: Context) -> dict[str, Any]:
        """Level 0, nothing spent."""
        return {
            "block": self.block(context.steps),
            "level": 0,
            "spent": [0] * len(self.counts),
            "inside": 0,
            "blocks": 0,
            "last": 0.0,
            "accuracies": [],
        }

    def choose(self, state: Any, context: Context) -> float:
        """k^j for the level j that is to be spent next."""
        return float(self.factor ** self._current(state))

    def observe(self, state: Any, released: Released) -> Any:
        """One more step of the level."""
        current = self._current(state)
        spent = [count + (level == current) for level, count in enumerate(state["spent"])]
        return {**state, "level": current, "spent": spent, "inside": state["inside"] + 1}

    def is_due(self, state: Any, context: Context) -> bool:
        """m times in a block, evenly spaced, the last time at its end; after every step of a shorter block."""
        inside, block = state["inside"], state["block"]
        return bool(inside * self.window // block > (inside - 1) * self.window // block)

    def validate(self, state: Any, accuracy: float) -> Any:
        """At the end of a block, go to the next level if S_e did not grow enough."""
        accuracies = [*state["accuracies"], accuracy][-self.window :]
        if state["inside"] < state["block"]:
            return {**state, "accuracies": accuracies}
        mean, blocks = sum(accuracies) / len(accuracies), state["blocks"] + 1
        progress = abs(mean - state["last"]) if self.absolute else mean - state["last"]
        falls = blocks > self.warmup and progress <= self.threshold
        level = min(state["level"] + falls, len(self.counts) - 1)
        return {
            **state,
            "level": level,
            "inside": 0,
            "blocks": blocks,
            "last": mean,
            "accuracies": accuracies,
        }

    def _current(self, state: Any) -> int:
        """The level itself, or the next that has tokens left; after the last one what is left over, the least noisy first."""
        level, total = state["level"], len(self.counts)
        order = [*range(level, total), *reversed(range(level))]
        free = (one for one in order if state["spent"][one] < self.counts[one] * state["block"])
        return next(free, total - 1)
