"""What can change speed and memory of a run but never its guarantee: engine, micro-batch, workers, limit of memory."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from apportion.errors import InvalidArgument, WrongOrder
from apportion.validate import Checked, checked, one_of, whole

Mode = Literal["one-pass", "one-pass, channels last", "one-pass, copying inputs", "vmap", "loop"]
"""The engines. one-pass: all records together (`one_pass.py`); for images with channels last in memory, which is often faster; if need
be with copies of what later layers overwrite.
vmap, loop: the reference, every record with weights of its own (`reference.py`): slower, for any module."""
MAX_MICRO_BATCH = 1280
"""Records in a micro-batch, however many are asked for. Their float32 sum rounds what one of them adds, and one record more changes how the
others are rounded, by amounts that grow with their number: up to 0.00024·C was seen at 1280. Micro-batches are added in float64."""
DEFAULT_MICRO_BATCH = 512
"""About so many records are in a micro-batch if nobody says: fewer cost time for each of them, more stay in no cache."""
SMALL_MICRO_BATCH = 1024
"""The same for records so small that twice as many stay in a cache."""

ACCUMULATION = (
    "Gradients are accumulated already: the batch size is chosen for the noise, which is added once a batch, "
    "and micro_batch for the memory"
)
"""What people need to know who look for a way to accumulate gradients."""

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_MEMORY = ("it is a number of bytes", 'Use a number of bytes, or a text such as "2GB" or "512MiB"')


def parse_bytes(argument: str, value: Any, why: str = _MEMORY[0], fix: str = _MEMORY[1]) -> int:
    """A rule: the number of bytes that `value` stands for: "2GB" is 2·10⁹, "2GiB" is 2·2³⁰, a number is bytes."""
    if not isinstance(value, str):
        return whole(argument, value, why, fix)
    found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([A-Za-z]+)\s*", value)
    if found is None or found[2].upper() not in _UNITS:
        raise InvalidArgument(argument, value, "it is not an amount of memory", fix)
    amount = int(float(found[1]) * _UNITS[found[2].upper()])
    if amount < 1:
        raise InvalidArgument(argument, value, "it is less than one byte", fix)
    return amount


def _whole_or_auto(argument: str, value: Any, why: str, fix: str) -> int | Literal["auto"]:
    return "auto" if isinstance(value, str) and value == "auto" else whole(argument, value, why, fix)


@dataclass(frozen=True)
class Execution(Checked):
    """What can change speed and memory but never the guarantee.

    Args:
        micro_batch: records whose gradients are held at one time, at most 1280. Their clipped gradients are accumulated until the batch
            is complete: what other loops call gradient accumulation. "auto" takes what fits into `memory_limit`; if there is
            none, about 512, with room for chance (`physical_batch`), or as many as have 128 MiB of activations; about 1024 of records that
            are small (`memory.py`).
        engine: "auto" takes the fastest engine that gives exact gradients. "one-pass" runs a micro-batch together, after it was proved
            that records stay apart (`proof.py`); "vmap" gives every record weights of its own, and is proved likewise; "loop" runs one
            record after the other. A model for which an engine cannot be proved is refused if that engine is asked for.
        workers: processes that read the records of a `Dataset` ahead; 0 reads them in this one. Of no use for tensors in memory.
        memory_limit: bytes, or a text such as "2GB", for the model, its copy and the peak of a step; not for the records and the
            program itself. What fits is found on synthetic records before anything is charged (`memory.py`): the choice depends
            on the model and on the shape of a record, never on a value of one or on how many there are.
        threads: of torch, while `train` computes gradients. "auto" takes a single one where `micro_batch` is "auto", too, and has so little
            to compute that the start of others would take longer (`memory.py`), and otherwise as many as torch has. A step in a single
            one does not wait for a processor that other jobs use.
        noise_from: in a run of several processes, each of them adds a share of the noise, or the first one all of it; then sums of the
            others reach it without any. The noise of a release is the same.

    Examples:
        >>> import apportion as ap
        >>> ap.Execution(memory_limit="2GB").memory_limit
        2000000000
        >>> [ap.Execution().physical_batch(expected) for expected in (100, 512, 1024)]
        [140, 603, 603]
    """

    micro_batch: int | Literal["auto"] = checked(
        "auto", _whole_or_auto, "it is a number of records", "Use a smaller one if memory runs out"
    )
    engine: Literal["auto"] | Mode = checked("auto", one_of("auto", *get_args(Mode)), "there is no such engine")
    workers: int = checked(0, whole, "it is a number of processes", "Use 0 to have none", least=0)
    memory_limit: int | str | None = checked(None, parse_bytes, *_MEMORY)
    threads: int | Literal["auto"] = checked("auto", _whole_or_auto, "it is a number of threads", "Use 1 to start none")
    noise_from: Literal["every rank", "first rank"] = checked(
        "every rank", one_of("every rank", "first rank"), "it is who adds the noise of a run with several processes"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory_limit is not None and self.micro_batch != "auto":
            reason = f"it chooses the micro-batch, and micro_batch={self.micro_batch!r} does so too"
            raise InvalidArgument("memory_limit", self.memory_limit, reason, "Leave one of them out")

    def physical_batch(self, expected_batch_size: float, *, small: bool = False) -> int:
        """The most records held at one time, at most `MAX_MICRO_BATCH`. It follows from declared numbers, never from what was drawn.

        Args:
            expected_batch_size: B. It is cut into k = ⌈B/512⌉ parts; chance draws more than B/k + 4·√(B/k) for a part only rarely.
            small: cut it into ⌈B/1024⌉ parts.
        """
        if self.memory_limit is not None:
            raise WrongOrder("no model was tried yet, so what fits into memory_limit is not known: pass micro_batch")
        if self.micro_batch == "auto":
            usual = SMALL_MICRO_BATCH if small else DEFAULT_MICRO_BATCH
            part = expected_batch_size / math.ceil(expected_batch_size / usual)
            return min(math.ceil(part + 4 * math.sqrt(part)), MAX_MICRO_BATCH)
        return min(self.micro_batch, MAX_MICRO_BATCH)


def format_bytes(amount: float) -> str:
    """1234567 → "1.2 MB"."""
    for unit in ("B", "kB", "MB"):
        if amount < 999.5:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} GB"
