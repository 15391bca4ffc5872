"""The ranks of torch.distributed as the processes of one run."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, distributed

from apportion.errors import InvalidArgument, RankLost
from apportion.ranks import ALONE, Ranks, ShardedSums

Value = TypeVar("Value")
NoiseFrom = Literal["every rank", "first rank"]
BUCKET_BYTES = 25 << 20
"""Sums that are sent together, as in DistributedDataParallel: few messages, and the noise of the next ones is made meanwhile."""
_HERE, _LOST = 0, 1
_NOTHING = -1
"""Stands for a selection that found no candidate."""


def find_ranks(noise_from: NoiseFrom = "every rank", shards: ShardedSums | None = None) -> Ranks:
    """The ranks of the initialised process group; `ALONE` if there is none, or if it has one process.

    Args:
        noise_from: who adds the noise of what is not divided.
        shards: how parameters are divided between the ranks, if they are.
    """
    grouped = distributed.is_available() and distributed.is_initialized()
    if not grouped or (shards is None and distributed.get_world_size() == 1):
        return ALONE
    return ProcessGroupRanks(noise_from, shards)


@contextmanager
def torchrun_ranks() -> Iterator[Ranks]:
    """The ranks that torchrun started, for a program that has not initialised their group itself; it is ended again."""
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started == 1 or not distributed.is_available() or distributed.is_initialized():
        yield find_ranks()
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield find_ranks()
    finally:
        distributed.destroy_process_group()


class ProcessGroupRanks:
    """All processes of the default group.

    The noise of a release is the sum of R independent shares with standard deviation z·Δ/√R, one of each rank; every rank must arrive, or
    nothing is released. With noise from the first rank alone, sums of the others travel without any, in float64.

    Args:
        noise_from: who adds it.
        shards: how parameters are divided; their noise is added by the owner of each part.
        link: by whose functions they talk: those of torch.distributed, or of ranks that take turns in one process (`in_turn.py`).
    """

    divides_records = True

    def __init__(
        self, noise_from: NoiseFrom = "every rank", shards: ShardedSums | None = None, *, link: Any = distributed
    ):
        self._link, self.shards = link, shards
        self.rank, self.count = link.get_rank(), link.get_world_size()
        self.wide = noise_from == "first rank"
        self.share = self.count**-0.5 if not self.wide else float(self.rank == 0)
        backend = link.get_backend()
        if backend not in ("gloo", "nccl"):
            reason = "runs of several processes were built for gloo and nccl"
            raise InvalidArgument("backend", backend, reason, 'Use init_process_group("gloo"), or "nccl" on GPUs')
        self._device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")

    @contextmanager
    def joined(self) -> Iterator[None]:
        failure: BaseException | None = None
        try:
            yield
        except Exception as error:
            failure = error
        told = None if failure is None else f"{type(failure).__name__}: {failure}"
        try:
            texts = self.gather(told)
        finally:
            if failure is not None:  # whether or not the others could be told
                raise failure
        for rank, text in enumerate(texts):
            if text is not None:
                raise RankLost(f"rank {rank} cannot begin, so nobody does, and nothing was charged. It says: {text}")

    def agree(self, value: Value) -> Value:
        sent: list[Value] = [value]  # pickled by torch: the ranks trust each other
        with explained_loss(AGAIN):
            self._link.broadcast_object_list(sent, 0, device=self._device)
        return sent[0]

    def gather(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * self.count
        with explained_loss(AGAIN):
            self._link.all_gather_object(found, value)
        return found

    def require_same(self, digest: bytes) -> None:
        mine = int.from_bytes(hashlib.blake2b(digest, digest_size=8).digest(), signed=True)
        found = self._exchange(mine)
        if len(set(found)) > 1:
            odd = next(rank for rank, one in enumerate(found) if one != found[0])
            raise RankLost(
                f"rank {odd} is not in the same state as rank 0: its weights, thresholds or strategies differ. Nothing was charged "
                "for this step. Strategies must follow from released values alone, and nothing may change the weights between two steps"
            )

    def charge(self, action: Callable[[], None]) -> None:
        if self.rank == 0:
            try:
                action()
            except BaseException:
                self._tell_failure()
                raise
        self._require_charged()
        if self.rank:
            action()

    def _require_charged(self) -> None:
        """Wait until the first rank says that the charge is durable."""
        found = self._exchange(_HERE)
        if found[0] != _HERE:
            raise RankLost("rank 0 could not charge the next step, and its error says why. Nothing was drawn for it")

    def give_up(self) -> None:
        self._tell_failure()

    def _tell_failure(self) -> None:
        """In place of the word that the others wait for."""
        if self._link.is_initialized():
            with suppress(RankLost):  # they are gone too
                self._exchange(_LOST)

    def arrive(self) -> None:
        found = self._exchange(_HERE)
        if any(found):
            rank = next(rank for rank, one in enumerate(found) if one)
            raise RankLost(f"rank {rank} failed in this step. {BURNT}")

    def copy_first(self, tensors: Iterable[Tensor]) -> None:
        with explained_loss(AGAIN):
            for tensor in tensors:
                sent = tensor.detach().to(self._device, copy=True)
                self._link.broadcast(sent, 0)
                sent = sent.to(tensor.device)
                if not torch.equal(tensor, sent):  # a write to a buffer would have the model proved anew
                    tensor.detach().copy_(sent)

    def add_up(self, tensors: Iterable[Tensor]) -> Iterator[Tensor]:
        pending: list[tuple[list[Tensor], Tensor, Any]] = []
        bucket: list[Tensor] = []
        for tensor in tensors:
            if bucket and (_kind(tensor) != _kind(bucket[0]) or _bytes(bucket) + _bytes([tensor]) > BUCKET_BYTES):
                pending.append(self._send(bucket))
                bucket = []
            bucket.append(tensor)
        if bucket:
            pending.append(self._send(bucket))
        for parts, flat, work in pending:
            with explained_loss(BURNT):
                work.wait()
            yield from (
                part.copy_(one.view_as(part))
                for part, one in zip(parts, flat.split([part.numel() for part in parts]), strict=True)
            )

    def _send(self, bucket: list[Tensor]) -> tuple[list[Tensor], Tensor, Any]:
        flat = torch.cat([one.reshape(-1) for one in bucket])
        moved = flat.to(self._device) if self._device.type == "cuda" else flat
        with explained_loss(BURNT):
            return bucket, moved, self._link.all_reduce(moved, async_op=True)

    def sending(self) -> AbstractContextManager[None]:
        """Around messages of a step that this class does not send itself: what they raise says that a rank is gone."""
        return explained_loss(BURNT)

    def choose(self, indices: Sequence[int | None]) -> tuple[int | None, ...]:
        chosen = [self._exchange(_NOTHING if index is None else index)[0] for index in indices]
        return tuple(None if one == _NOTHING else one for one in chosen)

    def _exchange(self, word: int) -> list[int]:
        """One number of each rank."""
        mine = torch.tensor([word], dtype=torch.int64, device=self._device)
        found = list(torch.empty(self.count, 1, dtype=torch.int64, device=self._device).unbind())
        with explained_loss(BURNT):
            self._link.all_gather(found, mine)
        return [int(one) for one in torch.cat(found).tolist()]


AGAIN = "Start all ranks again, with resume if the run had begun"
BURNT = "The step under way may be charged, and nothing of it was released. Start all ranks again, with resume"


@contextmanager
def explained_loss(consequence: str) -> Iterator[None]:
    """Whatever the backend says of a rank that is gone, in words."""
    try:
        yield
    except RuntimeError as error:
        raise RankLost(f"another rank ended or cannot be reached ({_first_line(error)}). {consequence}") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _kind(tensor: Tensor) -> tuple[torch.dtype, torch.device]:
    return tensor.dtype, tensor.device


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(one.nbytes for one in tensors)
