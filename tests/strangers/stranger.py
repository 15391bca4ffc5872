"""What an entry of the zoo of strangers is, and the records most of them are fed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

TOGETHER = frozenset({"together"})
"""The library runs its records in one pass, and the sum is exact."""
ANY = frozenset({"together", "alone"})
"""Exact, by whatever engine."""
REFUSED = frozenset({"refused"})
"""Refused, in a sentence that names the cause."""
APART = frozenset({"alone", "refused"})
"""It mixes records that run together: each runs alone, which is exact, or it is refused."""
SAFE = ANY | REFUSED
"""Exact, or refused."""


def product(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss whose gradient is whatever the target says."""
    return (outputs * targets).sum()


@dataclass(frozen=True)
class Stranger:
    """A model as somebody wrote it, with records, and what may become of it.

    Args:
        model: builds it.
        record: one record (inputs, target) in float32. `wide` ones differ from each other in length, size or route as far as they can;
            the others hardly.
        allowed: the outcomes that a careful person would accept.
        says: a regular expression for the sentence of a refusal.
        loss: loss_fn(outputs, targets).
        random: a pass is not repeatable, so that only the bound on one record's influence is checked.
        needs: modules that may not be installed.
        exact: whether float64 is kept throughout; half-precision models are compared loosely.
        crowd: so many times the usual number of records, for what happens in large batches only.
    """

    model: Callable[[], nn.Module]
    record: Callable[[bool], tuple[Any, Any]]
    allowed: frozenset[str] = TOGETHER
    says: str = ""
    loss: Callable[[Any, Any], Tensor] = product
    random: bool = False
    needs: tuple[str, ...] = ()
    exact: bool = True
    crowd: int = 1

    def __post_init__(self) -> None:
        if ("refused" in self.allowed) != bool(self.says):
            raise ValueError("a refusal has a sentence, and nothing else has")


Record = Callable[[bool], tuple[Any, Any]]


def between(low: int, high: int) -> int:
    """A whole number from `low` to `high`, both included."""
    return int(torch.randint(low, high + 1, ()))


def length_of(wide: bool, places: int) -> int:
    return between(1, places) if wide else between(places - 1, places)


def floats(*shape: int, out: int | tuple[int, ...] = 3) -> Record:
    """Random numbers; those of wide records are of very different size."""

    def record(wide: bool) -> tuple[Tensor, Tensor]:
        size = 10.0 ** between(-2, 1) if wide else 1.0
        return size * torch.randn(*shape), torch.randn(out if isinstance(out, tuple) else (out,))

    return record


def classes(*shape: int, out: int = 3) -> Record:
    """Random numbers with a class label."""

    def record(wide: bool) -> tuple[Tensor, Tensor]:
        size = 10.0 ** between(-2, 1) if wide else 1.0
        return size * torch.randn(*shape), torch.tensor(between(0, out - 1))

    return record


def words(places: int, known: int = 11, out: int | tuple[int, ...] = 3) -> Record:
    """Tokens, at the end zeros; wide records have very different lengths."""

    def record(wide: bool) -> tuple[Tensor, Tensor]:
        ids = torch.randint(1, known, (places,))
        ids[length_of(wide, places) :] = 0
        return ids, torch.randn(out if isinstance(out, tuple) else (out,))

    return record


def lengths(places: int, *shape: int, out: int = 3) -> Record:
    """A padded sequence and its length."""

    def record(wide: bool) -> tuple[tuple[Tensor, Tensor], Tensor]:
        length = length_of(wide, places)
        values = torch.randn(places, *shape)
        values[length:] = 0
        return (values, torch.tensor(length)), torch.randn(out)

    return record


def word_lengths(places: int, known: int = 11, out: int = 3) -> Record:
    """Padded tokens and their number."""

    def record(wide: bool) -> tuple[tuple[Tensor, Tensor], Tensor]:
        length = length_of(wide, places)
        ids = torch.randint(1, known, (places,))
        ids[length:] = 0
        return (ids, torch.tensor(length)), torch.randn(out)

    return record


def masked(places: int, *shape: int, out: int = 3, kept: bool = True) -> Record:
    """A sequence and a mask that is true where something is (`kept`) or where nothing is."""

    def record(wide: bool) -> tuple[tuple[Tensor, Tensor], Tensor]:
        there = torch.arange(places) < length_of(wide, places)
        values = torch.randn(places, *shape)
        return (values, there if kept else ~there), torch.randn(out)

    return record


def pair_of(*shape: int, parts: int = 2, out: int | tuple[int, ...] = 3) -> Record:
    """Several inputs of the same shape."""

    def record(wide: bool) -> tuple[tuple[Tensor, ...], Tensor]:
        size = 10.0 ** between(-2, 1) if wide else 1.0
        whole = tuple(size * torch.randn(*shape) for _ in range(parts))
        return whole, torch.randn(out if isinstance(out, tuple) else (out,))

    return record
