"""Features of all records, once: in pieces, so that memory stays bounded, and kept in a file."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apportion.curator.foreign_code import contain_errors, watch_signals
from apportion.curator.gradients.module_state import ModuleState
from apportion.curator.randomness import KEY_BYTES, Stream
from apportion.curator.reader import Piece
from apportion.curator.records import Records, as_records, cut_evenly
from apportion.errors import InvalidArgument
from apportion.features.extractor import Extractor
from apportion.features.feature_files import Floats, stored_features

Indices = NDArray[np.int64]

CHUNK_RECORDS = 32
"""Records that are computed at a time: what lies between two operations then stays in the processor's cache."""


def extract(extractor: Extractor, data: Any, *, cache: Path | str | None = None) -> tuple[Tensor, Tensor]:
    """(features, targets) of private records, for `apportion.train`: a row for each record, computed from that record alone.

    A record that cannot be read, or on which the map fails, has NaN, and so contributes nothing.

    Args:
        extractor: what is computed.
        data: a pair (inputs, targets), or a map-style Dataset of such pairs, as `apportion.train` takes them, with one tensor as inputs.
        cache: a folder for the features. They are as secret as the records: only you can read the file. It is found again by a digest of
            the records and of the extractor, and never used for others. Without a folder features are in memory.

    Examples:
        >>> import apportion as ap
        >>> import torch
        >>> images, labels = torch.rand(5, 1, 8, 8), torch.zeros(5, dtype=torch.int64)
        >>> found, targets = ap.features.extract(ap.features.Extractor(ap.features.Scatter(), (1, 8, 8)), (images, labels))
        >>> tuple(found.shape)
        (5, 324)
    """
    records = as_records(data)
    inputs, target = records.example
    if not isinstance(inputs, Tensor) or not isinstance(target, Tensor):
        reason = "features are computed from one tensor a record, with one tensor as the target"
        raise InvalidArgument("data", f"inputs of {type(inputs).__name__}", reason, "Pass (inputs, targets)")
    if tuple(inputs.shape) != extractor.shape or inputs.dtype != extractor.dtype:
        reason = f"the features are made for {extractor.dtype} of shape {extractor.shape}"
        raise InvalidArgument("data", f"{inputs.dtype} of shape {tuple(inputs.shape)}", reason, "Build them for it")
    targets = target.new_zeros((len(records), *target.shape))
    content = _read_all(records, targets)
    shape = (len(records), extractor.width)
    if cache is None:
        rows: Floats = np.empty(shape, dtype=np.float32)
        _compute(extractor, records, rows)
    else:
        key = hashlib.blake2b(f"{extractor.digest()} {shape} {content}".encode(), digest_size=32).hexdigest()
        rows = stored_features(Path(cache), key, shape, lambda rows: _compute(extractor, records, rows))
    return torch.from_numpy(rows), targets


def _pieces(records: Records) -> Iterator[Piece]:
    """All records; what a data set draws at random is drawn alike each time."""
    cuts = cut_evenly(len(records), CHUNK_RECORDS)
    return records.read(np.arange(len(records)), cuts, Stream(bytes(KEY_BYTES)))


def _read_all(records: Records, targets: Tensor) -> str:
    """Fill in the targets; a digest of which records there are and of their inputs."""
    found = hashlib.blake2b(digest_size=32)
    for piece in _pieces(records):
        inputs, target = piece.batch
        targets[piece.members] = target
        found.update(piece.members.numpy().tobytes())
        found.update(inputs.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _compute(extractor: Extractor, records: Records, rows: Floats) -> None:
    """Fill in the features of all records; NaN for those that have none."""
    state, lacking = ModuleState(extractor), np.ones(len(records), dtype=bool)
    with torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings(), watch_signals():
        warnings.simplefilter("ignore")  # one that a record causes would tell of it
        for piece in _pieces(records):
            members, inputs = piece.members.numpy(), piece.batch[0]
            if extractor.together:
                _fill(extractor, state, inputs, members, rows, lacking)
            for place in np.flatnonzero(
                lacking[members]
            ):  # one by one; also where a record made all others of its piece fail
                one = slice(place, place + 1)
                _fill(extractor, state, inputs[one], members[one], rows, lacking)
        state.restore()
    rows[lacking] = np.nan


def _fill(
    extractor: Extractor, state: ModuleState, inputs: Tensor, members: Indices, rows: Floats, lacking: NDArray[np.bool_]
) -> None:
    """The features of these records, computed together; nothing if that fails."""
    if tuple(inputs.shape[1:]) != extractor.shape:
        return
    with contain_errors():
        state.restore()
        rows[members] = extractor(inputs).numpy()
        lacking[members] = False
