"""The statistical audit: attack the library with canaries and compare what the attack learns with the ε that the library claims.

One real run, with the real curator, account and randomness. Canaries are put into the data by the auditor's own coins, each with
probability ½; every release is scored; the scores are turned into guesses, and the guesses into lower bounds on ε (`bounds.py`).
A lower bound above the claim means a fault in the library. A lower bound below the claim is *not a proof* of privacy.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from torch import nn

from apportion import validate
from apportion.accounting.accountant import PrivacyLossAccountant, count_events
from apportion.audit.bounds import one_run_epsilon, trade_off
from apportion.audit.guessing import correct_guesses, threshold_test
from apportion.audit.planting import parameter_sizes, plant
from apportion.audit.replay import audited_recipe
from apportion.audit.verdict import AuditResult
from apportion.budget import Budget, Record
from apportion.curator.curator import LossFunction
from apportion.curator.randomness import Randomness
from apportion.execution import Execution
from apportion.planning import Plan
from apportion.planning import plan as make_plan
from apportion.strategies.recipes import Recipe
from apportion.training.loop import take_steps
from apportion.training.progress import progress_bar

GUESSED = 0.05
"""The part of the canaries about which the one-run bound guesses, those with the most extreme scores. Fixed beforehand."""
CANARIES = 10_000
_FEWEST = 100


def audit(
    model: nn.Module | None = None,
    loss_fn: LossFunction | None = None,
    data: Any = None,
    plan: Plan | Recipe | str = "abadi",
    *,
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
        plan: a plan, of which the recipe is audited, or a recipe, also by its name.
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
        canaries = CANARIES if model is None else max(_FEWEST, min(CANARIES, sum(parameter_sizes(model).values())))
    canaries = validate.whole(
        "canaries", canaries, "fewer cannot refute anything", f"Use at least {_FEWEST}", least=_FEWEST
    )
    validate.in_open_unit("confidence", confidence, "it is a probability", "Try confidence=0.95")
    validate.delta(delta)
    coins = np.random.default_rng(seed)
    included = coins.random(canaries) < 0.5
    planned = make_plan(
        audited_recipe(plan),
        budget=Budget(epsilon=epsilon, delta=delta, unit=Record()),
        population=canaries,
        sample_rate=sample_rate,
        steps=steps,
        count_usable=False,  # half of the declared canaries are left out on purpose
    )
    session, loss, watched = plant(
        model, loss_fn, data, included, planned, execution or Execution(), randomness or Randomness.fresh()
    )
    with progress_bar("audit", session.plan.steps, epsilon, enabled=progress) as show:
        take_steps(session, loss, show=show)
    scores = watched.scores
    each = 1 - (1 - confidence) / 2  # two bounds, so that both hold together
    threshold, errors = threshold_test(scores, included, coins, each)
    charged = count_events(session.account.ledger.events(session.account.run))
    claimed = session.account.epsilon()
    allowed = trade_off(PrivacyLossAccountant().profile(charged), largest=2 * claimed + 1)
    guesses = max(2, round(GUESSED * canaries))
    correct = correct_guesses(scores, included, guesses)
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
