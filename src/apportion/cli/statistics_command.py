"""`apportion statistics`: a private count, mean, quantile or histogram of one column."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from apportion import validate
from apportion.budget import Budget, Record
from apportion.cli import options
from apportion.cli.options import option
from apportion.cli.output import print_lines, screen
from apportion.errors import InvalidArgument

if TYPE_CHECKING:
    from apportion.statistics import Statistic

LABEL = "label"
_UNUSED_DELTA = 1e-15
"""A budget has a δ; these mechanisms use none of it."""


def statistics(
    data: Annotated[str, option("A .csv file with a header, one record a line; or a built-in name.")],
    of: Annotated[Literal["count", "mean", "quantile", "histogram"], option("What to ask.")],
    epsilon: Annotated[float, option("ε, the privacy loss to spend.")],
    column: Annotated[str, option("Which column; of built-in data there is label.")] = LABEL,
    bounds: Annotated[tuple[float, float] | None, option("Declared range, as --bounds 0 100.")] = None,
    outside: Annotated[Literal["clip", "drop"], option("What happens to values outside of the bounds.")] = "clip",
    level: Annotated[float, option("Of a quantile: 0.5 is the median.")] = 0.5,
    bins: Annotated[int, option("Of a histogram: bins of equal width between the bounds.")] = 10,
    classes: Annotated[int | None, option("Of a histogram, instead of bins: the classes 0 … N-1.")] = None,
    unit: Annotated[Literal["record"], option("Whom the guarantee protects.")] = "record",
    ledger: Annotated[Path | None, option("The ledger of the data set; see `apportion ledger limit`.")] = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Ask for a statistic of a private column. It is charged to the ledger before any noise is drawn.

    A cell that is not a number is nobody's value. How many there were is not said, nor how many were clipped or dropped.

    Example: apportion statistics --data patients.csv --column age --of mean --bounds 0 120 --epsilon 0.1 --ledger patients.sqlite
    """
    from apportion.statistics import count, histogram, mean, quantile

    terms: dict[str, Any] = {"budget": Budget(epsilon=epsilon, delta=_UNUSED_DELTA, unit=Record()), "storage": ledger}
    values = _read_values(data, column, data_dir)
    if of == "count":
        found = count(values, bounds=bounds, **terms)
    elif of == "histogram" and classes is not None:
        found = histogram(values, classes=range(classes), **terms)
    elif bounds is None:
        reason = f"a {of} needs a declared range; one looked up in the data would tell its extremes"
        raise InvalidArgument("bounds", None, reason, "Try --bounds 0 100")
    elif of == "mean":
        found = mean(values, bounds=bounds, outside=outside, **terms)
    elif of == "quantile":
        found = quantile(values, level, bounds=bounds, outside=outside, **terms)
    else:
        found = histogram(values, edges=_equal_bins(bounds, bins), outside=outside, **terms)
    if as_json:
        typer.echo(json.dumps({"data": data, "column": column, "unit": unit} | found.to_json()))
    else:
        print_lines(screen(), *_lines(found, column, ledger))


def _equal_bins(bounds: tuple[float, float], bins: int) -> list[float]:
    low, high = bounds
    bins = validate.whole("bins", bins, "it is a number of bins", "Try --bins 10")
    return [low + (high - low) * place / bins for place in range(bins)] + [high]


def _lines(found: Statistic, column: str, ledger: Path | None) -> Iterator[str]:
    shown = found.value if isinstance(found.value, tuple) else (found.value,)
    error = "" if found.standard_error is None else f"   (standard error {found.standard_error:.4g})"
    yield f"{found.of} of {column}: {', '.join(f'{one:.6g}' for one in shown)}{error}"
    left = (
        "no ledger was named: nobody adds up" if found.left is None else f"{ledger} has about ε = {found.left:.4g} left"
    )
    yield f"charged: ε = {found.epsilon:g}; {left}"


def _read_values(data: str, column: str, data_dir: Path | None) -> Any:
    if data.endswith(".csv"):
        return list(_read_csv(Path(data), column))
    from apportion.data import load

    if column != LABEL:
        raise InvalidArgument("column", column, f"of built-in data there is {LABEL!r} only", "Use a .csv file")
    return load(data, data_dir).train[1].numpy()


def _read_csv(path: Path, column: str) -> Iterator[float]:
    """Each line by itself: an open quotation mark must not reach into the next record, nor an error be seen."""
    if not path.is_file():
        raise InvalidArgument("data", str(path), "there is no such file", "Check the path")
    header, *lines = path.read_text(encoding="utf-8-sig", errors="replace").split("\n")
    names = [name.strip() for name in next(csv.reader([header], skipinitialspace=True), [])]
    place = names.index(validate.known("column", column, names, "the file has no such column"))
    return (_read_cell(line, place) for line in lines if line.strip())


def _read_cell(line: str, place: int) -> float:
    try:
        return float(next(csv.reader([line], skipinitialspace=True))[place])
    except (csv.Error, IndexError, ValueError):
        return float("nan")
