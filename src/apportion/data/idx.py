"""The idx format of MNIST and Fashion-MNIST.

A file is: two zero bytes, one byte for the type, one byte for the number of dimensions d, d big-endian 32-bit sizes, then
the values. QMNIST's extended labels (int32, eight columns) say in column 2 who wrote each digit.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch

from apportion.data import files, tensors
from apportion.data.checksums import FASHION_MNIST, MNIST
from apportion.data.entry import DataSet, Entry
from apportion.errors import InvalidArgument

TYPES: dict[int, np.dtype[Any]] = {0x08: np.dtype("u1"), 0x0C: np.dtype(">i4")}
WRITERS_FILE = "qmnist-train-labels-idx2-int"
WRITER_COLUMN = 2
_TRAIN_LABELS = "train-labels-idx1-ubyte"
_OWNERS = {MNIST[_TRAIN_LABELS]: "mnist", FASHION_MNIST[_TRAIN_LABELS]: "fashion-mnist"}


def parse(path: Path) -> np.ndarray[Any, Any]:
    """The array in an idx file, compressed or not."""
    content = files.read(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in TYPES:
        raise files.unfit(path, "it does not begin like an idx file of bytes or 32-bit integers")
    dtype, dimensions = TYPES[content[2]], content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise files.unfit(path, "it ends inside its header")
    sizes = struct.unpack(f">{dimensions}I", content[4:start])
    needed = start + int(np.prod(sizes, dtype=np.int64)) * dtype.itemsize
    if len(content) != needed:
        raise files.unfit(path, f"it has {len(content)} bytes; its header says {needed}")
    return np.frombuffer(content, dtype, offset=start).reshape(sizes)


def read(entry: Entry, folder: Path) -> DataSet:
    """Four idx files, and for MNIST the writers if their file is there."""
    _refuse_the_twin(entry, folder)
    train = _part(entry, folder, "train")
    writers_path = files.locate(folder, WRITERS_FILE) if entry.extras else None
    writers = None
    if writers_path is not None:
        writers = torch.from_numpy(parse(writers_path)[:, WRITER_COLUMN].astype(np.int64))
        if len(writers) != len(train[1]):
            raise files.unfit(writers_path, f"{len(writers)} writers for {len(train[1])} records", "Delete it")
    return entry.dataset(train, _part(entry, folder, "t10k"), folder, writers=writers)


def _part(entry: Entry, folder: Path, prefix: str) -> tensors.Pair:
    path = files.required(folder, f"{prefix}-images-idx3-ubyte")
    labels_path = files.required(folder, f"{prefix}-labels-idx1-ubyte")
    inputs = tensors.images(parse(path)[:, None])
    return tensors.pair(entry, inputs, parse(labels_path), path, labels_path)


def _refuse_the_twin(entry: Entry, folder: Path) -> None:
    """MNIST and Fashion-MNIST use the same file names: a folder of one must not pass for the other."""
    path = files.required(folder, _TRAIN_LABELS)
    owner = _OWNERS.get(files.sha256(path), entry.name)
    if owner != entry.name:
        fix = f"Put each data set into a folder of its own name, {owner}/ and {entry.name}/"
        raise InvalidArgument("data", entry.name, f"the files in {folder} are those of {owner}", fix)
