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
_FEATURES: dict[str, Any] = {"sample_rate": 0.14, "steps": 280, "lr": 1.0}
"""For one layer on normalised features, whose gradients are long: chosen on 10,000 training records of MNIST and Fashion-MNIST that were
held out, at ε = 1.2 and 2.7. A few hundred steps with large batches, momentum and averaged weights."""
_FEATURES_MOMENTUM = 0.9
_FEATURES_RECIPE: dict[str, dict[str, Any]] = {"clip": {"ratio": 1.0}, "update": {"average": 0.98}}
"""Of the recipe `default`: a threshold that stays, since most gradients are far longer, and an average over more steps."""
_FEATURES_WITHOUT_PRIVACY: dict[str, Any] = {"optimizer": "adam", "lr": 0.001, "momentum": 0.0}
_OTHERWISE: dict[str, Any] = {"batch_size": 512, "epochs": 10, "lr": 0.5}


def with_training_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Fill in sampling rate, length and learning rate where both forms of them are missing."""
    from apportion.tables.table_files import is_table

    data, featured = str(values["data"]), values.get("features") is not None
    chosen = _TRAINING.get(data, _TABLE if values.get("table") is not None or is_table(data) else _OTHERWISE)
    chosen, filled = _FEATURES if featured else chosen, dict(values)
    for pair in (("sample_rate", "batch_size"), ("steps", "epochs"), ("lr",)):
        if all(filled.get(name) is None for name in pair):
            filled |= {name: chosen[name] for name in pair if name in chosen}
    if featured and values.get("optimizer") is None and values.get("momentum") is None:
        filled["momentum"] = _FEATURES_MOMENTUM
    if not isinstance(values["recipe"], list):
        return filled
    if featured:
        filled["recipe"] = [_steadied(choice) for choice in filled["recipe"]]
    other = _FEATURES_WITHOUT_PRIVACY if featured else _WITHOUT_PRIVACY.get(str(values["data"]))
    if other and values.get("lr") is None and values.get("optimizer") is None:
        filled["recipe"] = [_filled(choice, other) for choice in filled["recipe"]]
    return filled


def _steadied(choice: Any) -> Any:
    """The recipe `default` as it is best on features; others stay what they were published as."""
    if not isinstance(choice, dict) or choice.get("name") != "default":
        return choice
    said = {role: choice.get(role, {}) for role in _FEATURES_RECIPE}
    ours = [role for role, one in said.items() if isinstance(one, dict) and "kind" not in one]
    return choice | {role: _FEATURES_RECIPE[role] | said[role] for role in ours}


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
