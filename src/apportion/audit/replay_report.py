"""What a replay audit found."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from apportion.errors import PrivacyViolation

Kind = Literal[
    "sensitivity", "multiplier", "noise", "calls", "release", "charge", "sampling", "request", "state", "error"
]
"""What was broken:

sensitivity  one record moved a sum further than the request declared
multiplier   one record moved the whole answer, in units of its noise, further than the price that was charged
noise        the noise does not have the declared size, or does not come from the draw's own stream
calls        another sequence of noise calls than one for each trained parameter, or another one on the neighbour
release      what was handed out is not the noisy sum divided by the declared expected batch size
charge       a draw that was not charged beforehand, or other charges on the neighbour
sampling     not every record tossed its own coin once, with the rate that was charged, or others than the drawn were read
request      the strategies asked something else on the neighbour
state        weights, buffers, optimiser, strategy or history differ although all released values were the same
error        an exception, or its absence, tells the neighbours apart
"""

SHARP = 0.95
"""From this part of the allowed distance on a measurement would have shown a threshold that is about 5 % too loose."""


@dataclass(frozen=True)
class Finding:
    """One way in which neighbouring data sets could be told apart beyond what was charged.

    Args:
        neighbour: which neighbour showed it.
        kind: what was broken (see `Kind`).
        message: the same in words.
        step: 1-based; `None` if it concerns no single step.
        release: 0-based index of the release in its request; `None` if it concerns all of them.
        measured, allowed: the figures, where there are any.
    """

    neighbour: str
    kind: Kind
    message: str
    step: int | None = None
    release: int | None = None
    measured: float | None = None
    allowed: float | None = None

    def __str__(self) -> str:
        where = "" if self.step is None else f", step {self.step}"
        return f"{self.neighbour}{where}: {self.message}"


@dataclass(frozen=True)
class Measured:
    """One neighbour: the largest distance of a release as a part of what is allowed, and how much of it was found wanting."""

    neighbour: str
    largest_ratio: float
    findings: int


@dataclass(frozen=True)
class ReplayReport:
    """The result of `replay`. Passing it proves nothing about data sets and settings that were not replayed.

    Args:
        findings: every violation; empty if there is none.
        neighbours: the figures of each neighbour.
        steps, noise_calls, state_entries: how much was compared, over all neighbours.
        notes: what a reader must know: what was left out, what was switched off for the comparison.
    """

    findings: tuple[Finding, ...]
    neighbours: tuple[Measured, ...]
    steps: int
    noise_calls: int
    state_entries: int
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"{'passed' if self.ok else 'FAILED'}: {self.steps} steps on {len(self.neighbours)} neighbouring data sets"
        ]
        lines += [f"  {one.neighbour:<40} {one.largest_ratio:.4f} of the allowed distance" for one in self.neighbours]
        lines += [f"  {finding.kind}: {finding}" for finding in self.findings]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    @property
    def ok(self) -> bool:
        return not self.findings

    @property
    def largest_ratio(self) -> float:
        """The largest measured distance of a release, as a part of what is allowed."""
        return max(measured.largest_ratio for measured in self.neighbours)

    @property
    def sharp(self) -> bool:
        """Whether some record came close enough to its threshold to show one that is too loose."""
        return self.largest_ratio >= SHARP

    def require(self) -> None:
        """Raise `PrivacyViolation` with the first finding; do nothing if there is none."""
        if self.ok:
            return
        others = "" if len(self.findings) == 1 else f" ({len(self.findings) - 1} more findings)"
        raise PrivacyViolation(f"The stated guarantee does not hold. {self.findings[0]}{others}.")

    def as_json(self) -> dict[str, Any]:
        """Plain data, without infinities, which JSON does not know."""
        facts = asdict(self) | {"ok": self.ok, "sharp": self.sharp, "largest_ratio": self.largest_ratio}
        finite: dict[str, Any] = _finite(facts)
        return finite


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
