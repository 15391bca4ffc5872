"""A statistic is charged as a whole, before a coin is tossed: one admission and one charge in the ledger of the data set.

All mechanisms of this room but one are pure, (ε, 0)-DP, and an (ε, 0)-DP release is dominated by the event of one `Choice(ε)`. In a ledger
with the rule "sum" it costs ε and no δ; with the rule "gaussian" what its curve costs. With several budgets the largest ε is charged: it
holds for everybody.

`categories` is (ε, δ)-DP: dominated by "with probability δ the records themselves, otherwise `Choice(ε)`". So it costs δ besides: under the
rule "sum" as δ, and under the rule "gaussian" as a failure, −ln(1 − δ), because failures of independent releases add up in that form.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from apportion.accounting.ledger import Ledger
from apportion.accounting.run_filter import Cost, SumOfRuns
from apportion.budget import Budget
from apportion.curator.randomness import DrawStreams, Randomness
from apportion.errors import InvalidArgument
from apportion.event import Choice, Event
from apportion.training.storage import LEDGER, Storage
from apportion.validate import instance_of


@dataclass(frozen=True)
class Receipt:
    """What a charge left.

    Args:
        draw: the random bits that it paid for.
        private: whether nobody can know them.
        left: ε that the data set has left, at the limit's δ; `None` without a limit.
    """

    draw: DrawStreams
    private: bool
    left: float | None


def charge(
    of: str,
    epsilon: float,
    budget: Budget,
    storage: Storage | str | Path | None,
    seed: int | None,
    delta: float = 0.0,
) -> Receipt:
    """Write the charge of (ε, δ) down, durably, or refuse it; only then hand out random bits."""
    randomness = Randomness.choose(seed)
    books = _open_books(_read_storage(storage), randomness.private)
    try:
        event, price = _event(epsilon), price_statistic(books, epsilon, budget, delta)
        terms = f"statistic: {of}" + (f", delta = {delta!r}" if delta else "")
        run = books.admit([event], price, os.urandom(8).hex(), terms)
        books.append(event, run, 1)
        left = None if books.rule is None else books.rule.epsilon(books.left())
    finally:
        books.close()
    return Receipt(randomness.next_draw(), randomness.private, left)


def _event(epsilon: float) -> Event:
    return Event(1.0, math.inf, (Choice(epsilon),))


def price_statistic(books: Ledger, epsilon: float, budget: Budget, delta: float = 0.0) -> Cost:
    """What an (ε, δ)-DP statistic costs against the limit of a data set.

    Args:
        budget: says which unit is protected.
    """
    if isinstance(books.rule, SumOfRuns):
        return replace(books.price(budget, budget), main=epsilon, failure=delta)  # a pure one uses no part of δ
    return books.price({_event(epsilon): 1}, budget) + Cost(failure=-math.log1p(-delta))


def _read_storage(storage: Any) -> Storage:
    if storage is None or isinstance(storage, (str, Path)):
        return Storage(ledger=storage)
    fix = 'Pass apportion.Storage(ledger="patients.sqlite")'
    found: Storage = instance_of(Storage)("storage", storage, "it is not a Storage", fix)
    if found.resume or found.recovery != "fresh" or None not in (found.folder, found.ledger):
        reason = "a statistic is one charge: it is not resumed, and has one ledger"
        raise InvalidArgument("storage", found, reason, "Name the ledger of the data set, or a new folder")
    return found


def _open_books(storage: Storage, private: bool) -> Ledger:
    """The data set's ledger if one was named, otherwise one of its own, in a new folder or in memory."""
    if storage.ledger is None:
        return Ledger.create(storage.path(LEDGER))
    if not private:
        reason = "a statistic with a seed is not private, and would make the promise of the whole data set untrue"
        fix = "Leave the seed out, or try it without a ledger"
        raise InvalidArgument("ledger", str(storage.ledger), reason, fix)
    return Ledger.attach(Path(storage.ledger))
