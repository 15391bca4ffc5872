"""What may be charged to a run: the rules that an `Account` executes.

Thresholds, learning rates and queries may follow released values under any rule, because the price of a step depends on (q, z) only.
Choosing (q, z) itself, or whether to go on, from what was released needs a rule that allows it. Summing up the privacy loss of the
path that happened to be taken is *not* a guarantee: a controller that switches after 2,500 steps between 2,500 more at z = 1.2 and 25
at z = 0.682 stays at ε = 1.181 on either path, and its true ε is 1.2525.

| rule                 | declared in advance             | chosen on the way             | price                                  |
|----------------------|---------------------------------|-------------------------------|----------------------------------------|
| `FixedPlan`          | every (q_t, z_t), in order      | nothing                       | PLD of the plan                        |
| `Multiset`           | how often each (q, z) may occur | the order, and when to stop   | PLD of the whole multiset              |
| `RenyiFilter`        | (ε, δ), orders and weights      | any (q, z), any number        | (ε, δ); 8 to 36 % more than PLD        |
| `IndividualFilters`  | (ε, δ), the number of steps     | who takes part                | (ε, δ) for each person                 |
| `GaussianFilter`     | (ε, δ)                          | any z at q = 1, any number    | (ε, δ), tight                          |
| `ConcentratedFilter` | (ε, δ)                          | any z at q = 1, any number    | (ε, δ) by zCDP                         |

Under every rule, what prices a batch is fixed before its coins are tossed. That is structural: a `Request` holds one multiplier for all
that is released on its batch, and a drawn batch cannot be asked again.

A new rule is one class with the methods of `Rule`. It decides; the account writes what it allowed to the ledger before it counts as spent.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from apportion import validate
from apportion.accounting.accountant import Accountant, PrivacyLossAccountant, count_events
from apportion.accounting.gaussian import gaussian_mu
from apportion.accounting.renyi import ORDERS, renyi_curve, renyi_prices
from apportion.budget import Budget, require_budget
from apportion.errors import BudgetExhausted, InvalidArgument
from apportion.event import Event

LARGEST_MULTISET = 1_000_000
"""Tokens, each of which is written to the ledger."""
FIRST = 0
"""The step of a question that is asked before all others."""


class Rule(Protocol):
    """Decides, event by event, whether it is covered by what was declared. Charges are numbered; a number is charged at most once.

    Attributes:
        name: for people, and for the statement.
        validity: why the stated ε holds, in one sentence.
        declared: the events that are written to the ledger before the first charge; empty for a filter, which declares a budget.
        steps: how many steps a run under it has at most.
        adaptive: whether (q, z) may follow released values. The ε of what was charged so far is then no guarantee by itself.
    """

    name: str
    validity: str
    adaptive: bool

    @property
    def declared(self) -> tuple[Event, ...]: ...

    @property
    def terms(self) -> str:
        """All that was declared beside the events, in words: a run goes on only under the same terms."""
        ...

    @property
    def steps(self) -> int: ...

    def affords(self, step: int) -> bool:
        """Whether a step, which may have been charged before, can still be paid for."""
        ...

    def find_token(self, step: int, event: Event) -> int | None:
        """The number under which `event` can be charged at `step`; `None`, or `BudgetExhausted` with a reason, if there is none."""
        ...

    def require(self, token: int, step: int, event: Event) -> None:
        """Raise `BudgetExhausted` if charging `event` under this number is not covered. Changes nothing."""
        ...

    def spend(self, token: int, event: Event) -> None:
        """Count the charge."""
        ...

    def following(self, token: int, most: int) -> list[int]:
        """At most so many declared tokens that the next steps can spend after this one; none where prices are not declared."""
        ...

    def reset(self) -> None:
        """Forget all charges, to count them anew from a ledger."""
        ...

    def epsilon(self, delta: float, group: int | None = None) -> float:
        """The guarantee of everything that may be charged, at `delta`: for everybody, or for the members of a group, by its number."""
        ...


def events_of_group(events: Iterable[Event], group: int | None) -> Mapping[Event, int]:
    """How often each event occurs: as it covers everybody, or as it is for the members of a group."""
    return count_events(events if group is None else (event.of_group(group) for event in events))


def charge(rule: Rule, event: Event, step: int = 1) -> None:
    """Count `event` under the first number that covers it, or raise `BudgetExhausted` and change nothing."""
    token = rule.find_token(step, event)
    if token is None:
        raise BudgetExhausted(f"no declared step is left under the rule {rule.name!r}")
    rule.require(token, step, event)
    rule.spend(token, event)


def fits(rule: Rule, events: Mapping[Event, float]) -> bool:
    """Whether a filter, from its beginning, allows all of `events`, in any order; that of a person in the worst case. Changes nothing."""
    if isinstance(rule, IndividualFilters):
        rule = rule.each
    if isinstance(rule, RenyiFilter):
        return rule.allows(events)
    assert isinstance(rule, _UnsampledFilter)
    return math.fsum(n * rule.cost(event) for event, n in events.items()) <= rule.total


class FixedPlan:
    """Token t = (q_t, z_t) pays for step t; *spare* tokens pay for a step that is taken again because a crash lost its result.

    *Why it is valid.* Each token is spent at most once and only on an event that it covers (rate no larger, multiplier no smaller). So
    the ε of all tokens together bounds whatever happens, in whatever order.

    Args:
        tokens: the declared events: one for each step in order, then the spare ones.
        spare: how many of them, at the end, are spare. Each must cover every step that it may pay for.
        accountant: prices them; by default exact composition of privacy loss distributions.
        first: what is asked once before step 1, as step `FIRST`. Its token is the last one, and pays for nothing else.
    """

    name = terms = "plan fixed in advance"
    validity = (
        "plan fixed in advance: the multiplier of every step, and of the spare ones, was declared before any record was "
        "read; no step was paid for twice or not at all"
    )
    adaptive = False

    def __init__(
        self,
        tokens: Sequence[Event],
        spare: int = 0,
        accountant: Accountant | None = None,
        first: Event | None = None,
    ):
        self._accountant = PrivacyLossAccountant() if accountant is None else accountant
        self.declared = tuple(tokens) if first is None else (*tokens, first)
        self.steps, self._last_spare = len(tokens) - spare, len(tokens)
        self.reset()

    def reset(self) -> None:
        self._spent: set[int] = set()
        self._spares = iter(range(self.steps + 1, self._last_spare + 1))
        self._next_spare = next(self._spares, None)

    def affords(self, step: int) -> bool:
        return step not in self._spent or self._next_spare is not None

    def find_token(self, step: int, event: Event) -> int | None:
        if step == FIRST:
            token = len(self.declared)
            return token if token > self._last_spare and token not in self._spent else None
        return step if step not in self._spent else self._next_spare

    def require(self, token: int, step: int, event: Event) -> None:
        if token in self._spent or not 1 <= token <= len(self.declared):
            raise BudgetExhausted(f"token {token} of the plan is spent, or was never declared")
        declared = self.declared[token - 1]
        if not declared.covers(event):
            raise BudgetExhausted(
                f"step {step} asks for sample_rate={event.sample_rate:g}, noise_multiplier="
                f"{event.noise_multiplier:.6g}, but the plan declared {declared.sample_rate:g} and "
                f"{declared.noise_multiplier:.6g}. Only less sampling or more noise than declared is covered."
            )

    def following(self, token: int, most: int) -> list[int]:
        steps = range(token + 1, min(token + most, self.steps) + 1)
        return list(itertools.takewhile(lambda step: step not in self._spent, steps))

    def spend(self, token: int, event: Event) -> None:
        self._spent.add(token)
        while self._next_spare in self._spent:
            self._next_spare = next(self._spares, None)

    @property
    def spares_left(self) -> int:
        """How many lost steps can still be taken again."""
        return sum(token not in self._spent for token in range(self.steps + 1, self._last_spare + 1))

    def epsilon(self, delta: float, group: int | None = None) -> float:
        return self._accountant.epsilon(events_of_group(self.declared, group), delta)


class Multiset:
    """Declared tokens (q, z), spent in any order that released values suggest, each once or never.

    *Why it is valid.* By induction on the number of tokens: the first one is chosen before anything was released; whatever its answer,
    the rest costs at most H(S∖t); so the whole costs at most H(t × S∖t) = H(S), which is the same for every choice of t; and not
    spending tokens costs less. A token may be spent on an event that it covers (rate no larger and multiplier no smaller).

    Args:
        tokens: how often each event may be spent.
        budget: what they may cost together.
        steps: how many steps a run has, if tokens are left for steps that are taken again after a crash.
    """

    name = terms = "multiset of declared tokens, in any order"
    validity = (
        "multiset of tokens: how often each multiplier may occur was declared before any record was read, and each token was "
        "spent at most once; the order may follow released values"
    )
    adaptive = True

    def __init__(self, tokens: Mapping[Event, int], budget: Budget, steps: int | None = None):
        require_budget("budget", budget)
        given: object = tokens
        if not isinstance(given, Mapping):
            reason = "it is not a mapping of events to how often each may be spent"
            raise InvalidArgument("tokens", validate.shown(given), reason, "Try {Event(0.1, 2.0): 10}")
        counts = {
            token: validate.whole(
                "tokens", count, f"it is how often {token} may be spent", "Use whole numbers", least=0
            )
            for token, count in tokens.items()
        }
        if sum(counts.values()) > LARGEST_MULTISET:
            raise InvalidArgument(
                "tokens", sum(counts.values()), f"{LARGEST_MULTISET:,} tokens are the most", "Declare fewer"
            )
        self.declared = tuple(Counter(counts).elements())
        self.steps = len(self.declared) if steps is None else steps
        price = self.epsilon(budget.delta)
        if price > budget.epsilon:
            raise InvalidArgument(
                "tokens",
                f"{len(self.declared)} tokens",
                f"together they cost {price:.4g}, more than epsilon={budget.epsilon:g}",
                "Declare fewer tokens, or more noise",
            )
        self.reset()

    def reset(self) -> None:
        self._free: dict[Event, list[int]] = {}
        for number in range(len(self.declared), 0, -1):
            self._free.setdefault(self.declared[number - 1], []).append(number)

    @property
    def left(self) -> Mapping[Event, int]:
        """The tokens that can still be spent."""
        return {token: len(numbers) for token, numbers in self._free.items() if numbers}

    def affords(self, step: int) -> bool:
        return any(self._free.values())

    def find_token(self, step: int, event: Event) -> int | None:
        covering = [token for token in self.left if token.covers(event)]
        if not covering:
            raise BudgetExhausted(
                f"no unspent token covers sample_rate={event.sample_rate:g}, noise_multiplier={event.noise_multiplier:.6g}; left are "
                f"{ {(token.sample_rate, token.noise_multiplier): n for token, n in self.left.items()} }"
            )
        # The cheapest one that will do, so that stronger tokens are kept.
        cheapest = min(covering, key=lambda token: (token.sample_rate, -token.noise_multiplier, token.choices))
        return self._free[cheapest][-1]

    def require(self, token: int, step: int, event: Event) -> None:
        declared = self.declared[token - 1] if 1 <= token <= len(self.declared) else None
        if declared is None or token not in self._free[declared] or not declared.covers(event):
            raise BudgetExhausted(
                f"token {token} is spent, was never declared, or does not cover what step {step} asks for"
            )

    def following(self, token: int, most: int) -> list[int]:
        alike = reversed(self._free[self.declared[token - 1]])
        return list(itertools.islice((one for one in alike if one != token), most))

    def spend(self, token: int, event: Event) -> None:
        self._free[self.declared[token - 1]].remove(token)

    def epsilon(self, delta: float, group: int | None = None) -> float:
        return PrivacyLossAccountant().epsilon(events_of_group(self.declared, group), delta)


class _Filter:
    """What filters have in common: nothing is declared but the budget, and charges are numbered as they come."""

    validity = (
        "filter: every multiplier was chosen before its batch was drawn, and a step that would have exceeded the declared budget, "
        "by what had been spent before it, was refused"
    )
    name: str
    adaptive = True
    declared: tuple[Event, ...] = ()

    def __init__(self, budget: Budget, steps: int = sys.maxsize):
        self._budget = require_budget("budget", budget)
        self.steps = steps
        self._charges = 0

    @property
    def terms(self) -> str:
        return f"{self.name}, epsilon={self._budget.epsilon!r}, delta={self._budget.delta!r}"

    def affords(self, step: int) -> bool:
        return True

    def find_token(self, step: int, event: Event) -> int | None:
        return self._charges + 1

    def following(self, token: int, most: int) -> list[int]:
        return []

    def epsilon(self, delta: float, group: int | None = None) -> float:
        """ε of the budget, at any δ that is no smaller than the budget's."""
        if delta < self._budget.delta:
            reason = (
                f"the filter guarantees ε = {self._budget.epsilon:g} at δ = {self._budget.delta:g} and larger ones only"
            )
            raise InvalidArgument("delta", delta, reason, "Leave it out")
        return self._budget.epsilon


class RenyiFilter(_Filter):
    """Any (q, z), any number of steps, as long as one declared Rényi order stays within its part of the budget.

    Order α has the weight w_α of δ and the allowance B_α = ε − ln((α−1)/α) + (ln(w_α·δ) + ln α)/(α−1). Before each release the orders
    with A(α) + r(α) > B_α die, where A is what was spent and r the event's divergence; if none would be left, the event is refused.

    *Why it is valid.* exp((α−1)(L − A(α))) is a supermartingale for the privacy loss L, so stopping at the death of order α gives
    E e^{(α−1)L^α} ≤ e^{(α−1)B_α}, hence the part of δ that order α fails is at most w_α·δ. An order that is alive at the end was alive
    throughout, so (1 − e^{ε−L})₊ ≤ Σ_α (1 − e^{ε−L^α})₊, and the weights add up to 1. (Feldman and Zrnic 2021 for one order.)
    """

    name = "weighted Rényi filter"

    def __init__(self, budget: Budget, weights: Mapping[float, float], steps: int = sys.maxsize):
        super().__init__(budget, steps)
        if not isinstance(weights, Mapping):
            raise InvalidArgument(
                "weights", validate.shown(weights), "it is not a mapping of orders to weights", "Try {14.0: 1.0}"
            )
        why = "a part of delta belongs to each order"
        parts = {
            validate.positive("weights, order", order, "it is a Rényi order", "Try the order 14"): validate.probability(
                "weights", weight, why, "Divide each by their sum"
            )
            for order, weight in weights.items()
        }
        if not math.isclose(math.fsum(parts.values()), 1.0, rel_tol=1e-9):
            raise InvalidArgument("weights", parts, "they must be positive and add up to 1", "Divide each by their sum")
        if min(parts) <= 1:
            raise InvalidArgument("weights", min(parts), "Rényi orders are larger than 1", "Try the order 14")
        self._parts = parts
        self._orders = tuple(parts)
        orders, shares = np.array(self._orders), np.array(list(parts.values()))
        self._allowed = (
            budget.epsilon
            - np.log((orders - 1) / orders)
            + (np.log(shares * budget.delta) + np.log(orders)) / (orders - 1)
        )
        self.reset()

    @property
    def terms(self) -> str:
        return f"{super().terms}, weights={self._parts!r}"

    def reset(self) -> None:
        self._charges = 0
        self._alive = self._allowed >= 0
        self._spent = np.zeros(len(self._orders))

    @classmethod
    def around(
        cls,
        budget: Budget,
        reference: Mapping[Event, float],
        steps: int = sys.maxsize,
        among: tuple[float, ...] = ORDERS,
    ) -> RenyiFilter:
        """Weights for runs like `reference`: 0.8 on its best order `among` those given, the rest on the eight orders around that."""
        best = int(np.argmin(renyi_prices(reference, budget.delta, among)))
        start = min(max(best - 4, 0), len(among) - 9)
        near = [index for index in range(start, start + 9) if index != best]
        return cls(budget, {among[best]: 0.8} | {among[index]: 0.2 / len(near) for index in near}, steps)

    @property
    def allowances(self) -> Mapping[float, float]:
        """B_α of each order."""
        return dict(zip(self._orders, map(float, self._allowed), strict=True))

    @property
    def best(self) -> float:
        """The order with the largest weight."""
        return max(self._parts, key=self._parts.__getitem__)

    def allows(self, events: Mapping[Event, float]) -> bool:
        """Whether some order bears all of `events` from the beginning: one that is alive at the end was alive throughout."""
        needed = np.sum([n * renyi_curve(event, self._orders) for event, n in events.items()], axis=0)
        return bool(((self._allowed >= 0) & (needed <= self._allowed)).any())

    def require(self, token: int, step: int, event: Event) -> None:
        if not self._survivors(event).any():
            raise BudgetExhausted(
                f"{event} does not fit: no Rényi order would stay within its allowance. Stop here, or ask for more noise."
            )

    def spend(self, token: int, event: Event) -> None:
        self._alive = self._survivors(event)
        self._spent = self._spent + renyi_curve(event, self._orders)
        self._charges += 1

    def _survivors(self, event: Event) -> NDArray[np.bool_]:
        """The orders that would still be within their allowance after `event`; one that has died does not come back."""
        survivors: NDArray[np.bool_] = self._alive & (self._spent + renyi_curve(event, self._orders) <= self._allowed)
        return survivors


class IndividualFilters(_Filter):
    """A filter for each person (`individual_accounts.py`), executed by the curator; here the declared number of steps is counted.

    *Why it is valid.* Every person's own filter holds, whatever the others do. The number of steps is declared: a run that ended because
    nobody was left would tell so.
    """

    name = "individual filters"
    validity = (
        "individual filters: every person was charged at every step for a bound on that person's gradient that was set before the coins "
        "were tossed and enforced by clipping, and was left out of steps that would have exceeded the declared budget; the number of steps "
        "was declared in advance"
    )

    def __init__(self, budget: Budget, steps: int, each: RenyiFilter | GaussianFilter):
        super().__init__(budget, steps)
        self.each = each
        """The filter that everybody begins with."""

    @property
    def terms(self) -> str:
        return f"{self.name}, {self.steps} steps, {self.each.terms}"

    def reset(self) -> None:
        self._charges = 0

    def require(self, token: int, step: int, event: Event) -> None:
        if event.choices or event.groups:
            raise BudgetExhausted(f"the {self.name} cover gradients of single people")

    def spend(self, token: int, event: Event) -> None:
        self._charges += 1


class _UnsampledFilter(_Filter):
    """Adds up one number, `cost`, for each release on all records, up to a total."""

    def __init__(self, budget: Budget, total: float, steps: int = sys.maxsize):
        super().__init__(budget, steps)
        self.total = total
        self.reset()

    def reset(self) -> None:
        self._charges, self._left = 0, self.total

    def cost(self, event: Event) -> float:
        raise NotImplementedError

    def require(self, token: int, step: int, event: Event) -> None:
        if event.sample_rate != 1:
            raise InvalidArgument(
                "sample_rate",
                event.sample_rate,
                f"the {self.name} holds without sampling only",
                "Use q = 1, or the Rényi filter",
            )
        if self.cost(event) > self._left:
            raise BudgetExhausted(
                f"{event} needs {self.cost(event):.4g} of the {self.name}, {self._left:.4g} is left. Stop here, or ask for more noise."
            )

    def spend(self, token: int, event: Event) -> None:
        self._left -= self.cost(event)
        self._charges += 1


class GaussianFilter(_UnsampledFilter):
    """Any multipliers at q = 1 while Σ 1/z_t² ≤ μ², the largest μ that is (ε, δ)-DP. (Smith and Thakurta 2022; Koskela et al. 2023.)"""

    name = "Gaussian filter"

    def __init__(self, budget: Budget, steps: int = sys.maxsize):
        require_budget("budget", budget)
        super().__init__(budget, gaussian_mu(budget.epsilon, budget.delta) ** 2, steps)

    def cost(self, event: Event) -> float:
        if event.choices:
            raise InvalidArgument(
                "event",
                event,
                f"the {self.name} adds up Gaussians only, and this is a selection",
                "Use the zCDP filter",
            )
        return _inverse_square(event.noise_multiplier)


class ConcentratedFilter(_UnsampledFilter):
    """Any multipliers and selections at q = 1 while Σ 1/(2z_t²) + Σ ρ_choice ≤ ρ, ρ = (√(ln(1/δ) + ε) − √ln(1/δ))².

    A selection that is ε₀-DP has ρ = ε₀·tanh(ε₀/2), one of bounded range ε₀²/8. (Whitehouse et al. 2023; Dong, Durfee and Rogers 2020.)
    """

    name = "zCDP filter"

    def __init__(self, budget: Budget, steps: int = sys.maxsize):
        tail = -math.log(require_budget("budget", budget).delta)
        super().__init__(budget, (math.sqrt(tail + budget.epsilon) - math.sqrt(tail)) ** 2, steps)

    def cost(self, event: Event) -> float:
        return _inverse_square(event.noise_multiplier) / 2 + math.fsum(choice.rho for choice in event.choices)


def _inverse_square(multiplier: float) -> float:
    """1/z²; of a multiplier so small that it would be no number, a number that is too much for any budget."""
    return max(multiplier, 1e-100) ** -2
