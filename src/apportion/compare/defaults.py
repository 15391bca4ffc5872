"""Training settings that work for a data set, where a person said nothing. Never a part of the budget, but for benchmarks.

For data that is published as a benchmark, `compare` may also fill in δ, the unit and the published population, because nothing
is at stake there; `train` never does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from apportion.compare.feature_defaults import (
    FEATURES_WHY,
    PHOTOGRAPH_WHY,
    SCATTER_WHY,
    WORDS_RATE_WHY,
    WORDS_WHY,
    feature_clip,
    feature_steps,
    is_photograph,
    learning_rate,
    of_photographs,
)
from apportion.compare.table_defaults import (
    SAMPLE_RATE,
    STEPS,
    is_tabular,
    table_model,
    table_rate,
    table_recipe,
    table_why,
)
from apportion.data import KNOWN

NO_FEATURES = "none"
"""Says that inputs are to be trained on as they are."""
_SMALLEST_SIDE, _SMALLEST_POPULATION = 16, 10_000
"""Of images that go through a scattering transform if nobody says otherwise: on MNIST and Fashion-MNIST it wins 2 to 5 points over a
network on the pixels. On digits (8 pixels, 1,437 records) averages over 4 pixels, as of the default scale=2, lose 5 to 11; with scale=1,
whitened, as in the demo, `default` reached 96.3 ± 0.3 % and the network 94.9 ± 0.2 at ε = 3, at a rate that was chosen there."""


@dataclass(frozen=True)
class Preset:
    """Training settings for a kind of data, and why they are what they are."""

    settings: Mapping[str, Any]
    why: str


_DIGITS = Preset({"sample_rate": 0.2, "steps": 200, "lr": 2.0}, "measured on digits")
_WITHOUT_PRIVACY: dict[str, dict[str, Any]] = {
    "digits": {"optimizer": "momentum", "lr": 0.2},  # without clipping, the learning rate above diverges
}
_TABLE_WITHOUT_PRIVACY: dict[str, Any] = {"optimizer": "adam", "lr": 0.01}
_FEATURES_MOMENTUM = 0.9
_FEATURES_UPDATE: dict[str, Any] = {"average": 0.98, "divide_by_clip": True}
"""Of the recipe `default`: gradients are divided by their threshold, and weights averaged over more steps."""
_FEATURES_WITHOUT_PRIVACY: dict[str, Any] = {"optimizer": "adam", "lr": 0.001, "momentum": 0.0}
_ADAM: dict[str, float] = {"adamw": 0.03, "adamw-bc": 0.003}
"""Learning rates of recipes whose steps have a length of their own, whatever the gradient is: measured on digits at ε = 2."""
_OTHERWISE = Preset({"batch_size": 512, "epochs": 10, "lr": 0.5}, "usual values, not measured on this data")


_RATES = {"words": WORDS_RATE_WHY, "scatter": SCATTER_WHY}


def with_features(values: dict[str, Any]) -> dict[str, Any]:
    """A scattering transform for a large data set of images, and which words there are for texts, where neither a model nor features were
    said, nor a published recipe."""
    known = KNOWN.get(str(values["data"]))
    said = any(values.get(name) is not None for name in ("features", "model", "activation", "views", "table"))
    recipes = [one.get("name") if isinstance(one, dict) else one for one in values["recipe"]]
    if said or known is None or recipes != ["default"]:
        return values
    if known.kind == "words":
        return values | {"features": "words"}
    if known.kind != "image":
        return values
    population = values.get("population") or known.population or 0
    if min(known.shape[-2:]) < _SMALLEST_SIDE or population < _SMALLEST_POPULATION:
        return values
    return values | {"features": "scatter"}


def explain_choices(said: Mapping[str, Any], filled: Mapping[str, Any]) -> list[str]:
    """What was filled in where nothing was said, and why: one line for each reason."""
    only = filled["recipe"][0] if len(filled.get("recipe", ())) == 1 else {}
    own = {name: only[name] for name in ("lr", "momentum") if only.get(name) is not None}
    new = {name: value for name, value in {**filled, **own}.items() if value and said.get(name) is None}
    lines = []
    if new.get("features") and _kind(new["features"]) == "words":
        lines.append(f"features words: {WORDS_WHY}; --features none trains a network on the words")
    elif "features" in new:
        lines.append(
            f"features scatter: for images of {_SMALLEST_SIDE} pixels or more and {_SMALLEST_POPULATION:,} records or more "
            "one layer on fixed features was more accurate than a network at every ε that was measured; --features none trains a network"
        )
    if (
        filled.get("features")
        and is_photograph(filled)
        and _said_more(filled["features"])
        and not _said_more(said.get("features"))
    ):
        lines.append(f"scatter colours=opponent mirror=true directions=384: {PHOTOGRAPH_WHY}; say them to change them")
    if "model" in new and _is_plain_table(filled):
        lines.append(f"model {new['model']}: {table_model(filled)[1]}")
    kept = [
        f"{name} {new[name]:g}"
        for name in ("sample_rate", "batch_size", "steps", "epochs", "lr", "momentum")
        if name in new
    ]
    if kept:
        lines.append(f"{', '.join(kept)}: {_preset(filled).why}")
    return lines


def _kind(features: Any) -> str:
    """Of features as a file or an experiment says them: the name of the map."""
    named = features.get("kind") if isinstance(features, Mapping) else features
    return str(named).split(" ", 1)[0]


def _said_more(features: Any) -> bool:
    """Whether a random layer is among what was said of features."""
    return isinstance(features, Mapping) and features.get("directions") is not None


def _is_plain_table(values: Mapping[str, Any]) -> bool:
    return values.get("features") is None and is_tabular(values)


def _preset(values: Mapping[str, Any]) -> Preset:
    if values.get("features") is not None:
        why = _RATES.get(_kind(values["features"]), FEATURES_WHY)
        return Preset({"sample_rate": 0.2, "steps": feature_steps(values), "lr": learning_rate(values)}, why)
    if str(values["data"]) == "digits":
        return _DIGITS
    if _is_plain_table(values):
        return Preset({"sample_rate": SAMPLE_RATE, "steps": STEPS, "lr": table_rate(values)}, table_why(values))
    return _OTHERWISE


def with_training_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Fill in sampling rate, length and learning rate where both forms of them are missing; of a table also the model."""
    if values.get("features") == NO_FEATURES:
        values = values | {"features": None}
    values = values | ({"features": of_photographs(values)} if values.get("features") is not None else {})
    featured, tabular = values.get("features") is not None, _is_plain_table(values)
    chosen, filled = _preset(values).settings, dict(values)
    if tabular and values.get("model") is None:
        filled["model"] = table_model(values)[0]
    for pair in (("sample_rate", "batch_size"), ("steps", "epochs"), ("lr",)):
        if all(filled.get(name) is None for name in pair):
            filled |= {name: chosen[name] for name in pair if name in chosen}
    if featured and values.get("optimizer") is None and values.get("momentum") is None:
        filled["momentum"] = _FEATURES_MOMENTUM
    if not isinstance(values["recipe"], list):
        return filled
    filled["recipe"] = [_optimised(choice, values) for choice in filled["recipe"]]
    if featured:
        ours = {"clip": {"start": feature_clip(values), "ratio": 1.0}, "update": _FEATURES_UPDATE}
        filled["recipe"] = [_steadied(choice, ours) for choice in filled["recipe"]]
    elif tabular:
        filled["recipe"] = [_steadied(choice, table_recipe(values)) for choice in filled["recipe"]]
    other = _WITHOUT_PRIVACY.get(str(values["data"]), _TABLE_WITHOUT_PRIVACY if tabular else None)
    if featured:
        other = _FEATURES_WITHOUT_PRIVACY
    if other and values.get("lr") is None and values.get("optimizer") is None:
        filled["recipe"] = [_filled(choice, other) for choice in filled["recipe"]]
    return filled


def _steadied(choice: Any, ours: Mapping[str, dict[str, Any]]) -> Any:
    """The recipe `default` as it is best on features, or on tables; others stay what they were published as."""
    if not isinstance(choice, dict) or choice.get("name") != "default":
        return choice
    said = {role: choice.get(role, {}) for role in ours}
    open_ones = [role for role, one in said.items() if isinstance(one, dict) and "kind" not in one]
    return choice | {role: ours[role] | said[role] for role in open_ones}


def _optimised(choice: Any, values: Mapping[str, Any]) -> Any:
    """A recipe that is an optimiser itself with a learning rate for it, and without momentum, where neither was said."""
    if not isinstance(choice, dict) or choice.get("name") not in _ADAM:
        return choice
    own = {"lr": _ADAM[choice["name"]], "momentum": 0.0}
    return {name: value for name, value in own.items() if values.get(name) is None} | choice


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
