"""The checkpoint of a sharded model: each rank writes its own parts, and the first one the rest with the hashes of all files.

    secret/checkpoint              all that is not divided; in place of a divided tensor its number, shape and dimension
    secret/checkpoint.TAG.RANK     the parts of one rank, in safetensors

Nobody brings the tensors of all ranks together, neither to write nor to read: a rank that goes on reads the rows that it is to keep from
the files of those that had them, so the number of ranks may change. The files of a checkpoint have a tag of their own, and the old ones are
deleted when the new checkpoint has taken their place: a crash leaves the old checkpoint or the new one. All ranks need to see the folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from apportion.distributed.sharded_model import ShardedModel, chunk_rows
from apportion.errors import InvalidArgument
from apportion.ranks import Ranks
from apportion.training.checkpoint import Checkpoints, explained
from apportion.training.storage import CHECKPOINT

_MARK = "divided tensor"


@dataclass(frozen=True)
class ShardedCheckpoints:
    """Writes the state of one run from all of its ranks, which call every method together.

    Args:
        plain: writes what is not divided; on the first rank.
        shards: how parameters are divided.
        ranks: the processes of the run.
    """

    plain: Checkpoints
    shards: ShardedModel
    ranks: Ranks

    @property
    def folder(self) -> Path:
        return self.plain.folder

    @property
    def every(self) -> int:
        return self.plain.every

    def write(self, state: Mapping[str, Any]) -> None:
        """Replace the checkpoint."""
        parts: list[Tensor] = []
        rest = _without_parts(dict(state), parts)
        tag = self.ranks.agree(os.urandom(6).hex())
        own, failure, found = self._path(tag, self.ranks.rank), None, ""
        try:
            found = _write_parts(own, parts)
        except InvalidArgument as error:
            failure = error
        hashes = self.ranks.gather(found)
        missing = [rank for rank, one in enumerate(hashes) if not one or not self._path(tag, rank).exists()]
        if rank_missing := self.ranks.agree(missing):
            own.unlink(missing_ok=True)
            reason = f"the part of rank {rank_missing[0]} is not there, where rank 0 looks for it"
            fix = "Give all ranks a folder that they share, with room for the model"
            raise failure or InvalidArgument("folder", str(self.folder), reason, fix)
        if self.ranks.rank == 0:
            self.plain.write({**rest, "shards": {"tag": tag, "hashes": hashes}})
            for path in self.folder.joinpath(CHECKPOINT).parent.glob(f"{CHECKPOINT.name}.*.*"):
                if path.name.split(".")[1] != tag:
                    path.unlink(missing_ok=True)

    def read(self) -> dict[str, Any]:
        """What is not divided. Refuses files that are missing, damaged or of another checkpoint."""
        state = self.plain.read()
        described = state["shards"]
        for rank, expected in enumerate(described["hashes"]):
            path = self._path(described["tag"], rank)
            try:
                found = _hash_of(path)
            except OSError as error:
                raise _damaged(path, f"it cannot be read: {error.strerror}") from error
            if found != expected:
                raise _damaged(path, "its content does not match its hash")
        return state

    def fill(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state with this rank's parts of all divided tensors."""
        described = state.pop("shards")
        paths = [self._path(described["tag"], rank) for rank in range(len(described["hashes"]))]
        like = next(iter(self.shards.parts.values())).parameter

        def own_part(mark: Mapping[str, Any]) -> Tensor:
            from torch.distributed.tensor import DTensor, Shard

            shape, dimension = torch.Size(mark["shape"]), int(mark["dimension"])
            own = _read_rows(paths, str(mark[_MARK]), shape, dimension, self.ranks.rank, self.ranks.count)
            stride = torch.empty(shape, device="meta").stride()
            placed = own.to(self.shards.parts[next(iter(self.shards.parts))].own().device)
            whole: Tensor = DTensor.from_local(
                placed, like.device_mesh, [Shard(dimension)], run_check=False, shape=shape, stride=stride
            )
            return whole

        return {name: _with_parts(value, own_part) for name, value in state.items()}

    def _path(self, tag: str, rank: int) -> Path:
        return self.folder / CHECKPOINT.with_name(f"{CHECKPOINT.name}.{tag}.{rank}")


def _without_parts(state: Any, parts: list[Tensor]) -> Any:
    """The state with a mark in place of every divided tensor, of which this rank's part is added to `parts`."""
    from torch.distributed.tensor import DTensor

    if isinstance(state, DTensor):
        parts.append(state.to_local().detach())
        placement: Any = state.placements[0]
        return {_MARK: len(parts) - 1, "shape": list(state.shape), "dimension": placement.dim}
    if isinstance(state, Mapping):
        return {key: _without_parts(one, parts) for key, one in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(_without_parts(one, parts) for one in state)
    return state


def _with_parts(state: Any, own_part: Any) -> Any:
    if isinstance(state, Mapping):
        return own_part(state) if _MARK in state else {key: _with_parts(one, own_part) for key, one in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(_with_parts(one, own_part) for one in state)
    return state


def _write_parts(path: Path, parts: list[Tensor], mode: int = 0o600) -> str:
    """Write a file durably; returns its hash. Nothing is copied in memory but tensors that share it."""
    named = {str(number): part.contiguous() for number, part in enumerate(parts)}
    seen: set[int] = set()
    for number, part in named.items():
        if part.untyped_storage().data_ptr() in seen or part.untyped_storage().nbytes() != part.nbytes:
            named[number] = part.clone()
        seen.add(part.untyped_storage().data_ptr())
    with explained(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, mode))
        try:
            save_file(named, path)
        except SafetensorError as error:
            raise OSError(None, str(error)) from error
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        return _hash_of(path)


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()


def _read_rows(paths: list[Path], key: str, shape: torch.Size, dimension: int, rank: int, ranks: int) -> Tensor:
    """The rows of one of `ranks` ranks, from the files of those that wrote them."""
    first, last = chunk_rows(shape[dimension], ranks, rank)
    found: list[Tensor] = []
    for writer, path in enumerate(paths):
        begin, end = chunk_rows(shape[dimension], len(paths), writer)
        low, high = max(first, begin), min(last, end)
        if low < high or (writer == 0 and first == last):
            with safe_open(path, "pt") as file:
                rows = (slice(None),) * dimension + (slice(max(0, low - begin), max(0, high - begin)),)
                found.append(file.get_slice(key)[rows])
    return torch.cat(found, dimension)


def _damaged(path: Path, reason: str) -> InvalidArgument:
    return InvalidArgument("resume", str(path), reason, "Restore the files of the last checkpoint from a backup")
