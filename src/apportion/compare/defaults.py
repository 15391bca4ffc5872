"""Training settings that work for a data set, where a person said nothing. Never a part of the budget, but for benchmarks.

For data that is published as a benchmark, `compare` may also fill in δ, the unit and the published population, because nothing
is at stake there; `train` never does.
"""

from __future__ import annotations

from typing import Any

from apportion.data import KNOWN

_TRAINING: dict[str, dict[str, Any]] = {
    "digits": {"sample_rate": 0.2, "steps": 200, "lr": 2.0},
}
_WITHOUT_PRIVACY: dict[str, dict[str, Any]] = {
    "digits": {"optimizer": "momentum", "lr": 0.2},  # without clipping, the learning rate above diverges
}
_TABLE: dict[str, Any] = {"sample_rate": 0.1, "steps": 100, "lr": 2.0}
"""For a table of any size. With a learning rate of 0.5 a hundred steps are too few: 69 % instead of 84 % on made-up patients."""
_OTHERWISE: dict[str, Any] = {"batch_size": 512, "epochs": 10, "lr": 0.5}


def with_training_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Fill in sampling rate, length and learning rate where both forms of them are missing."""
    from apportion.tables.table_files import is_table

    data = str(values["data"])
    chosen = _TRAINING.get(data, _TABLE if values.get("table") is not None or is_table(data) else _OTHERWISE)
    filled = dict(values)
    for pair in (("sample_rate", "batch_size"), ("steps", "epochs"), ("lr",)):
        if all(filled.get(name) is None for name in pair):
            filled |= {name: chosen[name] for name in pair if name in chosen}
    other = _WITHOUT_PRIVACY.get(str(values["data"]))
    if other and values.get("lr") is None and values.get("optimizer") is None and isinstance(values["recipe"], list):
        filled["recipe"] = [_filled(choice, other) for choice in values["recipe"]]
    return filled


def _filled(choice: Any, other: dict[str, Any]) -> Any:
    plain = isinstance(choice, dict) and choice.get("name") == "non-private" and not {"lr", "optimizer"} & set(choice)
    return {**choice, **other} if plain else choice


def with_benchmark_budget(values: dict[str, Any]) -> dict[str, Any]:
    """For a published benchmark: δ = 1e-5, one record, the published population, where they were not said."""
    if str(values["data"]) not in KNOWN:
        return values
    public = {"delta": 1e-5, "unit": "record", "population": published_population(values["data"])}
    return values | {name: value for name, value in public.items() if values.get(name) is None}


def published_population(data: str) -> int | None:
    """How many training records a benchmark is documented to have."""
    return KNOWN[data].population if data in KNOWN else None
