"""The processes that make one run together: each draws for its own part of the records, and all hold the same state.

This page says what a run asks of them. `ALONE` is the usual run, in one process; `apportion.distributed` has those of torch.distributed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Value = TypeVar("Value")


class ShardedSums(Protocol):
    """How each parameter is divided between the ranks, where it is."""

    def add_up(self, names: Sequence[str], sum_of: Callable[[str], Tensor]) -> Iterator[Tensor]:
        """Of each parameter's sum the total over all ranks, of this rank's own part, in float64: a tensor of its own."""
        ...


class Ranks(Protocol):
    """Processes that trust each other, as parts of one curator. Every method is called by all of them, in the same order.

    `rank` is the number of this one; the first, 0, keeps the books. `share` is the part of the standard deviation of all noise that this
    one adds: the squares of all shares add up to 1. `wide` tells whether sums go to the others without noise, and so in float64.
    `shards` divides the parameters between the ranks; `None` if each holds all of them.
    `divides_records` tells whether each draws for its own part of the records; otherwise all draw the same, and have parts of the model.
    """

    @property
    def rank(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def share(self) -> float: ...

    @property
    def wide(self) -> bool: ...

    @property
    def shards(self) -> ShardedSums | None: ...

    @property
    def divides_records(self) -> bool: ...

    def joined(self) -> AbstractContextManager[None]:
        """Around what each does by itself, before anything is charged: if one fails, all end with an error that says so."""
        ...

    def agree(self, value: Value) -> Value:
        """What the first one says: plain data."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """What each one says: plain data."""
        ...

    def require_same(self, digest: bytes) -> None:
        """Refuse to go on with processes whose state differs."""
        ...

    def charge(self, action: Callable[[], None]) -> None:
        """The first one charges, durably; then the others do so in their memory. If it is refused, all of them raise."""
        ...

    def give_up(self) -> None:
        """Tell those who wait in `arrive` that this one will not come."""
        ...

    def arrive(self) -> None:
        """Wait for all others. Raises unless every one arrives."""
        ...

    def copy_first(self, tensors: Iterable[Tensor]) -> None:
        """Write the first one's values over those of the others."""
        ...

    def add_up(self, tensors: Iterable[Tensor]) -> Iterator[Tensor]:
        """The sums of these over all processes, to the last bit the same in each. The tensors are written over."""
        ...

    def choose(self, indices: Sequence[int | None]) -> tuple[int | None, ...]:
        """What the first one has chosen."""
        ...


class Alone:
    """A run in one process."""

    rank, count, share, wide, divides_records = 0, 1, 1.0, False, False
    shards: ShardedSums | None = None

    def joined(self) -> AbstractContextManager[None]:
        return nullcontext()

    def agree(self, value: Value) -> Value:
        return value

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def require_same(self, digest: bytes) -> None:
        pass

    def charge(self, action: Callable[[], None]) -> None:
        action()

    def give_up(self) -> None:
        pass

    def arrive(self) -> None:
        pass

    def copy_first(self, tensors: Iterable[Tensor]) -> None:
        pass

    def add_up(self, tensors: Iterable[Tensor]) -> Iterator[Tensor]:
        return iter(tensors)

    def choose(self, indices: Sequence[int | None]) -> tuple[int | None, ...]:
        return tuple(indices)


ALONE = Alone()
