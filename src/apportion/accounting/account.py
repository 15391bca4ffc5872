"""The account of one run: executes the rule under which it spends, and writes every charge to the ledger first.

**In advance.** Of declared tokens the next ones can be charged together, so that the disk is waited for once in many steps. They are
spent from then on: a crash forfeits those that were not used, and the plan's spare tokens take their place. So no more are charged in
advance than there are spare ones beyond those that are kept for the steps since the last checkpoint. Only the process that charged them
uses them.
"""

from __future__ import annotations

import os
from itertools import islice

from apportion.accounting.accountant import PrivacyLossAccountant, RunningPrice, count_events
from apportion.accounting.ledger import Ledger
from apportion.accounting.rules import FIRST, Rule, events_of_group
from apportion.budget import Budget
from apportion.errors import BudgetExhausted, InvalidArgument
from apportion.event import Event

BLOCK = 50
"""Tokens that are charged together at most: 2 ms for 50 steps are 2 % of steps of 2 ms."""


class Account:
    """Charges one request after the other, as far as the rule of the run allows.

    A run that the ledger has no room for is refused here. It is admitted, and counts against the limit with all that it declared, when
    its first request is charged: a run that never begins costs nothing.

    Args:
        budget: the guarantee asked for.
        rule: what may be charged (`rules.py`).
        ledger: where charges become durable: the ledger of a data set, or a new one.
        identifier: continue the run that was admitted under this name, with the same declaration. What is spent of it is what the
            ledger says, not what a checkpoint remembers: going back to an older checkpoint refunds nothing.
        position: the step of the plan after which to go on.
        kept_spare: how many spare tokens stay free for steps that a crash loses; `None` if nothing is charged in advance.
    """

    def __init__(
        self,
        budget: Budget,
        rule: Rule,
        ledger: Ledger,
        *,
        identifier: str | None = None,
        position: int = 0,
        kept_spare: int | None = None,
    ):
        self.budget, self.rule, self.ledger = budget, rule, ledger
        self.identifier = identifier or os.urandom(8).hex()
        self.position = position
        """The step of the plan that was taken last."""
        self.repeatable: set[int] = set()
        """Steps that can be repeated bit for bit: the same answer to the same question was paid for when it was asked first."""
        self._charges: dict[int, Event] = {}
        self._kept_spare = kept_spare
        self._unused: set[int] = set()  # charged in advance, by this process
        self._process = os.getpid()
        self._running: dict[tuple[float, int | None], tuple[RunningPrice, int]] = {}
        self.run = None if identifier is None else ledger.find(identifier)
        self._require_within_budget()
        if self.run is None:
            self._require_room()
        else:
            admitted = next(one for one in ledger.runs() if one.number == self.run)
            if admitted.plan != rule.declared or admitted.terms not in (None, rule.terms):
                raise InvalidArgument(
                    "resume",
                    identifier,
                    "the ledger holds this run with another plan",
                    "Use the settings that it was started with, or start anew",
                )
            self.reload()

    def _require_within_budget(self) -> None:
        """Refuse a rule that allows more than the budget, of everybody or of a group, also of a run that goes on."""
        groups = [(number, f" of the group {one.name!r}", one.epsilon) for number, one in enumerate(self.budget.groups)]
        for number, whose, epsilon in ((None, "", self.budget.epsilon), *groups):
            price = self.rule.epsilon(self.budget.delta, number)
            if price > epsilon * (1 + 1e-9):  # whoever made the plan should have seen it
                raise BudgetExhausted(
                    f"the declared steps cost ε = {price:.6g}, more than the budget{whose} of {epsilon:g}"
                )

    def _require_room(self) -> None:
        """Refuse what costs more than the data set has left."""
        declared = count_events(self.rule.declared) or self.budget  # of a filter (ε, δ) is all that is known in advance
        self._cost = self.ledger.price(declared, self.budget)
        self.ledger.require_room(self._cost, declared)

    @property
    def spent(self) -> int:
        """How many charges there were."""
        return len(self._charges)

    @property
    def next_step(self) -> int:
        """The step of the plan that comes next; one more than the plan has if none does.

        A step that was charged already is taken again if the rule affords it, as spare tokens do. Otherwise it is lost, like the others up
        to the last step that was ever charged, and the plan goes on after that.
        """
        step = self.position + 1
        if self._usable() or self.rule.affords(step) or step in self.repeatable:
            return step
        return 1 + max(token for token in self._charges if token <= self.rule.steps)

    @property
    def left(self) -> int:
        """How many steps can still be taken."""
        return max(0, self.rule.steps - self.next_step + 1)

    def find_token(self, event: Event) -> int | None:
        """The number, from 1, under which the next step can be charged, or was in advance; `None` if there is none."""
        covering = (token for token in sorted(self._usable()) if self._charges[token].covers(event))
        ready = next(covering, None)
        return self.rule.find_token(self.next_step, event) if ready is None else ready

    def covers(self, event: Event) -> bool:
        """Whether the next step could be charged for `event`. Changes nothing."""
        try:
            token = self.find_token(event) if self.left else None
            if token is not None and token not in self._usable():
                self.rule.require(token, self.next_step, event)
        except BudgetExhausted:
            return False
        return token is not None

    def charged_after(self, number: int) -> list[Event]:
        """What was charged after so many charges."""
        return list(islice(self._charges.values(), number, None))

    def is_spent(self, token: int) -> bool:
        return token in self._charges

    def charge(self, event: Event) -> None:
        """Pay for the next step. Refused, with nothing written, if the rule does not cover it."""
        token = self.find_token(event) if self.left else None
        if token is None:
            raise BudgetExhausted(
                f"the plan's {self.rule.steps} steps are spent, and with them epsilon={self.planned_epsilon():.4g} "
                f"of the budget's {self.budget.epsilon:g}. Plan more steps from the start to train longer."
            )
        self.charge_token(token, event)

    def charge_token(self, token: int, event: Event) -> None:
        """Pay for the next step under this number, which must be unspent."""
        step = self.next_step
        if token in self._usable() and self._charges[token].covers(event):
            self._unused.remove(token)
        else:
            self._spend(token, step, event)
        self.position = step

    def charge_first(self, event: Event) -> None:
        """Pay, once, for what is asked before the first step."""
        token = self.rule.find_token(FIRST, event)
        if token is None or self.spent:
            raise BudgetExhausted("what is asked before the first step was never declared, or was asked before")
        self._spend(token, FIRST, event)

    def _spend(self, token: int, step: int, event: Event) -> None:
        self.rule.require(token, step, event)
        if self.run is None:
            names = [group.name for group in self.budget.groups]
            self.run = self.ledger.admit(self.rule.declared, self._cost, self.identifier, self.rule.terms, names)
        ahead = {one: self.rule.declared[one - 1] for one in self._following(token, step)}
        self.ledger.extend({token: event} | ahead, self.run)
        for number, one in ({token: event} | ahead).items():
            self.rule.spend(number, one)
            last = next(reversed(self._charges.values()), None)
            self._charges[number] = last if last == one else one  # equal ones share memory in a long run
        self._unused, self._process = self._usable() | set(ahead), os.getpid()

    def _following(self, token: int, step: int) -> list[int]:
        """The tokens that are charged together with this one."""
        if self._kept_spare is None or step == FIRST:
            return []
        spare = len(self.rule.declared) - self.spent - (self.rule.steps - step + 1)
        return self.rule.following(token, max(0, min(BLOCK, spare - self._kept_spare) - 1))

    def _usable(self) -> set[int]:
        """Tokens that were charged in advance and not used. A copy of this process, made by fork, must not use them too."""
        return self._unused if not self._unused or self._process == os.getpid() else set()

    def reload(self) -> None:
        """Take over what the ledger says: an interruption may have come between its row and our memory of it."""
        if self.run is not None:
            self._charges = dict(self.ledger.charges(self.run))
            self._running.clear()
            self.rule.reset()
            for token, event in self._charges.items():
                self.rule.spend(token, event)

    def epsilon(self, delta: float | None = None, group: str | int | None = None) -> float:
        """ε of what was charged so far, at `delta` (the budget's by default). Reading it changes nothing but what is remembered.

        Under a rule that lets multipliers follow released values it is the guarantee of the rule: the price of the path that was
        taken would be too small.

        Args:
            group: for the members of a group of the budget, by its name; or for so many units that are added or removed together. By
                default for everybody.
        """
        delta = self.budget.delta if delta is None else delta
        if isinstance(group, int):
            return self._together(delta, group)
        number = None if group is None else self.budget.group_number(group)
        declared = self.rule.declared
        if self.rule.adaptive or (
            self.spent == len(declared) and tuple(self._charges[number + 1] for number in range(self.spent)) == declared
        ):
            return self.planned_epsilon(delta, group)
        if (delta, number) not in self._running:
            self._running[delta, number] = RunningPrice(events_of_group(declared, number), delta), 0
        price, counted = self._running[delta, number]
        for event in islice(self._charges.values(), counted, None):
            price.add(event if number is None else event.of_group(number))
        self._running[delta, number] = price, self.spent
        return price.epsilon()

    def _together(self, delta: float, units: int) -> float:
        """For units that are added or removed together: of all that was declared, where what is charged follows released values."""
        if not self.rule.declared:
            reason = f"the {self.rule.name} promises for single units"
            raise InvalidArgument("group", units, reason, "Use a recipe whose events are declared in advance")
        events = self.rule.declared if self.rule.adaptive else self._charges.values()
        return PrivacyLossAccountant().epsilon(count_events(events), delta, group=units)

    def planned_epsilon(self, delta: float | None = None, group: str | None = None) -> float:
        """ε of all that was declared, for everybody or for a group: the guarantee, also for a run that was stopped early."""
        number = None if group is None else self.budget.group_number(group)
        return self.rule.epsilon(self.budget.delta if delta is None else delta, number)
