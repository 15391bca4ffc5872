"""LayerNorm, GroupNorm, InstanceNorm and RMSNorm: y = x̂·γ + β with x̂ normalised within a record.

g_γ = Σ_t x̂_t ⊙ β_t and g_β = Σ_t β_t are small, so they are written out for every record. x̂ is computed again when the output's
gradient arrives, because autograd keeps the input of these layers anyway, but not x̂.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn
from torch.nn import functional

from apportion.curator.gradients.layer_use import MaterialisedUse


def layer_norm_use(module: nn.LayerNorm, names: Mapping[str, str], inputs: Tensor) -> MaterialisedUse:
    shape = list(module.normalized_shape)
    return _written_out(names, lambda: functional.layer_norm(inputs, shape, eps=module.eps), slice(1, -len(shape)))


def rms_norm_use(module: nn.RMSNorm, names: Mapping[str, str], inputs: Tensor) -> MaterialisedUse:
    shape = list(module.normalized_shape)
    return _written_out(names, lambda: functional.rms_norm(inputs, shape, eps=module.eps), slice(1, -len(shape)))


def group_norm_use(module: nn.GroupNorm, names: Mapping[str, str], inputs: Tensor) -> MaterialisedUse:
    return _written_out(names, lambda: functional.group_norm(inputs, module.num_groups, eps=module.eps), slice(2, None))


def instance_norm_use(module: nn.InstanceNorm1d, names: Mapping[str, str], inputs: Tensor) -> MaterialisedUse:
    return _written_out(names, lambda: functional.instance_norm(inputs, eps=module.eps), slice(2, None))


def _written_out(names: Mapping[str, str], normalised: Callable[[], Tensor], summed: slice) -> MaterialisedUse:
    """Parameters that all positions of a record share.

    Args:
        summed: the dimensions of these positions: all but the last ones, or all behind the channels.
    """

    def compute(gradient: Tensor) -> dict[str, Tensor]:
        positions = tuple(range(gradient.dim())[summed])
        parts = {"bias": lambda: gradient, "weight": lambda: normalised().mul_(gradient)}
        return {own: parts[own]().sum(positions) if positions else parts[own]() for own in names}

    return MaterialisedUse(names, compute)
