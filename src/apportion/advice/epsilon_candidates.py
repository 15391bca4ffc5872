"""Which ε, which δ, and how many runs: prices and an attacker's view of candidates, before any record is read.

For each candidate ε the noise is solved from the plan of one run. From that noise follow

- the noise on the mean gradient of a batch in thresholds, z/(q·N), by which runs on different data can be compared roughly: how much a run
  learns depends on it, on the number of steps and on the model;
- what an attacker can achieve (`accounting.attacker`), from the whole curve δ(ε) of that noise, and from (ε, δ) alone;
- what each of k equal runs may spend if ε is the limit of all of them (`accounting.sharing`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from apportion import validate
from apportion.accounting.accountant import PrivacyLossAccountant, count_events
from apportion.accounting.attacker import advantage, true_positive_rate
from apportion.accounting.sharing import equal_runs
from apportion.advice.kept_table import KeptResult, kept_results, middle_multiplier, noise_per_update
from apportion.budget import Budget, Record, Unit
from apportion.errors import InvalidArgument
from apportion.planning import Plan, find_recipe, plan_steps
from apportion.reporting.statements import bound_guesses, bound_true_positives
from apportion.sampling import Sampling
from apportion.strategies.recipes import Recipe

EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Candidates if nobody names some."""
RARELY = 0.001
"""The false-positive rate at which an attacker's test is judged."""
ALIKE = 2.0
"""Kept results with at most so many times more or less noise per update are shown beside a candidate."""


@dataclass(frozen=True)
class Shares:
    """ε as the limit of k equal runs.

    Args:
        runs: k.
        gaussian: ε of each, at the limit's δ, under the Gaussian rule; `gaussian_noise` is its noise multiplier √(z_1·z_T).
        sum: ε/k of each, at δ/k, under the sum rule, and its noise.
        cheaper: the rule whose runs need less noise.
    """

    runs: int
    gaussian: float
    gaussian_noise: float
    sum: float
    sum_noise: float

    @property
    def cheaper(self) -> str:
        return "gaussian" if self.gaussian_noise <= self.sum_noise else "sum"


@dataclass(frozen=True)
class Candidate:
    """What one ε means for the run that was described.

    Args:
        epsilon: ε.
        noise_multiplier: √(z_1·z_T) of the plan.
        noise_per_update: z/(q·N).
        right_guesses: how often a guess is right at most, when a fair coin decides whether a record is used: by this noise.
        right_guesses_by_epsilon: the same, by ε and δ alone.
        recognised: the largest share of used records that a test recognises while it mistakes 1 in 1,000 unused ones.
        shares: ε as the limit of several equal runs, where that was asked for.
        accuracy: of a dry run, where there was one.
    """

    epsilon: float
    noise_multiplier: float
    noise_per_update: float
    right_guesses: float
    right_guesses_by_epsilon: float
    recognised: float
    shares: Shares | None = None
    accuracy: float | None = None

    def alike(self) -> list[KeptResult]:
        """Kept results with about the same noise per update, the closest first."""
        far = {one: abs(math.log(one.noise_per_update / self.noise_per_update)) for one in kept_results()}
        return sorted((one for one in far if far[one] <= math.log(ALIKE)), key=far.__getitem__)


@dataclass(frozen=True)
class Advice:
    """What to know before ε and δ are decided. `plans` are the plans behind the candidates, in their order.

    Args:
        recipe, unit, sampling, delta: what was described.
        delta_reason: why this δ, in words.
        candidates: one for each ε, from the smallest to the largest.
        dry_run_data: what dry runs were made on.
    """

    recipe: str
    unit: str
    sampling: Sampling
    delta: float
    delta_reason: str
    candidates: tuple[Candidate, ...]
    plans: tuple[Plan, ...]
    dry_run_data: str | None = None

    def with_accuracies(self, accuracies: Sequence[float | None], data: str) -> Advice:
        """With what dry runs on `data` reached, one for each candidate."""
        tried = zip(self.candidates, accuracies, strict=True)
        return replace(self, candidates=tuple(replace(one, accuracy=found) for one, found in tried), dry_run_data=data)

    def to_json(self) -> dict[str, Any]:
        """What `apportion advise --json` prints."""
        return {
            "recipe": self.recipe,
            "unit": self.unit,
            "population": self.sampling.population,
            "sample_rate": self.sampling.sample_rate,
            "expected_batch_size": self.sampling.expected_batch_size,
            "steps": self.sampling.steps,
            "delta": self.delta,
            "delta_reason": self.delta_reason,
            "candidates": [_describe(one) for one in self.candidates],
            "dry_run_data": self.dry_run_data,
            "kept_results": [one.to_json() | {"noise_per_update": one.noise_per_update} for one in kept_results()],
        }


def advise(
    recipe: str | Recipe = "default",
    *,
    population: int,
    unit: Unit | None = None,
    epsilons: Sequence[float] = EPSILONS,
    delta: float | None = None,
    runs: int | None = None,
    batch_size: int | None = None,
    sample_rate: float | None = None,
    epochs: float | None = None,
    steps: int | None = None,
) -> Advice:
    """Compare values of ε for a run that is described by public figures. Reads no record and charges nothing.

    Args:
        recipe: as of `plan`.
        population: N, the declared number of records, or of users.
        unit: whom the guarantee protects; by default a record.
        epsilons: the candidates for ε.
        delta: δ; by default the one of `suggest_delta`.
        runs: k, to see ε as the limit of k equal runs as well.
        batch_size, sample_rate, epochs, steps: as of `plan`.

    Source:
        attacker's bounds: Kairouz, Oh and Viswanath 2015; equal runs: the rules of `docs/accounting.md`.

    Guarantee:
        none is given: nothing was released. The bounds hold for runs that execute these plans.

    Examples:
        >>> import apportion as ap
        >>> advice = ap.advise(population=4000, sample_rate=0.1, steps=100, epsilons=[1.0], runs=5)
        >>> advice.delta
        1e-05
        >>> one = advice.candidates[0]
        >>> one.right_guesses < one.right_guesses_by_epsilon < 0.732
        True
        >>> one.shares.sum < one.shares.gaussian < 0.5
        True
    """
    chosen, protected = find_recipe(recipe), unit or Record()
    sampling = Sampling.declare(
        population=population, batch_size=batch_size, epochs=epochs, sample_rate=sample_rate, steps=steps
    )
    if not chosen.private:
        raise InvalidArgument("recipe", chosen.name, "it trains without privacy", "Name a private recipe")
    if not len(epsilons):
        raise InvalidArgument("epsilons", epsilons, "there is nothing to compare", "Try [0.5, 1.0, 2.0]")
    decided = suggest_delta(sampling.population) if delta is None else validate.delta(delta)
    budgets = [Budget(epsilon=one, delta=decided, unit=protected) for one in sorted(set(epsilons))]
    plans = tuple(plan_steps(chosen, budget, sampling) for budget in budgets)
    return Advice(
        recipe=chosen.name,
        unit=protected.name,
        sampling=sampling,
        delta=decided,
        delta_reason=_explain_delta(decided, sampling.population, protected.name),
        candidates=tuple(_candidate(plan, runs) for plan in plans),
        plans=plans,
    )


def suggest_delta(population: int) -> float:
    """The largest power of ten that is at most a tenth of 1/N.

    Whoever publishes one random record in full, and nothing else, satisfies ε = 0 and δ = 1/N. So δ must be well below 1/N to say anything.

    Args:
        population: N, a declared figure.

    Examples:
        >>> from apportion.advice import suggest_delta
        >>> suggest_delta(60_000), suggest_delta(4_000)
        (1e-06, 1e-05)
    """
    whole = validate.whole("population", population, "it is a number of people or records", "Try 60000")
    return float(f"1e-{math.ceil(math.log10(10 * whole))}")


def _explain_delta(delta: float, population: float, unit: str) -> str:
    publishing = (
        f"publishing one {unit} of {population:,} in full would satisfy δ = 1/{population:,} = {1 / population:.2g}"
    )
    if delta < 1 / population:
        return f"δ = {delta:g}: {publishing}, so δ must lie well below; this is {delta * population:.2g} times that"
    return f"δ = {delta:g} is too large: {publishing}. Take {suggest_delta(int(population)):g} or less"


def _candidate(plan: Plan, runs: int | None) -> Candidate:
    budget, noise = plan.budget, _middle(plan)
    guesses, recognised = (
        bound_guesses(budget.epsilon, budget.delta),
        bound_true_positives(budget.epsilon, budget.delta, RARELY),
    )
    by_noise = guesses, recognised
    if not plan.filtered:  # a filter promises (ε, δ) and no curve
        profile = PrivacyLossAccountant().profile(count_events(plan.tokens))
        by_noise = (1 + advantage(profile)) / 2, true_positive_rate(profile, RARELY)
    return Candidate(
        epsilon=budget.epsilon,
        noise_multiplier=noise,
        noise_per_update=noise_per_update(noise, plan.expected_batch_size),
        right_guesses=min(guesses, by_noise[0]),
        right_guesses_by_epsilon=guesses,
        recognised=min(recognised, by_noise[1]),
        shares=None if runs is None else _share(plan, runs),
    )


def _share(plan: Plan, runs: int) -> Shares:
    """ε of the plan as the limit of `runs` equal runs."""
    limit = plan.budget
    if plan.filtered:
        reason = f"the Gaussian rule admits no run under a filter, as {plan.recipe.name} needs, and the sum rule gives each ε/k"
        raise InvalidArgument("runs", runs, reason, "Leave it out, or name another recipe")

    def smaller(epsilon: float, delta: float) -> Plan:
        return plan_steps(plan.recipe, Budget(epsilon=epsilon, delta=delta, unit=limit.unit), plan.sampling)

    gaussian = equal_runs(lambda epsilon: count_events(smaller(epsilon, limit.delta).tokens), limit, runs)
    if not gaussian:
        reason = "not even a run of very little ε is admitted so often"
        raise InvalidArgument("runs", runs, reason, "Use fewer runs, more steps or a larger limit")
    added = limit.epsilon / runs
    by_sum = smaller(added, limit.delta / runs)
    return Shares(runs, gaussian, _middle(smaller(gaussian, limit.delta)), added, _middle(by_sum))


def _middle(plan: Plan) -> float:
    return middle_multiplier(plan.multipliers[0], plan.multipliers[-1])


def _describe(one: Candidate) -> dict[str, Any]:
    shares = None if one.shares is None else asdict(one.shares) | {"cheaper": one.shares.cheaper}
    return asdict(one) | {"shares": shares, "alike": [kept.to_json() for kept in one.alike()]}
