"""Multi-head attention: its projections are linear layers; what lies between them has no parameters.

`nn.MultiheadAttention` keeps the weights of query, key and value as the blocks of one parameter (3E, E). Their gradients stand below each
other, so ‖g‖² is the sum over the blocks, and sums are put together block by block. Blocks with the same input are one block: all three
in self-attention, key and value where both come from the same memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import _canonical_mask, _none_or_dtype, dropout, linear, pad, scaled_dot_product_attention

from apportion.curator.gradients.layer_use import MaterialisedUse
from apportion.curator.gradients.linear import LinearUse
from apportion.errors import UnsupportedModel

if TYPE_CHECKING:
    from apportion.curator.gradients.one_pass import OnePass


class StackedUse:
    """Linear layers whose weights, or biases, are stacked in one parameter.

    Args:
        blocks: in the order in which they are stacked. Those with the same full name belong together.
        shapes: of the outputs of one record, (T, out), for every block. The output's gradient holds them behind each other.
    """

    def __init__(self, names: Mapping[str, str], blocks: list[LinearUse], shapes: list[tuple[int, int]]):
        self.names, self._blocks, self._shapes = names, blocks, shapes

    def receive(self, output_gradient: Tensor, views: int = 1) -> None:
        parts = output_gradient.split([positions * size for positions, size in self._shapes], 1)
        for block, part, shape in zip(self._blocks, parts, self._shapes, strict=True):
            block.receive(part.unflatten(1, shape), views)

    @property
    def kernel(self) -> str:
        return ", ".join(sorted({block.kernel for block in self._blocks}))

    def squared_norms(self) -> dict[str, Tensor]:
        return {
            name: torch.stack(parts).sum(0) for name, parts in _group_by_name([b.squared_norms() for b in self._blocks])
        }

    def weighted_sums(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: torch.cat(parts) for name, parts in _group_by_name([b.weighted_sums(weights) for b in self._blocks])
        }

    def rows(self, name: str, records: slice) -> Tensor:
        return torch.cat([b.rows(name, records) for b in self._blocks if name in b.names.values()], 1)

    def zero_records(self, records: Tensor) -> None:
        for block in self._blocks:
            block.zero_records(records)


def _group_by_name(found: list[dict[str, Tensor]]) -> list[tuple[str, list[Tensor]]]:
    names = dict.fromkeys(name for part in found for name in part)
    return [(name, [part[name] for part in found if name in part]) for name in names]


class _Attention:
    """One attention layer of the scratch copy, step by step as `torch.nn.functional.multi_head_attention_forward`, records first."""

    def __init__(self, module: nn.MultiheadAttention, path: str, names: Mapping[str, str], engine: OnePass):
        self._module, self._path, self._names, self._engine = module, path, names, engine

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        module = self._module
        self._require_batched(query)
        if is_causal and attn_mask is None:
            raise RuntimeError("is_causal is a hint about attn_mask, which is missing")  # as torch does
        q, k, v = self._project(query, key, value)
        mask, padding = self._masks(attn_mask, key_padding_mask, query.dtype)
        for extra_k, extra_v in self._extra_positions(q.shape[0], k):
            k, v = torch.cat([k, extra_k], 1), torch.cat([v, extra_v], 1)
            mask = None if mask is None else pad(mask, (0, 1))
            padding = None if padding is None else pad(padding, (0, 1))
        if padding is not None:
            mask = padding if mask is None else mask + padding
        q, k, v = (projected.unflatten(2, (module.num_heads, -1)).transpose(1, 2) for projected in (q, k, v))
        weights = None
        if need_weights:
            weights = self._attention_weights(q, k, mask)
            mixed = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            by_hint = is_causal and padding is None
            mixed = scaled_dot_product_attention(q, k, v, None if by_hint else mask, self._dropout, by_hint)
        output = self._project_output(mixed.transpose(1, 2).flatten(2))
        return (output if module.batch_first else output.transpose(0, 1)), weights

    def _require_batched(self, query: Tensor) -> None:
        if query.dim() == 3 and not query.is_nested:
            return
        kind = (
            "a nested tensor" if query.is_nested else f"a query of shape {tuple(query.shape)}, without batch dimension"
        )
        raise UnsupportedModel(
            f"{self._path} (MultiheadAttention) is called with {kind}, so its records cannot be told apart. "
            "Give it three dimensions; nn.TransformerEncoder needs enable_nested_tensor=False in evaluation mode"
        )

    @property
    def _dropout(self) -> float:
        return self._module.dropout if self._module.training else 0.0

    def _masks(
        self, attn_mask: Tensor | None, key_padding_mask: Tensor | None, dtype: torch.dtype
    ) -> tuple[Tensor | None, Tensor | None]:
        """The two masks as numbers that are added to the scores, in shapes that are broadcast over (b, heads, T, S)."""
        padding = _canonical_mask(key_padding_mask, "key_padding_mask", _none_or_dtype(attn_mask), "attn_mask", dtype)
        mask = _canonical_mask(attn_mask, "attn_mask", None, "", dtype, check_other=False)
        if mask is not None and mask.dim() == 3:
            mask = mask.unflatten(0, (-1, self._module.num_heads))
        return mask, None if padding is None else padding[:, None, None, :]

    def _attention_weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        scores = q * q.shape[-1] ** -0.5 @ k.mT
        weights = (scores if mask is None else scores + mask).softmax(-1)
        return dropout(weights, self._dropout) if self._dropout else weights

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value (b, T, E) after their projections."""
        module, names = self._module, self._names
        size = module.embed_dim
        together = module._qkv_same_embed_dim
        blocks = [(query, 0, 1), (key, 1, 2), (value, 2, 3)]
        if together and key is value:
            blocks = [(query, 0, 3)] if query is key else [(query, 0, 1), (key, 1, 3)]
        learned = {own: name for own, name in names.items() if own.endswith(("proj_weight", "proj_bias"))}
        bias = module.in_proj_bias
        uses, outputs = [], []
        for inputs, start, stop in blocks:
            rows = slice(start * size, stop * size)
            own = "in_proj_weight" if together else ("q_proj_weight", "k_proj_weight", "v_proj_weight")[start]
            weight = module.get_parameter(own)
            by_record = inputs if module.batch_first else inputs.transpose(0, 1)
            outputs.append(
                linear(by_record, weight[rows] if together else weight, None if bias is None else bias[rows])
            )
            if learned:
                parts = {"weight": own, "bias": "in_proj_bias"}
                parts = {part: learned[own] for part, own in parts.items() if own in learned}
                uses.append(LinearUse(parts, self._engine.save_input(self._path, by_record)))
        if learned:
            shapes = [(output.shape[1], output.shape[2]) for output in outputs]
            flat = [output.flatten(1) for output in outputs]
            watched = self._engine.tap_output(
                StackedUse(learned, uses, shapes), flat[0] if len(flat) == 1 else torch.cat(flat, 1)
            )
            pieces = watched.split([positions * width for positions, width in shapes], 1)
            outputs = [piece.unflatten(1, shape) for piece, shape in zip(pieces, shapes, strict=True)]
        q, k, v = (piece for output in outputs for piece in output.split(size, 2))
        return q, k, v

    def _extra_positions(self, records: int, keys: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Positions that every record attends to besides its own: a learned one (`add_bias_kv`), and zeros (`add_zero_attn`)."""
        module, extra = self._module, []
        if module.bias_k is not None and module.bias_v is not None:
            extra.append((self._repeat_parameter("bias_k", records), self._repeat_parameter("bias_v", records)))
        if module.add_zero_attn:
            zeros = keys.new_zeros(records, 1, module.embed_dim)
            extra.append((zeros, zeros))
        return extra

    def _repeat_parameter(self, own: str, records: int) -> Tensor:
        value = self._module.get_parameter(own).expand(records, 1, -1)
        if own not in self._names:
            return value
        use = MaterialisedUse({own: self._names[own]}, lambda gradient: {own: gradient.unsqueeze(1)})
        return self._engine.tap_output(use, value)

    def _project_output(self, mixed: Tensor) -> Tensor:
        layer = self._module.out_proj
        names = {own: self._names[f"out_proj.{own}"] for own in ("weight", "bias") if f"out_proj.{own}" in self._names}
        output = linear(mixed, layer.weight, layer.bias)
        if not names:
            return output
        return self._engine.tap_output(LinearUse(names, self._engine.save_input(self._path, mixed)), output)


def replace_attention(module: nn.MultiheadAttention, path: str, names: Mapping[str, str], engine: OnePass) -> None:
    """Run an `nn.MultiheadAttention` of the scratch copy in steps that have a rule each."""
    module.forward = _Attention(module, path, names, engine).forward  # type: ignore[method-assign]
    # In evaluation mode nn.TransformerEncoderLayer calls a fused kernel instead of its parts, unless one of them has a hook.
    module.register_forward_pre_hook(lambda module, inputs: None)
