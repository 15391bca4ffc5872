"""The statistical audit: attack the library with canaries and compare what the attack learns with the ε that the library claims.

One real run, with the real curator, account and randomness. Canaries are put into the data by the auditor's own coins, each with
probability ½; every release is scored; the scores are turned into guesses, and the guesses into lower bounds on ε (`bounds.py`).
A lower bound above the claim means a fault in the library. A lower bound below the claim is *not a proof* of privacy.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from apportion import validate
from apportion.accounting.accountant import PrivacyLossAccountant, count_events
from apportion.audit.bounds import ErrorRates, one_run_epsilon, trade_off
from apportion.audit.canaries import (
    EXCESS,
    CanaryGradients,
    CanaryNetwork,
    Coordinates,
    deal_coordinates,
    log_likelihood_ratios,
)
from apportion.budget import Budget, Record
from apportion.curator.compatibility import copy_of
from apportion.curator.curator import Curator, Execution, LossFunction
from apportion.curator.gradients.engine import build_engine
from apportion.curator.gradients.reference import trained_parameters
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.errors import InvalidArgument
from apportion.request import ClippedSum, Release, Released
from apportion.strategies.clip import Clip
from apportion.strategies.context import Context
from apportion.strategies.noise import NoiseSchedule
from apportion.strategies.roles import resolve_roles
from apportion.training.loop import take_steps
from apportion.training.optimizers import build_optimizer
from apportion.training.plan import Plan, make_plan
from apportion.training.progress import progress_bar
from apportion.training.sampling import Sampling
from apportion.training.session import Session, open_session, require_trainable

BELOW, ABOVE = "below the claim", "ABOVE THE CLAIM"
GUESSED = 0.05
"""The part of the canaries about which the one-run bound guesses, those with the most extreme scores. Fixed beforehand."""

FOR_THRESHOLD = 0.25
"""The part of the canaries that choose the threshold of the test; its errors are counted on the others only."""

CANARIES = 10_000
_CANDIDATES = 19
_FEWEST = 100
_LEARNING_RATE = 1e-3  # what the model learns does not matter: no canary's gradient depends on it
Scores = NDArray[np.float64]


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


def audit(
    model: nn.Module | None = None,
    loss_fn: LossFunction | None = None,
    data: Any = None,
    *,
    clip: Clip | None = None,
    noise: NoiseSchedule | None = None,
    epsilon: float = 4.0,
    delta: float = 1e-5,
    sample_rate: float = 0.5,
    steps: int = 20,
    canaries: int | None = None,
    confidence: float = 0.95,
    execution: Execution | None = None,
    randomness: Randomness | None = None,
    seed: int | None = None,
    progress: bool | None = None,
) -> AuditResult:
    """Run once with canaries and say which ε the releases refute.

    Args:
        model, loss_fn, data: a model of one's own, of which a copy is audited. Of `data` only shapes and types are used; no private
            record is read and nothing private is spent. Left out, a network is used whose own gradients are the canaries'.
        clip, noise: the strategies, as in `train`.
        epsilon, delta, sample_rate, steps: the budget and the length of the run. Large ε and q with few steps need the fewest canaries.
        canaries: m, at most the number of parameters; more make the bounds sharper. By default 10,000, or as many as there are parameters.
        confidence: with this probability the lower bounds hold, both together.
        execution: memory knobs.
        randomness: of the audited run; fresh by default. `Randomness.seeded` is for tests.
        seed: of the auditor's coins, which are no part of what is audited. Fresh by default.
        progress: a progress bar; by default only in a terminal.
    """
    started = time.perf_counter()
    if canaries is None:
        canaries = CANARIES if model is None else max(_FEWEST, min(CANARIES, sum(_sizes(model).values())))
    canaries = validate.whole(
        "canaries", canaries, "fewer cannot refute anything", f"Use at least {_FEWEST}", least=_FEWEST
    )
    validate.in_open_unit("confidence", confidence, "it is a probability", "Try confidence=0.95")
    validate.delta(delta)
    coins = np.random.default_rng(seed)
    included = coins.random(canaries) < 0.5
    clip, noise = resolve_roles(clip, noise)
    session, loss, watched = _plant(
        model,
        loss_fn,
        data,
        included,
        budget=Budget(epsilon=epsilon, delta=delta, unit=Record()),
        sampling=Sampling.declare(population=canaries, sample_rate=sample_rate, steps=steps),
        clip=clip,
        noise=noise,
        execution=execution or Execution(),
        randomness=randomness or Randomness.fresh(),
    )
    with progress_bar("audit", session.plan.steps, epsilon, enabled=progress) as show:
        take_steps(session, loss, show=show)
    scores = watched.scores
    each = 1 - (1 - confidence) / 2  # two bounds, so that both hold together
    threshold, errors = _threshold_test(scores, included, coins, each)
    charged = count_events(session.account.ledger.events(session.account.run))
    claimed = session.account.epsilon()
    allowed = trade_off(PrivacyLossAccountant().profile(charged), largest=2 * claimed + 1)
    guesses = max(2, round(GUESSED * canaries))
    correct = _correct_guesses(scores, included, guesses)
    return AuditResult(
        claimed_epsilon=claimed,
        delta=delta,
        confidence=confidence,
        sample_rate=session.plan.sampling.sample_rate,
        steps=session.plan.steps,
        canaries=canaries,
        errors=errors,
        threshold=threshold,
        gaussian_epsilon=errors.epsilon(delta),
        least_false_negatives=allowed(errors.false_positive_bound),
        guesses=guesses,
        correct=correct,
        one_run_epsilon=one_run_epsilon(
            canaries=canaries, guesses=guesses, correct=correct, delta=delta, confidence=each
        ),
        members=tuple(scores[included].tolist()),
        others=tuple(scores[~included].tolist()),
        seconds=time.perf_counter() - started,
    )


def _sizes(model: nn.Module) -> dict[str, int]:
    return {name: parameter.numel() for name, parameter in trained_parameters(model).items()}


def _first_releases(plan: Plan, model: nn.Module) -> tuple[ClippedSum, ...]:
    context = plan.context(1, {name: tuple(parameter.shape) for name, parameter in trained_parameters(model).items()})
    return plan.request(context, plan.clip.init(context)).sums


class _Watched:
    """The audited clip strategy, with the auditor looking at every release over its shoulder."""

    def __init__(self, clip: Clip, names: Sequence[str], coordinates: Coordinates, amount: float):
        self._clip, self._names, self._coordinates, self._amount = clip, names, coordinates, amount
        self.scores: Scores = np.zeros(len(coordinates))

    def init(self, context: Context) -> Any:
        return self._clip.init(context)

    def propose(self, state: Any, context: Context) -> tuple[Release, ...]:
        return self._clip.propose(state, context)

    def observe(self, state: Any, released: Released) -> Any:
        self.scores += log_likelihood_ratios(released, self._names, self._coordinates, self._amount)
        return self._clip.observe(state, released)


def _plant(
    model: nn.Module | None,
    loss_fn: LossFunction | None,
    data: Any,
    included: NDArray[np.bool_],
    *,
    budget: Budget,
    sampling: Sampling,
    clip: Clip,
    noise: NoiseSchedule,
    execution: Execution,
    randomness: Randomness,
) -> tuple[Session, LossFunction, _Watched]:
    """A session whose records are the canaries that are included, and whose releases are watched."""
    # The session makes the same plan; it is needed here because its first request says which groups of parameters there are.
    plan = make_plan(budget, sampling, clip, noise, PrivacyLossAccountant())
    network = CanaryNetwork(len(included))
    if model is None and len(_first_releases(plan, network)) > 1:  # a canary then needs a place in several layers
        network = CanaryNetwork(len(included) * len(network.layers))
    if model is None:
        model, loss_fn, example = network, CanaryNetwork.loss, network.example
    elif loss_fn is None or data is None:
        raise InvalidArgument(
            "model", type(model).__name__, "its loss or its data is missing", "Pass loss_fn and data too"
        )
    else:
        model, example = copy_of(model), as_records(data).example
    releases = _first_releases(plan, model)
    coordinates = deal_coordinates(releases, _sizes(model), len(included))
    amount = EXCESS * max(release.threshold for release in releases)
    watched = _Watched(clip, list(_sizes(model)), coordinates, amount)
    end_to_end = model is network and len(releases) == 1
    if end_to_end:
        records = network.records(coordinates[included, 0], amount)
    else:
        records = CanaryGradients.records(np.flatnonzero(included), example)
    mode = require_trainable(model, loss_fn, records)
    session = open_session(
        model,
        build_optimizer(model, "sgd", _LEARNING_RATE),
        records,
        budget=budget,
        sampling=sampling,
        clip=watched,
        noise=noise,
        execution=execution,
        randomness=randomness,
        out=None,
        ledger=None,
        mode=mode,
        own_loop=False,
    )
    if not end_to_end:
        engine = CanaryGradients(build_engine(model, mode), coordinates, amount)
        session.curator = Curator(records, engine, session.account, randomness, execution)
    return session, loss_fn, watched


def _threshold_test(
    scores: Scores, included: NDArray[np.bool_], coins: np.random.Generator, confidence: float
) -> tuple[float, ErrorRates]:
    """Choose the threshold with the largest μ on some canaries; count its errors on the others, for which it is then fixed."""
    choosing = np.zeros(len(scores), dtype=bool)
    choosing[coins.permutation(len(scores))[: round(FOR_THRESHOLD * len(scores))]] = True
    candidates = np.quantile(scores[choosing], np.linspace(0, 1, _CANDIDATES + 2)[1:-1])
    best = max(candidates, key=lambda threshold: _errors(scores, included, choosing, threshold, confidence).mu)
    return float(best), _errors(scores, included, ~choosing, best, confidence)


def _errors(
    scores: Scores, included: NDArray[np.bool_], part: NDArray[np.bool_], threshold: float, confidence: float
) -> ErrorRates:
    guessed = scores > threshold
    absent, present = part & ~included, part & included
    return ErrorRates(
        false_positives=int((guessed & absent).sum()),
        absent=int(absent.sum()),
        false_negatives=int((~guessed & present).sum()),
        present=int(present.sum()),
        confidence=confidence,
    )


def _correct_guesses(scores: Scores, included: NDArray[np.bool_], guesses: int) -> int:
    """Guess that the highest scores are members and the lowest are not, half and half; count what is right."""
    ranked = included[np.argsort(scores, kind="stable")]
    lowest = guesses // 2
    return int((~ranked[:lowest]).sum() + ranked[len(ranked) - (guesses - lowest) :].sum())
