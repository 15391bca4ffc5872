"""The records of a draw in chunks of one size, as they go through a pipeline.

The stages exchange tensors of a fixed shape, so every chunk has the same number of rows. Rows behind the last record are filled with a
synthetic one, which counts nowhere. A record that cannot be read, lies outside of the declared domain or has another shape than the
others leaves its row to the filler too. It is *lost*: its row is made NaN where it leaves the stage, so that all other stages learn of it
from what they are sent anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from apportion.curator.gradients.one_pass import OpenPass
from apportion.curator.owners import Numbers
from apportion.curator.reader import Piece
from apportion.curator.tree import map_tensors, tensor_leaves


@dataclass
class Chunk:
    """Some records of a draw, on one stage.

    Args:
        members: the numbers of its records, which are its first rows.
        usable: which rows take part, (rows,).
        inputs: of all rows; on the first stage alone.
        targets: of the rows `answered`; on the last stage alone.
    """

    members: Tensor
    usable: Tensor
    inputs: Any = None
    targets: Any = None
    answered: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    running: tuple[Tensor, OpenPass] | None = None
    """Its outputs and what was noted on the way to them, between its forward and its backward pass; `None` if it cannot run as a whole."""

    def lose(self, rows: Tensor) -> int:
        """From here on these rows, a mask, take no part. Returns how many of them did until now."""
        newly = self.usable & rows
        self.usable = self.usable & ~rows
        return int(newly.sum())

    @property
    def lost(self) -> Tensor:
        """The rows of records that take no part, a mask; rows without a record are not among them."""
        return ~self.usable & (torch.arange(len(self.usable)) < len(self.members))


def empty_chunk(members: Numbers, rows: int) -> Chunk:
    """All of these records, with nothing read of them."""
    usable = torch.arange(rows) < len(members)
    return Chunk(torch.from_numpy(members), usable)


def read_chunks(
    pieces: Iterator[Piece], members: Numbers, cuts: Sequence[slice], rows: int, filler: Any
) -> Iterator[Chunk]:
    """A chunk for each cut, with what could be read of it.

    Args:
        pieces: what was read, in the order of `members`, which ascend; a piece holds records of one cut.
        filler: the inputs of one synthetic record, where the stage is.
    """
    pending = next(pieces, None)
    for cut in cuts:
        chunk = empty_chunk(members[cut], rows)
        chunk.usable = torch.zeros(rows, dtype=torch.bool)
        chunk.inputs = map_tensors(lambda leaf: leaf.expand(rows, *leaf.shape).clone(), filler)
        targets = []
        while pending is not None and int(pending.members[0]) <= int(members[cut][-1]):
            places = torch.searchsorted(chunk.members, pending.members)
            if _fits(pending.batch[0], chunk.inputs):
                map_tensors(
                    lambda room, values, at=places: room.index_copy_(0, at.to(room.device), values),
                    chunk.inputs,
                    pending.batch[0],
                )
                chunk.usable[places] = True
                targets.append((places, pending.batch[1]))
            pending = next(pieces, None)
        if targets:
            chunk.answered = torch.cat([places for places, _ in targets])
            chunk.targets = map_tensors(lambda *parts: torch.cat(parts), *(part for _, part in targets))
        yield chunk


def _fits(batch: Any, room: Any) -> bool:
    """Whether records have the shape that the pipeline was built for."""
    pairs = zip(tensor_leaves(batch), tensor_leaves(room), strict=True)
    return all(one.shape[1:] == other.shape[1:] and one.dtype == other.dtype for one, other in pairs)
