"""How far one layer on features may move, from public facts: how much noise there is for each weight."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from apportion.data import KNOWN
from apportion.data.entry import Entry

_STEPS, _MORE_STEPS, _MORE_FROM = 200, 400, 3.0
"""Of a scattering transform of grey images from ε = 3 on: sampling loses more of a larger ε, and less of it in more steps. On CIFAR-100
more steps gained nothing."""
_SHARE = 0.3
_SHORTEST, _LONGEST = 20.0, 300.0
"""Of a path, the sum of the learning rates: 200 steps at 0.1 and at 1.5."""
_PHOTOGRAPH: dict[str, Any] = {"colours": "opponent", "mirror": True, "directions": 384}
"""What a scattering transform of colour photographs has besides."""
_CLIP, _PHOTOGRAPH_CLIP = 0.1, 20.0
"""Thresholds: far below the gradients of all records; and, of photographs, a fifth of the length of their features, so that records which
are nearly right count less."""
_SCATTERED, _THINNED = 81, 4
"""Channels that a scattering transform with its defaults makes of one, and how many pixels on each axis become one."""
_POOLED = 4
"""Positions on each axis behind a random layer."""
_COLOURS = 3
_WIDTH, _CLASSES = 1_280, 10
"""Where nothing is known: those of a small pre-trained network."""

FEATURES_WHY = (
    "one layer on fixed features moves by 0.3·population·ε/√(weights) in 200 steps of gradients of length 1, a rule fitted on held-out "
    "training records of Fashion-MNIST and on CIFAR-100, and tested on MNIST and CIFAR-10"
)
SCATTER_WHY = (
    "one layer on a scattering transform moves by 0.3·population·ε/√(weights), of photographs above ε = 1 with √ε in place of ε, in 200 "
    "steps of gradients of length 1, or 400 where grey images have ε = 3 or more; fitted on held-out training records of MNIST and "
    "Fashion-MNIST, each for the other, and on CIFAR-100 for CIFAR-10"
)
PHOTOGRAPH_WHY = (
    "for colour photographs brightness and colour apart, an image and its mirror image as one, and a layer of random directions gained 8 "
    "points on CIFAR-100 with 20 classes at ε = 3"
)
WORDS_WHY = "one layer on which words a text has is far more accurate than a network that learns what they mean"
WORDS_RATE_WHY = (
    "one layer on the words moves by 0.3·population·ε/√(weights) in 200 steps of gradients of length 1, the rule for features of images, "
    "which was within half a point of the best on reviews of clothes and of films, and was then tested on IMDB"
)


def feature_steps(values: Mapping[str, Any]) -> int:
    """200; of a scattering transform of grey images 400 from ε = 3 on."""
    epsilon = values.get("epsilon")
    grey = _is_scattered(values) and not is_photograph(values)
    return _MORE_STEPS if grey and epsilon and epsilon >= _MORE_FROM else _STEPS


def feature_clip(values: Mapping[str, Any]) -> float:
    """The threshold of the recipe `default`."""
    return _PHOTOGRAPH_CLIP if _is_scattered(values) and is_photograph(values) else _CLIP


def learning_rate(values: Mapping[str, Any]) -> float:
    """η = 0.3·N·ε/(T·√(width·classes)) for T steps and a path η·T between 20 and 300, in units of gradients that are divided by their
    threshold; of a scattering transform of photographs with √ε above ε = 1.

    With noise of one deviation on each of d weights the best path is as long as N·ε/√d allows; steps and rate share it. Where there is
    little noise, less is gained by going further.

    Args:
        values: of an experiment: data, population, ε and features.
    """
    known = KNOWN.get(str(values["data"]))
    population, epsilon = values.get("population") or (known.population if known else None), values.get("epsilon")
    if not population or not epsilon:
        return 1.0
    weights = _WIDTH * _CLASSES if known is None else _width(known, values.get("features")) * known.classes
    reach = min(epsilon, math.sqrt(epsilon)) if _is_scattered(values) and is_photograph(values) else epsilon
    path = _SHARE * population * reach / math.sqrt(weights)
    return float(f"{min(max(path, _SHORTEST), _LONGEST) / feature_steps(values):.2g}")


def is_photograph(values: Mapping[str, Any]) -> bool:
    """Whether the data is known to be colour photographs."""
    known = KNOWN.get(str(values["data"]))
    return known is not None and known.kind == "image" and known.shape[0] == _COLOURS


def of_photographs(values: Mapping[str, Any]) -> Any:
    """The features that were said; of a scattering transform of photographs with opponent colours, mirror images and a random layer, where
    nothing but the transform was said."""
    said = values.get("features")
    plain = said == "scatter" or (isinstance(said, Mapping) and dict(said) == {"kind": "scatter"})
    return {"kind": "scatter", **_PHOTOGRAPH} if plain and is_photograph(values) else said


def _is_scattered(values: Mapping[str, Any]) -> bool:
    return str(_kind(values.get("features"))).split(" ", 1)[0] == "scatter"


def _width(known: Entry, features: Any) -> int:
    """Of the features of one record, where that is a public fact."""
    if known.kind == "image" and str(_kind(features)).startswith("scatter"):
        channels, height, width = known.shape
        if isinstance(features, Mapping) and features.get("directions"):
            return 2 * int(features["directions"]) * _POOLED**2
        return _SCATTERED * channels * math.ceil(height / _THINNED) * math.ceil(width / _THINNED)
    if known.kind == "words" and known.vocabulary:
        return known.vocabulary
    return _WIDTH


def _kind(features: Any) -> Any:
    return features.get("kind") if isinstance(features, Mapping) else getattr(features, "kind", features)
