"""Draft a schema: from a public table of the same form, or privately from the table itself, for a price."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from apportion.budget import Budget, Record
from apportion.errors import InvalidArgument, UnusableRecords
from apportion.statistics.charging import charge
from apportion.statistics.column import Bounds, from_grid, read_bounds, to_grid
from apportion.statistics.ranked import quantile_law
from apportion.statistics.thresholded import count_texts, release_frequent, safe_threshold
from apportion.tables.cells import EMPTY, numeric_value
from apportion.tables.schema import Column, Schema
from apportion.tables.table_files import USUAL, TableForm, Wanted, open_table, read_header
from apportion.training.storage import Storage

LEVELS = (0.01, 0.99)
"""The quantiles that become the ends of a range."""
MOST_CATEGORIES = 100
"""A column of texts with more different ones is taken for names or remarks, and ignored."""
_UNUSED_DELTA = 1e-15
"""A budget has a δ; quantiles use none of it."""
FEWEST_NUMBERS = 10
"""Whole numbers with at most so many different values are taken for categories."""
FEWEST_IDS = 20
"""A column of at least so many whole numbers or texts that are all different is taken for ids, and ignored."""


def draft_from_public(
    private: Path | str, public: Path | str, form: TableForm = USUAL
) -> tuple[Schema, tuple[str, ...]]:
    """A schema that fits a table which is declared public, and remarks on it. Of the private one nothing but the header is read.

    Numbers get the range that occurs, texts and few whole numbers the categories that occur, and columns with empty cells `missing`.
    Columns of which the public table says too little are ignored, and those whose values are all different, as ids are.
    """
    header = read_header("data", Path(private), form)
    sample = open_table("from_public", public, Wanted(read_header("from_public", Path(public), form)), form)
    if lacking := [name for name in sample.header if name not in header]:
        reason = f"it has columns that the private table lacks: {', '.join(map(repr, lacking))}"
        raise InvalidArgument("from_public", str(public), reason, "Name a table of the same form")
    rows = [row for row in sample.rows if row is not None]
    cells = {name: [row[place] for row in rows] for place, name in enumerate(sample.header)}
    drafted = {name: _draft(texts, form.decimal) for name, texts in cells.items()}
    ids = [name for name, texts in cells.items() if drafted[name] is not None and _are_ids(texts, form.decimal)]
    remarks = tuple(
        f"{name} is ignored: its values are all different, as those of an id are (id = {name!r} or unit = {name!r} names it). If it is an "
        f"input, take it out of ignore: {_describe(drafted[name])}"
        for name in ids
    )
    return _collect(header, drafted | dict.fromkeys(ids), form), remarks


def _are_ids(texts: Sequence[str], decimal: str) -> bool:
    """Whether all are different, and texts or whole numbers: measured numbers differ too, but have fractions."""
    there = [text for text in texts if text.lower() not in EMPTY]
    numbers = [number for text in there if (number := numeric_value(text, decimal)) is not None]
    fractions = len(numbers) == len(there) and any(number % 1 for number in numbers)
    return len(set(there)) == len(there) >= FEWEST_IDS and not fractions


def _describe(column: Column | None) -> str:
    return "" if column is None else ", ".join(f"{key} = {value}" for key, value in column.to_dict().items())


def _draft(texts: Sequence[str], decimal: str) -> Column | None:
    there = {text for text in texts if text.lower() not in EMPTY}
    missing = any(text.lower() in EMPTY for text in texts)
    read = (numeric_value(text, decimal) for text in there)
    numbers = sorted(number for number in read if number is not None and math.isfinite(number))
    numeric = len(numbers) == len(there)
    if numeric and (len(there) > FEWEST_NUMBERS or any(number % 1 for number in numbers)) and numbers[0] < numbers[-1]:
        return Column(range=(numbers[0], numbers[-1]), missing=missing)
    if not 0 < len(there) <= MOST_CATEGORIES or (numeric and len(set(numbers)) != len(there)):
        return None
    return Column(categories=tuple(sorted(there, key=lambda text: (numeric_value(text) or 0.0, text))), missing=missing)


def _collect(header: Sequence[str], drafted: Mapping[str, Column | None], form: TableForm) -> Schema:
    columns = {name: drafted[name] for name in header if drafted.get(name) is not None}
    if not columns:
        reason = "nothing could be found out about any of its columns"
        raise InvalidArgument("data", list(drafted), reason, "Declare the schema by hand, as docs/tables.md says")
    ignore = tuple(name for name in header if name not in columns)
    return Schema(columns, ignore=ignore, decimal=form.decimal, encoding=form.encoding)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Questions:
    """What is asked about the columns of a private table. Which kind a column is of must be known: looking would be a question too.

    Args:
        numbers: columns of numbers, each with a range that is wide enough in any case. The 1 % and 99 % quantiles are found in it.
        texts: columns of texts, of which the frequent ones are found.
        categories: columns whose categories are known, and cost nothing.
    """

    numbers: Mapping[str, Bounds] = field(default_factory=dict)
    texts: Sequence[str] = ()
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many there are: two quantiles for each column of numbers, and a histogram for each of texts."""
        return len(LEVELS) * len(self.numbers) + len(self.texts)

    def price(self, epsilon: float, delta: float | None) -> tuple[float, float]:
        """ε and δ of each question: equal parts, which add up. δ is for histograms alone."""
        if not self.count:
            reason = "there is nothing to ask"
            raise InvalidArgument("numbers", None, reason, "Pass --numbers age:0:120, or --texts sex")
        if self.texts and delta is None:
            reason = "texts that nobody listed in advance are found by a mechanism that spends δ"
            raise InvalidArgument("delta", None, reason, "Pass --delta 1e-6, or list them: --categories sex=M,F")
        return epsilon / self.count, (delta or 0.0) / max(1, len(self.texts))


def draft_privately(
    source: Path | str,
    questions: Questions,
    *,
    epsilon: float,
    delta: float | None = None,
    storage: Storage | str | Path | None = None,
    seed: int | None = None,
    form: TableForm = USUAL,
) -> Schema:
    """A schema from noisy answers about the private table itself: (ε, δ)-DP for one record, charged as a whole before anything is drawn.

    Each of the k questions has ε/k, and each histogram an equal part of δ; they add up (basic composition). A range is the pair of the 1 %
    and the 99 % quantile, by the exponential mechanism on a grid between the declared bounds, rounded outwards; the declared bounds if they
    come out in the wrong order. Categories are the texts whose noisy count reaches a threshold (`apportion.statistics.categories`).
    Whether cells are empty is not asked: every column has `missing`.

    Raises `UnusableRecords`, after the charge, if nothing but texts was asked about and none was frequent.

    Args:
        source: the private table: a record is a line.
        epsilon, delta: what is spent. Without texts no δ is.
        storage: the ledger of the data set; in memory otherwise.
        seed: for tests. The draft is then not private.
        form: how the table is written.
    """
    header = read_header("data", Path(source), form)
    asked = (*questions.numbers, *questions.texts)
    declared = {name: Column(categories=tuple(known), missing=True) for name, known in questions.categories.items()}
    if twice := sorted({name for name in (*asked, *declared) if (*asked, *declared).count(name) > 1}):
        raise InvalidArgument("data", twice[0], "the column is named twice", "Ask one question about a column")
    bounds = {name: read_bounds(one) for name, one in questions.numbers.items()}
    part, share = questions.price(epsilon, delta)
    budget = Budget(epsilon=epsilon, delta=_UNUSED_DELTA if delta is None else delta, unit=Record())
    if questions.texts:
        safe_threshold(part, share)
    table = open_table("data", source, Wanted((*asked, *declared), header, numbers=tuple(questions.numbers)), form)
    cells = list(zip(*(row or ("",) * len(table.header) for row in table.rows), strict=True))
    columns = dict(zip(table.header, cells, strict=True)) if cells else dict.fromkeys(table.header, ())
    noise = charge("draft of a schema", epsilon, budget, storage, seed, delta=share * len(questions.texts)).draw.noise
    drafted: dict[str, Column | None] = dict(declared)
    for name, ends in bounds.items():
        read = [number for text in columns[name] if (number := numeric_value(text, form.decimal)) is not None]
        drafted[name] = Column(range=_private_range(read, ends, part, noise), missing=True)
    for name in questions.texts:
        counts = count_texts(text for text in columns[name] if text.lower() not in EMPTY)
        found = _one_of_each(release_frequent(counts, part, share, noise))
        drafted[name] = Column(categories=found, missing=True) if found else None
    if not any(drafted.values()):
        raise UnusableRecords(
            f"No text was frequent enough to be released, so that there is no schema. ε = {epsilon:g} was charged for the question. Ask "
            "for less with more ε, or declare the schema by hand, as docs/tables.md says."
        )
    return _collect(header, drafted, form)


def _one_of_each(released: Iterable[str]) -> tuple[str, ...]:
    """The released texts, of several that stand for one number the first: as categories, "1" and "1.0" are the same."""
    first: dict[str | float, str] = {}
    for text in released:
        number = numeric_value(text)
        first.setdefault(text if number is None else number, text)
    return tuple(first.values())


def _private_range(numbers: Sequence[float], bounds: Bounds, epsilon: float, noise: Any) -> Bounds:
    """Two noisy quantiles, each for ε, rounded outwards to three digits of the declared range."""
    values = np.clip(np.array(numbers, dtype=np.float64), *bounds)
    positions = to_grid(values, bounds)
    low, high = (from_grid(quantile_law(positions, level, epsilon).draw(noise), bounds) for level in LEVELS)
    step = 10.0 ** (math.floor(math.log10(bounds[1] - bounds[0])) - 2)
    low, high = (max(bounds[0], math.floor(low / step) * step), min(bounds[1], math.ceil(high / step) * step))
    return (float(f"{low:.12g}"), float(f"{high:.12g}")) if low < high else bounds
