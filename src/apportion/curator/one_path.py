"""Whether a forward pass takes the same path whatever the values are.

The one-pass engine runs a micro-batch together, and what a probe on a few synthetic records shows must hold for all records. It does
unless the model asks for values: `if x.max() > 10: x = x - x.mean(0)` mixes records, but only where one is large. So the model is run on
tensors that have a shape and no values; asking for one raises. Constants that a model makes itself and looks at (the mask of
`nn.Transformer`) raise there too: under `torch.func.vmap` only what belongs to records cannot be asked, so that is tried next.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from apportion.curator.gradients.reference import ReferenceGradients
from apportion.curator.tree import call_arguments, map_tensors


def takes_one_path(model: nn.Module, records: Any) -> bool:
    """Whether `model` can be run on records of this shape without looking at a value of theirs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _runs_without_values(model, records) or _runs_under_vmap(model, records)


def _runs_without_values(model: nn.Module, records: Any) -> bool:
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
            positional, named = call_arguments(map_tensors(mode.from_tensor, records))
            model(*positional, **named)
    except Exception:  # also an operator that does not know what shape it returns
        return False
    return True


def _runs_under_vmap(model: nn.Module, records: Any) -> bool:
    try:
        ReferenceGradients(model, "vmap").forward(records)
    except Exception:
        return False
    return True
