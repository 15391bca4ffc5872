"""Linear layers: y_t = W·x_t + b at T positions of a record (T = 1 for flat features).

With inputs a_t and output gradients β_t, g = Σ_t β_t ⊗ a_t, so

    T = 1:   ‖g‖² = ‖a‖²·‖β‖²                          (product of norms, nothing written out)
    T > 1:   ‖g‖² = Σ_{t,s} (a_t·a_s)(β_t·β_s)         (Gram: 2·T²·(d+p) operations instead of 2·T·d·p)
             or g is written out                       (materialised)

and Σ_i w_i·g_i is one matrix product of the scaled output gradients with the inputs. What was written out is added up instead: it is
written out where it is not much larger than inputs and output gradients, which it replaces. The bias has g = Σ_t β_t.

Terms may cancel; what keeps the norm on the safe side then is in `rounding.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from apportion.curator.gradients.layer_use import scale_rows, split_records, weighted_sum, zero_rows
from apportion.curator.gradients.rounding import gram_matrix, norms_from_grams, rounding_margin, squared_row_norms

MAX_MATERIALISED_RATIO = 1.0
"""Gradients are written out if they have at most so many times the numbers of the input and output gradient together."""


class LinearUse:
    """One use of `nn.Linear`, or of any product with a matrix (out, in) at T positions."""

    def __init__(self, names: Mapping[str, str], inputs: Tensor):
        self.names = names
        self._inputs = inputs.detach()
        self._gradients: Tensor
        self._rows: dict[str, Tensor] = {}
        """Gradients of single records that are written out, by the layer's own names."""

    @classmethod
    def of(cls, module: nn.Module, names: Mapping[str, str], inputs: Tensor) -> LinearUse:
        return cls(names, inputs)

    def receive(self, output_gradient: Tensor) -> None:
        records = self._inputs.shape[0]
        gradients = output_gradient.reshape(records, -1, output_gradient.shape[-1])  # (b, T, out)
        inputs = self._inputs.reshape(records, -1, self._inputs.shape[-1])  # (b, T, in)
        self.kernel = _choose_kernel(gradients.shape[1], inputs.shape[2], gradients.shape[2])
        if "bias" in self.names:
            self._rows["bias"] = gradients[:, 0] if gradients.shape[1] == 1 else gradients.sum(1)
        if "weight" in self.names and self.kernel == "materialised":
            self._rows["weight"] = gradients.mT @ inputs
        if self.names.keys() == self._rows.keys():
            del self._inputs
        else:
            self._inputs, self._gradients = inputs, gradients

    def squared_norms(self) -> dict[str, Tensor]:
        norms = {self.names[own]: squared_row_norms(rows) for own, rows in self._rows.items()}
        if "weight" in self.names.keys() - self._rows.keys():
            norms[self.names["weight"]] = self._weight_norms()
        return norms

    def _weight_norms(self) -> Tensor:
        inputs, gradients = self._inputs, self._gradients
        records, positions = gradients.shape[:2]
        if positions == 1:
            return squared_row_norms(inputs) * squared_row_norms(gradients)
        parts = split_records(records, 2 * positions * positions)
        return torch.cat([_gram_norms(inputs[part], gradients[part]) for part in parts])

    def weighted_sums(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        sums = {self.names[own]: weighted_sum(weights[self.names[own]], rows) for own, rows in self._rows.items()}
        if "weight" in self.names.keys() - self._rows.keys():
            name, inputs, gradients = self.names["weight"], self._inputs, self._gradients
            if inputs.numel() < gradients.numel():  # whichever is less work
                inputs = scale_rows(weights[name], inputs, gradients)
            else:
                gradients = scale_rows(weights[name], gradients, inputs)
            sums[name] = gradients.flatten(0, 1).T @ inputs.flatten(0, 1)
        return sums

    def rows(self, name: str, records: slice) -> Tensor:
        own = next(own for own, full in self.names.items() if full == name)
        kept = self._rows.get(own)
        return self._gradients[records].mT @ self._inputs[records] if kept is None else kept[records]

    def zero_records(self, records: Tensor) -> None:
        self._rows = {own: zero_rows(records, rows) for own, rows in self._rows.items()}
        if self.names.keys() != self._rows.keys():
            self._inputs, self._gradients = zero_rows(records, self._inputs), zero_rows(records, self._gradients)


def _choose_kernel(positions: int, size_in: int, size_out: int) -> str:
    if positions == 1:
        return "product of norms"
    return "Gram" if MAX_MATERIALISED_RATIO * positions * (size_in + size_out) < size_in * size_out else "materialised"


def _gram_norms(inputs: Tensor, gradients: Tensor) -> Tensor:
    def again(underflowed: Tensor) -> Tensor:
        return _materialised_norms(inputs[underflowed], gradients[underflowed])

    return norms_from_grams(gram_matrix(inputs), gram_matrix(gradients), inputs.shape[2] + gradients.shape[2], again)


def _materialised_norms(inputs: Tensor, gradients: Tensor) -> Tensor:
    parts = split_records(inputs.shape[0], inputs.shape[2] * gradients.shape[2])
    norms = torch.cat([squared_row_norms(gradients[part].mT @ inputs[part]) for part in parts])
    return norms + rounding_margin(inputs.shape[1], inputs.dtype) * squared_row_norms(inputs) * squared_row_norms(
        gradients
    )
