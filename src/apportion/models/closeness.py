"""Whether tensors agree up to rounding."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import keystr, tree_flatten_with_path


def named_tensors(outputs: Any) -> list[tuple[str, torch.Tensor]]:
    """Every tensor of the outputs with a name such as `output['logits']`; None and numbers are passed over."""
    leaves, _ = tree_flatten_with_path(outputs)
    return [(f"output{keystr(path)}", leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor)]


def same(actual: Any, expected: Any, computed_in: torch.dtype | None = None) -> bool:
    """Whether two structures have the same tensors, up to rounding; of a type that is coarser than theirs, if they were computed in it."""
    one, other = named_tensors(actual), named_tensors(expected)
    return [name for name, _ in one] == [name for name, _ in other] and all(
        close(a, b, computed_in=computed_in) for (_, a), (_, b) in zip(one, other, strict=True)
    )


def close(
    actual: torch.Tensor, expected: torch.Tensor, looseness: float = 1, computed_in: torch.dtype | None = None
) -> bool:
    """Whether two tensors agree up to rounding, measured against the largest number in them."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return False
    if not (expected.is_floating_point() or expected.is_complex()):
        return torch.equal(actual, expected)
    types = [expected.dtype, *([computed_in] if computed_in is not None else [])]
    tolerance = max({torch.float64: 1e-8, torch.float32: 1e-4}.get(one, 5e-2) for one in types) * looseness
    if expected.is_cuda:
        tolerance = max(tolerance, 1e-2)  # convolutions may use TF32, with 10 bits
    finite = expected.detach()[torch.isfinite(expected)].abs()
    # Not below 1e-3, as numbers that should be zero are nothing but rounding.
    scale = max(float(finite.max()), 1e-3) if finite.numel() else 0.0
    return torch.allclose(actual, expected, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def identical(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal to the bit, where NaN equals NaN."""
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())
