"""The account of one run: which events were declared, which are spent, and what that costs.

The rule is the simplest valid one: a **multiset** of tokens (q, z), declared before any record is read. Token t pays for step t of the
plan; *spare* tokens, which cover every step, pay for a step that has to be taken again because a crash lost its result. Each token is
spent at most once and only on an event that it covers. So the ε of all tokens together bounds whatever happens, in whatever order.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import islice

from apportion.accounting.accountant import Accountant, RunningPrice, count_events
from apportion.accounting.ledger import Ledger
from apportion.budget import Budget
from apportion.errors import BudgetExhausted, InvalidArgument
from apportion.request import Event


class Account:
    """Spends the tokens of a plan, one for each request, and writes every charge to the ledger first.

    A plan that the ledger has no room for is refused here. It is admitted, and counts against the limit with all its tokens, when the
    first of them is charged: a run that never begins costs nothing.

    Args:
        budget: the guarantee asked for.
        tokens: the declared events: one for each step in order, then the spare ones.
        accountant: prices them.
        ledger: where charges become durable: the ledger of a data set, or a new one.
        spare: how many of the tokens, at the end, are spare.
        identifier: continue the run that was admitted under this name, with the same tokens. What is spent of them is what the
            ledger says, not what a checkpoint remembers: going back to an older checkpoint refunds nothing.
        position: the step of the plan after which to go on.
    """

    def __init__(
        self,
        budget: Budget,
        tokens: Sequence[Event],
        accountant: Accountant,
        ledger: Ledger,
        *,
        spare: int = 0,
        identifier: str | None = None,
        position: int = 0,
    ):
        self.budget, self.accountant, self.ledger = budget, accountant, ledger
        self.identifier = identifier or os.urandom(8).hex()
        self.position = position
        """The step of the plan that was taken last."""
        self.repeatable: set[int] = set()
        """Steps that can be repeated bit for bit: the same answer to the same question was paid for when it was asked first."""
        self._tokens, self._steps = tuple(tokens), len(tokens) - spare
        self._charges: dict[int, Event] = {}
        self._running: dict[float, tuple[RunningPrice, int]] = {}
        self.run = None if identifier is None else ledger.find(identifier)
        if self.run is None:
            price = accountant.epsilon(count_events(self._tokens), budget.delta)
            if price > budget.epsilon * (1 + 1e-9):  # whoever made the plan should have seen it
                raise BudgetExhausted(
                    f"the declared steps cost ε = {price:.6g}, more than the budget of {budget.epsilon:g}"
                )
            self._cost = ledger.price(count_events(self._tokens), budget)
            ledger.require_room(self._cost)
        else:
            if self._tokens not in [admitted.plan for admitted in ledger.runs() if admitted.number == self.run]:
                raise InvalidArgument(
                    "resume",
                    identifier,
                    "the ledger holds this run with another plan",
                    "Use the settings that it was started with, or start anew",
                )
            self._charges = dict(ledger.charges(self.run))
        self._spares_spent = sum(token > self._steps for token in self._charges)

    @property
    def spent(self) -> int:
        """How many tokens were spent."""
        return len(self._charges)

    @property
    def spares_left(self) -> int:
        """How many lost steps can still be taken again."""
        return len(self._tokens) - self._steps - self._spares_spent

    @property
    def next_step(self) -> int:
        """The step of the plan that comes next; one more than the plan has if none does.

        A step whose token is spent already is taken again with a spare one. Without spares it is lost, like the others up to the
        last step that was ever charged, and the plan goes on after that.
        """
        step = self.position + 1
        if step not in self._charges or self.spares_left or step in self.repeatable:
            return step
        return 1 + max(token for token in self._charges if token <= self._steps)

    @property
    def left(self) -> int:
        """How many steps can still be taken."""
        return max(0, self._steps - self.next_step + 1)

    def next_token(self) -> int | None:
        """The number of the token, from 1, that can pay for the next step; `None` if there is none."""
        step = self.next_step
        if step not in self._charges:
            return step
        spares = range(self._steps + 1, len(self._tokens) + 1)
        return next((token for token in spares if token not in self._charges), None)

    def is_spent(self, token: int) -> bool:
        return token in self._charges

    def charge(self, event: Event) -> None:
        """Pay for the next step. Refused, with nothing written, if no token is left or it does not cover the event."""
        token = self.next_token() if self.left else None
        if token is None:
            raise BudgetExhausted(
                f"the plan's {self._steps} steps are spent, and with them epsilon={self.planned_epsilon():.4g} "
                f"of the budget's {self.budget.epsilon:g}. Plan more steps from the start to train longer."
            )
        self.charge_token(token, event)

    def charge_token(self, number: int, event: Event) -> None:
        """Pay for the next step with this token, which must be unspent."""
        token, step = self._tokens[number - 1], self.next_step
        if not token.covers(event):
            raise BudgetExhausted(
                f"step {step} asks for sample_rate={event.sample_rate:g}, noise_multiplier="
                f"{event.noise_multiplier:.6g}, but the plan declared {token.sample_rate:g} and {token.noise_multiplier:.6g}. "
                "Only less sampling or more noise than declared is covered."
            )
        if self.run is None:
            self.run = self.ledger.admit(self._tokens, self._cost, self.identifier)
        self.ledger.append(event, self.run, number)
        self._charges[number] = token if event == token else event  # equal ones share memory in a long run
        self._spares_spent += number > self._steps
        self.position = step

    def reload(self) -> None:
        """Take over what the ledger says: an interruption may have come between its row and our memory of it."""
        if self.run is not None:
            self._charges = dict(self.ledger.charges(self.run))
            self._spares_spent = sum(token > self._steps for token in self._charges)
            self._running.clear()

    def epsilon(self, delta: float | None = None) -> float:
        """ε of what was charged so far, at `delta` (the budget's by default). Reading it changes nothing but what is remembered."""
        delta = self.budget.delta if delta is None else delta
        if self.spent == len(self._tokens) and tuple(self._charges[i + 1] for i in range(self.spent)) == self._tokens:
            return self.planned_epsilon(delta)
        if delta not in self._running:
            self._running[delta] = RunningPrice(count_events(self._tokens), delta), 0
        price, counted = self._running[delta]
        for event in islice(self._charges.values(), counted, None):
            price.add(event)
        self._running[delta] = price, self.spent
        return price.epsilon()

    def planned_epsilon(self, delta: float | None = None) -> float:
        """ε of the whole plan: the guarantee, also for a run that was stopped early."""
        return self.accountant.epsilon(count_events(self._tokens), self.budget.delta if delta is None else delta)
