"""Code of a person runs on a record: whatever it raises is the record's own affair; what a signal raises is not.

Whether a run ends must not depend on a record. So an exception of a data set, a model or a loss makes its record contribute nothing, of
whatever class it is: `SystemExit`, `KeyboardInterrupt`, `GeneratorExit` and `asyncio.CancelledError` are no `Exception`s, and a decoder
that calls `sys.exit` on a damaged file would end the run for that one file. But Ctrl-C, and a handler of SIGTERM that calls `sys.exit`,
must end it, and they raise the same classes, at whatever place Python has come to.

The two are told apart by where they begin. Python calls handlers of signals in the main thread only, between two instructions of
whatever runs there. While a person's code runs, every handler that is a Python function is wrapped in one that notes what it raised,
and lets it pass. An exception that leaves the person's code is from outside if meanwhile a handler raised something that is no
`Exception`; then that is raised, even where the code turned it into something else. Every other exception is the record's:

- a generator is closed from outside at its `yield`, and a task is cancelled at its `await`: neither stands inside a person's code here;
- outside of the main thread no handler runs;
- what another thread injects with `PyThreadState_SetAsyncExc`, as debuggers do, cannot be told apart from the record's own.

Handlers are put back afterwards, unless somebody has replaced them meanwhile. To wrap them takes some fifty microseconds, so it is done
once for many records; inner uses find it done.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType, TracebackType
from typing import Any

MAX_TEXT = 200
"""Characters that are kept of what an exception says."""
_Handler = Callable[[int, FrameType | None], Any]
_SIGNALS = tuple(map(int, signal.valid_signals()))


class _SignalWatch:
    """The wrapped handlers, and what they have raised so far."""

    def __init__(self) -> None:
        self.raised: list[BaseException] = []
        self._wrapped: dict[int, tuple[_Handler, _Handler]] = {}

    def begin(self) -> None:
        # as `signal` asks, without a name for each number
        for number, original in zip(_SIGNALS, map(_signal.getsignal, _SIGNALS), strict=True):
            if original is not None and type(original) is not int:  # which stand for no handler of Python's
                wrapper = self._wrapper(original)
                self._wrapped[number] = original, wrapper
                _signal.signal(number, wrapper)

    def end(self) -> None:
        for number, (original, wrapper) in self._wrapped.items():
            if _signal.getsignal(number) is wrapper:
                _signal.signal(number, original)

    def _wrapper(self, original: _Handler) -> _Handler:
        def handler(number: int, frame: FrameType | None) -> None:
            try:
                original(number, frame)
            except Exception:
                raise
            except BaseException as error:
                self.raised.append(error)
                raise

        return handler


_current: _SignalWatch | None = None


@contextmanager
def watch_signals() -> Iterator[None]:
    """Until the end of this block it is known what handlers of signals raise. Blocks within it cost nothing."""
    global _current
    if _current is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    watch = _SignalWatch()
    try:
        watch.begin()
        _current = watch
        yield
    finally:
        _current = None
        watch.end()


class contain_errors:  # noqa: N801 - reads like `suppress`
    """A block that runs a person's code on a record. What the code raises ends here; what a signal raises does not.

    Args:
        passed_on: classes of exceptions that are let through nevertheless.

    `failure` is the name of the class of what was raised, afterwards; `None` if nothing was. The exception itself is not kept: it holds on
    to all that was computed. Its `text` may name a record, and is for the owner of the data only.
    """

    def __init__(self, *passed_on: type[BaseException]):
        self._passed_on, self.failure, self.text = passed_on, None, ""

    failure: str | None
    text: str
    _watched: AbstractContextManager[None] | None

    def __enter__(self) -> contain_errors:
        self._watched = None if _current is not None else watch_signals()
        if self._watched is not None:
            self._watched.__enter__()
        self._before = len(_current.raised) if _current is not None else 0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        text = "" if error is None else _describe(error)
        outside = self._from_outside()
        if self._watched is not None:
            self._watched.__exit__(None, None, None)
        if error is None:
            return False
        if outside is not None and outside is not error:
            raise outside
        if outside is error or isinstance(error, self._passed_on):
            return False
        self.failure, self.text = type(error).__name__, text
        return True

    def _from_outside(self) -> BaseException | None:
        if _current is None or threading.current_thread() is not threading.main_thread():
            return None
        return _current.raised[-1] if len(_current.raised) > self._before else None


def _describe(error: BaseException) -> str:
    """What an exception says. That is a person's code too: whatever it raises in turn is the record's own affair."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"[:MAX_TEXT]
    except BaseException:
        return name
