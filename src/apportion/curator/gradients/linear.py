"""Linear layers: y_t = W·x_t + b at T positions of a record (T = 1 for flat features).

With inputs a_t and output gradients β_t, g = Σ_t β_t ⊗ a_t, so

    T = 1:   ‖g‖² = ‖a‖²·‖β‖²                                (product of norms, nothing written out)
    T > 1:   ‖g‖² = Σ_{t,s} (a_t·a_s)(β_t·β_s)               (Gram: 2·T²·(d+p) operations instead of 2·T·d·p)
             or g written out for a few records at a time    (materialised)

and Σ_i w_i·g_i is one matrix product of the scaled output gradients with the inputs. The bias has g = Σ_t β_t.

Terms may cancel; what keeps the norm on the safe side then is in `rounding.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from apportion.curator.gradients.rounding import gram, margin, norms_from_grams, squared
from apportion.curator.gradients.use import added, chunks, scaled, without


class LinearUse:
    """One use of `nn.Linear`, or of any product with a matrix (out, in) at T positions."""

    def __init__(self, names: Mapping[str, str], inputs: Tensor):
        self.names = names
        self._inputs = inputs.detach()
        self._gradients: Tensor

    @classmethod
    def of(cls, module: nn.Module, names: Mapping[str, str], inputs: Tensor) -> LinearUse:
        return cls(names, inputs)

    def receive(self, output_gradient: Tensor) -> None:
        records = self._inputs.shape[0]
        self._gradients = output_gradient.reshape(records, -1, output_gradient.shape[-1])  # (b, T, out)
        self._inputs = self._inputs.reshape(records, -1, self._inputs.shape[-1])  # (b, T, in)

    @property
    def _gram_is_cheaper(self) -> bool:
        positions, size_in, size_out = self._gradients.shape[1], self._inputs.shape[2], self._gradients.shape[2]
        return positions * (size_in + size_out) < size_in * size_out

    @property
    def kernel(self) -> str:
        if self._gradients.shape[1] == 1:
            return "product of norms"
        return "Gram" if self._gram_is_cheaper else "materialised"

    def squared_norms(self) -> dict[str, Tensor]:
        norms = {}
        if "weight" in self.names:
            norms[self.names["weight"]] = self._weight_norms()
        if "bias" in self.names:
            norms[self.names["bias"]] = squared(self._bias_rows)
        return norms

    def _weight_norms(self) -> Tensor:
        inputs, gradients = self._inputs, self._gradients
        records, positions = gradients.shape[:2]
        if positions == 1:
            return squared(inputs) * squared(gradients)
        if not self._gram_is_cheaper:
            return _written_out_norms(inputs, gradients)
        parts = chunks(records, 2 * positions * positions)
        return torch.cat([_gram_norms(inputs[part], gradients[part]) for part in parts])

    def _written_out(self, records: slice) -> Tensor:
        return self._gradients[records].mT @ self._inputs[records]

    @property
    def _bias_rows(self) -> Tensor:
        return self._gradients[:, 0] if self._gradients.shape[1] == 1 else self._gradients.sum(1)

    def weighted_sums(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        sums = {}
        for own, name in self.names.items():
            if own == "weight":
                inputs, gradients = self._inputs, self._gradients
                if inputs.numel() < gradients.numel():  # whichever is less work
                    inputs = scaled(weights[name], inputs, gradients)
                else:
                    gradients = scaled(weights[name], gradients, inputs)
                sums[name] = gradients.flatten(0, 1).T @ inputs.flatten(0, 1)
            else:
                sums[name] = added(weights[name], self._bias_rows)
        return sums

    def rows(self, name: str, records: slice) -> Tensor:
        return self._written_out(records) if name == self.names.get("weight") else self._bias_rows[records]

    def silence(self, records: Tensor) -> None:
        self._inputs, self._gradients = without(records, self._inputs), without(records, self._gradients)


def _gram_norms(inputs: Tensor, gradients: Tensor) -> Tensor:
    def again(faint: Tensor) -> Tensor:
        return _written_out_norms(inputs[faint], gradients[faint])

    return norms_from_grams(gram(inputs), gram(gradients), inputs.shape[2] + gradients.shape[2], again)


def _written_out_norms(inputs: Tensor, gradients: Tensor) -> Tensor:
    parts = chunks(inputs.shape[0], inputs.shape[2] * gradients.shape[2])
    norms = torch.cat([squared(gradients[part].mT @ inputs[part]) for part in parts])
    return norms + margin(inputs.shape[1], inputs.dtype) * squared(inputs) * squared(gradients)
