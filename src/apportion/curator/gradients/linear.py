"""Linear layers: y_t = W·x_t + b at T positions of a record (T = 1 for flat features).

With inputs a_t and output gradients β_t, g = Σ_t β_t ⊗ a_t, so

    T = 1:   ‖g‖² = ‖a‖²·‖β‖²                                (product of norms, nothing written out)
    T > 1:   ‖g‖² = Σ_{t,s} (a_t·a_s)(β_t·β_s)               (Gram: 2·T²·(d+p) operations instead of 2·T·d·p)
             or g written out for a few records at a time    (materialised)

and Σ_i w_i·g_i is one matrix product of the scaled output gradients with the inputs. The bias has g = Σ_t β_t.

**Rounding.** The Gram form adds terms that may cancel, and rounding them could report a norm that is too small, which would clip too
little. So a bound on the rounding error, u·√(d+p)·(Σ_t ‖a_t‖·‖β_t‖)² with the unit round-off u, is added: the norm errs on the safe side.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from apportion.curator.gradients.use import chunks, scaled, squared, without


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
            norms[self.names["bias"]] = squared(self._gradients.sum(1))
        return norms

    def _weight_norms(self) -> Tensor:
        inputs, gradients = self._inputs, self._gradients
        records, positions = gradients.shape[:2]
        if positions == 1:
            return squared(inputs) * squared(gradients)
        if self._gram_is_cheaper:
            return torch.cat(
                [self._gram(inputs[part], gradients[part]) for part in chunks(records, 2 * positions * positions)]
            )
        size = inputs.shape[2] * gradients.shape[2]
        return torch.cat([squared(self._written_out(part)) for part in chunks(records, size)])

    def _gram(self, inputs: Tensor, gradients: Tensor) -> Tensor:
        exact: Tensor = (inputs @ inputs.mT).mul_(gradients @ gradients.mT).sum((1, 2))
        lengths: Tensor = torch.linalg.vector_norm(inputs, dim=2) * torch.linalg.vector_norm(gradients, dim=2)
        size = inputs.shape[2] + gradients.shape[2]
        slack: float = torch.finfo(exact.dtype).eps * size**0.5
        return exact.clamp(min=0) + slack * lengths.sum(1).square()

    def _written_out(self, records: slice) -> Tensor:
        return self._gradients[records].mT @ self._inputs[records]

    def weighted_sums(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        sums = {}
        for own, name in self.names.items():
            gradients = scaled(weights[name], self._gradients)
            if own == "weight":
                sums[name] = gradients.flatten(0, 1).T @ self._inputs.flatten(0, 1)
            else:
                sums[name] = gradients.sum((0, 1))
        return sums

    def rows(self, records: slice) -> dict[str, Tensor]:
        written = {}
        if "weight" in self.names:
            written[self.names["weight"]] = self._written_out(records)
        if "bias" in self.names:
            written[self.names["bias"]] = self._gradients[records].sum(1)
        return written

    def silence(self, records: Tensor) -> None:
        self._inputs, self._gradients = without(records, self._inputs), without(records, self._gradients)
