"""The plan: a recipe calibrated to a budget, before any record is read. It is what people review and hand on, and what a run executes.

    plan = apportion.plan("du-dynamic", budget=..., population=60_000, batch_size=1024, epochs=20)

Imports no torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from typing import Any

from apportion import validate
from apportion.accounting.accountant import Accountant, PrivacyLossAccountant, RunningPrice, count_events
from apportion.accounting.calibration import calibrate, longest_affordable
from apportion.accounting.group_calibration import GroupProblem
from apportion.accounting.rules import (
    FixedPlan,
    Multiset,
    Rule,
    fits,
)
from apportion.budget import Budget, Selector, User, require_budget
from apportion.channel_norm import ChannelNorm
from apportion.errors import InvalidArgument
from apportion.event import Event, GroupFactors, event_for, rate_of_any
from apportion.plan_files import FORMAT, describe_budget, edited, read_budget, read_content, spread
from apportion.plan_filters import choose_filter, reference_run, smallest_scale
from apportion.releases import ClippedSum, Noised, NormHistogram, NormSum, UsableCount
from apportion.request import Request
from apportion.sampling import MOST_STEPS, Sampling
from apportion.strategies.context import Context
from apportion.strategies.descriptions import build
from apportion.strategies.people import IndividualEstimate, IndividualFilter, Scale
from apportion.strategies.recipes import Recipe, named
from apportion.strategies.roles import (
    AskGradient,
    AskingUpdate,
    Clip,
    FeedbackNoise,
    MultisetNoise,
    NoiseSchedule,
    Question,
    SteeringUpdate,
)
from apportion.usable import UsableCheck

ROWS = 6
"""Of a printed plan."""
POINTS = 40
"""At how many steps the budget spent so far is priced for a drawing."""
_PROMISES = {
    True: "it is promised whatever is spent; the multipliers are those of a reference run that just fits",
    False: "it covers these multipliers in any order that released values suggest",
}
_RELATIVE = ("the multiplier of a step is in proportion to it", "Return a positive number from relative(context)")
_SAME_PRICE, _SAME_SHAPE = 1e-6, 1e-9  # relative; rounding of another machine is far below


@dataclass(frozen=True)
class Plan:
    """What will be asked of the private records, step by step, and what it costs. Made by `apportion.plan`.

    Two plans are equal if they mean the same: the same choices for all roles, budget, sampling and multipliers.

    Args:
        recipe: the strategies.
        budget: ε, δ and the unit of privacy.
        sampling: population, sampling rate and the number of steps that were asked for.
        multipliers: z_1..z_T. Thresholds are not here: they may follow released values. If the multipliers follow released values too,
            these are the declared tokens of a multiset, or under a filter those of a reference run that just fits into it.
        spare: tokens beyond the T steps, for steps that are taken again after a crash. They have the smallest multiplier of the plan,
            so that each covers any step, and cost like any other. A filter needs none: it pays for what is asked.
        factors: of each group of the budget, in its order; none if the budget is the same for everybody.
        usable: in how many of the first steps, and with which share of their price, usable records are counted; `None` for no count.
        norm: the question that is asked once before the first step, for the normalisation of features; `None` for none.

    Examples:
        >>> import apportion as ap
        >>> budget = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())
        >>> plan = ap.plan("abadi", budget=budget, population=60_000, batch_size=600, steps=1000)
        >>> f"z = {plan.multipliers[0]:.2f}, ε = {plan.epsilon:.2f}"
        'z = 0.70, ε = 3.00'
        >>> ap.Plan.from_json(plan.to_json()) == plan
        True
    """

    recipe: Recipe
    budget: Budget
    sampling: Sampling
    multipliers: tuple[float, ...]
    spare: int = 0
    factors: tuple[GroupFactors, ...] = ()
    usable: UsableCheck | None = None
    norm: ChannelNorm | None = None

    def __post_init__(self) -> None:
        for name, kind in (("recipe", Recipe), ("sampling", Sampling)):
            if not isinstance(value := getattr(self, name), kind):
                raise InvalidArgument(name, validate.shown(value), f"it is not a {kind.__name__}", "Use apportion.plan")
        require_budget("budget", self.budget)
        _require_noise(self.recipe)
        self.recipe.require_complete()
        reason = "without noise there is no privacy"
        positive = (validate.positive("multipliers", one, reason, "Use apportion.plan") for one in self.multipliers)
        validate.store(self, multipliers=tuple(positive), spare=_require_spare(self.spare, self.recipe))
        if self.usable is not None and (type(self.usable) is not UsableCheck or self.usable.steps > self.steps):
            reason = f"it is not a UsableCheck of at most {self.steps} steps"
            raise InvalidArgument("usable", validate.shown(self.usable), reason, "Use apportion.plan")
        _require_norm(self.norm, self.recipe, self.budget)
        if len(self.factors) != len(self.budget.groups):
            raise InvalidArgument(
                "factors",
                f"{len(self.factors)} of them",
                f"the budget has {len(self.budget.groups)} groups",
                "Use apportion.plan",
            )
        if not 0 < len(self.multipliers) <= self.sampling.steps:
            raise InvalidArgument(
                "multipliers",
                f"{len(self.multipliers)} of them",
                f"{self.sampling.steps} steps were asked for, and each that is taken has one",
                "Use apportion.plan",
            )

    def __repr__(self) -> str:
        """One line, cheap and short also for thousands of steps; `print(plan)` shows the schedule and its price."""
        first, last = self.multipliers[0], self.multipliers[-1]
        return f"Plan({self.recipe.name!r}, {self.budget!r}, {self.sampling!r}, z = {first:.4g} → {last:.4g}, spare={self.spare})"

    @property
    def clip(self) -> Clip:
        assert self.recipe.clip is not None
        return self.recipe.clip

    @cached_property
    def noise(self) -> NoiseSchedule | FeedbackNoise:
        return _require_noise(self.recipe)

    @cached_property
    def _feedback(self) -> FeedbackNoise | None:
        """The noise, if it chooses from released values. To ask whether it does takes as long as a small layer."""
        return self.noise if isinstance(self.noise, FeedbackNoise) else None

    @property
    def steps(self) -> int:
        """T: the draws that are asked for, or as many of them as the budget affords at a given multiplier. A filter may allow fewer."""
        return len(self.multipliers)

    @property
    def scale(self) -> float:
        """Of multipliers that are chosen from released values, z_t = scale·r_t."""
        return self.multipliers[0]

    @property
    def filtered(self) -> bool:
        """Whether a filter decides, event by event, what is paid for, instead of tokens that are declared in advance."""
        return self.recipe.needs_filter

    @cached_property
    def tokens(self) -> tuple[Event, ...]:
        """The events of its multipliers in order, then the spare ones. All are declared to the account, but for a filter."""
        multipliers = self.multipliers + (min(self.multipliers),) * self.spare
        rate, coins = self.sampling.sample_rate, self.budget.unit.coins_per_unit
        return tuple(event_for(rate, multiplier, self.factors, (), coins) for multiplier in multipliers)

    @property
    def declared(self) -> tuple[Event, ...]:
        """All events that the account is told of in advance: the tokens, and last what is asked before the first step."""
        return self.tokens if self.norm is None else (*self.tokens, self.norm.event())

    @property
    def expected_batch_size(self) -> float:
        """The public constant by which sums are divided: the expected number of records, or of users, in a batch."""
        rate = rate_of_any(self.sampling.sample_rate, self.budget.unit.coins_per_unit)
        return rate * self.sampling.population

    def group_epsilon(self, name: str) -> float:
        """The price of all tokens for a member of a group, at most that group's ε."""
        return self.rule().epsilon(self.budget.delta, self.budget.group_number(name))

    def with_owners(self, *, ids: Selector | None = None, labels: Selector | None = None) -> Plan:
        """The same plan with whose each record is, and in which group: a plan from a file does not hold them.

        Args:
            ids: as of `User`.
            labels: as of `Budget`.
        """
        budget = self.budget
        if ids is not None:
            if not isinstance(budget.unit, User):
                reason = f"the unit of privacy of the plan is the {budget.unit.name}"
                raise InvalidArgument("ids", type(ids).__name__, reason, "Leave them out")
            budget = replace(budget, unit=replace(budget.unit, ids=ids))
        if labels is not None:
            if not budget.groups:
                raise InvalidArgument("labels", type(labels).__name__, "the budget has no groups", "Leave them out")
            budget = replace(budget, labels=labels)
        return replace(self, budget=budget)

    def with_usable_count(self) -> Plan:
        """The same plan with a count of usable records in its first steps, at the same ε, if that costs little enough.

        Where single people have accounts of their own, there is none: it is not in their bounds.
        """
        if isinstance(self.recipe.people, (IndividualEstimate, IndividualFilter)):
            return self
        coins = self.budget.unit.coins_per_unit
        like = Request(
            self.sampling.sample_rate, 1.0, self.expected_batch_size, (ClippedSum(1.0),), self.factors, coins
        )
        return replace(self, usable=UsableCheck.affordable(self.multipliers, like.expected_weight))

    @property
    def accountant(self) -> str:
        """The name of what prices it."""
        return self.rule().name if self.filtered else PrivacyLossAccountant.name

    @cached_property
    def epsilon(self) -> float:
        """The price of all tokens at the budget's δ; at most the budget's ε. Computed from the multipliers, never stored."""
        return self.rule().epsilon(self.budget.delta)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, also one from a pickle, is checked and priced anew: what was computed before is left behind. So is whose the records
        are (`with_owners`): a file must not hold it."""
        budget = replace(self.budget, labels=None)
        if isinstance(budget.unit, User):
            budget = replace(budget, unit=replace(budget.unit, ids=None))
        parts = (self.recipe, budget, self.sampling, self.multipliers, self.spare, self.factors, self.usable, self.norm)
        return Plan, parts

    def rule(self) -> Rule:
        """The rule under which an account executes the plan: it follows from the types of the strategies (`strategies/roles.py`)."""
        if self.filtered:
            return choose_filter(self.recipe, self.budget, self.tokens)
        if isinstance(self.noise, MultisetNoise):
            return Multiset(count_events(self.tokens), self.budget, self.steps)
        return FixedPlan(self.tokens, self.spare, first=None if self.norm is None else self.norm.event())

    def context(self, step: int, parameter_shapes: Mapping[str, tuple[int, ...]], noise_state: Any = None) -> Context:
        """The public facts at a step (1-based), with the multiplier that the noise chooses in `noise_state`, if it is one that does."""
        noise = self._feedback
        if noise is None:
            return self._context(step, self.multipliers[step - 1], parameter_shapes)
        before = self._context(step, self.scale, parameter_shapes)
        relative = validate.positive("noise.choose", noise.choose(noise_state, before), *_RELATIVE)
        return replace(before, noise_multiplier=self.scale * relative)

    def _context(self, step: int, multiplier: float, shapes: Mapping[str, tuple[int, ...]]) -> Context:
        rate, size = self.sampling.sample_rate, self.expected_batch_size
        return Context(step, self.steps, rate, size, multiplier, shapes)

    def begin_noise(self, parameter_shapes: Mapping[str, tuple[int, ...]]) -> Any:
        """The state of the noise before the first step; `None` for a schedule, which has none."""
        noise = self._feedback
        return None if noise is None else noise.init(self._context(1, self.scale, parameter_shapes))

    def request(
        self, context: Context, clip_state: Any, question: Question | None = None, last: Request | None = None
    ) -> Request:
        """The roles' parts of one draw, merged into the object that is both executed and priced.

        Args:
            question: of an update that asks; an ordinary gradient if it is not given.
            last: what this plan asked before. It is returned if the same is asked again, as in most steps of a schedule.
        """
        rate, size, coins = self.sampling.sample_rate, self.expected_batch_size, self.budget.unit.coins_per_unit
        question = question or AskGradient()
        if not isinstance(question, AskGradient):
            return Request(rate, math.inf, size, (question,), self.factors, coins)
        if question.noise != 1:
            context = replace(context, noise_multiplier=context.noise_multiplier * question.noise)
        releases = self.clip.propose(clip_state, context)
        if question.threshold != 1:
            releases = tuple(scale_threshold(release, question.threshold) for release in releases)
        if self.usable is not None and context.step <= self.usable.steps:
            releases = _with_count(releases, self.usable.share)
        same_noise = last is not None and last.noise_multiplier == context.noise_multiplier
        if last is not None and same_noise and not last.holds_tensors and last.releases == releases:
            return last
        return Request(rate, context.noise_multiplier, size, releases, self.factors, coins)

    def thresholds(self) -> list[float]:
        """The first threshold of each step, as far as it is known before anything was released."""
        shapes = {"parameter": (1,)}  # the model is not known here
        noise_state = self.begin_noise(shapes)
        contexts = [self.context(step, shapes, noise_state) for step in range(1, self.steps + 1)]
        state = self.clip.init(contexts[0])
        self.request(contexts[0], state)  # refuses what cannot be asked
        releases = (self.clip.propose(state, context) for context in contexts)
        return [next(one.threshold for one in step if isinstance(one, ClippedSum)) for step in releases]

    def spending(self, points: int = POINTS, group: int | None = None) -> list[tuple[int, float]]:
        """(step, ε of the steps so far) at the first step, then evenly spaced up to the last; the whole price at each, if prices
        follow released values. For everybody, or for a group by its number."""
        shown = {1, *(math.ceil(self.steps * number / points) for number in range(1, points + 1))}
        if self.rule().adaptive:
            return [(step, self.rule().epsilon(self.budget.delta, group)) for step in sorted(shown)]
        tokens = self.tokens if group is None else tuple(one.of_group(group) for one in self.tokens)
        first = self.declared[len(self.tokens) :]
        running = RunningPrice(count_events([*tokens, *first]), self.budget.delta)
        spent = []
        for event in first:
            running.add(event)
        for step, token in enumerate(tokens[: self.steps], start=1):
            running.add(token)
            if step in shown:
                spent.append((step, running.epsilon()))
        return spent

    def __str__(self) -> str:
        """A table: the facts, and noise, threshold and ε spent at a few steps."""
        sampling, budget = self.sampling, self.budget
        shortened = f" of {sampling.steps:,} asked for" if self.steps < sampling.steps else ""
        lines = [
            f"{self.recipe.name}: ε = {self.epsilon:.4f} of {budget.epsilon:g}, δ = {budget.delta:g}, unit: one {budget.unit.name}",
            *([f"rule: {self.rule().name}; {_PROMISES[self.filtered]}"] if self.rule().adaptive else []),
            f"{self.steps:,} steps{shortened}, {self.spare:,} spare; q = {sampling.sample_rate:.4g}, "
            f"{self.expected_batch_size:g} of {sampling.population:,} expected in a batch",
            *self._group_lines(),
            *self._coin_lines(),
            self.describe_usable_count(),
            *self._norm_lines(),
            f"{'step':>9}{'epoch':>8}{'noise z':>10}{'clip C':>10}{'ε so far':>10}",
        ]
        thresholds = self.thresholds()
        for step, spent in self.spending(ROWS):
            epoch = self._context(step, self.multipliers[step - 1], {}).epoch
            lines.append(
                f"{step:>9,}{epoch:>8,}{self.multipliers[step - 1]:>10.4g}{thresholds[step - 1]:>10.4g}{spent:>10.4f}"
            )
        return "\n".join(lines)

    def coin_prices(self) -> Mapping[str, float]:
        """z/B, the noise in thresholds for each user that is expected in a batch, with coins for users and with coins for records.

        Both at the same rate q, and so with as many records in a batch, if users have about k_max of them. The smaller one is cheaper.
        """
        unit, rate = self.budget.unit, self.sampling.sample_rate
        if not isinstance(unit, User) or unit.k_max is None or self.filtered or self.factors:
            return {}
        shape = [one / self.multipliers[0] for one in self.multipliers]
        prices = {}
        for coins, count in (("user", 1), ("record", unit.k_max)):
            unit_rate = rate_of_any(rate, count)
            beside = self.declared[len(self.tokens) :]
            solve = partial(calibrate, PrivacyLossAccountant(), shape, sample_rate=unit_rate, beside=beside)
            scale = solve(epsilon=self.budget.epsilon, delta=self.budget.delta)
            prices[coins] = scale / (unit_rate * self.sampling.population)
        return prices

    def _coin_lines(self) -> list[str]:
        """Which kind of coins is cheaper."""
        prices = self.coin_prices()
        if not prices:
            return []
        cheaper = min(prices, key=prices.__getitem__)
        shown = ", ".join(f"for {coins}s {price:.4g}" for coins, price in prices.items())
        return [
            f"noise for each user in a batch, in units of C, with coins {shown}: coins={cheaper!r} is cheaper if users have k_max records"
        ]

    def describe_usable_count(self) -> str:
        """In words: in which steps usable records are counted, and what that costs."""
        if self.usable is None:
            return (
                "usable records are not counted: if all of them fail, the budget is spent on noise, and nothing says so"
            )
        return (
            f"usable records are counted in the first {self.usable.steps} steps, with {self.usable.share:.2%} of their price; if fewer "
            "than half are, the run stops"
        )

    def norm_facts(self) -> dict[str, float] | None:
        """The question before the first step, and what it and the steps would cost alone; `None` for no question."""
        if self.norm is None:
            return None
        price, delta = PrivacyLossAccountant(), self.budget.delta
        return {
            **asdict(self.norm),
            "epsilon_alone": price.epsilon({self.norm.event(): 1}, delta),
            "epsilon_of_steps": price.epsilon(count_events(self.tokens), delta),
        }

    def _norm_lines(self) -> list[str]:
        facts = self.norm_facts()
        return [] if facts is None else [describe_norm(facts)]

    def _group_lines(self) -> list[str]:
        """What each group gets and pays."""
        if not self.factors:
            return []
        lines = [f"{'group':>12}{'share':>8}{'rate':>11}{'clip':>9}{'ε':>9}{'budget':>9}"]
        for group, one in zip(self.budget.groups, self.factors, strict=True):
            rate = f"{self.sampling.sample_rate * one.rate:.4g}"
            spent = self.group_epsilon(group.name)
            lines.append(
                f"{group.name:>12}{group.share:>8.3g}{rate:>11}{one.clip:>8.3g}C{spent:>9.4f}{group.epsilon:>9g}"
            )
        return lines

    def _repr_html_(self) -> str:
        """For notebooks: noise, threshold and ε spent, drawn."""
        from apportion.plan_drawing import draw_plan

        return draw_plan(self)

    def describe(self) -> dict[str, Any]:
        """The plan as data, but for its price: what `to_json` writes, and what a checkpoint compares."""
        multipliers = [[multiplier, sum(1 for _ in group)] for multiplier, group in groupby(self.multipliers)]
        return {
            "recipe": self.recipe.describe(),
            "budget": describe_budget(self.budget),
            "sampling": asdict(self.sampling),
            "spare": self.spare,
            "multipliers": multipliers,
            **({"factors": [asdict(one) for one in self.factors]} if self.factors else {}),
            **({"usable": asdict(self.usable)} if self.usable is not None else {}),
            **({"norm": asdict(self.norm)} if self.norm is not None else {}),
        }

    def to_json(self) -> str:
        """A text for a file, for review and for `from_json`. Equal multipliers in a row are one pair [z, how often]."""
        content = {"apportion_plan": FORMAT, **self.describe(), "epsilon": self.epsilon, "accountant": self.accountant}
        pairs = ",\n  ".join(json.dumps(pair) for pair in content.pop("multipliers"))  # one line each, to be reviewed
        text = json.dumps(content, indent=1, ensure_ascii=False).removesuffix("\n}")
        return f'{text},\n "multipliers": [\n  {pairs}\n ]\n}}\n'

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote. Its price is computed again, and an edited plan whose price does not follow is refused."""
        content = read_content(text)
        try:
            described = content["recipe"]
            roles: dict[str, Any] = {
                role: None if described.get(role) is None else build(role, described[role])
                for role in ("clip", "noise", "update", "people", "model")
            }
            plan = cls(
                recipe=Recipe(**roles, name=str(described["name"])),
                budget=read_budget(content["budget"]),
                sampling=Sampling.declare(**content["sampling"]),
                multipliers=tuple(spread(content["multipliers"])),
                spare=content["spare"],
                factors=tuple(GroupFactors(**one) for one in content.get("factors", ())),
                usable=UsableCheck(**content["usable"]) if "usable" in content else None,
                norm=ChannelNorm(**content["norm"]) if "norm" in content else None,
            )
            stated = validate.positive("epsilon", content["epsilon"], "it is the plan's price", "Restore the file")
        except InvalidArgument:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise edited(f"a part of it is missing or has another form ({type(error).__name__}: {error})") from None
        plan._require_consistent(stated)
        return plan

    def _require_consistent(self, stated: float) -> None:
        """Refuse a plan whose price does not follow from its multipliers, or whose multipliers do not follow from its recipe."""
        if not math.isclose(stated, self.epsilon, rel_tol=_SAME_PRICE):
            raise edited(f"its multipliers cost ε = {self.epsilon:.6g}, and it states {stated:.6g}")
        if self.epsilon > self.budget.epsilon * (1 + _SAME_SHAPE):
            raise edited(f"it costs ε = {self.epsilon:.6g}, more than its budget of {self.budget.epsilon:g}")
        for group, one in zip(self.budget.groups, self.factors, strict=True):
            if self.group_epsilon(group.name) > group.epsilon * (1 + _SAME_SHAPE) or one.share != group.share:
                raise edited(f"the group {group.name!r} costs more than its budget, or has another share")
        if self.filtered and not fits(self.rule(), reference_run(self.recipe, count_events(self.tokens))):
            raise edited("its reference run does not fit into its filter")
        shape = _shape(self.recipe, self.sampling)[: self.steps]
        scale = self.noise.multiplier or self.multipliers[0] / shape[0]
        if any(
            not math.isclose(multiplier, scale * relative, rel_tol=_SAME_SHAPE)
            for multiplier, relative in zip(self.multipliers, shape, strict=True)
        ):
            raise edited("its multipliers are not those of its noise strategy")


def plan(
    recipe: str | Recipe = "default",
    *,
    budget: Budget,
    population: int | None = None,
    batch_size: int | None = None,
    sample_rate: float | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    spare: int = 0,
    count_usable: bool = True,
    norm: ChannelNorm | None = None,
) -> Plan:
    """Solve the noise from the budget, or, for a given multiplier, keep as many of its steps as the budget affords.

    Args:
        recipe: a name (`apportion recipes` lists them), one of `apportion.recipes`, or an `apportion.Recipe` of one's own.
        budget: ε, δ and the unit of privacy.
        population: the declared number of records, a public figure. It is never counted from the data: a count would differ between
            data sets with and without one record.
        batch_size, sample_rate: the expected batch size, or q itself (one of the two).
        epochs, steps: the length of the run (one of the two); an epoch is round(1/q) steps.
        spare: how many steps can be taken again, over the whole run, if crashes lose their results. They are part of the plan and
            cost like any other (100 spare ones beside 5,000 raise ε from 1.181 to 1.193). When they are used up, or there are
            none, a crash loses the steps since the last checkpoint instead.
        count_usable: whether a noisy count in the first few steps says how many records can be used, so that a run whose labels are all
            out of range stops instead of spending its budget on noise. It takes at most a hundredth of the price of these steps, and
            nothing beyond the budget (`apportion.usable`). Where batches are so small that it would cost more, there is none.
        norm: `apportion.features.ChannelNorm()`, if features are to be normalised by a question about all records, which is asked before
            the first step. Its price and that of the steps are composed exactly, so that together they cost the budget's ε.

    Returns:
        A `Plan`: `plan.epsilon`, `plan.multipliers`, `print(plan)`, `plan.to_json()`; for `train`, `make_private` and `audit.replay`.

    Raises:
        InvalidArgument: for a value that cannot be planned with; nothing is read or charged.
    """
    chosen = find_recipe(recipe)
    _require_noise(chosen)
    chosen.require_complete()
    require_budget("budget", budget)
    sampling = Sampling.declare(
        population=population, batch_size=batch_size, epochs=epochs, sample_rate=sample_rate, steps=steps
    )
    made = plan_steps(chosen, budget, sampling, spare, norm=norm)
    return made.with_usable_count() if count_usable else made


def plan_steps(
    recipe: Recipe,
    budget: Budget,
    sampling: Sampling,
    spare: int = 0,
    accountant: Accountant | None = None,
    norm: ChannelNorm | None = None,
) -> Plan:
    """`plan` for a sampling that was declared before.

    Args:
        accountant: solves the noise instead of ours, to reproduce what somebody published. The plan's ε is always the true one, and
            no run begins with a plan that costs more than its budget.
        norm: what is asked before the first step.
    """
    spare = _require_spare(spare, recipe)
    budget.warn_if_weak(sampling.population)
    recipe = _with_people(recipe, budget)
    noise = _require_noise(recipe)
    _require_norm(norm, recipe, budget)
    shape, rate = _shape(recipe, sampling), rate_of_any(sampling.sample_rate, budget.unit.coins_per_unit)
    if recipe.needs_filter:
        needed = smallest_scale(recipe, budget, rate, shape)
        scale = noise.multiplier or needed
        if scale < needed:
            reason = f"the reference run would need {needed:.4g}"
            raise InvalidArgument("noise.multiplier", scale, reason, "Leave it out to fit the budget")
        return Plan(recipe, budget, sampling, tuple(scale * relative for relative in shape))
    accountant, spares = accountant or PrivacyLossAccountant(), [min(shape)] * spare
    beside = () if norm is None else (norm.event(),)
    _require_affordable_norm(norm, budget)
    if recipe.people is not None and budget.groups:
        problem = GroupProblem(
            budget.groups, spares + shape, sampling.sample_rate, budget.delta, accountant, budget.unit.coins_per_unit
        )
        found = recipe.people.solve(problem)
        return Plan(recipe, budget, sampling, tuple(found.scale * one for one in shape), spare, found.factors)
    if noise.multiplier is None:
        promised = {"epsilon": budget.epsilon, "delta": budget.delta}
        scale = calibrate(accountant, spares + shape, sample_rate=rate, beside=beside, **promised)
        return Plan(recipe, budget, sampling, tuple(scale * relative for relative in shape), spare, norm=norm)
    events = [Event(rate, noise.multiplier * relative) for relative in spares + shape]  # of units, as they are charged
    fitting = longest_affordable(accountant, events, epsilon=budget.epsilon, delta=budget.delta, beside=beside)
    affordable = fitting - spare
    affordable -= affordable % _draws(recipe)
    if affordable <= 0 or (isinstance(noise, MultisetNoise) and affordable < len(shape)):
        raise InvalidArgument(
            "noise.multiplier",
            noise.multiplier,
            f"{'its tokens cost' if isinstance(noise, MultisetNoise) else 'a single step'}"
            f"{f' beside {spare} spare ones' if spare else ''} costs more than epsilon={budget.epsilon:g}",
            "Use more noise, a smaller sampling rate or a larger budget; or leave it out to fit the budget",
        )
    kept = events[spare : spare + affordable]
    return Plan(recipe, budget, sampling, tuple(event.noise_multiplier for event in kept), spare, norm=norm)


def find_recipe(recipe: str | Recipe) -> Recipe:
    """A recipe by its name, or as it is."""
    if isinstance(recipe, str):
        return named(recipe)
    if not isinstance(recipe, Recipe):
        raise InvalidArgument(
            "recipe",
            validate.shown(recipe),
            "it is neither the name of a recipe nor a Recipe",
            "Call it to get its recipe"
            if callable(recipe)
            else 'Pass for example "du-dynamic", or apportion.Recipe(clip=apportion.clip.Fixed(1.0))',
        )
    return recipe


def require_plan(value: object) -> Plan:
    """Return `value` if it is a plan."""
    if type(value) is not Plan:  # a subclass might execute something else than it prices
        raise InvalidArgument(
            "plan",
            value.name if isinstance(value, Recipe) else validate.shown(value),
            f"it is a {type(value).__name__}, and a run executes a Plan",
            "Pass apportion.plan(recipe, budget=..., population=..., batch_size=..., epochs=...)",
        )
    return value


def _require_spare(spare: int, recipe: Recipe) -> int:
    spare = validate.whole("spare", spare, "it is a number of steps", "Use 0 to have none", least=0)
    if spare and recipe.needs_filter:
        raise InvalidArgument(
            "spare", spare, "a filter pays for every draw as it comes, also for one that is taken again", "Leave it out"
        )
    if spare > MOST_STEPS:
        raise InvalidArgument("spare", spare, f"{MOST_STEPS:,} are the most", "Use a few hundred")
    return spare


def _with_people(recipe: Recipe, budget: Budget) -> Recipe:
    """The recipe with what groups get, where the budget has groups. Refuses what no rule covers together."""
    individual = isinstance(recipe.people, (IndividualEstimate, IndividualFilter))
    if isinstance(recipe.people, IndividualFilter) and (
        isinstance(recipe.noise, FeedbackNoise) or isinstance(recipe.update, AskingUpdate)
    ):
        raise InvalidArgument(
            "people",
            type(recipe.people).__name__,
            "it keeps a filter for each person, for multipliers that are known in advance",
            "Use a noise schedule, and an update that asks for gradients only",
        )
    if not budget.groups:
        if recipe.people is not None and not individual:
            raise InvalidArgument(
                "people",
                type(recipe.people).__name__,
                "it treats groups of people differently, and the budget is the same for everybody",
                "Use apportion.Budget.of_groups, or leave people out",
            )
        return recipe
    noise = _require_noise(recipe)
    reason, fix = "", ""
    if individual:
        reason = f"{type(recipe.people).__name__} keeps an account for each person, under one budget"
        fix = "Use people.Scale or people.Sample, or one budget for everybody"
    elif recipe.needs_filter:
        culprit = recipe.update if isinstance(recipe.update, AskingUpdate) else noise
        reason = f"{type(culprit).__name__} needs a filter, which covers one budget for everybody; groups need tokens that are declared"
        fix = "Use a noise schedule, or yu-validation, whose multiset covers groups"
    elif noise.multiplier is not None:
        reason = "rates and thresholds of the groups are solved together with the noise"
        fix = "Leave noise.multiplier out"
    if reason:
        raise InvalidArgument("budget.groups", [group.name for group in budget.groups], reason, fix)
    return recipe if recipe.people is not None else replace(recipe, people=Scale())


def _require_norm(norm: object, recipe: Recipe, budget: Budget) -> None:
    """Refuse a question before the first step that no rule covers together with the recipe."""
    if norm is None:
        return
    if type(norm) is not ChannelNorm:  # a subclass might ask something else than it prices
        reason = "it is not a ChannelNorm; group normalisation costs nothing, and belongs to the Extractor"
        raise InvalidArgument("norm", validate.shown(norm), reason, "Pass apportion.features.ChannelNorm()")
    reason = ""
    if recipe.needs_filter or isinstance(recipe.noise, MultisetNoise):
        reason = f"the noise of {recipe.name} follows released values, and it is asked beside a plan that is fixed in advance"
    elif budget.groups or isinstance(recipe.people, (IndividualEstimate, IndividualFilter)):
        reason = "it has one price for everybody, and people have budgets or accounts of their own here"
    elif isinstance(budget.unit, User) and budget.unit.pooling == "sum":
        reason = "sums over the records of a user have no mean of a record"
    if reason:
        raise InvalidArgument("norm", norm, reason, "Normalise features by groups, which costs nothing")


def _require_affordable_norm(norm: ChannelNorm | None, budget: Budget) -> None:
    if norm is None:
        return
    alone = PrivacyLossAccountant().epsilon({norm.event(): 1}, budget.delta)
    if alone >= budget.epsilon:
        reason = f"alone it costs ε = {alone:.4g}, and nothing of {budget.epsilon:g} is left for the steps"
        raise InvalidArgument("norm.multiplier", norm.multiplier, reason, "Use a larger multiplier, or a larger budget")


def describe_norm(facts: Mapping[str, float]) -> str:
    """The question before the first step and its price, in words."""
    return (
        f"channels are normalised by one question about all records, with z = {facts['multiplier']:g}, before the first step: alone "
        f"ε = {facts['epsilon_alone']:.4f}, the steps alone ε = {facts['epsilon_of_steps']:.4f}, and both together the ε above"
    )


def scale_threshold(release: Noised, factor: float) -> Noised:
    """The same release with its threshold or bound multiplied; a histogram tells of norms, whatever they are clipped to."""
    if isinstance(release, (NormHistogram, UsableCount)):
        return release
    if isinstance(release, NormSum):
        return replace(release, bound=release.bound * factor)
    return replace(release, threshold=release.threshold * factor)


def _with_count(releases: tuple[Noised, ...], share: float) -> tuple[Noised, ...]:
    """The releases of a clip and the count of usable records, which share one price."""
    if any(isinstance(one, UsableCount) for one in releases):
        reason = "the plan itself counts usable records"
        raise InvalidArgument("clip.propose", "UsableCount", reason, "Leave it out, or plan with count_usable=False")
    return (*(replace(one, share=one.share * (1 - share)) for one in releases), UsableCount(share=share))


def _require_noise(recipe: Recipe) -> NoiseSchedule | FeedbackNoise:
    """The noise of a recipe, which must be private."""
    if not recipe.private or recipe.noise is None:
        raise InvalidArgument("recipe", recipe.name, "it has no privacy to plan", "Choose a private recipe")
    return recipe.noise


def _shape(recipe: Recipe, sampling: Sampling) -> list[float]:
    """r_1..r_T: the multipliers in units of their scale; of a multiset those of its tokens, of feedback those of the reference run.

    An update that takes several draws for a step gets as many as whole steps need.
    """
    noise, draws = _require_noise(recipe), _draws(recipe)
    steps, rate, size = sampling.steps // draws * draws, sampling.sample_rate, sampling.expected_batch_size
    if not steps:
        raise InvalidArgument(
            "steps",
            sampling.steps,
            f"{type(recipe.update).__name__} takes {draws} draws for one step of its own",
            f"Use a multiple of {draws}",
        )
    if isinstance(noise, MultisetNoise):
        return [validate.positive("noise.levels", level, *_RELATIVE) for level in noise.levels(steps)]
    if isinstance(noise, FeedbackNoise):
        return [1.0] * steps
    contexts = (Context(step, steps, rate, size) for step in range(1, steps + 1))
    return [validate.positive("noise.relative", noise.relative(context), *_RELATIVE) for context in contexts]


def _draws(recipe: Recipe) -> int:
    return recipe.update.draws if isinstance(recipe.update, SteeringUpdate) else 1
