"""One use of a layer in a forward pass, and what per-record clipping needs of it.

A layer is used on a batch of b records. The backward pass of the *sum* of the records' losses delivers the gradient of the layer's
output; row i of it belongs to record i alone. Together with the layer's input this determines record i's gradient g_i of the layer's
parameters, which is rarely written out. Needed are only

    ‖g_i‖²   for every record i,      and then      Σ_i w_i·g_i      for clipping weights w_i that follow from the norms.

Each layer family is one file with one kind of `LayerUse`, which answers both with as little arithmetic as it can.

A record may have several rows: views of it, one after the other, whose gradients are added (`views.py`). To a layer they are more positions
of the same record, so norms and sums are those of the whole record, and nothing is written out for a single view that need not be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from apportion.curator.gradients.rounding import squared_row_norms

MIN_EXACT_PRODUCT = 1e-32
"""Products below this are dropped. A float32 has all its digits down to 1e-38; the difference is room for later sums."""
MAX_SAFE_FACTOR = 1e10
"""Larger factors could magnify the rounding errors of the smallest products until they matter."""
_AS_IT_IS = nullcontext()
CHUNK_NUMBERS = 1 << 20
"""Numbers in one temporary, for each thread: 4 MiB of float32 stay in the caches."""


class LayerUse(Protocol):
    """What every layer family offers. Names are full names of parameters that learn; b is the number of records."""

    names: Mapping[str, str]
    """The layer's own name of each parameter that learns ("weight", "bias", ...) → its full name in the model."""

    def receive(self, output_gradient: Tensor, views: int = 1) -> None:
        """Called once, in the backward pass, with the gradient of the layer's output, (b·views, ...)."""
        ...

    def squared_norms(self) -> dict[str, Tensor]:
        """‖g_i‖² of each parameter, (b,). Never below the truth by more than the declared headroom of clipping covers."""
        ...

    def weighted_sums(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Σ_i w_i·g_i of each parameter, for weights (b,) by full name."""
        ...

    def rows(self, name: str, records: slice) -> Tensor:
        """g_i of one parameter written out for some records, (n, *shape): for what is used more than once, or clipped in a frame."""
        ...

    def zero_records(self, records: Tensor) -> None:
        """Put zeros in place of these records, a mask (b,): NaN times a weight of zero would still be NaN."""
        ...

    @property
    def kernel(self) -> str:
        """How the norms are computed, for people: "product of norms", "Gram", "materialised", ..."""
        ...


def full_precision() -> AbstractContextManager[Any]:
    """For norms and sums: without autograd, and without `torch.autocast`, which would compute products in bfloat16."""
    enabled = [kind for kind in ("cpu", "cuda", "mps") if torch.is_autocast_enabled(kind)]
    if enabled:
        return _without_autocast(enabled)
    return torch.no_grad() if torch.is_grad_enabled() else _AS_IT_IS  # as in a backward pass


@contextmanager
def _without_autocast(kinds: Iterable[str]) -> Iterator[None]:
    with torch.no_grad(), ExitStack() as stack:
        for kind in kinds:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def split_records(records: int, numbers_each: int) -> list[slice]:
    """Slices of records whose temporaries fit into the caches of the cores; the cores share the records of a slice."""
    size = torch.get_num_threads() * max(1, CHUNK_NUMBERS // max(1, numbers_each))
    return [slice(start, min(start + size, records)) for start in range(0, records, size)]


def upcast_half(values: Tensor) -> Tensor:
    """16-bit floats as float32: the rounding of bfloat16, 1/256, is far more than the headroom of clipping."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def cast_weights(weights: Tensor, values: Tensor) -> Tensor:
    """Clipping weights in the type of `values`. One that would lose digits there is 0: rounded up, it would clip too little."""
    kept = torch.nn.functional.hardshrink(weights, _largest_lost(values.dtype))
    # with the type and the device in one call torch would convert on the other device, which may have no float64
    return kept.to(values) if kept.device == values.device else kept.to(values.dtype).to(values.device)


@cache
def _largest_lost(dtype: torch.dtype) -> float:
    """The largest float64 that has lost digits in `dtype`."""
    return math.nextafter(torch.finfo(dtype).tiny, 0.0)


def scale_rows(weights: Tensor, values: Tensor, partner: Tensor | None) -> Tensor:
    """Row i of `values` times w_i.

    Args:
        partner: what the products are multiplied by next; `None` if they are only summed. Products below `MIN_EXACT_PRODUCT` may
            have lost digits, and a partner above `MAX_SAFE_FACTOR` could magnify that error: then they become 0. Otherwise the error
            stays below 10⁻³⁵, which is negligible beside any threshold.
    """
    product = values * cast_weights(weights, values).reshape(-1, *[1] * (values.dim() - 1))
    return (
        product
        if partner is None or is_safe_factor(partner)
        else torch.nn.functional.hardshrink(product, MIN_EXACT_PRODUCT)
    )


def is_safe_factor(values: Tensor) -> bool:
    """Whether every entry is at most `MAX_SAFE_FACTOR` in magnitude and none is NaN."""
    return not values.numel() or all(abs(float(end)) <= MAX_SAFE_FACTOR for end in values.aminmax())


def weighted_sum(weights: Tensor, rows: Tensor) -> Tensor:
    """Σ_i w_i·rows_i."""
    kept = cast_weights(weights, rows)
    if rows.dim() == 2 and rows.shape[1] > 1:  # what `tensordot` comes to, after several times as long
        return (kept.unsqueeze(0) @ rows).view(-1)
    total: Tensor = torch.tensordot(kept, rows, dims=1)
    return total


def add_views(rows: Tensor, views: int) -> Tensor:
    """(b·views, ...) → (b, ...): the sum over the rows of each record."""
    return rows if views == 1 else rows.unflatten(0, (-1, views)).sum(1)


def gradient_or_zeros(value: Tensor) -> Tensor:
    """What autograd left in `value`; zeros where it was not used."""
    return torch.zeros_like(value) if value.grad is None else value.grad


def zero_rows(records: Tensor, values: Tensor) -> Tensor:
    """`values` with zeros in the rows of `records`."""
    mask = records.to(values.device).reshape(-1, *[1] * (values.dim() - 1))
    return torch.where(mask, torch.zeros((), dtype=values.dtype, device=values.device), values)


class ProductUse:
    """A use of a weight and a bias, of whose gradients some are written out.

    A layer family sets, in `receive`, `_rows`: what is written out, (b, *shape) by the layer's own names. If the weight is not among
    that, it keeps `_inputs` and `_gradients`, and knows the norms (`_weight_norms`, which gets those of the bias) and the sum
    (`_weight_sum`) that follow from them.
    """

    _inputs: Tensor
    _gradients: Tensor
    _views = 1
    """How many rows of these two belong to one record."""

    def __init__(self, names: Mapping[str, str]):
        self.names = names
        self._rows: dict[str, Tensor] = {}

    @property
    def _all_written(self) -> bool:
        return self.names.keys() == self._rows.keys()

    def squared_norms(self) -> dict[str, Tensor]:
        norms = {self.names[own]: squared_row_norms(rows) for own, rows in self._rows.items()}
        if not self._all_written:
            norms[self.names["weight"]] = self._weight_norms(norms.get(self.names.get("bias", "")))
        return norms

    def weighted_sums(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        sums = {self.names[own]: weighted_sum(weights[self.names[own]], rows) for own, rows in self._rows.items()}
        if not self._all_written:
            sums[self.names["weight"]] = self._weight_sum(weights[self.names["weight"]])
        return sums

    def rows(self, name: str, records: slice) -> Tensor:
        kept = self._rows.get(next(own for own, full in self.names.items() if full == name))
        return self._materialise(records) if kept is None else kept[records]

    def zero_records(self, records: Tensor) -> None:
        self._rows = {own: zero_rows(records, rows) for own, rows in self._rows.items()}
        if not self._all_written:
            rows = records.repeat_interleave(self._views)
            self._inputs, self._gradients = zero_rows(rows, self._inputs), zero_rows(rows, self._gradients)

    def _weight_norms(self, of_bias: Tensor | None) -> Tensor:
        raise NotImplementedError

    def _weight_sum(self, weights: Tensor) -> Tensor:
        raise NotImplementedError

    def _materialise(self, records: slice) -> Tensor:
        raise NotImplementedError


class MaterialisedUse(ProductUse):
    """A use whose rows are all computed when the output's gradient arrives, or come from elsewhere.

    Args:
        compute: from the output's gradient to the rows (b·views, *shape) by the layer's own names.
    """

    kernel = "materialised"

    def __init__(self, names: Mapping[str, str], compute: Callable[[Tensor], Mapping[str, Tensor]]):
        super().__init__(names)
        self._compute = compute

    def receive(self, output_gradient: Tensor, views: int = 1) -> None:
        found = self._compute(output_gradient)
        self._rows = {own: add_views(upcast_half(found[own]), views) for own in self.names}
