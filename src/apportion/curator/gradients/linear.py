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

from apportion.curator.gradients.layer_use import ProductUse, scale_rows, split_records
from apportion.curator.gradients.rounding import gram_matrix, norms_from_grams, rounding_margin, squared_row_norms

MAX_MATERIALISED_RATIO = 1.0
"""Gradients are written out if they have at most so many times the numbers of the input and output gradient together."""
SKINNY_RATIO = 4
"""A matrix with so many times more rows than columns is computed as its transpose."""


class LinearUse(ProductUse):
    """One use of `nn.Linear`, or of any product with a matrix (out, in) at T positions."""

    def __init__(self, names: Mapping[str, str], inputs: Tensor):
        super().__init__(names)
        self._inputs = inputs.detach()

    @classmethod
    def of(cls, module: nn.Module, names: Mapping[str, str], inputs: Tensor) -> LinearUse:
        return cls(names, inputs)

    def receive(self, output_gradient: Tensor, views: int = 1) -> None:
        records = self._inputs.shape[0] // views
        gradients = output_gradient.reshape(records, -1, output_gradient.shape[-1])  # (b, T, out)
        inputs = self._inputs.reshape(records, -1, self._inputs.shape[-1])  # (b, T, in)
        self.kernel = choose_kernel(gradients.shape[1], inputs.shape[2], gradients.shape[2])
        if "bias" in self.names:
            self._rows["bias"] = gradients[:, 0] if gradients.shape[1] == 1 else gradients.sum(1)
        if "weight" in self.names and self.kernel == "materialised":
            self._rows["weight"] = self._products(gradients, inputs)
        if self._all_written:
            del self._inputs
        else:
            self._inputs, self._gradients = inputs, gradients

    def _weight_norms(self, of_bias: Tensor | None) -> Tensor:
        inputs, gradients = self._inputs, self._gradients
        records, positions = gradients.shape[:2]
        if positions == 1:
            return squared_row_norms(inputs) * (squared_row_norms(gradients) if of_bias is None else of_bias)
        parts = split_records(records, 2 * positions * positions)
        return torch.cat([gram_norms(inputs[part], gradients[part], gram_matrix(gradients[part])) for part in parts])

    def _weight_sum(self, weights: Tensor) -> Tensor:
        inputs, gradients = self._inputs, self._gradients
        if inputs.numel() < gradients.numel():  # whichever is less work
            inputs = scale_rows(weights, inputs, gradients)
        else:
            gradients = scale_rows(weights, gradients, inputs)
        return self._products(gradients.flatten(0, 1), inputs.flatten(0, 1))

    def _materialise(self, records: slice) -> Tensor:
        return self._products(self._gradients[records], self._inputs[records])

    def _products(self, gradients: Tensor, inputs: Tensor) -> Tensor:
        """Σ_t β_t ⊗ a_t in the layout of the weight."""
        return sum_outer_products(gradients, inputs)


class TransposedLinearUse(LinearUse):
    """The same with a matrix (in, out), as `Conv1D` of transformers has it."""

    def _products(self, gradients: Tensor, inputs: Tensor) -> Tensor:
        return sum_outer_products(inputs, gradients)


def sum_outer_products(left: Tensor, right: Tensor) -> Tensor:
    """Σ_t left_t ⊗ right_t, (..., size of left, size of right).

    A product of few rows takes the library as little as an eighth of the time of its transpose, which has few columns.
    """
    if SKINNY_RATIO * right.shape[-1] <= left.shape[-1]:
        return (right.mT @ left).mT
    return left.mT @ right


def choose_kernel(positions: int, size_in: int, size_out: int) -> str:
    if positions == 1:
        return "product of norms"
    return "Gram" if MAX_MATERIALISED_RATIO * positions * (size_in + size_out) < size_in * size_out else "materialised"


def gram_norms(inputs: Tensor, gradients: Tensor, of_gradients: Tensor) -> Tensor:
    """‖Σ_t β_t ⊗ a_t‖² from inner products; those of the gradients may serve several matrices."""

    def again(underflowed: Tensor) -> Tensor:
        return materialised_norms(inputs[underflowed], gradients[underflowed])

    return norms_from_grams(gram_matrix(inputs), of_gradients, inputs.shape[2] + gradients.shape[2], again)


def materialised_norms(inputs: Tensor, gradients: Tensor) -> Tensor:
    """‖Σ_t β_t ⊗ a_t‖², written out for a few records at a time; with the margin for a sum that is not made of these rows."""
    parts = split_records(inputs.shape[0], inputs.shape[2] * gradients.shape[2])
    norms = torch.cat([squared_row_norms(gradients[part].mT @ inputs[part]) for part in parts])
    return norms + rounding_margin(inputs.shape[1], inputs.dtype) * squared_row_norms(inputs) * squared_row_norms(
        gradients
    )
