"""A change to the model that a recipe may carry: tempered sigmoids instead of unbounded activations."""

from __future__ import annotations

from dataclasses import dataclass

from apportion import validate

__all__ = ["Temper"]


@dataclass(frozen=True)
class Temper:
    """φ(x) = s·sigmoid(T·x) − o in the place of every ReLU (and tanh, which is φ for 2, 2, 1). See `apportion.temper`.

    Args:
        scale: s > 0; outputs lie between −o and s − o.
        temperature: T > 0, which multiplies x: an inverse temperature.
        offset: o.

    Source: Papernot et al., Tempered Sigmoid Activations for Deep Learning with Differential Privacy, AAAI 2021.
    Guarantee: none of its own. Bounded activations keep the gradients of single records short, so that less is lost to clipping.
    """

    scale: float = 2.0
    temperature: float = 2.0
    offset: float = 1.0

    def __post_init__(self) -> None:
        validate.store(
            self,
            scale=validate.positive("scale", self.scale, "it is the height of the sigmoid", "Try scale=2.0"),
            temperature=validate.positive(
                "temperature", self.temperature, "it is the steepness of the sigmoid", "Try temperature=2.0"
            ),
            offset=validate.non_negative(
                "offset", self.offset, "outputs lie between -offset and scale - offset", "Try offset=1.0"
            ),
        )
