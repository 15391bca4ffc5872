"""Products of matrices with vectors at T time steps: what the parameters of a recurrent layer do.

The gradient of a matrix is g = Σ_t β_t ⊗ a_t with its inputs a_t and the gradients β_t of the product, as for a linear layer over T
positions; the ways to ‖g‖² and the safety term are those of `linear.py`. Here several matrices may have the same β_t, so that one
Gram matrix of β serves all of them, and everything is time-major, (T, b, ·), as a loop over time leaves it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from apportion.curator.gradients.use import chunks, squared

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
        self._gradients = gradients
        self._inputs = [(names[own], value) for own, value in inputs.items() if own in names]
        self._biases = [names[own] for own in biases if own in names]

    def kernels(self) -> set[str]:
        return {self._kernel(inputs) for _, inputs in self._inputs}

    def _kernel(self, inputs: Tensor) -> str:
        steps, size_in, size_out = inputs.shape[0], inputs.shape[2], self._gradients.shape[2]
        if steps == 1:
            return "product of norms"
        return "Gram" if steps * (size_in + size_out) < size_in * size_out else "materialised"

    def squared_norms(self) -> Named:
        of_gradients = _gram(self._gradients) if "Gram" in self.kernels() else self._gradients
        for name, inputs in self._inputs:
            size_in, size_out = inputs.shape[2], self._gradients.shape[2]
            match self._kernel(inputs):
                case "product of norms":
                    yield name, squared(inputs[0]) * squared(self._gradients[0])
                case "Gram":
                    yield name, _gram_norms(_gram(inputs), of_gradients, size_in + size_out)
                case _:
                    parts = chunks(inputs.shape[1], size_in * size_out)
                    yield name, torch.cat([squared(self._written_out(inputs, part)) for part in parts])
        if self._biases:
            norms = squared(self._gradients.sum(0))
            yield from ((name, norms) for name in self._biases)

    def weighted_sums(self, weights: Mapping[str, Tensor]) -> Named:
        for name, inputs in self._inputs:
            factors = weights[name].to(inputs.dtype)[:, None]  # on the inputs: they are smaller than the gradients
            yield name, self._gradients.flatten(0, 1).T @ (inputs * factors).flatten(0, 1)
        if self._biases:
            totals = self._gradients.sum(0)
            yield from ((name, weights[name].to(totals.dtype) @ totals) for name in self._biases)

    def rows(self, records: slice) -> Named:
        for name, inputs in self._inputs:
            yield name, self._written_out(inputs, records)
        for name in self._biases:
            yield name, self._gradients[:, records].sum(0)

    def _written_out(self, inputs: Tensor, records: slice) -> Tensor:
        return self._gradients[:, records].permute(1, 2, 0) @ inputs[:, records].transpose(0, 1)

    def silence(self, records: Tensor) -> None:
        silent = records[:, None]
        self._gradients = self._gradients.masked_fill(silent, 0)
        self._inputs = [(name, inputs.masked_fill(silent, 0)) for name, inputs in self._inputs]


def _gram(values: Tensor) -> Tensor:
    """(T, b, size) → (b, T, T)."""
    by_record = values.transpose(0, 1)
    return by_record @ by_record.mT


def _gram_norms(of_inputs: Tensor, of_gradients: Tensor, size: int) -> Tensor:
    """Σ_{t,s} (a_t·a_s)(β_t·β_s), plus the bound of its rounding error, u·√size·(Σ_t ‖a_t‖·‖β_t‖)²."""
    products = of_inputs.mul_(of_gradients)
    lengths: Tensor = products.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt().sum(1)
    unit: float = torch.finfo(products.dtype).eps
    return products.sum((1, 2)).clamp(min=0) + lengths.square() * (unit * float(size**0.5))
