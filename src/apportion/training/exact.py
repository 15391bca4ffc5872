"""Recovery "exact": a step whose result was lost in a crash is repeated bit for bit, and is not paid for twice.

A draw is named by a digest of everything that it depends on: the number of the token that pays, the request, the model, the states
of optimiser, scheduler and strategies, how it is executed and with which versions. Its coins, its noise and the model's own
randomness come from a stream keyed by (the run's secret key, digest). So the same question gets the same answer, and any other
question gets a stream that was never used. Order of one draw:

1. the digest is noted, durably; 2. the token is charged, durably; 3. coins, clipped sum, noise; 4. the digest of the *value* is noted,
durably; 5. the value is handed out.

After a crash the digest of the next step is compared with what was noted for it:

| noted                                  | then                                                                              |
|----------------------------------------|-----------------------------------------------------------------------------------|
| equal, not charged                     | nothing was drawn: charge it and draw it                                          |
| equal, and the value comes out equal   | the same release as before, which costs nothing                                   |
| equal, but another value comes out     | two answers under one noise would differ without noise: burnt, never handed out   |
| equal, charged, no value               | burnt: a new token, a new stream                                                  |
| another digest, or none                | another question: a new token, a new stream                                       |

The fourth row is stricter than it has to be if nobody tampers: a value that was not noted was never seen. But the note lies in the run
folder, and a copy of the folder does not know what the original handed out meanwhile, on records that may differ by then. So a value
leaves only if this process charged its token, or if it equals the one that was noted.

The key lies in secret/ while the run is unfinished. Whoever reads it can recompute the noise, so the guarantee holds towards those who
cannot: keep that folder closed. It is deleted when the run ends.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from apportion.accounting.account import Account
from apportion.accounting.chain import Chain, new_file
from apportion.curator.curator import Curator, LossFunction
from apportion.curator.randomness import KEY_BYTES, PURPOSES, DrawStreams, Stream, require_same_process
from apportion.errors import BudgetExhausted, InvalidArgument
from apportion.event import Event
from apportion.request import Released, Request
from apportion.training.checkpoint import replace_file
from apportion.training.packing import digest
from apportion.training.storage import DRAWS, KEY
from apportion.training.versions import package_versions


class DrawBook:
    """Which digest each token was spent on, and which value was handed out. Rows are only ever added; the last one counts."""

    def __init__(self, chain: Chain):
        self._chain = chain
        self._rows: dict[int, list[dict[str, Any]]] = {}
        for row in chain.rows():
            if row.run:
                self._rows.setdefault(row.run, []).append(json.loads(row.content))

    @classmethod
    def open(cls, path: Path) -> DrawBook:
        """The book at `path`, which is made if it is not there."""
        if not path.exists():
            new_file(path, argument="out", reason="it exists already", fix="Choose a new folder")
            return cls(Chain.create(path, {"format": 1}))
        chain = Chain(path)
        if damage := chain.verify():
            fix = "Delete it: lost steps are then drawn and paid for anew. An older copy must not take its place"
            raise InvalidArgument("resume", str(path), str(damage), fix)
        return cls(chain)

    def candidates(self, step: int) -> list[int]:
        """The tokens that were meant for a step of the plan and are not burnt, the newest first."""
        tokens = [token for token in self._rows if self._last(token, "step") == step]
        return [token for token in reversed(tokens) if not self._last(token, "burnt")]

    def steps(self) -> set[int]:
        """The steps of the plan that were drawn for before."""
        return {self._last(token, "step") for token in self._rows}

    def name(self, token: int) -> str | None:
        """The digest of the question that a token is for."""
        name: str | None = self._last(token, "name")
        return name

    def value(self, token: int) -> str | None:
        """The digest of the answer that a token paid for; `None` if it was never handed out."""
        value: str | None = self._last(token, "value")
        return value

    def note(self, token: int, **content: Any) -> None:
        """Durable when this returns."""
        rows = self._rows.setdefault(token, [])
        with self._chain.transaction():
            self._chain.append(token, len(rows), content)
        rows.append(content)

    def _last(self, token: int, key: str) -> Any:
        return next((row[key] for row in reversed(self._rows.get(token, [])) if key in row), None)


@dataclass(frozen=True)
class _Draw:
    token: int
    name: str


class ExactCurator:
    """Answers like the `Curator` that it wraps, and the same question always in the same way.

    Args:
        build: makes the curator, given who charges and where random bits come from: this object is both.
        account: pays.
        folder: the run folder, with the key and the book of draws.
        state: what the draw depends on besides the request.
        next_request: asks the strategies again, after a burnt draw.
    """

    private = True

    def __init__(
        self,
        build: Callable[[ExactCurator], Curator],
        account: Account,
        folder: Path,
        state: Callable[[], dict[str, Any]],
        next_request: Callable[[], Request],
    ):
        self._account, self._folder, self._state, self._next_request = account, folder, state, next_request
        self._current: _Draw | None = None
        self._process = os.getpid()
        self._curator = build(self)
        self._key = b""

    def begin(self, *, ended: bool) -> None:
        """Make or read the key and the book of draws, once the run is sure to begin; of a run that has ended they are gone."""
        if not ended or (self._folder / KEY).exists():
            self._key = _key_of(self._folder / KEY, new=self._account.run is None)
            self._book = DrawBook.open(self._folder / DRAWS)
            self._account.repeatable = self._book.steps()

    def answer(self, request: Request, loss_fn: LossFunction) -> Released:
        """The noisy clipped gradient that `request` asks for; the value that was handed out before, if it was asked before."""
        while self._account.left:
            step = self._account.next_step
            self._current = draw = self._choose(request, step)
            if draw is not None:
                released = self._curator.answer(request, loss_fn)
                answer = {"gradient": dict(released.gradient), "statistics": released.statistics}
                value = digest({**answer, "selected": released.selected})
                known = self._book.value(draw.token)
                if known is None:
                    self._book.note(draw.token, value=value)
                if known in (None, value):
                    self._account.position = step
                    return released
                self._book.note(draw.token, burnt=True)
                self._account.position = step - 1
            self._account.repeatable.discard(step)
            request = self._next_request()
        raise BudgetExhausted(
            "no step is left: draws could not be repeated bit for bit, and no spare tokens pay for new ones. "
            "Finish with what the last checkpoint holds, or start a new run with more spare tokens"
        )

    def charge(self, event: Event) -> None:
        """Called by the curator before the coins."""
        assert self._current is not None
        if not self._account.is_spent(self._current.token):
            self._account.charge_token(self._current.token, event)

    def next_draw(self) -> DrawStreams:
        """Called by the curator after the charge."""
        assert self._current is not None
        require_same_process(self._process)
        name = self._current.name
        return DrawStreams(*(self._stream(purpose, name) for purpose in PURPOSES))

    def end_workers(self) -> None:
        """End the processes that read records."""
        self._curator.end_workers()

    def problems(self) -> str:
        """What did not contribute, and why. Secret."""
        return self._curator.problems()

    def close(self) -> None:
        """Delete the key: nobody can repeat a draw from now on."""
        self._key = b""
        (self._folder / KEY).unlink(missing_ok=True)

    def _choose(self, request: Request, step: int) -> _Draw | None:
        """The draw that was noted for this very question, otherwise a new one; `None` if no token is left to pay for it."""
        state = digest(self._state())
        for token in self._book.candidates(step):
            name = self._name(token, request, state)
            seen_or_unpaid = self._book.value(token) is not None or not self._account.is_spent(token)
            if name == self._book.name(token) and seen_or_unpaid:
                return _Draw(token, name)
        new = self._account.find_token(request.event())
        if new is None:
            return None
        name = self._name(new, request, state)
        self._book.note(new, step=step, name=name)
        return _Draw(new, name)

    def _name(self, token: int, request: Request, state: str) -> str:
        return digest(
            {
                "run": self._account.identifier,
                "token": token,
                "request": asdict(request),
                "kinds": [type(release).__name__ for release in request.releases],
                "state": state,
                "threads": torch.get_num_threads(),
                "versions": package_versions(),
            }
        )

    def _stream(self, purpose: str, name: str) -> Stream:
        message = f"{purpose} {name}".encode()
        return Stream(
            hashlib.blake2b(message, key=self._key, digest_size=KEY_BYTES, person=b"apportion exact").digest()
        )


def _key_of(path: Path, *, new: bool) -> bytes:
    if not path.exists():
        if not new:
            raise InvalidArgument(
                "resume",
                str(path),
                "the key of the run is gone, so no draw can be repeated",
                "Start anew in another folder",
            )
        replace_file(path, os.urandom(KEY_BYTES), mode=0o600)
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise InvalidArgument("resume", str(path), "it is no key", "Restore it, or start anew in another folder")
    return key
