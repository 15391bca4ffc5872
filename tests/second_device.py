"""A second device that computes, for a machine that has none: `install()`, then `device="second"` works as "cuda" does elsewhere.

It is a backend of torch (PrivateUse1) whose kernels run on the CPU. Its tensors are plain `Tensor`s of another device: autograd,
`torch.func`, dispatch modes and optimisers treat them as they treat those of a GPU, and gradients are computed in a thread of the
device. The numbers of a storage are kept in a storage of the CPU beside it; a result has the strides that the CPU gives it, and one
that shares memory with an argument there does so here. So results are those of the CPU bit for bit, while

- an operation on a tensor of the CPU and one of the device raises, unless the former has no dimension, as on CUDA; `.to`, `copy_` and
  indices are allowed to cross;
- `numpy()` raises;
- random numbers come from a generator of the device's own;
- with `without_float64()` the device has no float64, as "mps" has none.

A backend is registered for good, and torch counts devices at the first backward pass of a process, so everything that uses this runs in a
process of its own (`tests/devices/`).
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import backend_registration
from torch.utils._pytree import tree_leaves, tree_map

NAME = "second"
SECOND = f"{NAME}:0"
_META = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
_CROSSING = ("copy_", "_copy_from", "_copy_from_and_resize", "_to_copy", "_pin_memory", "_local_scalar_dense")
_INDEXING = ("index", "index_put_", "index_put", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put")
_OWN = ("copy_",)
_library: torch.library.Library | None = None


class OtherDevice(RuntimeError):
    """Tensors of two devices met in one operation."""


class _Memory:
    """The memory of the device: a storage of the CPU for each of its own."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[StorageWeakRef, torch.UntypedStorage]] = {}
        self._next_sweep = 1024

    def allocate(self, like: Tensor) -> Tensor:
        """A tensor of the device with the numbers of `like`, whose storage becomes its memory."""
        made = torch._C._acc.create_empty_tensor(like.shape, like.dtype)
        storage = made.untyped_storage()
        self._held[storage._cdata] = StorageWeakRef(storage), like.untyped_storage()
        if len(self._held) > self._next_sweep:
            self._held = {key: held for key, held in self._held.items() if not held[0].expired()}
            self._next_sweep = 2 * len(self._held) + 1024
        return self.alias(made, like)

    def read(self, tensor: Tensor) -> Tensor:
        """The same numbers, in the same memory, as a tensor of the CPU."""
        storage = self._held[tensor.untyped_storage()._cdata][1]
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        needed = (tensor.storage_offset() + last + 1) * tensor.itemsize if tensor.numel() else 0
        if storage.nbytes() < needed:  # torch has made an empty result larger
            storage.resize_(needed)
        made = torch.empty(0, dtype=tensor.dtype)
        return made.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())

    @staticmethod
    def alias(tensor: Tensor, like: Tensor) -> Tensor:
        """A tensor of the device in the memory of `tensor`, with the shape, strides and type of `like`."""
        if tensor.dtype != like.dtype:
            tensor = torch.ops.aten.view.dtype.redispatch(_META, tensor, like.dtype)
        place = like.shape, like.stride(), like.storage_offset()
        return torch.ops.aten.as_strided.default.redispatch(_META, tensor, *place)


class _Module(backend_registration._DummyBackendModule):
    """What is `torch.cuda` of this device: its generator."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(20)

    def manual_seed(self, seed: int) -> None:
        self.generator.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_rng_state(self, device: Any = 0) -> Tensor:
        return self.generator.get_state()

    def set_rng_state(self, state: Tensor, device: Any = 0) -> None:
        self.generator.set_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


class _Guard(backend_registration._DummyDeviceGuard):
    def device_count(self) -> int:
        return 1

    deviceCount = device_count  # noqa: N815, either name is asked for


memory, module = _Memory(), _Module()
_has_float64 = True


def is_second(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.device.type == NAME


def _require_one_device(operation: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    name = operation._schema.name.removeprefix("aten::")
    if name in _CROSSING:
        return
    given = (args[0], *args[2:]) if name in _INDEXING else args
    here = [leaf for leaf in tree_leaves((given, options)) if isinstance(leaf, Tensor)]
    if any(map(is_second, here)) and any(not is_second(leaf) and leaf.dim() for leaf in here):
        raise OtherDevice(
            f"{name}: expected all tensors to be on the same device, but found at least two devices, cpu and {SECOND}"
        )
    if name in _INDEXING and not is_second(args[0]):
        raise OtherDevice(f"{name}: indices should be either on cpu or on the same device as the indexed tensor")
    for place, argument in enumerate(operation._schema.arguments):
        value = args[place] if place < len(args) else options.get(argument.name)
        if argument.is_write and any(not is_second(leaf) for leaf in tree_leaves(value) if isinstance(leaf, Tensor)):
            raise OtherDevice(f"{name}: what is written to is on another device than what is read")
        if argument.name == "generator" and value is not None:
            raise OtherDevice(f"{name}: expected a '{NAME}' device type for generator but found 'cpu'")


def _run(operation: Any, *args: Any, **options: Any) -> Any:
    """Any operation of the device, on the CPU."""
    _require_one_device(operation, args, options)
    own = {}  # CPU storage -> tensor of the device

    def read(leaf: Any) -> Any:
        if is_second(leaf):
            raw = memory.read(leaf)
            own.setdefault(raw.untyped_storage()._cdata, leaf)
            return raw
        return torch.device("cpu") if isinstance(leaf, torch.device) else leaf

    plain_args, plain_options = tree_map(read, args), tree_map(read, options)
    if any(argument.name == "generator" for argument in operation._schema.arguments):
        plain_options["generator"] = module.generator
    found = operation(*plain_args, **plain_options)
    written = _written(operation, (args, plain_args), (options, plain_options))
    for one, plain in written:
        if one.shape != plain.shape:  # of results that are written to a tensor of no size
            one.data = memory.alias(one, plain)

    def wrap(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if not _has_float64 and leaf.dtype in (torch.float64, torch.complex128):
            raise TypeError(f"{SECOND} has no {leaf.dtype}")
        for one, plain in written:
            if plain is leaf:
                return one
        base = own.get(leaf.untyped_storage()._cdata)
        return memory.allocate(leaf) if base is None else memory.alias(base, leaf)

    return tree_map(wrap, found)


def _written(operation: Any, args: tuple[Any, Any], options: tuple[Any, Any]) -> list[tuple[Tensor, Tensor]]:
    """The arguments that an operation writes to and returns: those of the device, and those of the CPU."""
    found = []
    for place, argument in enumerate(operation._schema.arguments):
        if argument.is_write:
            both = [
                tree_leaves(some[place] if place < len(some) else named.get(argument.name))
                for some, named in zip(args, options, strict=True)
            ]
            found += [pair for pair in zip(*both, strict=True) if is_second(pair[0])]
    return found


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    (memory.read(target) if is_second(target) else target).copy_(memory.read(source) if is_second(source) else source)
    return target


def _as_strided_(tensor: Tensor, *place: Any) -> Tensor:
    """torch's own looks for the size of the storage, which is kept elsewhere."""
    offset = place[2] if len(place) > 2 and place[2] is not None else tensor.storage_offset()
    tensor.data = torch.ops.aten.as_strided.default.redispatch(_META, tensor, *place[:2], offset)
    return tensor


def _convolve(*args: Any) -> Any:
    return _run(torch.ops.aten.convolution.default, *args)


def _convolve_back(gradient: Tensor, inputs: Tensor, weight: Tensor, *settings: Any) -> Any:
    *settings, wanted = settings
    outputs = (weight.shape[0], weight.shape[1] * settings[-1])[bool(settings[3])]
    return _run(torch.ops.aten.convolution_backward.default, gradient, inputs, weight, [outputs], *settings, wanted)


def _lstm_cell(inputs: Tensor, hidden: Tensor, cell: Tensor, *biases: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Devices other than the CPU have a kernel for a whole cell. Here it is a composition, which autograd differentiates."""
    gates = sum((bias for bias in biases if bias is not None), inputs + hidden)
    taken, kept, new, shown = gates.chunk(4, 1)
    after = kept.sigmoid() * cell + taken.sigmoid() * new.tanh()
    return shown.sigmoid() * after.tanh(), after, gates


def _gru_cell(inputs: Tensor, hidden: Tensor, state: Tensor, *biases: Tensor | None) -> tuple[Tensor, Tensor]:
    (reset, kept, new), (reset_h, kept_h, new_h) = (
        (part if bias is None else part + bias).chunk(3, 1)
        for part, bias in zip((inputs, hidden), biases or (None, None), strict=True)
    )
    new = (new + (reset + reset_h).sigmoid() * new_h).tanh()
    kept = (kept + kept_h).sigmoid()
    return (state - new) * kept + new, inputs


def _deepcopy(self: Tensor, memo: dict[int, Any]) -> Any:
    """torch copies the storage, which is where it looks for numbers; other devices without such a storage are cloned, as here."""
    if not is_second(self):
        return _deepcopy_of_torch(self, memo)
    if id(self) not in memo:
        made = self.detach().clone().requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            made = torch.nn.Parameter(made, self.requires_grad)
        memo[id(self)] = made
    return memo[id(self)]


_deepcopy_of_torch = Tensor.__deepcopy__


def install() -> None:
    """From here on this process has the device."""
    global _library
    if _library is not None:
        return
    backend_registration._setup_privateuseone_for_python_backend(NAME, module, device_guard=_Guard())
    _library = torch.library.Library("aten", "IMPL")
    for name in torch._C._dispatch_get_registrations_for_dispatch_key("CPU"):
        if name.startswith("aten::") and name.removeprefix("aten::") not in _OWN:
            packet, _, overload = name.removeprefix("aten::").partition(".")
            operation = getattr(getattr(torch.ops.aten, packet), overload or "default")
            _library.impl(name, functools.partial(_run, operation), "PrivateUse1")
    _library.impl("copy_", _copy, "PrivateUse1")
    _library.impl("as_strided_", _as_strided_, "PrivateUse1")
    _library.impl("convolution_overrideable", _convolve, "PrivateUse1")
    _library.impl("convolution_backward_overrideable", _convolve_back, "PrivateUse1")
    _library.impl("_thnn_fused_lstm_cell", _lstm_cell, "AutogradPrivateUse1")
    _library.impl("_thnn_fused_gru_cell", _gru_cell, "AutogradPrivateUse1")
    Tensor.__deepcopy__ = _deepcopy  # type: ignore[method-assign]


def move(model: torch.nn.Module) -> torch.nn.Module:
    """`model.to(SECOND)`. That gives parameters that share one tensor, on "cuda" and "mps", one tensor there; on other devices two."""
    shared: dict[int, torch.nn.Parameter] = {}
    for part in model.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and not is_second(parameter):
                made = torch.nn.Parameter(parameter.detach().to(SECOND), parameter.requires_grad)
                part._parameters[name] = shared.setdefault(id(parameter), made)
    return model.to(SECOND)


@contextlib.contextmanager
def without_float64():
    """The device has 32 bits at most."""
    global _has_float64
    _has_float64 = False
    try:
        yield
    finally:
        _has_float64 = True
