"""Operations that `vmap` computes correctly, but in a way that records cannot be traced through, in forms that can be traced.

Some batching rules put all records into one table and index it by offsets; others loop over the records internally. The forms here have
the same results:

    embedding       table[index], for every record from its own table
    attention       softmax(q·kᵀ·s + mask)·v
    weight norm     v·g/‖v‖
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    if max_norm is not None or scale_grad_by_freq or sparse:
        return NotImplemented
    rows = weight[input]
    return rows if padding_idx is None else without_padding(rows, input, padding_idx % weight.shape[0])


def without_padding(rows: Tensor, indices: Tensor, padding: int) -> Tensor:
    """Rows of padding have the same values and no gradient."""
    return torch.where((indices == padding).unsqueeze(-1), rows.detach(), rows)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if enable_gqa:
        return NotImplemented
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    # a place that may look at nothing sees zeros, as in torch
    weights = torch.where(scores.isneginf().all(-1, keepdim=True), 0.0, scores.softmax(-1))
    return functional.dropout(weights, dropout_p) @ value


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Any:
    others = [one for one in range(v.dim()) if one != dim % v.dim()] if dim != -1 else list(range(v.dim()))
    return v * (g / torch.linalg.vector_norm(v, dim=others, keepdim=True))


TRACEABLE_FORMS: dict[Any, Callable[..., Any]] = {
    functional.embedding: _embedding,
    functional.scaled_dot_product_attention: _attention,
    torch._weight_norm: _weight_norm,
}
