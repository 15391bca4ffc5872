"""CIFAR-10 and CIFAR-100: the published pickles, or one .npz file with x_train, y_train, x_test and y_test.

A pickle can run any program when it is read. The reader here admits three NumPy names, which the published files need,
and answers even these with inert stand-ins of its own: reading a file can make byte arrays, lists, numbers and strings,
and nothing else.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from apportion.data import files, tensors
from apportion.data.entry import DataSet, Entry
from apportion.errors import InvalidArgument

NPZ_KEYS = ("x_train", "y_train", "x_test", "y_test")


class _Dtype:
    """Stands in for `numpy.dtype`; the files hold bytes only, so everything but the type code is ignored."""

    def __init__(self, code: str | bytes, *_: object):
        self.code = code.decode() if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        pass


class _ByteArray:
    """Stands in for `numpy.ndarray` while unpickling; `values` is the finished array."""

    values: np.ndarray[Any, Any]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran_order, content = state
        if dtype.code != "u1" or not isinstance(content, bytes):
            raise pickle.UnpicklingError("an array of something other than bytes")
        self.values = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran_order else "C")


def _reconstruct(*_: object) -> _ByteArray:
    return _ByteArray()


_ADMITTED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _ByteArray,
    ("numpy", "dtype"): _Dtype,
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None


def unpickle(path: Path) -> dict[str, Any]:
    """The dictionary in a CIFAR batch, or `InvalidArgument` if the file asks for anything a batch does not need."""
    try:
        content = _Restricted(io.BytesIO(files.read(path)), encoding="bytes").load()
        batch = {key.decode() if isinstance(key, bytes) else key: value for key, value in content.items()}
        batch["data"] = batch["data"].values
    except Exception as refusal:
        # A damaged pickle can fail in any way; whatever happens, nothing was run.
        raise files.unfit(path, f"it is not a CIFAR batch and was refused ({refusal})") from None
    return batch


def read(entry: Entry, folder: Path) -> DataSet:
    """Whichever of the two formats is in the folder."""
    npz = files.locate(folder, f"{entry.name}.npz")
    if npz is not None:
        return _read_npz(entry, npz)
    *train, test = entry.layouts[0]
    return entry.dataset(_read_pickles(entry, folder, train), _read_pickles(entry, folder, [test]), folder)


def _read_pickles(entry: Entry, folder: Path, names: list[str]) -> tensors.Pair:
    label_key = "fine_labels" if entry.name == "cifar100" else "labels"
    batches = [unpickle(files.required(folder, name)) for name in names]
    if not all(label_key in batch for batch in batches):
        fix = f"Check that they belong to {entry.name}"
        raise InvalidArgument("folder", str(folder), f"its batches have no {label_key}", fix)
    pixels = np.concatenate([batch["data"] for batch in batches]).reshape(-1, *entry.shape)
    labels = np.concatenate([batch[label_key] for batch in batches])
    return tensors.pair(entry, tensors.images(pixels), labels, folder)


def _read_npz(entry: Entry, path: Path) -> DataSet:
    """Images are bytes of shape (N, H, W, C), as Keras stores them."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as content:
            x_train, y_train, x_test, y_test = (content[key] for key in NPZ_KEYS)
    except (KeyError, ValueError, OSError, zipfile.BadZipFile) as problem:
        fix = f"It needs the arrays {', '.join(NPZ_KEYS)}"
        raise files.unfit(path, f"it cannot be read ({problem})", fix) from None
    train, test = (
        tensors.pair(entry, tensors.images(pixels.transpose(0, 3, 1, 2)), labels, path)
        for pixels, labels in ((x_train, y_train), (x_test, y_test))
    )
    return entry.dataset(train, test, path)
