"""Products of matrices with vectors at T time steps: what the parameters of a recurrent layer do.

The gradient of a matrix is g = Σ_t β_t ⊗ a_t with its inputs a_t and the gradients β_t of the product, as for a linear layer over T
positions; the ways to ‖g‖² are those of `linear.py`. Here several matrices may have the same β_t, so that one
Gram matrix of β serves all of them, and everything is time-major, (T, b, ·), as a loop over time leaves it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from apportion.curator.gradients.rounding import gram, margin, norms_from_grams, squared
from apportion.curator.gradients.use import added, chunks, scaled, wide

Named = Iterator[tuple[str, Tensor]]
"""A full name may come twice: two matrices of a layer may be one parameter."""


class Products:
    """Matrices whose products have the same gradient.

    Args:
        names: full names of what learns, by own name.
        gradients: β, (T, b, out).
        inputs: a, (T, b, in), by the own name of each matrix.
        biases: own names of what is added to the products.
    """

    def __init__(
        self, names: Mapping[str, str], gradients: Tensor, inputs: Mapping[str, Tensor], biases: Sequence[str]
    ):
        self._gradients = wide(gradients)
        self._inputs = [(names[own], wide(value)) for own, value in inputs.items() if own in names]
        self._biases = [names[own] for own in biases if own in names]

    def kernels(self) -> set[str]:
        return {self._kernel(inputs) for _, inputs in self._inputs}

    def _kernel(self, inputs: Tensor) -> str:
        steps, size_in, size_out = inputs.shape[0], inputs.shape[2], self._gradients.shape[2]
        if steps == 1:
            return "product of norms"
        return "Gram" if steps * (size_in + size_out) < size_in * size_out else "materialised"

    def squared_norms(self) -> Named:
        of_gradients = gram(self._gradients.transpose(0, 1)) if "Gram" in self.kernels() else self._gradients
        for name, inputs in self._inputs:
            size_in, size_out = inputs.shape[2], self._gradients.shape[2]
            match self._kernel(inputs):
                case "product of norms":
                    yield name, squared(inputs[0]) * squared(self._gradients[0])
                case "Gram":
                    of_inputs = gram(inputs.transpose(0, 1))
                    again = partial(self._written_out_norms, inputs)
                    yield name, norms_from_grams(of_inputs, of_gradients, size_in + size_out, again)
                case _:
                    yield name, self._written_out_norms(inputs)
        if self._biases:
            norms = squared(self._gradients.sum(0))
            yield from ((name, norms) for name in self._biases)

    def weighted_sums(self, weights: Mapping[str, Tensor]) -> Named:
        for name, inputs in self._inputs:
            by_record = inputs.transpose(0, 1)  # the inputs, because they are smaller than the gradients
            product = scaled(weights[name], by_record, self._gradients).transpose(0, 1)
            yield name, self._gradients.flatten(0, 1).T @ product.flatten(0, 1)
        if self._biases:
            totals = self._gradients.sum(0)
            yield from ((name, added(weights[name], totals)) for name in self._biases)

    def rows(self, records: slice) -> Named:
        for name, inputs in self._inputs:
            yield name, self._written_out(inputs, records)
        for name in self._biases:
            yield name, self._gradients[:, records].sum(0)

    def _written_out_norms(self, inputs: Tensor, records: Tensor | None = None) -> Tensor:
        gradients = self._gradients
        if records is not None:
            inputs, gradients = inputs[:, records], gradients[:, records]
        parts = chunks(inputs.shape[1], inputs.shape[2] * gradients.shape[2])
        norms = torch.cat([squared(_product(gradients[:, part], inputs[:, part])) for part in parts])
        magnitudes = squared(inputs.transpose(0, 1)) * squared(gradients.transpose(0, 1))
        return norms + margin(inputs.shape[0], inputs.dtype) * magnitudes

    def _written_out(self, inputs: Tensor, records: slice) -> Tensor:
        return _product(self._gradients[:, records], inputs[:, records])

    def silence(self, records: Tensor) -> None:
        silent = records[:, None]
        self._gradients = self._gradients.masked_fill(silent, 0)
        self._inputs = [(name, inputs.masked_fill(silent, 0)) for name, inputs in self._inputs]


def _product(gradients: Tensor, inputs: Tensor) -> Tensor:
    """Σ_t β_t ⊗ a_t, (b, out, in)."""
    return gradients.permute(1, 2, 0) @ inputs.transpose(0, 1)
