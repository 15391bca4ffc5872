"""A model whose parameters are divided between the ranks by `torch.distributed.fsdp.fully_shard`.

Each rank keeps its own part of every parameter, and with it the optimiser's state and the released gradient of that part. Records stay
whole: a rank computes the gradients of its own records through all layers, so the norm of a record's gradient is complete where the
record is, and no number of a single record travels. What travels:

- the weights, from the parts of all ranks to a **whole copy** on each (`gather`, once a step), in which the engine runs;
- the clipped sums of all ranks, added up and divided again: each rank gets the total of its own part (`add_up`). It travels in float64 and
  without noise, between ranks that trust each other; the owner of a part adds all of its noise, once.

The weights are not gathered layer by layer while records run. A rank would then have to take part in as many exchanges as the others have
micro-batches, also where a record fails in the middle of the model: whether the ranks meet would depend on records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn

from apportion.curator.gradients.model_walk import trained_parameters
from apportion.distributed.process_group import BURNT, explained_loss
from apportion.errors import InvalidArgument

BUCKET_BYTES = 25 << 20
"""What travels in one message, if it is in float64: memory does not grow with the largest parameter."""


def find_sharded(model: nn.Module) -> ShardedModel | None:
    """The parts of a model on this rank; `None` if no parameter is divided. Refuses a division that is not one over all ranks."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    from torch.distributed.tensor import DTensor

    if not any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        return None
    for module in _sharded_modules(model):
        module.reshard()  # after a forward pass of its own the root may hold whole weights
        _require_plain_policy(module)
    parts = {name: _part_of(name, parameter) for name, parameter in model.named_parameters()}
    return ShardedModel(model, parts)


def chunk_rows(total: int, ranks: int, rank: int) -> tuple[int, int]:
    """From which row on, and up to which, the chunk of a rank goes: chunks are equally long, but the last ones may be shorter or empty."""
    chunk = -(-total // ranks)
    return min(rank * chunk, total), min((rank + 1) * chunk, total)


@dataclass(frozen=True)
class Part:
    """Which rows of a parameter a rank keeps: number `rank` of chunks of equal length, of which the last may be shorter or empty.

    Args:
        parameter: a DTensor.
        dimension: along which it is divided.
        rank, ranks: which chunk, of how many.
    """

    parameter: Any
    dimension: int
    rank: int
    ranks: int

    @property
    def width(self) -> int:
        """Numbers in a full chunk, which the first rank has."""
        first, last = self.rows(0)
        return (last - first) * math.prod(self._others)

    @property
    def _others(self) -> list[int]:
        """The sizes of the dimensions along which it is not divided."""
        return [int(size) for place, size in enumerate(self.parameter.shape) if place != self.dimension]

    def rows(self, rank: int | None = None) -> tuple[int, int]:
        """From which row on, and up to which, a chunk goes; of this rank by default."""
        return chunk_rows(int(self.parameter.shape[self.dimension]), self.ranks, self.rank if rank is None else rank)

    def of(self, whole: Tensor, rank: int | None = None) -> Tensor:
        """The rows of one rank: a view."""
        first, last = self.rows(rank)
        return whole.narrow(self.dimension, first, last - first)

    def line(self, rows: Tensor) -> Tensor:
        """The numbers of some rows, one row behind the other."""
        return rows.movedim(self.dimension, 0).reshape(-1)

    def from_line(self, line: Tensor, rank: int | None = None) -> Tensor:
        """The rows of one rank from a line, behind which there may be padding."""
        first, last = self.rows(rank)
        count = (last - first) * math.prod(self._others)
        return line[:count].view(last - first, *self._others).movedim(0, self.dimension)

    def write(self, whole: Tensor, rank: int, start: int, line: Tensor) -> None:
        """Write a piece of a rank's line, from `start` on, into its rows."""
        rows = self.of(whole, rank)
        if len(line) == self.width:
            rows.copy_(self.from_line(line, rank))
        else:
            room = rows.view(-1)[start : start + len(line)]
            room.copy_(line[: len(room)])

    def own(self) -> Tensor:
        """What this rank keeps, as a plain tensor; writing to it writes to the parameter."""
        local: Tensor = self.parameter.detach().to_local()
        return local

    def distributed(self, own: Tensor) -> Tensor:
        """The tensor of which every rank has its own part, divided like the parameter."""
        from torch.distributed.tensor import DTensor

        like = self.parameter
        whole: Tensor = DTensor.from_local(
            own, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )
        return whole


@dataclass(frozen=True)
class Piece:
    """Of every rank's part of a parameter the numbers from `start` on, without `stop`, as they travel."""

    name: str
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


class ShardedModel:
    """The model as the person has it, the part of each parameter on this rank, and a whole copy to compute with.

    Args:
        model: the divided model.
        parts: of its parameters, by name.
    """

    def __init__(self, model: nn.Module, parts: Mapping[str, Part]):
        from apportion.distributed.whole_copy import whole_copy

        self.model, self.parts = model, dict(parts)
        self.whole = whole_copy(model)
        self.rank, self.ranks = distributed.get_rank(), distributed.get_world_size()
        self._written: list[tuple[int, int]] = []

    def own(self) -> dict[str, Tensor]:
        """The parts of the trained parameters on this rank, by name: plain tensors."""
        return {name: self.parts[name].own() for name in trained_parameters(self.whole)}

    def gather(self) -> None:
        """Write the weights of all ranks into the whole copy. Called by all ranks."""
        for module in _sharded_modules(self.model):
            module.reshard()  # or it would go on with whole weights from before the step
        with torch.no_grad():
            everything = {name: part.own() for name, part in self.parts.items()}
            self.gather_into({name: one.detach() for name, one in self.whole.named_parameters()}, everything)
        self._written = self._writes()

    @property
    def moved(self) -> bool:
        """Whether something has written to the weights since they were gathered; writes through `parameter.data` leave no trace."""
        return self._written != self._writes()

    def _writes(self) -> list[tuple[int, int]]:
        return [(part.own().data_ptr(), part.parameter._version) for part in self.parts.values()]

    def gather_into(self, whole: Mapping[str, Tensor] | None, own: Mapping[str, Tensor]) -> None:
        """Bring the parts of all ranks together in `whole`; a rank that passes `None` keeps nothing. Called by all, with the same names."""
        rooms: dict[Any, Tensor] = {}
        for bucket in self._buckets(own):
            first, count = own[bucket[0].name], sum(map(len, bucket))
            mine = _room(rooms, "mine", count, first.dtype, first.device)
            for piece, room in zip(bucket, mine.split([*map(len, bucket)]), strict=True):
                line = self.parts[piece.name].line(own[piece.name])[piece.start : piece.stop]
                room[: len(line)] = line
            found = _room(rooms, "all", self.ranks * count, first.dtype, first.device).view(self.ranks, count)
            with explained_loss("The weights were being gathered"):
                distributed.all_gather_single(found.view(-1), mine)
            if whole is None:
                continue
            for piece, columns in zip(bucket, found.split([*map(len, bucket)], dim=1), strict=True):
                for rank in range(self.ranks):
                    self.parts[piece.name].write(whole[piece.name], rank, piece.start, columns[rank])

    def add_up(self, names: Sequence[str], sum_of: Callable[[str], Tensor]) -> Iterator[Tensor]:
        """Of each sum the total over all ranks, of this rank's own part, in float64. Called by all, with the same names in the same order.

        Args:
            sum_of: this rank's sum for a parameter, asked for once, when its turn has come: sums are as large as parameters.
        """
        sums: dict[str, list[Tensor]] = {}
        totals: dict[str, Tensor] = {}
        rooms: dict[Any, Tensor] = {}
        for bucket in self._buckets(names):
            device, count = self.parts[bucket[0].name].own().device, sum(map(len, bucket))
            columns = _room(rooms, "all", self.ranks * count, torch.float64, device).view(self.ranks, count)
            for piece, room in zip(bucket, columns.split([*map(len, bucket)], dim=1), strict=True):
                part = self.parts[piece.name]
                if not piece.start:
                    whole = sum_of(piece.name)
                    sums[piece.name] = [part.line(part.of(whole, rank)) for rank in range(self.ranks)]
                    totals[piece.name] = columns.new_empty(part.width)
                    del whole
                for rank, line in enumerate(sums[piece.name]):
                    numbers = line[piece.start : piece.stop]
                    room[rank, : len(numbers)] = numbers
                if piece.stop == part.width:
                    del sums[piece.name], line, numbers
            own = _room(rooms, "mine", count, torch.float64, device)
            with explained_loss(BURNT):
                distributed.reduce_scatter_single(own, columns.view(-1))
            for piece, numbers in zip(bucket, own.split([*map(len, bucket)]), strict=True):
                totals[piece.name][piece.start : piece.stop] = numbers
                if piece.stop == self.parts[piece.name].width:
                    yield _alone(self.parts[piece.name].from_line(totals.pop(piece.name)))

    def _buckets(self, names: Iterable[str]) -> Iterator[list[Piece]]:
        """What travels together: parameters of one type, or pieces of them, on one device."""
        bucket: list[Piece] = []
        room = most = max(1, BUCKET_BYTES // (8 * self.ranks))
        for name in names:
            start, width = 0, self.parts[name].width
            divisible = self.parts[name].dimension == 0  # the numbers of other parts do not lie side by side
            while True:
                if bucket and (room <= 0 or self._kind(name) != self._kind(bucket[0].name)):
                    yield bucket
                    bucket, room = [], most
                bucket.append(Piece(name, start, min(width, start + room) if divisible else width))
                start, room = bucket[-1].stop, room - len(bucket[-1])
                if start == width:
                    break
        if bucket:
            yield bucket

    def _kind(self, name: str) -> tuple[torch.dtype, torch.device]:
        parameter = self.parts[name].parameter
        return parameter.dtype, parameter.device


def _room(rooms: dict[Any, Tensor], whose: str, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, in memory that is used again for messages of the same length: a backend may let go of it late."""
    key = whose, count, dtype, device
    if key not in rooms:
        rooms[key] = torch.empty(count, dtype=dtype, device=device)
    return rooms[key].zero_()


def _alone(tensor: Tensor) -> Tensor:
    """A tensor in memory of its own: noise is written over it, and a released tensor is saved with all of its storage."""
    alone = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
    return tensor if alone else tensor.clone(memory_format=torch.contiguous_format)


def _sharded_modules(model: nn.Module) -> Iterator[Any]:
    from torch.distributed.fsdp import FSDPModule

    return (module for module in model.modules() if isinstance(module, FSDPModule))


def _part_of(name: str, parameter: Any) -> Part:
    """How a parameter is divided; refuses everything but one division between all ranks."""
    from torch.distributed.tensor import DTensor, Shard

    whole = "Call fully_shard(model) on the whole model at last, without ignored_params and with the default mesh"
    if not isinstance(parameter, DTensor):
        raise InvalidArgument(
            "model", name, "other parameters are divided between the ranks, and this one is not", whole
        )
    mesh, placements = parameter.device_mesh, parameter.placements
    if mesh.ndim != 1 or len(placements) != 1 or type(placements[0]) is not Shard:
        reason = f"it is divided as {placements} over a mesh of {mesh.ndim} dimensions, and one division between all ranks is needed"
        raise InvalidArgument("model", name, reason, whole)
    if mesh.mesh.tolist() != list(range(distributed.get_world_size())):
        reason = (
            f"it is divided between the ranks {mesh.mesh.tolist()}, and not between all ranks of the run in their order"
        )
        raise InvalidArgument("model", name, reason, whole)
    return Part(parameter, placements[0].dim, distributed.get_rank(), distributed.get_world_size())


def _require_plain_policy(module: Any) -> None:
    """Refuse what the whole copy would not follow."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, OffloadPolicy

    for group in module._get_fsdp_state()._fsdp_param_groups:
        policies = (
            ("mp_policy", group.mp_policy, MixedPrecisionPolicy()),
            ("offload_policy", group.offload_policy, OffloadPolicy()),
        )
        for name, policy, plain in policies:
            if policy != plain:
                reason = "private gradients are computed in the type of the parameters and where they are"
                raise InvalidArgument(name, type(policy).__name__, reason, f"Call fully_shard without {name}")
