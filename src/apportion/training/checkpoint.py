"""The checkpoint of a run: what is needed to go on after a crash, and nothing that could make a draw happen twice.

    line 1   apportion checkpoint 1
    line 2   BLAKE2b of the rest
    rest     the packed state (`packing.py`): configuration, step, model, optimiser, learning-rate scheduler, strategies, history,
             and what the account had written by then

A file is replaced in one go, so a crash leaves the old checkpoint or the new one. It holds no state of any random generator: a run
that goes on draws afresh, and pays for what it draws (`Account`). Everything in it was released, yet it stays in secret/, because only
the keeper of the ledger can go on.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apportion.errors import InvalidArgument
from apportion.training.packing import pack, unpack
from apportion.training.storage import CHECKPOINT

FORMAT = 1
_HEADER = b"apportion checkpoint "


@dataclass(frozen=True)
class Checkpoints:
    """Writes the state of one run, every so many steps.

    Args:
        folder: the run folder.
        every: steps between two checkpoints.
        configuration: what must be the same when the run goes on.
    """

    folder: Path
    every: int
    configuration: Mapping[str, Any]

    def write(self, state: Mapping[str, Any]) -> None:
        """Replace the checkpoint."""
        content = pack({"configuration": dict(self.configuration), **state})
        with explained(self.folder):
            (self.folder / CHECKPOINT).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        hash_line = hashlib.blake2b(content, digest_size=32).hexdigest().encode()
        replace_file(self.folder / CHECKPOINT, _HEADER + b"%d\n%s\n" % (FORMAT, hash_line) + content, mode=0o600)

    def read(self) -> dict[str, Any]:
        """The state that was written last. Refuses a damaged file, another format and another configuration."""
        path = self.folder / CHECKPOINT
        state = read_checkpoint(path)
        before = state.pop("configuration")
        if found := first_difference(before, self.configuration):
            name, then, now = found
            raise InvalidArgument(
                "resume",
                str(self.folder),
                f"the run was started with {name} = {then!r}, and now it is {now!r}",
                "Use the settings that it was started with, or start anew in another folder",
            )
        return state


def first_difference(before: Any, now: Any, name: str = "") -> tuple[str, Any, Any] | None:
    """Where two configurations first differ: the name of the setting, and its two values."""
    if before == now:
        return None
    if not isinstance(before, dict) or not isinstance(now, dict):
        return name, before, now
    below = (
        first_difference(before.get(key), now.get(key), f"{name}.{key}" if name else str(key))
        for key in {**before, **now}
    )
    return next(found for found in below if found is not None)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a checkpoint file."""
    try:
        header, hash_line, content = path.read_bytes().split(b"\n", 2)
    except FileNotFoundError as error:
        reason = "there is no checkpoint: the run never began, and charged nothing"
        raise InvalidArgument("resume", str(path.parents[1]), reason, "Start it anew, in another folder") from error
    except OSError as error:
        raise InvalidArgument("resume", str(path), f"it cannot be read: {error.strerror}", "Check the path") from error
    except ValueError as error:
        raise _damaged(path, "it is no checkpoint") from error
    if not header.startswith(_HEADER):
        raise _damaged(path, "it is no checkpoint")
    if header != _HEADER + b"%d" % FORMAT:
        version = header.removeprefix(_HEADER).decode(errors="replace")
        raise InvalidArgument(
            "resume",
            str(path),
            f"its format is {version!r}, this version reads {FORMAT}",
            "Use the version that wrote it",
        )
    if hashlib.blake2b(content, digest_size=32).hexdigest().encode() != hash_line:
        raise _damaged(path, "its content does not match its hash")
    try:
        state = unpack(content)
    except ValueError as error:
        raise _damaged(path, str(error)) from error
    _require(path, state, {"configuration": dict, "step": int, "history": dict, "account": dict})
    _require(path, state["account"], {"identifier": str, "spent": int, "head": str})
    _require(path, state["history"], {"step": list})
    last = state["history"]["step"][-1] if state["history"]["step"] else 0
    if type(last) is not int or not 0 <= last <= state["step"] <= max(
        last, state["account"]["spent"]
    ):  # it may have died in a step
        raise _damaged(path, f"it says step {state['step']}, and its history and its charges say something else")
    checked: dict[str, Any] = state
    return checked


def _require(path: Path, value: Any, kinds: Mapping[str, type]) -> None:
    for key, kind in kinds.items():
        if not isinstance(value, dict) or type(value.get(key)) is not kind:
            raise _damaged(path, f"it holds no {key}")


@contextlib.contextmanager
def explained(path: Path) -> Any:
    """Errors of the file system, in words."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        raise InvalidArgument(
            "out",
            str(path),
            "the disk is full" if full else f"it cannot be written: {error.strerror or error}",
            ("Free some space" if full else "Make the folder writable")
            + ", then go on with resume; what was charged is safe in the ledger, and the last checkpoint is kept",
        ) from error


def replace_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file durably and in one go: whoever reads it sees the old content or the new, also after a crash."""
    temporary = path.with_name(path.name + ".partial")
    with explained(path):
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def restored(path: Path, restore: Callable[[], None]) -> None:
    """Run `restore`; what does not fit, although the hash does, becomes one clear error."""
    try:
        restore()
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
        raise _damaged(path, f"its state does not fit: {error}") from error


def _damaged(path: Path, reason: str) -> InvalidArgument:
    return InvalidArgument(
        "resume",
        str(path),
        f"{reason}",
        "Restore the file from a backup; an older one will do, for what was charged since then stays charged",
    )
