"""What a statistical audit found, and whether it can be if the claim holds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from apportion.audit.bounds import ErrorRates

BELOW, ABOVE = "below the claim", "ABOVE THE CLAIM"


@dataclass(frozen=True)
class AuditResult:
    """What the attack learned beside what was claimed. Both lower bounds hold together with probability `confidence`.

    Args:
        claimed_epsilon: ε of what the run charged, at `delta`, by the library's own accountant.
        errors: of the threshold test, on canaries that did not choose the threshold.
        gaussian_epsilon: the lower bound in the Gaussian view of these errors; a heuristic if `sample_rate` < 1.
        least_false_negatives: the smallest FNR that the claimed privacy profile allows at the bound on FPR.
        guesses, correct: of the one-run bound.
        one_run_epsilon: its lower bound, for which nothing is assumed.
        members, others: the scores of the canaries that were in the data, and of those that were not.
    """

    claimed_epsilon: float
    delta: float
    confidence: float
    sample_rate: float
    steps: int
    canaries: int
    errors: ErrorRates
    threshold: float
    gaussian_epsilon: float
    least_false_negatives: float
    guesses: int
    correct: int
    one_run_epsilon: float
    members: tuple[float, ...]
    others: tuple[float, ...]
    seconds: float

    @property
    def gaussian_is_exact(self) -> bool:
        """Whether the Gaussian view is a fact about the run and not only an approximation."""
        return self.sample_rate == 1

    @property
    def contradictions(self) -> tuple[str, ...]:
        """What cannot be if the claim holds."""
        found = {
            f"false negatives {self.errors.false_negative_bound:.4f}, at least {self.least_false_negatives:.4f} under the claim": (
                self.errors.false_negative_bound < self.least_false_negatives
            ),
            f"Gaussian lower bound {self.gaussian_epsilon:.3f}": (
                self.gaussian_is_exact and self.gaussian_epsilon > self.claimed_epsilon
            ),
            f"one-run lower bound {self.one_run_epsilon:.3f}": self.one_run_epsilon > self.claimed_epsilon,
        }
        return tuple(text for text, holds in found.items() if holds)

    @property
    def exceeded(self) -> bool:
        """Whether the claim is refuted. On a correct library this happens with probability at most 1 − `confidence`."""
        return bool(self.contradictions)

    @property
    def verdict(self) -> str:
        return ABOVE if self.exceeded else BELOW

    def as_json(self) -> dict[str, Any]:
        """Everything but the scores."""
        content = {name: value for name, value in asdict(self).items() if name not in ("members", "others")}
        content["errors"] |= {
            "false_positive_bound": self.errors.false_positive_bound,
            "false_negative_bound": self.errors.false_negative_bound,
            "mu": self.errors.mu,
        }
        return content | {
            "verdict": self.verdict,
            "contradictions": list(self.contradictions),
            "gaussian_is_exact": self.gaussian_is_exact,
        }
