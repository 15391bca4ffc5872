"""Reads the records of a person's `Dataset`, in this process or in worker processes. Both do the same and give the same batches.

A micro-batch is read in pieces, so that several workers share it, and the pieces are put together here. What a
record contributes must not depend on the others, so each is read on its own terms:

- one that cannot be read is left out, wherever that happens and whatever is raised (`foreign_code.py`);
- it is asked for alone: a data set that reads several at once may shape one by the others, as when texts are padded to the longest of them;
- it is copied into plain tensors before the next one is read (`dense_tensors.py`);
- its numbers get the types of the first record: stacked as they come, one float64 would turn all others into float64;
- it must have as many dimensions as the first: without one, torch takes records for channels or time steps of a single record;
- while it is read, the generators of torch, NumPy and Python start from a secret seed of its own, so that one record more does not
  shift the augmentation of all others.

Which records are read is secret. Nothing here prints, and no error of a person's code is raised: its text may name a record, and goes
to the owner of the data alone (`problems.py`).
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_flatten
from torch.utils.data import Subset

from apportion.curator.dense_tensors import as_dense_tensor, copy_dense_tensor
from apportion.curator.foreign_code import contain_errors, watch_signals
from apportion.curator.tree import map_tensors

Batch = tuple[Any, Any]
"""Inputs and targets of some records, stacked along a first dimension."""
LABELS = "labels"
"""The target of an item that is a dict, by its name in Hugging Face's data sets."""
MIN_PIECE_RECORDS, MAX_PIECES = 64, 16
"""Pieces have 64 records, or more if a micro-batch would have over 16 pieces: each takes file descriptors until all are there."""


class Piece(NamedTuple):
    """Some records of a draw, with the number of each: whose they are goes with them wherever they are cut or put together."""

    batch: Batch
    members: Tensor


class Reading(NamedTuple):
    """The records of a piece that can be read, in one batch, or each alone if their shapes differ; and what the others raised. Secret."""

    pieces: list[Piece]
    failures: list[str]


class Task(NamedTuple):
    """One piece: which records, and the seed of each."""

    indices: NDArray[np.int64]
    seeds: NDArray[np.uint64]

    def split(self) -> list[Task]:
        """This micro-batch as the tasks of workers. How it is cut does not depend on how many workers there are."""
        size = max(MIN_PIECE_RECORDS, -(-len(self.indices) // MAX_PIECES))
        cuts = [slice(start, start + size) for start in range(0, len(self.indices), size)]
        return [Task(self.indices[cut], self.seeds[cut]) for cut in cuts]


class Reader:
    """Reads pieces of a data set. A copy of it works in every worker.

    Args:
        data: the map-style data set. Its method `__getitems__` is used if it has one, for one record at a time.
        first: its first record, whose structure and types all others must have.
    """

    def __init__(self, data: Any, first: Batch):
        self._data = data
        leaves, self._structure = tree_flatten(first)
        self._examples = [_example(leaf) for leaf in leaves]

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        """All these records, stacked; raises if one cannot be read."""
        return self._stack([self._row(read_items(self._data, [index])[0]) for index in indices.tolist()])

    def __call__(self, task: Task) -> Reading:
        """The records of a piece."""
        failures: list[str] = []
        with watch_signals():
            return Reading(self._pieces(self._rows(task, failures)), failures)

    def _pieces(self, rows: list[tuple[int, list[Tensor]]]) -> list[Piece]:
        if not rows:
            return []
        with contain_errors():
            return [self._stack_pieces(rows)]
        alone = []
        for row in rows:
            with contain_errors():
                alone.append([self._stack_pieces([row])])
        return join_pieces(alone)

    def _rows(self, task: Task, failures: list[str]) -> list[tuple[int, list[Tensor]]]:
        """The number of each record that can be read, and its tensors: whose they are must not depend on how many others failed."""
        indices, seeds = task.indices.tolist(), task.seeds.tolist()
        rows: list[tuple[int, list[Tensor]]] = []
        with restore_generators(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one that is caused by a record would tell of it
            for index, seed in zip(indices, seeds, strict=True):
                with contain_errors() as attempt:
                    seed_generators(seed)
                    rows.append((index, self._row(read_items(self._data, [index])[0])))
                if attempt.failure:
                    failures.append(attempt.text or attempt.failure)
        return rows

    def _row(self, item: Any) -> list[Tensor]:
        """The numbers of a record, copied."""
        leaves: list[Any] = self._structure.flatten_up_to(as_pair(item))
        row = [
            copy_dense_tensor(leaf, like.dtype, like.device) for leaf, like in zip(leaves, self._examples, strict=True)
        ]
        if any(tensor.dim() != like.dim() for tensor, like in zip(row, self._examples, strict=True)):
            raise ValueError("a record has another number of dimensions than the first one")
        return row

    def _stack_pieces(self, rows: list[tuple[int, list[Tensor]]]) -> Piece:
        return Piece(self._stack([row for _, row in rows]), torch.tensor([index for index, _ in rows]))

    def _stack(self, rows: list[list[Tensor]]) -> Batch:
        batch: Batch = self._structure.unflatten([torch.stack(column) for column in zip(*rows, strict=True)])
        return batch


def _example(leaf: Any) -> Tensor:
    """Shape, type and device of a part of the first record, without its values. Python's floats have 64 bits."""
    plain = torch.tensor(leaf, dtype=torch.float64) if isinstance(leaf, float) else as_dense_tensor(leaf)
    return torch.zeros_like(plain)


def _has_getitems(data: Any) -> bool:
    while type(data) is Subset:  # has the method too, and loops in it if its data set has none
        data = data.dataset
    return callable(getattr(data, "__getitems__", None))


def read_items(data: Any, indices: list[int]) -> Sequence[Any]:
    """The items as the data set gives them."""
    if not _has_getitems(data):
        return [data[index] for index in indices]
    items: Sequence[Any] = data.__getitems__(indices)
    if len(items) != len(indices):
        raise ValueError("__getitems__ returned another number of records than it was asked for")
    return items


def as_pair(item: Any) -> Batch:
    """An item as (inputs, target), where several inputs are a tuple or a dict; of a dict with `labels` these are the target."""
    if isinstance(item, Mapping):
        return {name: value for name, value in item.items() if name != LABELS}, item[LABELS]
    inputs, target = item
    return tuple(inputs) if type(inputs) is list else inputs, target


def join_pieces(read: Iterable[list[Piece]]) -> list[Piece]:
    """The pieces of a micro-batch as one, or every record alone if their shapes differ."""
    read = list(read)
    pieces = list(chain.from_iterable(read))
    if len(pieces) > 1 and all(len(one) <= 1 for one in read):
        with contain_errors():
            return [map_tensors(lambda *parts: torch.cat(parts), *pieces)]
    if len(pieces) <= 1:
        return pieces
    return [one for piece in pieces for one in single_records(piece)]


def single_records(piece: Piece) -> Iterator[Piece]:
    """Each record of a piece alone."""
    for i in range(len(piece.members)):
        yield map_tensors(lambda tensor, i=i: tensor[i : i + 1], piece)


def seed_generators(seed: int) -> None:
    torch.default_generator.manual_seed(seed % 2**32)  # it looks at no more bits
    np.random.seed(seed >> 32)
    random.seed(seed)


@contextmanager
def restore_generators() -> Iterator[None]:
    """Afterwards the generators are as before: how far they moved would tell how many records were read."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
