"""How a table is trained on where nobody says: model, thresholds and learning rate, from public facts alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from apportion.data import KNOWN

SAMPLE_RATE, STEPS = 0.2, 200
_NETWORK_FROM = 10_000
"""Population·ε from which a hidden layer was as good as one layer on every table that was tried, and up to 8 points better on some."""
_LAYER, _NETWORK, _NUMBER = (1.0, 1_000.0), (0.5, 2_000.0), (0.05, 10.0)
"""How far weights move, as a part of N·ε·√(outputs/inputs), and at most: with one layer, with a hidden one, where a number is predicted."""
_UNKNOWN = 100.0
"""Where no population or no ε was said."""

_FITTED = "in steps of gradients of length 1, a rule fitted on"
_LAYER_WHY = (
    f"weights move by population·ε·√(outputs/inputs), half of it with a hidden layer, {_FITTED} ten public tables and two made-up ones, "
    "and tested on Adult and on breast cancer"
)
_NUMBER_WHY = (
    f"weights move by a twentieth of population·ε/√inputs, {_FITTED} prices of diamonds and wages, "
    "and tested on the progress of diabetes"
)


@dataclass(frozen=True)
class Form:
    """What the schema says of a table: inputs, which of them are numbers, and outputs; `None` classes for a number."""

    inputs: int
    numbers: int
    classes: int | None


def is_tabular(values: Mapping[str, Any]) -> bool:
    """Whether an experiment trains on a table: a file with a schema, or a benchmark that is one."""
    from apportion.tables.table_files import is_table

    name = str(values["data"])
    known = KNOWN.get(name)
    return values.get("table") is not None or is_table(name) or (known is not None and known.kind == "table")


def table_form(values: Mapping[str, Any]) -> Form | None:
    """From the schema, or of a benchmark; `None` for a file of which no schema was said."""
    from apportion.compare.table_subject import TableChoice, choose_table

    if (known := KNOWN.get(str(values["data"]))) is not None:
        return Form(math.prod(known.shape), len(known.numbers), known.classes)
    said = values.get("table")
    if said is None:
        return None
    chosen = said if isinstance(said, TableChoice) else choose_table(said)
    assert chosen is not None
    encoding = chosen.encoding()
    return Form(encoding.width, len(encoding.numbers), None if encoding.classes is None else len(encoding.classes))


def table_model(values: Mapping[str, Any]) -> tuple[str, str]:
    """The name of a model, and why: one layer on spread numbers, or a hidden layer on them where population·ε is 10,000 or more."""
    form, reach = table_form(values), _reach(values)
    spread = "numbers are spread over eight hat functions"
    if form is not None and form.classes is None:
        return "additive", f"one layer on columns whose {spread}, as was tried where a number is predicted"
    at = f"population·ε = {_NETWORK_FROM:,}"
    if values.get("activation") is not None:
        return "spread-mlp", f"a hidden layer with this activation, where {spread}"
    if reach is not None and reach >= _NETWORK_FROM:
        return (
            "spread-mlp",
            f"{spread}, and from {at} on a hidden layer was as good as none or better; --model additive leaves it out",
        )
    return (
        "additive",
        f"one layer on columns whose {spread}: below {at} a hidden layer was not better; --model spread-mlp has one",
    )


def table_why(values: Mapping[str, Any]) -> str:
    """Where the learning rate comes from."""
    form = table_form(values)
    return _NUMBER_WHY if form is not None and form.classes is None else _LAYER_WHY


def table_recipe(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Of the recipe `default`: a constant threshold, by which gradients are divided, and weights that are averaged over twenty steps."""
    form = table_form(values)
    start = 0.3 if form is not None and form.classes is None else 1.0
    return {"clip": {"start": start, "ratio": 1.0}, "update": {"average": 0.95, "divide_by_clip": True}}


def table_rate(values: Mapping[str, Any]) -> float:
    """η = min(s·N·ε·√(k/(d + 1)), L)/T for T steps, d inputs of the trained layer and k outputs, with gradients that are divided by their
    threshold.

    With noise of one deviation on each of the k·(d + 1) weights a path is as long as N·ε/√(k·(d + 1)) allows, and with more classes the
    gradient of each is smaller. s and L are 1 and 1,000 for one layer, 0.5 and 2,000 with a hidden one, 0.05 and 10 for a number.

    Args:
        values: of an experiment: data, population, ε, the table's schema, the model and how many steps there are.
    """
    from apportion.compare.spread import spread_width  # needs torch

    form, reach = table_form(values), _reach(values)
    number = form is not None and form.classes is None
    model = values.get("model") or table_model(values)[0]
    network = model not in ("additive", "linear")
    share, most = _NUMBER if number else _NETWORK if network else _LAYER
    path = _UNKNOWN
    if form is not None and reach is not None:
        spread = model in ("additive", "spread-mlp")
        inputs = spread_width(form.inputs, form.numbers) if spread else form.inputs
        path = share * reach * math.sqrt((form.classes or 1) / (inputs + 1))
    rate = min(path, most) / _steps(values)
    return float(f"{min(rate, most / STEPS):.2g}")


def _reach(values: Mapping[str, Any]) -> float | None:
    """Population·ε, where both are known; groups with budgets of their own have no common one."""
    known = KNOWN.get(str(values["data"]))
    population, epsilon = (
        _positive(values, "population") or (known.population if known else None),
        _positive(values, "epsilon"),
    )
    return None if not population or not epsilon else population * epsilon


def _steps(values: Mapping[str, Any]) -> float:
    """That were said, in one of the two forms; or the usual ones."""
    if steps := _positive(values, "steps"):
        return steps
    population, size = _positive(values, "population"), _positive(values, "batch_size")
    rate = _positive(values, "sample_rate") or (size / population if size and population else SAMPLE_RATE)
    epochs = _positive(values, "epochs")
    return float(STEPS) if epochs is None else max(1.0, epochs / rate)


def _positive(values: Mapping[str, Any], name: str) -> float | None:
    """A positive number that was said; what else was said is refused later, with its reason."""
    value = values.get(name)
    return float(value) if isinstance(value, (int, float)) and 0 < value < math.inf else None
