"""The durable record of what was spent: one row for each charge, written before the answer leaves the curator.

    run step  content
    0   0     the declaration: the name of the data set, its limit (ε, δ), the unit, the rule over runs and its capacity
    k   0     run k is admitted: its whole plan, and what it costs against the limit
    k   t     token t of run k is spent: the event that it paid for
    k   −n    claim n on run k, a search that is charged as a whole: whoever holds the last claim may go on with it, or publish its winner

A ledger either belongs to a **data set** and admits runs until its limit is reached, or, without a limit, to a single run.
Rows are only ever added (`chain.py`), so nothing is ever refunded: a run that was stopped, or started again from an older
checkpoint, has spent what its rows say. (run, step) is unique, so no token is spent twice, not even by two processes.

Every charge is a row of its own. A transaction takes about 2 ms (fsyncs included), more than a step of a small model, so an account may
charge tokens in advance, many rows at a time (`account.py`): a crash then forfeits those that were not used.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from apportion.accounting.chain import Chain, Damage, Row, new_file
from apportion.accounting.run_filter import RULES, Cost, Planned, RunRule
from apportion.accounting.sharing import advise_rule
from apportion.budget import UNITS, Budget
from apportion.errors import ApportionError, BudgetExhausted, InvalidArgument, TakenOver
from apportion.event import Choice, Event

FORMAT = 1
_MOST_TIMES = 10_000_000  # more tokens than any plan can have: a damaged number, which would fill the memory


@dataclass(frozen=True)
class AdmittedRun:
    """A run as the ledger knows it.

    Args:
        number: 1 for the first run.
        admitted: when, in UTC.
        plan: the declared events: one for each step in order, then the spare ones.
        cost: against the limit; zero in the ledger of a single run.
        identifier: by which a run that was interrupted finds itself again.
        terms: of the rule under which it spends; `None` in a ledger that was written before rules had terms.
        groups: the names of the groups of people whose prices its events hold.
    """

    number: int
    admitted: str
    plan: tuple[Event, ...]
    cost: Cost
    identifier: str | None = None
    terms: str | None = None
    groups: tuple[str, ...] = ()


class Ledger:
    """The charges of one run or of all runs on a data set: `create` a new one, `open` it to read, `attach` to it to charge.

    Args:
        name: the declared name of the data set; `None` in the ledger of a single run.
        rule: the rule over runs with its limit; `None` in the ledger of a single run.
    """

    def __init__(self, chain: Chain):
        self._chain = chain
        self.path = chain.path
        self.rule: RunRule | None = None
        found = chain.execute("SELECT content FROM entries WHERE run = 0 AND step = 0")
        with _readable(self.path, "it cannot be read: its first row, the declaration,"):
            declared = json.loads(found[0][0])
            self.name: str | None = declared["name"]
            self.capacity = Cost(*map(float, declared["capacity"]))
            if declared["rule"] is not None:
                self.rule = RULES[declared["rule"]](Budget(**declared["limit"], unit=UNITS[declared["unit"]]()))
            if not isinstance(self.name, (str, type(None))):
                raise TypeError

    @classmethod
    def create(cls, path: Path | str | None = None, *, name: str | None = None, rule: RunRule | None = None) -> Ledger:
        """A new, empty ledger; in memory for `path=None`. Refuses a file that exists: spending is never overwritten.

        Args:
            name, rule: declare a data set and its limit, for good. Without them it is the ledger of a single run.
        """
        path = None if path is None else Path(path)
        limit = None if rule is None else {"epsilon": rule.limit.epsilon, "delta": rule.limit.delta}
        capacity = Cost() if rule is None else rule.capacity()
        declaration = {
            "format": FORMAT,
            "name": name,
            "limit": limit,
            "unit": None if rule is None else rule.limit.unit.name,
            "rule": None if rule is None else rule.name,
            "capacity": [capacity.main, capacity.failure],
        }
        if path is not None:
            if rule is None:
                reason, fix = "there is the ledger of an earlier run already", "Choose a new folder"
                new_file(path, argument="out", reason=reason, fix=fix)
                path.parent.chmod(0o700)  # the folder secret/ of a run
            else:
                reason, fix = "there is a file already, and a declared limit stays as it is", "Choose another file"
                new_file(path, argument="path", reason=reason, fix=fix)
        try:
            return cls(Chain.create(path, declaration))
        except BaseException:
            if path is not None:
                path.unlink()  # ours, and nothing was ever charged to it
            raise

    @classmethod
    def open(cls, path: Path | str) -> Ledger:
        """An existing ledger, to be read. A damaged one can be read too, as far as SQLite can; `verify` tells."""
        return cls(Chain(Path(path), read_only=True))

    @classmethod
    def attach(cls, path: Path | str) -> Ledger:
        """An existing ledger, to be charged. A damaged one is refused: what it says was spent is no longer known."""
        ledger = cls(Chain(Path(path)))
        if damage := ledger.verify():
            ledger.close()
            raise InvalidArgument(
                "ledger",
                str(path),
                f"it is damaged and can only be read ({damage})",
                "Look at it with `apportion ledger show`, restore a backup, and charge what is missing there",
            )
        return ledger

    def price(self, plan: Planned, budget: Budget) -> Cost:
        """What a run with this plan, a whole search, or a run that promises a budget, costs against the limit.

        Args:
            budget: the run's own.
        """
        if self.rule is None:
            return Cost()
        if budget.unit.name != self.rule.limit.unit.name:  # how the records of a user are used is each run's own matter
            raise InvalidArgument(
                "budget.unit", budget.unit, f"the ledger protects a {self.rule.limit.unit.name}", "Use the same unit"
            )
        return self.rule.cost(plan, budget.delta, self.left())

    def require_room(self, cost: Cost, plan: Planned | None = None) -> None:
        """Refuse a run that does not fit: one with more than what is left, or a second one in the ledger of a single run.

        Args:
            plan: of the run, to say whether another rule would have taken less.
        """
        if self.rule is None:
            if self.runs():
                raise InvalidArgument(
                    "ledger", str(self.path), "it holds charges of an earlier run", "Start with a new ledger"
                )
            return
        if not (self.spent() + cost).fits(self.capacity):
            left = self.left()
            describe, limit = self.rule.describe, self.rule.limit
            advice = advise_rule(self, plan) if isinstance(plan, Mapping) else None
            raise BudgetExhausted(
                f"the limit of the data set {self.name!r} (epsilon={limit.epsilon:g}, delta={limit.delta:g}, rule "
                f"{self.rule.name}) does not cover this run. Requested: {describe(cost)}. Left: {describe(left)}. Missing: "
                f"{describe(cost.minus(left))}. Nothing was charged. Use more noise, fewer steps or a smaller budget for this run."
                + (f" {advice}" if advice else "")
            )

    def admit(
        self,
        plan: Sequence[Event],
        cost: Cost,
        identifier: str | None = None,
        terms: str | None = None,
        groups: Sequence[str] = (),
    ) -> int:
        """Charge a whole run against the limit before its first step, or refuse it. Returns the number of the run."""
        content: dict[str, Any] = {"plan": [{**_encode(event), "times": times} for event, times in _repeated(plan)]}
        content |= {"identifier": identifier, "terms": terms} | ({"groups": list(groups)} if groups else {})
        with self._chain.transaction():  # nobody else can be admitted between the check and the row
            self.require_room(cost)
            run = 1 + int(self._chain.execute("SELECT MAX(run) FROM entries")[0][0])
            self._chain.append(run, 0, content | {"cost": [cost.main, cost.failure]})
        return run

    def append(self, event: Event, run: int, token: int) -> None:
        """Write down what a token (1-based) was spent on. Durable when this returns."""
        self.extend({token: event}, run)

    def extend(self, charges: Mapping[int, Event], run: int) -> None:
        """Write down what several tokens are spent on: all of them, or none. Durable when this returns."""
        self._chain.add((run, token, _encode(event)) for token, event in charges.items())

    def claimed(self, run: int) -> str | None:
        """The last claim on a run."""
        found = self._chain.execute(
            "SELECT content FROM entries WHERE run = ? AND step < 0 ORDER BY step LIMIT 1", (run,)
        )
        with _readable(self.path, f"a claim on run {run}"):
            return str(json.loads(found[0][0])["claim"]) if found else None

    def claim(self, run: int, mark: str, after: str | None) -> None:
        """Claim a run under `mark`, if the last claim on it is still `after`. Of several who try with the same `after`, one succeeds."""
        with self._chain.transaction():
            if self.claimed(run) != after:
                raise TakenOver(
                    "ledger",
                    str(self.path),
                    f"another copy of this search (run {run}) goes on with it or has published its winner: two that do are two searches",
                    "Use that copy; or start a new search, which is charged anew",
                )
            (count,) = self._chain.execute("SELECT COUNT(*) FROM entries WHERE run = ? AND step < 0", (run,))[0]
            self._chain.append(run, -1 - count, {"claim": mark})

    def find(self, identifier: str) -> int | None:
        """The number of the run that was admitted under this name."""
        return next((run.number for run in self.runs() if run.identifier == identifier), None)

    def runs(self) -> list[AdmittedRun]:
        """All admitted runs, oldest first."""
        found = self._chain.execute("SELECT run, written, content FROM entries WHERE step = 0 AND run > 0 ORDER BY run")
        return [_admitted(self.path, *values) for values in found]

    def spent(self) -> Cost:
        """What the admitted runs cost against the limit, executed or not."""
        return sum((run.cost for run in self.runs()), Cost())

    def left(self) -> Cost:
        """What further runs may cost."""
        return self.capacity.minus(self.spent())

    def events(self, run: int | None = None) -> Iterator[Event]:
        """All charges, oldest first; of one run if it is given."""
        return (event for _, event in self.charges(run))

    def charges(self, run: int | None = None) -> Iterator[tuple[int, Event]]:
        """All charges with the number of the token that paid, oldest first; of one run if it is given."""
        for row in self._chain.rows(run):
            if row.step > 0:
                with _readable(self.path, f"row {row.number}, a charge,"):
                    event = _decode(json.loads(row.content))
                yield row.step, event

    def counts(self, run: int | None = None) -> Counter[Event]:
        """All charges, equal ones counted; of one run if it is given."""
        condition, values = ("1", ()) if run is None else ("run = ?", (run,))
        found = self._chain.execute(
            f"SELECT content, COUNT(*) FROM entries WHERE step > 0 AND {condition} GROUP BY content", values
        )
        with _readable(self.path, "a charge"):
            return Counter({_decode(json.loads(content)): count for content, count in found})

    def rows(self) -> Iterator[Row]:
        """The rows as they are stored, with their hashes."""
        return self._chain.rows()

    def head(self) -> str:
        """The hash of the last row. Noted elsewhere, it shows later whether this ledger was cut off or replaced."""
        return self._chain.head()

    def verify(self, head: str | None = None) -> Damage | None:
        """The first row that is not as it was written, or `None`; see `Chain.verify` for what that cannot show."""
        return self._chain.verify(head)

    def copy_to(self, path: Path, run: int | None) -> None:
        """Write the plan and the charges of one run into a new ledger of its own; an empty one if the run never began."""
        Ledger.copy_of(self.rows_of(run), path).close()

    def rows_of(self, run: int | None) -> list[tuple[int, str]]:
        """The plan and the charges of one run, to be copied; none if it never began."""
        return [] if run is None else [(row.step, row.content) for row in self._chain.rows(run)]

    @classmethod
    def copy_of(cls, rows: Sequence[tuple[int, str]], path: Path | None = None) -> Ledger:
        """A ledger of its own for a run, with what `rows_of` returned; in memory for `path=None`."""
        target = cls.create(path)
        with target._chain.transaction():
            for step, content in rows:
                target._chain.append(1, step, json.loads(content))
        return target

    def close(self) -> None:
        self._chain.close()


@lru_cache(maxsize=64)  # a run charges the same event again and again
def _encode(event: Event) -> Mapping[str, Any]:
    """(q, z); for an event with selections also their prices, and no z if it releases nothing else; (q_p, z_p) of groups."""
    content = asdict(event)
    choices, groups = content.pop("choices"), content.pop("groups")
    if event.noise_multiplier == math.inf:
        del content["noise_multiplier"]  # JSON has no ∞
    return content | ({"choices": choices} if choices else {}) | ({"groups": groups} if groups else {})


def _decode(content: Mapping[str, Any]) -> Event:
    choices = tuple(Choice(**one) for one in content.get("choices", ()))
    return Event(**{"noise_multiplier": math.inf, **content, "choices": choices})


def _repeated(plan: Sequence[Event]) -> Iterator[tuple[Event, int]]:
    for event, group in groupby(plan):
        yield event, sum(1 for _ in group)


@contextlib.contextmanager
def _readable(path: Path | None, what: str) -> Iterator[None]:
    """Whatever a damaged row makes of our reading is one clear error."""
    try:
        yield
    except (ApportionError, IndexError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        reason = f"{what} is missing or damaged"
        raise InvalidArgument("ledger", str(path), reason, "Restore it from a backup") from error


def _admitted(path: Path | None, run: int, written: str, text: str) -> AdmittedRun:
    plan: list[Event] = []
    with _readable(path, f"the admission of run {run}"):
        content = json.loads(text)
        for item in content["plan"]:
            times = item.pop("times")
            if type(times) is not int or not 0 < times <= _MOST_TIMES:
                raise ValueError
            plan += [_decode(item)] * times
        cost = Cost(*map(float, content["cost"]))
        identifier, terms = content.get("identifier"), content.get("terms")
        groups = tuple(content.get("groups", ()))
        if not isinstance(identifier, (str, type(None))) or not isinstance(terms, (str, type(None))):
            raise TypeError
        if not all(isinstance(name, str) for name in groups) or any(len(one.groups) != len(groups) for one in plan):
            raise TypeError
    return AdmittedRun(run, written, tuple(plan), cost, identifier, terms, groups)
