"""The account of one run: which events were declared, which are spent, and what that costs.

The rule is the simplest valid one: a **plan**. All (q_t, z_t) are declared before any record is read; each request takes the
next token, and may be charged against it only if the token covers it. So the ε of the whole plan bounds whatever happens.
"""

from __future__ import annotations

from collections.abc import Sequence

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
        tokens: the declared events, in order.
        accountant: prices them.
        ledger: where charges become durable: the ledger of a data set, or a new one.
        run: continue this run of the ledger, with the same tokens. What is spent of them is what the ledger says, not what a
            checkpoint remembers: going back to an older checkpoint refunds nothing.
    """

    def __init__(
        self,
        budget: Budget,
        tokens: Sequence[Event],
        accountant: Accountant,
        ledger: Ledger,
        *,
        run: int | None = None,
    ):
        self.budget, self.accountant, self.ledger = budget, accountant, ledger
        self.run = run
        self._tokens = tuple(tokens)
        self._charged: list[Event] = []
        self._running: dict[float, tuple[RunningPrice, int]] = {}
        if run is None:
            self._cost = ledger.price(count_events(self._tokens), budget)
            ledger.require_room(self._cost)
        else:
            if self._tokens not in [admitted.plan for admitted in ledger.runs() if admitted.number == run]:
                raise InvalidArgument(
                    "run",
                    run,
                    "the ledger holds no run of that number with these tokens",
                    "Plan as before, or start anew",
                )
            self._charged = list(ledger.events(run))

    @property
    def spent(self) -> int:
        """How many tokens were spent."""
        return len(self._charged)

    @property
    def left(self) -> int:
        """How many tokens are left."""
        return len(self._tokens) - len(self._charged)

    def charge(self, event: Event) -> None:
        """Spend the next token on `event`. Refused, with nothing written, if there is none or it does not cover the event."""
        if not self.left:
            raise BudgetExhausted(
                f"the plan's {len(self._tokens)} steps are spent, and with them epsilon={self.planned_epsilon():.4g} "
                f"of the budget's {self.budget.epsilon:g}. Plan more steps from the start to train longer."
            )
        token = self._tokens[self.spent]
        if not token.covers(event):
            raise BudgetExhausted(
                f"step {self.spent + 1} asks for sample_rate={event.sample_rate:g}, noise_multiplier="
                f"{event.noise_multiplier:.6g}, but the plan declared {token.sample_rate:g} and {token.noise_multiplier:.6g}. "
                "Only less sampling or more noise than declared is covered."
            )
        if self.run is None:
            self.run = self.ledger.admit(self._tokens, self._cost)
        self.ledger.append(event, self.run, self.spent + 1)
        self._charged.append(event)

    def epsilon(self, delta: float | None = None) -> float:
        """ε of what was charged so far, at `delta` (the budget's by default). Reading it changes nothing but what is remembered."""
        delta = self.budget.delta if delta is None else delta
        if tuple(self._charged) == self._tokens:
            return self.planned_epsilon(delta)
        if delta not in self._running:
            self._running[delta] = RunningPrice(count_events(self._tokens), delta), 0
        price, counted = self._running[delta]
        for event in self._charged[counted:]:
            price.add(event)
        self._running[delta] = price, len(self._charged)
        return price.epsilon()

    def planned_epsilon(self, delta: float | None = None) -> float:
        """ε of the whole plan: the guarantee, also for a run that was stopped early."""
        return self.accountant.epsilon(count_events(self._tokens), self.budget.delta if delta is None else delta)
