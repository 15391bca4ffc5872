"""From one cell of a table to numbers, by its own text and the declared column: no other cell can change what becomes of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from apportion.curator.foreign_code import contain_errors

if TYPE_CHECKING:
    from apportion.tables.schema import Column

MISSING, NOT_A_NUMBER, OUT_OF_RANGE, UNKNOWN = "missing", "not a number", "out of range", "unknown category"
"""What can be wrong with a cell."""
EMPTY = frozenset({"", "nan", "na", "n/a", "null", "none", "nil", "<na>", "nat", "?"})
"""Texts, in small letters, that stand for no value, unless they are declared as categories."""

Inputs = tuple[float, ...]
CellEncoder = Callable[[str], tuple[Inputs, str | None]]
"""The inputs that a cell becomes, and what is wrong with it."""


def as_text(value: Any, decimal: str = ".") -> str:
    """A value as it would be written in a file: 1.0 as "1", because a library turns whole numbers into others when one is missing.

    Args:
        decimal: what stands before the fraction of a number in that file.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return str.strip(value)
    with contain_errors():  # whatever an object of a record does, the others are read
        if isinstance(value, float):
            return str(int(value)) if value.is_integer() else str(value).replace(".", decimal)
        return str(value).strip()
    return ""


def number_reader(decimal: str = ".") -> Callable[[str], float]:
    """The number that a text stands for; raises `ValueError` for other texts. With a decimal comma a point is no part of a number: it may
    separate thousands."""

    def read(text: str) -> float:
        if "." in text:
            raise ValueError
        return float(text.replace(",", "."))

    return float if decimal == "." else read


def numeric_value(text: str, decimal: str = ".") -> float | None:
    """The number that a text stands for; `None` for other texts and NaN."""
    try:
        number = number_reader(decimal)(text)
    except ValueError:
        return None
    return None if math.isnan(number) else number


def cell_encoder(column: Column, decimal: str = ".") -> CellEncoder:
    """How the cells of an input become numbers in [0, 1]."""
    return _number_encoder(column, decimal) if column.range is not None else _category_encoder(column, decimal)


def _number_encoder(column: Column, decimal: str) -> CellEncoder:
    read = number_reader(decimal)
    assert column.range is not None
    low, high = column.range
    span = high - low
    told: Inputs = (0.0,) if column.missing else ()
    middle = (0.5, 1.0) if column.missing else (0.5,)
    undeclared = None if column.missing else MISSING

    def encode(text: str) -> tuple[Inputs, str | None]:
        try:
            number = read(text)
        except ValueError:
            return middle, undeclared if text.lower() in EMPTY else NOT_A_NUMBER
        if low <= number <= high:
            return ((number - low) / span, *told), None
        if number != number:
            return middle, undeclared
        return (0.0 if number < low else 1.0, *told), OUT_OF_RANGE

    return encode


def _category_encoder(column: Column, decimal: str) -> CellEncoder:
    place = category_places(column, decimal)
    count, told = len(column.categories or ()), (0.0,) if column.missing else ()
    vectors = [(*(float(j == one) for j in range(count)), *told) for one in range(count)]
    nothing = (*(0.0,) * count, *told)
    missing = (*(0.0,) * count, 1.0) if column.missing else nothing
    undeclared = None if column.missing else MISSING

    def encode(text: str) -> tuple[Inputs, str | None]:
        found = place(text)
        if found is not None:
            return vectors[found], None
        if text.lower() in EMPTY:
            return missing, undeclared
        return nothing, UNKNOWN

    return encode


def category_places(column: Column, decimal: str = ".") -> Callable[[str], int | None]:
    """Where a text stands among the categories; "1.0" finds the category "1", and "True" that of two which is "1" or "true"."""
    texts = {text: place for place, text in enumerate(column.categories or ())}
    numbers = {number: place for text, place in texts.items() if (number := numeric_value(text)) is not None}
    truths = _truth_places(texts)

    def find(text: str) -> int | None:
        found = texts.get(text)
        if found is None and numbers and (number := numeric_value(text, decimal)) is not None:
            found = numbers.get(number)
        return truths.get(text.lower()) if found is None and truths else found

    return find


def _truth_places(texts: dict[str, int]) -> dict[str, int]:
    """Where "true" and "false" stand, if the two categories are called so, in whatever letters, or 0 and 1."""
    named = {text.lower(): place for text, place in texts.items()}
    for false, true in (("false", "true"), ("0", "1")):
        if len(texts) == 2 and set(named) == {false, true}:
            return {"false": named[false], "true": named[true]}
    return {}


TargetEncoder = Callable[[str], tuple[float, str | None]]


def target_encoder(column: Column, decimal: str = ".") -> TargetEncoder:
    """The class number of a target, −1 for no class; or the number scaled to [0, 1], NaN if it is none of the range.

    Such a record is not usable: it contributes nothing, like one whose gradient is not finite.
    """
    if column.range is None:
        place = category_places(column, decimal)

        def encode_class(text: str) -> tuple[float, str | None]:
            found = place(text)
            if found is not None:
                return found, None
            return -1, MISSING if text.lower() in EMPTY else UNKNOWN

        return encode_class
    (low, high), read = column.range, number_reader(decimal)

    def encode_number(text: str) -> tuple[float, str | None]:
        try:
            number = read(text)
        except ValueError:
            return math.nan, MISSING if text.lower() in EMPTY else NOT_A_NUMBER
        if low <= number <= high:
            return (number - low) / (high - low), None
        return math.nan, MISSING if number != number else OUT_OF_RANGE

    return encode_number
