"""Convolutions of one to three dimensions, and transposed ones.

At output position t the layer sees a patch p_t of its padded input, c·k numbers for c channels and k places of the kernel, and
y_t = W·p_t + b. With output gradients β_t, g = Σ_t β_t ⊗ p_t, as for a linear layer with T positions. Two ways to the norm:

    patches       g is written out for a few records at a time:  2·T·o·c·k operations a record
    pixel Gram    ‖g‖² = Σ_{t,s} (p_t·p_s)(β_t·β_s), where p_t·p_s = Σ_δ x_{t+δ}·x_{s+δ} is a box sum over the Gram matrix of the
                  *pixels*, so that no patch is written out:  2·S²·c + 2·T²·o + T²·k for S pixels of the padded input

A transposed convolution is the same with input and output gradient exchanged. Groups are independent convolutions.

What was written out is kept for the weighted sum if it is not larger than what it replaces; otherwise the weighted sum is the weight
gradient of an ordinary backward pass with scaled output gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from apportion.curator.gradients.layer_use import ProductUse, add_views, scale_rows, split_records
from apportion.curator.gradients.rounding import gram_matrix, norms_from_grams, rounding_margin, squared_row_norms
from apportion.errors import UnsupportedModel

MAX_MATERIALISED_RATIO = 2.0
"""Written-out gradients are kept if they have at most so many times the numbers of the input and output gradient together."""
MAX_GRAM_ENTRIES = 1 << 16
"""The pixel Gram has S² numbers a record: beyond this it would not fit into the cache."""


class ConvolutionUse(ProductUse):
    """One use of a convolution.

    Args:
        module: an `nn.Conv*d` or `nn.ConvTranspose*d`.
        inputs: (b, channels, *size).
    """

    def __init__(self, module: Any, names: Mapping[str, str], inputs: Tensor):
        super().__init__(names)
        self._module, self._inputs = module, inputs
        if inputs.dim() != module.weight.dim():  # torch would take records without their first dimension for channels
            raise UnsupportedModel("a convolution got an input without a batch dimension")
        self._dimensions = inputs.dim() - 2

    def receive(self, output_gradient: Tensor, views: int = 1) -> None:
        self._views, self._records = views, len(output_gradient) // views
        self._gradients, self._writes = output_gradient, output_gradient._version
        self._norms: dict[str, Tensor] = {}
        if "bias" in self.names:
            self._rows["bias"] = add_views(output_gradient.flatten(2).sum(2), views)
            self._norms[self.names["bias"]] = squared_row_norms(self._rows["bias"])
        if "weight" in self.names:
            self._norms[self.names["weight"]] = self._weight_norms(None)
        if self._all_written:
            del self._inputs, self._gradients

    @property
    def kernel(self) -> str:
        return "pixel Gram" if self._gram_is_cheaper else "patches"

    # -- the two sides of the product: patches of one tensor, positions of the other --

    def _sides(self, records: slice | Tensor) -> tuple[Tensor, Tensor]:
        """(patched, positions) of all their views: (n·views, c, *padded size) and (n·views, o, *positions)."""
        rows = self._view_rows(records)
        inputs, gradients = self._inputs[rows], self._gradients[rows]
        if not self._module.transposed:
            return self._pad(inputs), gradients
        zeros = [amount for amount in reversed(self._module.padding) for _ in (0, 1)]
        return functional.pad(gradients, zeros), inputs

    def _view_rows(self, records: slice | Tensor) -> slice | Tensor:
        if isinstance(records, slice):
            return slice(records.start * self._views, records.stop * self._views)
        return (records[:, None] * self._views + torch.arange(self._views, device=records.device)).flatten()

    def _pad(self, inputs: Tensor) -> Tensor:
        amounts = self._module._reversed_padding_repeated_twice
        mode = self._module.padding_mode
        if not any(amounts):
            return inputs
        return functional.pad(inputs, amounts, mode="constant" if mode == "zeros" else mode)

    @property
    def _sizes(self) -> tuple[int, int, int, int]:
        """T positions, S pixels of the patched side, channels of each side in one group."""
        patched, positions = self._sides(slice(0, 1))
        groups = self._module.groups
        return (
            math.prod(positions.shape[2:]),
            math.prod(patched.shape[2:]),
            patched.shape[1] // groups,
            positions.shape[1] // groups,
        )

    @property
    def _gram_is_cheaper(self) -> bool:
        if self._dimensions != 2 or self._module.groups != 1 or self._all_written or self._views > 1:
            return False
        places = math.prod(self._module.kernel_size)
        positions, pixels, channels, out = self._sizes
        gram = pixels**2 * channels + positions**2 * (out + places)
        return pixels**2 <= MAX_GRAM_ENTRIES and 2 * gram < positions * out * channels * places

    def _weight_norms(self, of_bias: Tensor | None) -> Tensor:
        positions, pixels, channels, _ = self._sizes
        places = math.prod(self._module.kernel_size)
        if self._gram_is_cheaper:
            return torch.cat([self._gram(part) for part in split_records(self._records, 2 * pixels**2)])
        size = self._module.weight.numel()
        kept = self._records * size <= MAX_MATERIALISED_RATIO * (
            self._inputs.numel() + self._unchanged_gradients.numel()
        )
        parts, written = [], []
        for part in split_records(self._records, self._views * positions * channels * places * self._module.groups):
            if kept:
                written.append(self._materialise(part))
                parts.append(squared_row_norms(written[-1]))
            else:
                parts.append(self._materialised_norms(part))
        if kept:
            self._rows["weight"] = torch.cat(written)
        return torch.cat(parts)

    @property
    def _unchanged_gradients(self) -> Tensor:
        """The output gradient of which the norms were taken. Autograd hands it to others as well, who must not write to it."""
        if self._gradients._version != self._writes:
            raise UnsupportedModel(
                f"the gradient that belongs to {self.names['weight']} was overwritten in place after its norm was taken, by a hook or a "
                "backward function of the model's own. Let it return a new tensor"
            )
        return self._gradients

    def _materialised_norms(self, records: slice | Tensor) -> Tensor:
        """With the margin for a sum that is not made of these rows. A pixel stands in as many patches as the kernel has places."""
        patched, positions = self._sides(records)
        places, count = math.prod(self._module.kernel_size), self._views * math.prod(positions.shape[2:])
        by_record = [squared_row_norms(side.unflatten(0, (-1, self._views))) for side in (patched, positions)]
        norms: Tensor = (
            squared_row_norms(add_views(self._sum_outer_products(patched, positions), self._views))
            + rounding_margin(count, patched.dtype) * places * by_record[0] * by_record[1]
        )
        return norms

    def _materialise(self, records: slice | Tensor) -> Tensor:
        """(n, *shape of the weight)."""
        return add_views(self._sum_outer_products(*self._sides(records)), self._views)

    def _sum_outer_products(self, patched: Tensor, positions: Tensor) -> Tensor:
        """Σ_t β_t ⊗ p_t of each row, (n, *shape of the weight)."""
        groups, kernel = self._module.groups, self._module.kernel_size
        count, n = math.prod(positions.shape[2:]), patched.shape[0]
        channels_last = patched.stride(1) == 1 and patched.shape[1] > 1
        windows = self._windows(patched, positions.shape[2:])  # (n, c, *positions, *kernel)
        spatial = range(2, 2 + self._dimensions)
        places = range(2 + self._dimensions, 2 + 2 * self._dimensions)
        left = positions.reshape(n * groups, -1, count)  # (n·g, o/g, T)
        if channels_last and groups == 1:
            right = windows.permute(0, *spatial, *places, 1).reshape(n, count, -1)  # (n, T, k·c)
            product = (left @ right).reshape(n, left.shape[1], *kernel, -1).movedim(-1, 2)
        else:
            right = windows.permute(0, 1, *places, *spatial).reshape(n * groups, -1, count)  # (n·g, c/g·k, T)
            product = left @ right.mT
        # A transposed convolution has patches of its output and positions of its input: (in, out/g, *kernel), as its weight.
        return product.reshape(n, left.shape[1] * groups, patched.shape[1] // groups, *kernel)

    def _windows(self, patched: Tensor, positions: torch.Size) -> Tensor:
        module = self._module
        for i in range(self._dimensions):
            reach = module.dilation[i] * (module.kernel_size[i] - 1) + 1
            patched = patched.unfold(2 + i, reach, module.stride[i])
            patched = patched[..., :: module.dilation[i]].narrow(2 + i, 0, positions[i])
        return patched

    def _gram(self, records: slice) -> Tensor:
        patched, positions = self._sides(records)
        n, height, width = patched.shape[0], *patched.shape[2:]
        of_pixels = gram_matrix(patched.flatten(2).mT).reshape(n, height, width, height, width)
        for i, (size, stride, step) in enumerate(
            zip(self._module.kernel_size, self._module.stride, self._module.dilation, strict=True)
        ):
            length = positions.shape[2 + i]
            of_pixels = _sum_in_place(
                of_pixels.narrow(1 + i, place * step, (length - 1) * stride + 1).narrow(
                    3 + i, place * step, (length - 1) * stride + 1
                )[_stride_index(1 + i, stride)][_stride_index(3 + i, stride)]
                for place in range(size)
            )
        count = math.prod(positions.shape[2:])
        of_positions = gram_matrix(positions.flatten(2).mT)
        size = patched.shape[1] * math.prod(self._module.kernel_size) + positions.shape[1]
        everyone = torch.arange(self._records)[records]
        return norms_from_grams(
            of_pixels.reshape(n, count, count),
            of_positions,
            size,
            lambda underflowed: self._materialised_norms(everyone[underflowed]),
        )

    # -- answers --

    def squared_norms(self) -> dict[str, Tensor]:
        return self._norms

    def _weight_sum(self, weights: Tensor) -> Tensor:
        module, plain = self._module, self._module.padding_mode == "zeros" and not isinstance(self._module.padding, str)
        inputs = self._inputs if plain or module.transposed else self._pad(self._inputs)
        padding = list(module.padding) if plain else [0] * self._dimensions
        total: Tensor
        _, total, _ = torch.ops.aten.convolution_backward(
            scale_rows(weights.repeat_interleave(self._views), self._unchanged_gradients, inputs),
            inputs,
            module.weight.to(inputs.dtype),
            None,
            list(module.stride),
            padding,
            list(module.dilation),
            module.transposed,
            list(module.output_padding),
            module.groups,
            [False, True, False],
        )
        return total

    def zero_records(self, records: Tensor) -> None:
        super().zero_records(records)
        if not self._all_written:
            self._writes = self._gradients._version


def _sum_in_place(parts: Iterable[Tensor]) -> Tensor:
    total: Tensor | None = None
    for part in parts:
        total = part.clone() if total is None else total.add_(part)
    assert total is not None
    return total


def _stride_index(dimension: int, stride: int) -> tuple[Any, ...]:
    return (*[slice(None)] * dimension, slice(None, None, stride))
