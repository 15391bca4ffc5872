"""Nested inputs and outputs (tuples, lists, dicts of tensors), walked in one way: as `torch.func.vmap` walks them.

`torch.utils._pytree` is what `vmap` itself uses, so a structure that one accepts the other accepts too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

_PLAIN = (Tensor, bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


def map_tensors(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """The same structure with `function` applied to every leaf (and to the leaves of `others` at the same place)."""
    if not others:  # the usual structures without the machinery for unusual ones
        if isinstance(tree, Tensor):
            return function(tree)
        if type(tree) is tuple:
            return tuple([map_tensors(function, part) for part in tree])
    return tree_map(function, tree, *others)


def tensor_leaves(tree: Any) -> list[Tensor]:
    """Every tensor of the structure, in order."""
    return [tree] if isinstance(tree, Tensor) else [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def is_plain(leaf: Any) -> bool:
    """Whether a leaf is a tensor or a plain value. Any other object may hold something of a record where nobody looks for it."""
    return isinstance(leaf, _PLAIN)


def drop_objects(tree: Any) -> Any:
    """The same structure with `None` in place of every object, as the cache of a language model is: it is not made of records."""
    return map_tensors(lambda leaf: leaf if is_plain(leaf) else None, tree)


def batch_size(tree: Any) -> int:
    """How many records a batch holds."""
    return tensor_leaves(tree)[0].shape[0]


def call_arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How a model is called with `inputs`: model(x), model(*x) or model(**x)."""
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs), {}
    return (inputs,), {}


def call_model(model: nn.Module, inputs: Any) -> Any:
    """The model's answer to a batch, whatever the shape of its inputs."""
    positional, named = call_arguments(inputs)
    return model(*positional, **named)
