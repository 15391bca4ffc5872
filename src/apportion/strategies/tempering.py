"""A change to the model that a recipe may carry: tempered sigmoids instead of unbounded activations."""

from __future__ import annotations

from dataclasses import dataclass

from apportion.validate import Checked, checked, non_negative, positive

__all__ = ["Temper"]


@dataclass(frozen=True)
class Temper(Checked):
    """φ(x) = s·sigmoid(T·x) − o in the place of every ReLU (and tanh, which is φ for 2, 2, 1). See `apportion.temper`.

    Args:
        scale: s > 0; outputs lie between −o and s − o.
        temperature: T > 0, which multiplies x: an inverse temperature.
        offset: o.

    Source: Papernot et al., Tempered Sigmoid Activations for Deep Learning with Differential Privacy, AAAI 2021.
    Guarantee: none of its own. Bounded activations keep the gradients of single records short, so that less is lost to clipping.

    Examples:
        >>> from math import exp
        >>> from apportion.strategies.tempering import Temper
        >>> bounded = Temper()
        >>> [round(bounded.scale / (1 + exp(-bounded.temperature * x)) - bounded.offset, 3) for x in (-9, 0.5, 9)]
        [-1.0, 0.462, 1.0]
    """

    scale: float = checked(2.0, positive, "it is the height of the sigmoid")
    temperature: float = checked(2.0, positive, "it is the steepness of the sigmoid")
    offset: float = checked(1.0, non_negative, "outputs lie between -offset and scale - offset")
