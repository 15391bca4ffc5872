"""Embeddings: the row of a token gets the output gradients of all places where a record uses it.

For record i, g_i[v] = Σ_{t: id_t = v} β_t, so ‖g_i‖² = Σ_v ‖Σ_{t: id_t = v} β_t‖². The places of one record are sorted by token, and
equal neighbours are added: no one-hot matrix, no (batch × vocabulary). The padding index has no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from apportion.curator.gradients.layer_use import scale_rows, split_records, zero_rows
from apportion.curator.gradients.rounding import MAX_FLOAT32_TERMS, rounding_margin, squared_row_norms
from apportion.devices import with_float64
from apportion.errors import UnsupportedModel

if TYPE_CHECKING:
    from apportion.curator.gradients.one_pass import OnePass


TEMPORARIES = 8
"""Tensors as large as the gradients of a few records that are there at one time, and should stay in the caches together."""


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

    def receive(self, output_gradient: Tensor, views: int = 1) -> None:
        """(b·views, places, d), or (b·views, 1, d) if all places share the output."""
        rows, places = self._tokens.shape
        gradients = output_gradient.reshape(rows, -1, output_gradient.shape[-1]).expand(rows, places, -1)
        factors = self._coefficients
        if self._padding is not None:
            counts = (self._tokens != self._padding).to(gradients.dtype)
            factors = counts if factors is None else factors * counts
        gradients = gradients if factors is None else gradients * factors.unsqueeze(2)
        self._tokens = self._tokens.reshape(rows // views, -1)
        self._gradients = gradients.reshape(rows // views, -1, gradients.shape[2])

    def squared_norms(self) -> dict[str, Tensor]:
        norms = [_squared_norms(self._tokens[part], self._gradients[part]) for part in self._parts()]
        return {self.names["weight"]: torch.cat(norms)}

    def weighted_sums(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        name = self.names["weight"]
        total = self._gradients.new_zeros(self._size, self._gradients.shape[2])
        for part in self._parts():
            scaled = scale_rows(weights[name][part], self._gradients[part], None)
            total.index_add_(0, self._tokens[part].flatten(), scaled.flatten(0, 1))
        return {name: total}

    def _parts(self) -> list[slice]:
        """A few records at a time: what is computed from their gradients is as large as these, which are the largest tensor here."""
        return split_records(len(self._tokens), TEMPORARIES * self._gradients[:1].numel())

    def rows(self, name: str, records: slice) -> Tensor:
        tokens, gradients = self._tokens[records], self._gradients[records]
        written = gradients.new_zeros(tokens.shape[0], self._size, gradients.shape[2])
        return written.scatter_add_(1, tokens.unsqueeze(2).expand_as(gradients), gradients)

    def zero_records(self, records: Tensor) -> None:
        self._gradients = zero_rows(records, self._gradients)


def _squared_norms(tokens: Tensor, gradients: Tensor) -> Tensor:
    """Places whose token occurs once in the record count by themselves; the others are added up by token first."""
    places = tokens.shape[1]
    ordered, order = _sort_tokens(tokens)
    equal = ordered[:, 1:] == ordered[:, :-1]
    again = nn.functional.pad(equal, (1, 0)) | nn.functional.pad(equal, (0, 1))  # beside an equal neighbour
    if gradients.shape[2] > MAX_FLOAT32_TERMS:
        alone = squared_row_norms(gradients.flatten(0, 1)).view(-1, places)
    else:
        alone = with_float64(torch.linalg.vector_norm(gradients, dim=2)).double().square()
    record, place = again.nonzero(as_tuple=True)
    if not len(record):
        return alone.sum(1)
    token, index = ordered[record, place], record * places + order[record, place]
    repeated = gradients.flatten(0, 1).index_select(0, index)
    starts = torch.ones_like(token, dtype=torch.bool)
    starts[1:] = (token[1:] != token[:-1]) | (record[1:] != record[:-1])
    segment = starts.cumsum(0) - 1
    segments = int(segment[-1]) + 1
    added = repeated.new_zeros(segments, repeated.shape[1]).index_add_(0, segment, repeated)
    index, segment, first = (one.to(alone.device) for one in (index, segment, record[starts]))
    terms = alone.view(-1)[index]
    alone.view(-1)[index] = 0.0
    counted = alone.new_zeros(segments, 2).index_add_(0, segment, torch.stack([torch.ones_like(terms), terms], 1))
    # n equal tokens: ‖Σ|β_t|‖² ≤ n·Σ‖β_t‖² bounds what rounding is measured against
    slack = rounding_margin(1, repeated.dtype) * counted[:, 0].square() * counted[:, 1]
    norms: Tensor = alone.sum(1)
    return norms.index_add_(0, first, with_float64(added).double().square().sum(1) + slack)


def _sort_tokens(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens of each record in order, and the places they came from.

    Token and place are packed into one number, for which NumPy has a vectorised sort several times faster than a sort with indices.
    """
    if tokens.device.type != "cpu":
        ordered, order = tokens.sort(1)
        return ordered, order
    bits = max(1, (tokens.shape[1] - 1).bit_length())
    packed = (tokens.long() << bits) | torch.arange(tokens.shape[1])
    key = torch.from_numpy(np.sort(packed.numpy(), axis=1))
    return key >> bits, key & ((1 << bits) - 1)


def embedding_use(module: nn.Embedding, names: Mapping[str, str], inputs: Tensor) -> EmbeddingUse:
    """`nn.Embedding` on tokens of any shape (b, ...)."""
    return EmbeddingUse(names, inputs.unsqueeze(1).flatten(1), module.num_embeddings, module.padding_idx)


def replace_embedding_bag(module: Any, path: str, names: Mapping[str, str], engine: OnePass) -> None:
    """`nn.EmbeddingBag` on bags (b, places) with mode "sum" or "mean": the forward pass also tells which weights the places had."""
    original = module.forward

    def forward(input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:  # noqa: A002
        if module.mode == "max" or input.dim() != 2:
            raise UnsupportedModel(
                f'{path} (EmbeddingBag) has a rule for bags (batch, places) with mode "sum" or "mean" only. Pad the bags with padding_idx'
            )
        output = _call_bag(original, module, path, engine, input, offsets, per_sample_weights)
        coefficients = torch.ones_like(input, dtype=output.dtype)
        if per_sample_weights is not None:
            coefficients = per_sample_weights.detach()
        if module.mode == "mean":
            counts = torch.ones_like(input) if module.padding_idx is None else input != module.padding_idx
            coefficients = coefficients / counts.sum(1, keepdim=True).clamp(min=1)
        use = EmbeddingUse(
            names, engine.save_input(path, input), module.num_embeddings, module.padding_idx, coefficients
        )
        return engine.tap_output(use, output)

    module.forward = forward


def _call_bag(
    original: Callable[..., Tensor],
    module: nn.EmbeddingBag,
    path: str,
    engine: OnePass,
    tokens: Tensor,
    offsets: Tensor | None,
    coefficients: Tensor | None,
) -> Tensor:
    """The ordinary forward pass. torch flattens the bags and finds them again by offsets, which cannot be traced."""
    if (checker := engine.checker) is None:
        return original(tokens, offsets, coefficients)
    given = [value for value in (tokens, coefficients) if value is not None]
    for value in given:
        checker.require_rows(f"the input of {path}", value, 0)
    size = (tokens.shape[0], module.embedding_dim)
    return checker.replace_kernel(lambda: (checker.make_traced(size, 0, module.weight),), *given)[0]
