"""The private records, whatever they came as: tensors, NumPy arrays or a `Dataset`.

A record is a pair (inputs, target). `inputs` is a tensor, or a tuple or dict of tensors; a model is called with it as
model(x), model(*x) or model(**x).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from apportion import validate
from apportion.curator.dense_tensors import as_dense_tensor
from apportion.curator.distinct import require_distinct
from apportion.curator.foreign_code import contain_errors
from apportion.curator.randomness import KEY_BYTES, Stream
from apportion.curator.reader import LABELS, Batch, Piece, Reader, Task, as_pair, join_pieces, read_items
from apportion.curator.shard import LocalShard
from apportion.curator.tree import batch_size, map_tensors, tensor_leaves
from apportion.curator.views import Augmented, Views
from apportion.curator.workers import Workers
from apportion.errors import InvalidArgument

_ARGUMENT = "data"
_TABLE = f"Declare what its columns hold, and pass {_ARGUMENT}=apportion.tables.records(table, schema, target=...)"


class Records:
    """Indexable private records. Only the curator holds one.

    `found` says what was wrong with them when they were read, and `failures` what those raised that the last `read` could not read, both
    secret; `views` how views of each are made, if several are; `local` whether they are one rank's own (`LocalShard`).
    """

    def __init__(self, size: int, batch: Callable[[NDArray[np.int64]], Batch], example: Batch):
        self._size, self._batch, self.example = size, batch, example
        self.found: Mapping[str, int] = {}
        self.failures: list[str] = []
        self.views: Views | None = None
        self.local = False

    def __len__(self) -> int:
        return self._size

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        """The records with these indices, stacked along a new first dimension."""
        return self._batch(indices)

    def start_workers(self, workers: int) -> None:
        """Get ready to `read` with so many worker processes. What is in memory needs none."""

    def read(self, members: NDArray[np.int64], cuts: Sequence[slice], secret: Stream) -> Iterator[Piece]:
        """These records in micro-batches, without those that cannot be read. `secret` gives seeds for augmentation.

        Args:
            cuts: which members are in each micro-batch (`cut_evenly`).
        """
        for cut in cuts:
            yield from self._readable(members[cut])

    def close(self) -> None:
        """End the worker processes, if there are any."""

    def _readable(self, members: NDArray[np.int64]) -> list[Piece]:
        """The batch of these records; if it cannot be put together, each that can be read, alone. No code of a person runs here."""
        try:
            return [Piece(self.batch(members), torch.from_numpy(members))]
        except MemoryError:
            raise
        except Exception:
            alone = []
            for member in members:
                with suppress(Exception):
                    alone.append(Piece(self.batch(np.array([member])), torch.tensor([member])))
            return alone


def cut_evenly(count: int, size: int) -> list[slice]:
    """Micro-batches of `size`, and a rest.

    Not in equal parts: one record more would then cut all of them anew, and their float32 sums would be rounded differently by more
    than the headroom covers.
    """
    return [slice(start, start + size) for start in range(0, count, size)]


class DatasetRecords(Records):
    """Records that a person's code reads, one by one or a few at a time, here or in worker processes."""

    def __init__(self, size: int, reader: Reader):
        first = reader.batch(np.zeros(1, dtype=np.int64))
        super().__init__(size, reader.batch, map_tensors(lambda tensor: torch.zeros_like(tensor[0]), first))
        self._reader = reader
        self._workers: Workers | None = None

    def start_workers(self, workers: int) -> None:
        if workers and (self._workers is None or self._workers.closed):
            self._workers = Workers(self._reader, workers)

    def read(self, members: NDArray[np.int64], cuts: Sequence[slice], secret: Stream) -> Iterator[Piece]:
        # A fixed amount of `secret`, and a seed for every record, drawn or not: what a record gets does not depend on the others.
        seeds = Stream(secret.words(KEY_BYTES // 8).tobytes()).words(len(self))[members]
        tasks = [Task(members[cut], seeds[cut]).split() for cut in cuts]
        every_piece = [piece for pieces in tasks for piece in pieces]
        read = map(self._reader, every_piece) if self._workers is None else self._workers.read(every_piece)
        self.failures.clear()
        for pieces in tasks:
            found = list(islice(read, len(pieces)))
            self.failures.extend(chain.from_iterable(one.failures for one in found))
            yield from join_pieces(one.pieces for one in found)

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()
            self._workers = None


def as_records(data: Any) -> Records:
    """Wrap what a person handed in; refuse what has its own idea of sampling.

    `Records.example` keeps the shape and type of one record, with every value set to zero: that much is public.
    """
    if isinstance(data, Records):
        return data
    if isinstance(data, Augmented):
        augmented = copy.copy(as_records(data.data))
        data.views.require_usable(augmented.example[0])
        augmented.views = data.views
        return augmented
    if isinstance(data, LocalShard):
        pair = data.data if _is_pair(data.data) else None
        own = copy.copy(as_records(data.data) if pair is None else _from_arrays(pair[0], pair[1], least=0))
        own.local = True
        return own
    data = getattr(data, "_dataloader", data)  # what Lightning's Fabric wraps
    if isinstance(data, DataLoader):
        raise InvalidArgument(
            _ARGUMENT,
            f"DataLoader with {type(data.sampler).__name__}",
            "a loader brings its own sampling (shuffled, weighted, fixed-size), and the guarantee holds only for the Poisson "
            "draws that Apportion makes itself",
            f"Pass the data set: {_ARGUMENT}=loader.dataset",
        )
    if isinstance(data, IterableDataset):
        raise InvalidArgument(
            _ARGUMENT,
            type(data).__name__,
            "Poisson sampling needs records that can be indexed",
            "Use a map-style Dataset",
        )
    if isinstance(data, Mapping):
        raise InvalidArgument(
            _ARGUMENT,
            type(data).__name__,
            "it is indexed by name, and records are drawn by number",
            f"Pass a pair, {_ARGUMENT}=(inputs, targets); inputs may be a dict of tensors",
        )
    if isinstance(data, (str, Path)) or _is_frame(data):
        raise InvalidArgument(_ARGUMENT, type(data).__name__, "it is a file or a table, and not yet records", _TABLE)
    if _is_pair(data):
        return _from_arrays(data[0], data[1])
    arrays = data if isinstance(data, tuple) else (data,)
    if arrays and all(isinstance(one, (np.ndarray, Tensor)) for one in arrays):
        raise InvalidArgument(
            _ARGUMENT,
            f"{len(arrays)} arrays" if isinstance(data, tuple) else type(data).__name__,
            "records are a pair of inputs and targets",
            f"Pass {_ARGUMENT}=(inputs, targets); several inputs are a tuple or a dict, ((first, second), targets)",
        )
    if hasattr(data, "__getitem__") and isinstance(data, Sized):
        return _from_dataset(data)
    raise InvalidArgument(
        _ARGUMENT,
        type(data).__name__,
        "it is neither a pair (inputs, targets) of tensors or arrays nor a map-style Dataset",
        f"Pass {_ARGUMENT}=(inputs, targets) or a Dataset whose items are pairs",
    )


def _is_pair(data: Any) -> bool:
    return isinstance(data, (tuple, list)) and len(data) == 2 and not isinstance(data, Dataset)


def _is_frame(value: Any) -> bool:
    """Whether it looks like a table of pandas or polars, which has a type for each column."""
    return hasattr(value, "columns") and hasattr(value, "dtypes")


def _as_tensor(value: Any) -> Tensor:
    if not isinstance(value, (np.ndarray, Tensor)):
        raise InvalidArgument(
            _ARGUMENT,
            type(value).__name__,
            "inputs and targets must be tensors or NumPy arrays",
            _TABLE if _is_frame(value) else "Convert them with torch.as_tensor",
        )
    with contain_errors() as attempt:
        tensor = as_dense_tensor(value)
        if isinstance(value, np.ndarray) and tensor.dtype is torch.float64:
            return (
                tensor.float()
            )  # NumPy's default type would not meet a float32 model; NumPy itself would warn of large values
        return tensor
    if isinstance(value, np.ndarray) and value.dtype.kind in "OSUM":
        raise InvalidArgument(
            _ARGUMENT,
            f"{type(value).__name__} of {value.dtype}",
            "it does not hold numbers",
            "Encode each value by a list that was fixed without looking at the records, classes as int64 from 0: "
            "{'healthy': 0, 'ill': 1}[label]",
        )
    raise InvalidArgument(
        _ARGUMENT,
        f"{type(value).__name__} of {value.dtype}",
        f"only dense tensors and arrays of numbers have rows that can be drawn ({attempt.failure})",
        "Convert it, for example with .to_dense()",
    )


def _from_arrays(inputs: Any, targets: Any, *, least: int = 1) -> Records:
    stacked = map_tensors(_as_tensor, (inputs, targets))
    if not tensor_leaves(stacked[0]):
        raise InvalidArgument(_ARGUMENT, validate.shown(inputs), "it has no inputs", "Pass (inputs, targets)")
    sizes = {tensor.shape[0] if tensor.dim() else 0 for tensor in tensor_leaves(stacked)}
    if len(sizes) != 1 or min(sizes) < least:
        raise InvalidArgument(
            _ARGUMENT,
            sorted(sizes),
            "inputs and targets need the same, positive number of rows",
            "Check the first dimensions",
        )
    size = batch_size(stacked)

    def batch(indices: NDArray[np.int64]) -> Batch:
        chosen = torch.from_numpy(indices)
        pair: Batch = map_tensors(lambda tensor: tensor.index_select(0, chosen.to(tensor.device)), stacked)
        return pair

    return Records(size, batch, map_tensors(lambda tensor: tensor.new_zeros(tensor.shape[1:]), stacked))


def _from_dataset(data: Any) -> Records:
    with contain_errors() as attempt:
        size = len(data)
        first = read_items(data, [0])[0] if size else None
    if attempt.failure:
        raise InvalidArgument(
            _ARGUMENT,
            type(data).__name__,
            f"its first item cannot be read ({attempt.failure})",
            f"Pass {_ARGUMENT}=(inputs, targets), or a Dataset that is indexed from 0 and whose items are pairs",
        )
    if size == 0:
        raise InvalidArgument(_ARGUMENT, "an empty Dataset", "there is nothing to train on", "Check how it was loaded")
    named = isinstance(first, Mapping) and LABELS in first and len(first) > 1
    if not named and (not isinstance(first, (tuple, list)) or len(first) != 2):
        raise InvalidArgument(
            _ARGUMENT,
            f"items of type {type(first).__name__}",
            "an item must be a pair (inputs, target), so that the loss of one record is defined",
            f"Return (inputs, target), where inputs may be a dict or a tuple of tensors; or a dict of inputs with {LABELS!r}",
        )
    require_distinct(_ARGUMENT, data)
    if (in_memory := _in_memory(data)) is not None:
        return in_memory
    with contain_errors() as attempt:
        return DatasetRecords(size, Reader(data, as_pair(first)))
    raise InvalidArgument(
        _ARGUMENT,
        type(data).__name__,
        f"its items cannot be stacked ({attempt.failure})",
        "Return dense tensors, NumPy arrays or numbers, e.g. with a transform to tensors",
    )


def _in_memory(data: Any) -> Records | None:
    """The tensors of a plain `TensorDataset`, or of a `Subset` of one. A subclass may do something else with them."""
    if type(data) is TensorDataset:
        return _from_arrays(*data.tensors)
    whole = _in_memory(data.dataset) if type(data) is Subset else None
    if whole is None:
        return None
    rows = np.asarray(data.indices)
    if rows.dtype.kind not in "iu" or rows.ndim != 1 or rows.min() < 0 or rows.max() >= len(whole):
        return None  # the Subset knows what it means
    return Records(len(rows), lambda indices: whole.batch(rows[indices].astype(np.int64)), whole.example)
