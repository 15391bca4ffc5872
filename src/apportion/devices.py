"""What differs between cpu, cuda and mps: where float64 exists, and which generators a model draws from. All else is one code path."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


@functools.cache
def has_float64(kind: str) -> bool:
    """Whether devices of this kind have numbers of 64 bits; those called "mps" do not."""
    import torch

    try:
        torch.zeros(1, dtype=torch.float64, device=kind)
    except (TypeError, RuntimeError):
        return False
    return True


def with_float64(tensor: Tensor) -> Tensor:
    """The tensor itself, where its device has float64, otherwise a copy on the CPU: for what has to be computed in float64."""
    return tensor if has_float64(tensor.device.type) else tensor.cpu()


def beside(tensor: Tensor, other: Tensor) -> Tensor:
    """The tensor on the device of `other`; with its type, if that device has no float64."""
    return (tensor if has_float64(other.device.type) else tensor.to(other.dtype)).to(other.device)


def model_devices(model: nn.Module) -> set[torch.device]:
    """Where the parameters and buffers of a model are."""
    return {tensor.device for tensor in (*model.parameters(), *model.buffers())}


def remember_generators(devices: Iterable[torch.device]) -> Callable[[], None]:
    """Note the state of the CPU's generator and of those of `devices`. What is returned puts it back, as often as it is called."""
    import torch

    others = [(torch.get_device_module(device), device) for device in devices if _draws(device)]
    state, states = torch.get_rng_state(), [module.get_rng_state(device) for module, device in others]

    def put_back() -> None:
        torch.set_rng_state(state)
        for (module, device), one in zip(others, states, strict=True):
            module.set_rng_state(one, device)

    return put_back


@contextmanager
def seeded_generators(seed: int, devices: Iterable[torch.device]) -> Iterator[None]:
    """Until the end of this block the CPU's generator and those of `devices` toss from `seed`; then they are as they were before."""
    import torch

    others = [device for device in devices if _draws(device)]
    put_back = remember_generators(others)
    try:
        torch.default_generator.manual_seed(seed)
        for device in others:
            module = torch.get_device_module(device)
            with module.device(device) if hasattr(module, "device") else nullcontext():
                module.manual_seed(seed)
        yield
    finally:
        put_back()


def _draws(device: torch.device) -> bool:
    """Whether a device has a generator besides the CPU's."""
    return device.type not in ("cpu", "meta")
