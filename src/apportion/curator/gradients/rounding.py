"""Norms that are never too small, although they and the clipped sums are computed in the model's own precision.

A clipped record must have norm at most C·(1 + h) as it is *added*, h being the declared headroom. Three things could break that:

**Long sums.** A float32 sum of n squares may lose n·u/16 of itself, u = 2⁻²⁴: it is taken in pieces, which are added in float64.

**Small numbers.** Squares of numbers below 10⁻¹⁹ vanish in float32, and a factor of 10¹⁸ elsewhere would bring them back: such records
are computed again in another way.

**Cancellation.** The gradient of a weight that is used at T positions, g = Σ_t β_t ⊗ a_t, may be much smaller than its terms. The weighted
sum adds them in another order than the norm did, so both are g with an error of up to γ·B each, γ = u·√T, B = ‖a‖·‖β‖ over all
positions, which may be larger than g. With ‖g‖² + ρ²·B² in place of ‖g‖², a clipped record has norm at most

    C·(‖g‖ + 2γB) / √(‖g‖² + ρ²B²)  ≤  C·√(1 + 4γ²/ρ²)  ≤  C·(1 + h/2)      for ρ² = 4γ²/h

by Cauchy–Schwarz. On records whose terms do not cancel this changes the norm by less than rounding does.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from apportion.devices import with_float64
from apportion.releases import FLOAT32_HEADROOM

MAX_FLOAT32_TERMS = 4096
"""So many numbers are added up in float32."""
UNDERFLOW_LIMIT = 1e-22
"""A sum of squares below this has lost some of them to underflow."""


def squared_row_norms(values: Tensor) -> Tensor:
    """Σ over all dimensions but the first of the squares, (b,), in float64."""
    flat = _flatten_rows(values)
    whole = flat.shape[1] // MAX_FLOAT32_TERMS * MAX_FLOAT32_TERMS
    rest = flat[:, whole:] if whole else flat
    total: Tensor = with_float64(torch.linalg.vector_norm(rest, dim=1)).double().square()
    if whole:
        pieces = flat[:, :whole].unflatten(1, (-1, MAX_FLOAT32_TERMS))
        total += with_float64(torch.linalg.vector_norm(pieces, dim=2)).double().square().sum(1)
    if values.dtype == torch.float64 or not total.numel() or total.amin().item() >= UNDERFLOW_LIMIT:
        return total
    underflowed = (total < UNDERFLOW_LIMIT).nonzero()[:, 0]  # none, if it was NaN that is not above the limit
    if underflowed.numel():
        total[underflowed] = torch.linalg.vector_norm(
            with_float64(flat[underflowed]), dim=1, dtype=torch.float64
        ).square()
    return total


def _flatten_rows(values: Tensor) -> Tensor:
    """(b, numbers) without a copy, also of channels_last."""
    if values.dim() == 2:
        return values
    dense = sorted(range(1, values.dim()), key=values.stride, reverse=True)
    return values.permute(0, *dense).flatten(1) if dense else values.unsqueeze(1)


def rounding_margin(positions: int, dtype: torch.dtype) -> float:
    """ρ² for sums over so many positions."""
    unit: float = torch.finfo(dtype).eps / 2
    return 4 * unit**2 * positions / FLOAT32_HEADROOM


def gram_matrix(values: Tensor) -> Tensor:
    """(b, T, size) → (b, T, T), all inner products."""
    first, *others = values.split(MAX_FLOAT32_TERMS // 4, 2)
    total: Tensor = first @ first.mT
    for piece in others:
        total += piece @ piece.mT
    return total


def norms_from_grams(of_inputs: Tensor, of_gradients: Tensor, size: int, again: Callable[[Tensor], Tensor]) -> Tensor:
    """‖Σ_t β_t ⊗ a_t‖² = Σ_{t,s} (a_t·a_s)(β_t·β_s), (b,), in float64. Writes over `of_inputs`.

    The terms of this sum cancel more than those of the gradient itself: u·√size·(Σ_t ‖a_t‖·‖β_t‖)² is added for that.

    Args:
        of_inputs: a_t·a_s, (b, T, T).
        of_gradients: β_t·β_s, (b, T, T).
        size: numbers in an a_t and a β_t together.
        again: from indices of records to their norms, computed in another way: for those that are too small for this one.
    """
    inputs, gradients = (
        with_float64(part.diagonal(dim1=1, dim2=2).clamp(min=0)).double() for part in (of_inputs, of_gradients)
    )
    lengths = (inputs * gradients).sqrt().sum(1)
    magnitudes = inputs.sum(1) * gradients.sum(1)
    unit: float = torch.finfo(of_inputs.dtype).eps
    exact = with_float64(of_inputs.mul_(of_gradients).sum((1, 2))).double().clamp(min=0)
    norms: Tensor = (
        exact + unit * size**0.5 * lengths.square() + rounding_margin(of_inputs.shape[1], of_inputs.dtype) * magnitudes
    )
    underflowed = ((inputs.sum(1) < UNDERFLOW_LIMIT) | (gradients.sum(1) < UNDERFLOW_LIMIT)).nonzero()[:, 0]
    if len(underflowed) and of_inputs.dtype != torch.float64:
        norms[underflowed] = again(underflowed)
    return norms
