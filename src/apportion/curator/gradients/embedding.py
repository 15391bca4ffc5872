"""Embeddings: the row of a token gets the output gradients of all places where a record uses it.

For record i, g_i[v] = Σ_{t: id_t = v} β_t, so ‖g_i‖² = Σ_v ‖Σ_{t: id_t = v} β_t‖². The places of one record are sorted by token, and
equal neighbours are added: no one-hot matrix, no (batch × vocabulary). The padding index has no gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from apportion.curator.gradients.use import scaled, without
from apportion.errors import UnsupportedModel

if TYPE_CHECKING:
    from apportion.curator.gradients.one_pass import OnePass


class EmbeddingUse:
    """One use of a table of vectors.

    Args:
        tokens: (b, places), rows of the table.
        coefficients: (b, places), what a place's vector is multiplied with in the output; `None` for 1.
        size: rows of the table.
        padding: the row without a gradient.
    """

    kernel = "equal tokens added"

    def __init__(
        self,
        names: Mapping[str, str],
        tokens: Tensor,
        size: int,
        padding: int | None,
        coefficients: Tensor | None = None,
    ):
        self.names = names
        self._tokens, self._size, self._padding = tokens.flatten(1), size, padding
        self._coefficients = coefficients
        self._gradients: Tensor

    def receive(self, output_gradient: Tensor) -> None:
        """(b, places, d), or (b, 1, d) if all places share the output."""
        records, places = self._tokens.shape
        gradients = output_gradient.reshape(records, -1, output_gradient.shape[-1]).expand(records, places, -1)
        factors = self._coefficients
        if self._padding is not None:
            counts = (self._tokens != self._padding).to(gradients.dtype)
            factors = counts if factors is None else factors * counts
        self._gradients = gradients if factors is None else gradients * factors.unsqueeze(2)

    def squared_norms(self) -> dict[str, Tensor]:
        records, places = self._tokens.shape
        ordered, order = self._tokens.sort(1)
        first = torch.ones_like(ordered, dtype=torch.bool)
        first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        segment = first.flatten().cumsum(0) - 1  # numbers the (record, token) pairs
        sorted_gradients = self._gradients.gather(1, order.unsqueeze(2).expand_as(self._gradients))
        count = int(segment[-1]) + 1 if places else 0
        added = sorted_gradients.new_zeros(count, sorted_gradients.shape[2])
        added.index_add_(0, segment, sorted_gradients.flatten(0, 1))
        owner = first.nonzero()[:, 0]
        norms = added.new_zeros(records).index_add_(0, owner, added.square().sum(1))
        return {self.names["weight"]: norms}

    def weighted_sums(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        name = self.names["weight"]
        gradients = scaled(weights[name], self._gradients).flatten(0, 1)
        total = gradients.new_zeros(self._size, gradients.shape[1])
        return {name: total.index_add_(0, self._tokens.flatten(), gradients)}

    def rows(self, records: slice) -> dict[str, Tensor]:
        tokens, gradients = self._tokens[records], self._gradients[records]
        written = gradients.new_zeros(tokens.shape[0], self._size, gradients.shape[2])
        return {self.names["weight"]: written.scatter_add_(1, tokens.unsqueeze(2).expand_as(gradients), gradients)}

    def silence(self, records: Tensor) -> None:
        self._gradients = without(records, self._gradients)


def embedding_use(module: nn.Embedding, names: Mapping[str, str], inputs: Tensor) -> EmbeddingUse:
    """`nn.Embedding` on tokens of any shape (b, ...)."""
    return EmbeddingUse(names, inputs.reshape(inputs.shape[0], -1), module.num_embeddings, module.padding_idx)


def replace_bag(module: nn.EmbeddingBag, path: str, names: Mapping[str, str], engine: OnePass) -> None:
    """`nn.EmbeddingBag` on bags (b, places) with mode "sum" or "mean": the forward pass also tells which weights the places had."""
    original = module.forward

    def forward(input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:  # noqa: A002
        if module.mode == "max" or input.dim() != 2:
            raise UnsupportedModel(
                f'{path} (EmbeddingBag) has a rule for bags (batch, places) with mode "sum" or "mean" only. Pad the bags with padding_idx'
            )
        output = original(input, offsets, per_sample_weights)
        coefficients = torch.ones_like(input, dtype=output.dtype)
        if per_sample_weights is not None:
            coefficients = per_sample_weights.detach()
        if module.mode == "mean":
            counts = torch.ones_like(input) if module.padding_idx is None else input != module.padding_idx
            coefficients = coefficients / counts.sum(1, keepdim=True).clamp(min=1)
        use = EmbeddingUse(names, engine.note(path, input), module.num_embeddings, module.padding_idx, coefficients)
        return engine.watch(use, output)

    module.forward = forward
