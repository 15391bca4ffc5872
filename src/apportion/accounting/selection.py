"""What it costs to train several times and to keep the best model (Papernot & Steinke 2021, "Hyperparameter tuning with Rényi DP").

Draw a random number K of runs, independently of everything else; run each with settings drawn at random; publish only the best.
With ε(λ) the Rényi curve of one run:

    truncated negative binomial with shape η and parameter γ (η = 0 logarithmic, η = 1 geometric):
        ε′(λ) = ε(λ) + (1 + η)·min_λ̂ [(1 − 1/λ̂)·ε(λ̂) + ln(1/γ)/λ̂] + ln E[K]/(λ − 1)
    Poisson with mean m (η = ∞): ε′(λ) = ε(λ) + m·δ̂ + ln m/(λ − 1), where one run is (ln(1 + 1/(λ − 1)), δ̂)-DP

Guarantee: an upper bound for the one model that is published, with its score. The theorem is about runs whose *output is the model
together with its score*, and ε(λ) is the price of both. So a score may be

- public: computed from the model and public data;
- released: from the private records with noise, by draws that are among the events of each run.

An exact score on the private records is neither, be it their accuracy or that of a held-out part: a run together with it has no finite
ε, and choosing by it is not covered at any price. Say each run publishes a fair coin, which costs nothing, and the score prefers heads
if a certain record is there and tails if it is not: the best of ten runs tells which, except once in a thousand times.

K must really be drawn: "I tried ten and stopped" is not covered. Nor are the other runs: publishing them, or their scores, costs what
all of them cost together. With a Poisson number K may be 0, and then nothing is published.

Computed by `dp_accounting`, with the improved conversion to (ε, δ).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from dp_accounting import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant

from apportion import validate
from apportion.accounting.buckets import bucket_multipliers
from apportion.errors import InvalidArgument
from apportion.request import Event

SHAPES = {"logarithmic": 0.0, "geometric": 1.0, "poisson": math.inf}
SCORES = ("public", "released")


def selection_epsilon(
    events: Mapping[Event, int],
    delta: float,
    *,
    expected_runs: float,
    score: str,
    runs: str | float = "logarithmic",
) -> float:
    """ε of publishing the best of K runs that each consist of `events`.

    Args:
        events: one run, with the draws of its score if that is released. More than 40 different multipliers are rounded down, which can
            only raise ε.
        delta: δ.
        expected_runs: E[K] ≥ 1.
        score: by what runs are judged: "public" for a score on public data, "released" for one from the private records whose noisy
            release is among `events`. Nothing else has a price.
        runs: the distribution of K: "logarithmic" (cheapest for many runs), "geometric", "poisson", or the shape η ≥ 0 of a
            truncated negative binomial.
    """
    validate.delta(delta)
    if not isinstance(score, str) or score not in SCORES:
        raise InvalidArgument(
            "score",
            validate.shown(score),
            "runs can be judged by a public score, or by one that each run releases with noise and pays for; an exact score on the "
            "private records has no price",
            'Pass score="public", or score="released" with its draws among the events',
        )
    if validate.positive("expected_runs", expected_runs, "it is a mean", "Use at least 1") < 1:
        raise InvalidArgument("expected_runs", expected_runs, "fewer than one run selects nothing", "Use at least 1")
    shape = SHAPES[validate.known("runs", runs, SHAPES)] if isinstance(runs, str) else runs
    if not (isinstance(shape, float) and shape == math.inf):
        shape = validate.non_negative("runs", shape, "it is a shape", "Use 0 or more")
    steps = [
        SelfComposedDpEvent(PoissonSampledDpEvent(event.sample_rate, GaussianDpEvent(event.noise_multiplier)), n)
        for event, n in bucket_multipliers(events).items()
    ]
    if not steps:
        return 0.0
    accountant = RdpAccountant()
    accountant.compose(RepeatAndSelectDpEvent(ComposedDpEvent(steps), expected_runs, shape))
    return float(accountant.get_epsilon(delta))
