"""Concentrated differential privacy: two analyses from the literature, kept for comparison.

zCDP (Bun & Steinke 2016): a Gaussian release with multiplier z costs ρ = 1/(2z²), ρ adds up, and ε = ρ + 2·√(ρ·ln(1/δ)).
tCDP (Bun, Dwork, Rothblum & Steinke 2018) truncates it at an order ω so that sampling can be amplified.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from apportion import validate
from apportion.accounting.buckets import require_gaussian
from apportion.errors import InvalidArgument
from apportion.event import Event

_LARGEST = 0.1  # of ρ and of the rate, in the amplification theorem of tCDP


class DisjointEpochsAccountant:
    """zCDP of shuffled epochs, as Yu, Liu, Pu, Gursoy & Truex 2019 account: one release for each epoch, no amplification.

    If every epoch deals the records into disjoint batches, a record takes part in one step of each epoch, so an epoch with
    multiplier σ_e costs 1/(2σ_e²). Neighbouring data sets differ by blanking one record out, so that batches stay as they are.

    Events say nothing about epochs or order. Here round(1/q) steps make an epoch, steps are sorted by multiplier (as in every schedule
    that decays or stays constant), and an epoch costs what its *smallest* multiplier costs; a part of an epoch counts as a whole one.

    Guarantee: an upper bound for a run that shuffles its records so. It says nothing about Poisson batches, in which a record may
    take part several times in a row of round(1/q) steps.
    """

    name = "zCDP, disjoint epochs"
    upper_bound = True
    sampling = "shuffled epochs"
    note = "as if run over shuffled, disjoint epochs of round(1/q) steps at each epoch's smallest multiplier; Yu L. et al. 2019"

    def epsilon(self, events: Mapping[Event, int], delta: float) -> float:
        """ε = ρ + 2·√(ρ·ln(1/δ)) with ρ = Σ_e 1/(2σ_e²)."""
        require_gaussian(events)
        return zcdp_epsilon(zcdp_of_epochs(epoch_multipliers(events)), delta)


def zcdp_of_epochs(multipliers: Iterable[float]) -> float:
    """ρ = Σ_e 1/(2σ_e²), one release a record and epoch."""
    return math.fsum(1 / (2 * multiplier**2) for multiplier in multipliers)


def zcdp_epsilon(rho: float, delta: float) -> float:
    """ε = ρ + 2·√(ρ·ln(1/δ))."""
    validate.non_negative("rho", rho, "it is a privacy loss", "Use rho >= 0")
    validate.delta(delta)
    return rho + 2 * math.sqrt(rho * -math.log(delta))


def epoch_multipliers(events: Mapping[Event, int]) -> list[float]:
    """The smallest multiplier of each epoch of round(1/q) steps, when the steps of each rate are sorted by multiplier."""
    epochs: list[float] = []
    position: dict[float, int] = {}
    for event in sorted(events, key=lambda event: event.noise_multiplier):
        length = round(1 / event.sample_rate)
        begin = position.get(event.sample_rate, 0)
        position[event.sample_rate] = end = begin + events[event]
        # Epochs that begin among these steps: later ones of the same epoch have more noise.
        epochs += [event.noise_multiplier] * (math.ceil(end / length) - math.ceil(begin / length))
    return epochs


class TruncatedConcentratedAccountant:
    """tCDP with amplification by sampling, as Zhang X. et al. 2021 account decaying noise.

    A Gaussian with multiplier z is (1/(2z²), ∞)-tCDP. Sampled at rate s, a ρ-zCDP step is (13·s²·ρ, ln(1/s)/(4ρ))-tCDP if ρ ≤ 0.1
    and s ≤ 0.1 (Bun et al. 2018; their third condition, ln(1/s) ≥ 3ρ·(2 + log₂(1/ρ)), follows: the right side is at most 1.6 and the
    left at least 2.3). ρ adds up, the smallest ω counts, and

        ε = ρ + 2·√(ρ·ln(1/δ))       if ln(1/δ) ≤ (ω − 1)²·ρ,
        ε = ρ·ω + ln(1/δ)/(ω − 1)    otherwise.

    Guarantee: an upper bound, far looser than RDP because of the factor 13. Events outside the conditions are refused.
    """

    name = "tCDP"
    upper_bound = True
    sampling = "Poisson"
    note = "amplification with factor 13, sampling rates up to 0.1 and multipliers from 2.24 only; Zhang X. et al. 2021"

    def epsilon(self, events: Mapping[Event, int], delta: float) -> float:
        """ε at `delta`; refuses with the condition that failed."""
        validate.delta(delta)
        require_gaussian(events)
        by_noise = sorted((event for event in events if events[event]), key=lambda event: event.noise_multiplier)
        costs = [(events[event], *_truncated(event)) for event in by_noise]  # a refusal names the worst step
        rho = math.fsum(n * one for n, one, _ in costs)
        omega = min((omega for _, _, omega in costs), default=math.inf)
        if -math.log(delta) <= (omega - 1) ** 2 * rho or math.isinf(omega):
            return zcdp_epsilon(rho, delta)
        return rho * omega - math.log(delta) / (omega - 1)


def _truncated(event: Event) -> tuple[float, float]:
    """(ρ, ω) of one step."""
    rate, rho = event.sample_rate, 1 / (2 * event.noise_multiplier**2)
    if rate == 1:
        return rho, math.inf
    fix = "Use another accountant"
    if rate > _LARGEST:
        raise InvalidArgument("sample_rate", rate, "tCDP needs a sampling rate s <= 0.1", fix)
    if rho > _LARGEST:
        raise InvalidArgument(
            "noise_multiplier", event.noise_multiplier, f"tCDP needs rho = 1/(2z²) <= 0.1, and it is {rho:.4g}", fix
        )
    return 13 * rate**2 * rho, -math.log(rate) / (4 * rho)
