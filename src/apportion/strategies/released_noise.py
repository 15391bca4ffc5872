"""How much of a released gradient is noise. The noise is public, so all of this is post-processing and costs nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from apportion.devices import beside, with_float64
from apportion.request import Released

if TYPE_CHECKING:
    from torch import Tensor


def noise_deviation(released: Released) -> dict[str, Tensor | float]:
    """The standard deviation of the noise in each number of the released mean gradient, by parameter.

    s/B with s = z·Δ/√w, in a frame b·s/B for each coordinate.
    """
    request, deviations = released.request, dict[str, "Tensor | float"]()
    for release in request.sums:
        deviation = request.standard_deviation(release) / request.expected_batch_size
        for name in release.parameters or released.gradient:
            deviations[name] = (
                deviation
                if release.frame is None
                else deviation * beside(release.frame.scale[name], released.gradient[name])
            )
    return deviations


def noise_power(released: Released) -> float:
    """E‖noise‖² of the released mean gradient: Σ over its numbers of their variance."""
    return math.fsum(
        float(deviation**2) * released.gradient[name].numel()
        if isinstance(deviation, float)
        else float(with_float64(deviation).double().square().sum())
        for name, deviation in noise_deviation(released).items()
    )


def signal_power(released: Released) -> float:
    """‖g̃‖² − E‖noise‖², at least 0: an estimate of the squared norm of the mean clipped gradient.

    It is unbiased before it is cut at 0, with a standard deviation of about √(2/d)·E‖noise‖² where noise prevails.
    """
    norm = math.fsum(float(with_float64(value).double().square().sum()) for value in released.gradient.values())
    return max(0.0, norm - noise_power(released))


def average_gradients(
    first: Mapping[str, Tensor], precision: Mapping[str, Tensor | float], released: Released
) -> tuple[dict[str, Tensor], dict[str, Tensor | float]]:
    """The mean of `first` and a released gradient, each weighted by its precision 1/s²; and the precision of that mean."""
    added = {name: deviation**-2 for name, deviation in noise_deviation(released).items()}
    total = {name: precision[name] + added[name] for name in added}
    return {
        name: ((precision[name] * first[name] + added[name] * value) / total[name]).to(
            value.dtype
        )  # a frame may have more digits
        for name, value in released.gradient.items()
    }, total
