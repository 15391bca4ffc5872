"""All accountants side by side. The library reports the first, PLD; the others are named comparisons.

They answer the same question about the same events, so the table shows what a tighter analysis buys, what an older paper would have
claimed, and by how much a limit theorem under-reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.accounting.advanced import AdvancedCompositionAccountant
from apportion.accounting.central_limit import CentralLimitAccountant, growing_mu
from apportion.accounting.concentrated import DisjointEpochsAccountant, TruncatedConcentratedAccountant
from apportion.accounting.renyi import RenyiAccountant
from apportion.errors import InvalidArgument
from apportion.event import Event


class ComparisonAccountant(Protocol):
    """An accountant that is shown next to ours, with what its number is worth.

    name: what it is called in tables.
    upper_bound: whether its ε is proven, for batches drawn as `sampling` says.
    sampling: "Poisson", as events are executed here, or "shuffled epochs".
    note: where it comes from and what it assumes.
    """

    @property
    def name(self) -> str: ...
    @property
    def upper_bound(self) -> bool: ...
    @property
    def sampling(self) -> str: ...
    @property
    def note(self) -> str: ...

    def epsilon(self, events: Mapping[Event, int], delta: float) -> float:
        """ε at `delta` of events that were fixed in advance; `InvalidArgument` if the analysis does not cover them."""
        ...


COMPARISONS: dict[str, ComparisonAccountant] = {
    "rdp": RenyiAccountant("improved"),
    "rdp-classic": RenyiAccountant("classic"),
    "gdp-clt": CentralLimitAccountant(),
    "zcdp-epochs": DisjointEpochsAccountant(),
    "tcdp": TruncatedConcentratedAccountant(),
    "advanced": AdvancedCompositionAccountant(),
}


@dataclass(frozen=True)
class Comparison:
    """One line of the table. `epsilon` is `None` if the analysis does not cover the events; `note` then says why."""

    name: str
    epsilon: float | None
    upper_bound: bool
    sampling: str
    note: str

    @property
    def standing(self) -> str:
        """What the number is worth, in words."""
        if not self.upper_bound:
            return "not an upper bound"
        return (
            "upper bound" if self.sampling == "Poisson" else f"upper bound for {self.sampling}, not for Poisson batches"
        )


def compare_accountants(events: Mapping[Event, int], delta: float) -> list[Comparison]:
    """ε of `events` at `delta` by PLD, which is what the library reports, and by every comparison."""
    ours = PrivacyLossAccountant()
    rows = [Comparison(ours.name, ours.epsilon(events, delta), True, "Poisson", "what Apportion reports")]
    for other in COMPARISONS.values():
        try:
            epsilon, note = other.epsilon(events, delta), other.note
        except InvalidArgument as refusal:
            epsilon, note = None, f"refused: {refusal.reason}"
        rows.append(Comparison(other.name, epsilon, other.upper_bound, other.sampling, note))
    return rows


def compare_plans(
    sample_rate: float, steps: int, delta: float, planned: Sequence[float]
) -> list[tuple[float, list[Comparison]]]:
    """What constant noise that the central limit plans for each ε of `planned` costs by every accountant (Du et al., figure 4)."""
    rows = []
    for epsilon in planned:
        mu = growing_mu(sample_rate=sample_rate, steps=steps, growth=1.0, epsilon=epsilon, delta=delta)
        rows.append((epsilon, compare_accountants({Event(sample_rate, 1 / mu): steps}, delta)))
    return rows
