"""Nested state as one file without code in it: tensors in safetensors, everything else as JSON beside them.

Pickle is not used: loading a pickle runs whatever program somebody put into it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from apportion.errors import InvalidArgument

_PLAIN = (bool, int, float, str, type(None))
_KEY = "state"


def pack(state: Any) -> bytes:
    """None, numbers, texts, tensors, and lists, tuples and dicts of them, as bytes that `unpack` turns back bit for bit."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_encode(state, "state", tensors), sort_keys=True)
    content: bytes = save(tensors, metadata={_KEY: text})
    return content


def unpack(content: bytes) -> Any:
    """What was packed. Raises ValueError for anything else."""
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        return _decode(json.loads(header["__metadata__"][_KEY]), load(content))
    except (
        SafetensorError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        RecursionError,
        UnicodeDecodeError,
    ) as error:
        raise ValueError(f"not a packed state: {error}") from error


def digest(state: Any) -> str:
    """A hash of a state: equal for equal states, on every machine."""
    return hashlib.blake2b(pack(state), digest_size=32).hexdigest()


def _encode(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = (
            value.detach().cpu().contiguous().clone()
        )  # tied weights share memory, which safetensors refuses
        return {"tensor": name, "device": str(value.device)}
    if isinstance(value, Mapping) and all(isinstance(key, (str, int)) for key in value):
        pairs = [[key, _encode(item, f"{path}.{key}", tensors)] for key, item in value.items()]
        return {"dict": pairs}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_encode(item, f"{path}[{i}]", tensors) for i, item in enumerate(value)]}
    raise InvalidArgument(
        path,
        type(value).__name__,
        "it cannot be kept in a checkpoint, which holds data and no code",
        "Use numbers, texts, tensors, and lists, tuples or dicts of them",
    )


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]].to(torch.device(value["device"]))
    if "dict" in value:
        return {key: _decode(item, tensors) for key, item in value["dict"]}
    if "tuple" in value:
        return tuple(_decode(item, tensors) for item in value["tuple"])
    return [_decode(item, tensors) for item in value["list"]]
