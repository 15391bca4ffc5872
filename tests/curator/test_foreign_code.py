"""Whatever a record's code raises is the record's own affair; a signal still ends the run."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from apportion.curator.curator import Curator
from apportion.curator.foreign_code import contain_errors, watch_signals
from apportion.curator.gradients.engine import build_engine
from apportion.curator.randomness import Randomness, Stream
from apportion.curator.records import as_records, cut_evenly
from apportion.execution import Execution
from apportion.releases import ClippedSum
from apportion.request import Request
from items import Items
from runs import Gaussian


class OwnKind(BaseException):
    """No `Exception`."""


RAISED = [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, OwnKind, StopIteration, RecursionError]
MARK = 1000.0


def handlers():
    """All but one: torch's loader has a handler of its own for the end of a process, and keeps it."""
    return {number: signal.getsignal(number) for number in signal.valid_signals() - {signal.SIGCHLD}}


@pytest.fixture(autouse=True)
def handlers_are_put_back():
    before = handlers()
    yield
    assert handlers() == before


def marked(records):
    """The records, the last of which is marked."""
    inputs, targets = records
    inputs = inputs.clone()
    inputs[-1, 0] = MARK
    return inputs, targets


def asked(model, data, books, loss=cross_entropy, *, mode="loop", workers=0):
    """The clipped sum itself: the noise is left out and every record is drawn."""
    execution = Execution(16, workers=workers)
    curator = Curator(
        as_records(data),
        build_engine(model, mode),
        books,
        Randomness.seeded(0),
        execution,
        mechanisms=Gaussian(lambda total, deviation, noise, divisor: total),
    )
    try:
        released = curator.answer(Request(1.0, 1.0, 1.0, (ClippedSum(0.3),)), loss)
    finally:
        curator.end_workers()
    return torch.cat([part.flatten().double() for part in released.gradient.values()])


@contextlib.contextmanager
def nothing_escapes():
    """What does would end the tests as well."""
    try:
        yield
    except BaseException as error:
        raise AssertionError(f"{type(error).__name__} ended the run") from error


# --- the exceptions of a record ---------------------------------------------------------------------------------------------


class Reads(Items):
    """Raises where the marked record is read."""

    def __init__(self, items, error):
        super().__init__(items)
        self.error = error

    def __getitem__(self, index):
        inputs, target = super().__getitem__(index)
        if inputs[0] == MARK:
            raise self.error
        return inputs, target


class ReadsMany(Reads):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


@pytest.mark.parametrize("kind", [Reads, ReadsMany])
@pytest.mark.parametrize(
    ("error", "workers"), [*((error, 0) for error in RAISED), (SystemExit, 1), (KeyboardInterrupt, 1), (OwnKind, 1)]
)
def test_reading(books, model, records, kind, error, workers):
    inputs, targets = marked(records)
    with nothing_escapes():
        found = asked(model, kind(list(zip(inputs, targets, strict=True)), error), books, workers=workers)
    expected = asked(model, (inputs[:-1], targets[:-1]), books)
    torch.testing.assert_close(found, expected)


class Forward(nn.Module):
    def __init__(self, error):
        super().__init__()
        self.layer, self.error = nn.Linear(4, 2), error

    def forward(self, x):
        if (x == MARK).any():
            raise self.error
        return self.layer(x)


@pytest.mark.parametrize("error", RAISED)
@pytest.mark.parametrize("mode", ["one-pass", "loop"])
def test_forward(books, records, mode, error):
    torch.manual_seed(0)
    model, (inputs, targets) = Forward(error), marked(records)
    with nothing_escapes():
        found = asked(model, (inputs, targets), books, mode=mode)
    torch.testing.assert_close(found, asked(model, (inputs[:-1], targets[:-1]), books, mode=mode))


@pytest.mark.parametrize("error", RAISED)
def test_loss(books, model, records, error):
    def loss(outputs, targets):
        if (targets == 7).any():
            raise error
        return cross_entropy(outputs, targets)

    inputs, targets = records
    odd = targets.clone()
    odd[-1] = 7
    with nothing_escapes():
        found = asked(model, (inputs, odd), books, loss)
    torch.testing.assert_close(found, asked(model, (inputs[:-1], targets[:-1]), books))


def raising(error):
    class Raises(torch.autograd.Function):
        """The identity; its backward pass raises if the marked record is there."""

        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(context, inputs, output):
            context.save_for_backward(inputs[0])

        @staticmethod
        def backward(context, gradient):
            if (context.saved_tensors[0].abs() > 100).any():
                raise error
            return gradient

    return Raises.apply


class Backward(nn.Module):
    """Raises in the backward pass: in a function of its own, or in the hook of a tensor."""

    def __init__(self, error, *, hook):
        super().__init__()
        self.first, self.second, self.hook, self.error = nn.Linear(4, 3), nn.Linear(3, 2), hook, error
        self.function = raising(error)

    def forward(self, x):
        hidden = self.first(x)
        if not self.hook:
            return self.second(self.function(hidden))

        def look(gradient):
            if (hidden.detach().abs() > 100).any():
                raise self.error

        hidden.register_hook(look)
        return self.second(hidden)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, OwnKind, ValueError])
@pytest.mark.parametrize("hook", [False, True], ids=["function", "hook"])
@pytest.mark.parametrize("mode", ["one-pass", "loop"])
def test_backward(books, records, mode, hook, error):
    torch.manual_seed(0)
    model, (inputs, targets) = Backward(error, hook=hook), marked(records)
    with nothing_escapes():
        found = asked(model, (inputs, targets), books, mode=mode)
    torch.testing.assert_close(found, asked(model, (inputs[:-1], targets[:-1]), books, mode=mode))


def test_a_loss_that_fails_for_everybody_releases_noise_alone(books, model, records):
    def loss(outputs, targets):
        raise SystemExit

    assert asked(model, records, books, loss).abs().max() == 0


def test_in_another_thread(books, model, records):
    """There no handler of a signal runs, so nothing is from outside."""
    inputs, targets = marked(records)
    found = []
    data = Reads(list(zip(inputs, targets, strict=True)), KeyboardInterrupt)
    thread = threading.Thread(target=lambda: found.append(asked(model, data, books)))
    thread.start()
    thread.join()
    torch.testing.assert_close(found[0], asked(model, (inputs[:-1], targets[:-1]), books))


# --- signals ----------------------------------------------------------------------------------------------------------------


def interrupt():
    signal.raise_signal(signal.SIGINT)


@pytest.fixture
def terminated():
    """SIGTERM calls `sys.exit`, as in many a program."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(4))
    yield lambda: signal.raise_signal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, before)


def stages(send):
    """A signal that arrives while a record is read, in the forward pass, in the loss, in the backward pass."""

    class Sends(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x):
            send()
            return self.layer(x)

    class Back(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x):
            out = self.layer(x)
            out.register_hook(lambda gradient: send())
            return out

    class Data(Items):
        def __getitem__(self, index):
            if index:
                send()
            return super().__getitem__(index)

    def loss(outputs, targets):
        send()
        return cross_entropy(outputs, targets)

    return {
        "read": (nn.Linear(4, 2), Data, cross_entropy),
        "forward": (Sends(), Items, cross_entropy),
        "loss": (nn.Linear(4, 2), Items, loss),
        "backward": (Back(), Items, cross_entropy),
    }


@pytest.mark.parametrize("stage", ["read", "forward", "loss", "backward"])
def test_ctrl_c_ends_the_run(books, records, stage):
    model, kind, loss = stages(interrupt)[stage]
    with pytest.raises(KeyboardInterrupt):
        asked(model, kind(list(zip(*records, strict=True))), books, loss)
    assert len(books.events) == 1, "the charge is spent"


@pytest.mark.parametrize("stage", ["read", "forward", "loss", "backward"])
def test_a_handler_that_exits_ends_the_run(books, records, stage, terminated):
    model, kind, loss = stages(terminated)[stage]
    with pytest.raises(SystemExit) as caught:
        asked(model, kind(list(zip(*records, strict=True))), books, loss)
    assert caught.value.code == 4


def test_code_that_turns_it_into_something_else_does_not_hide_it(books, model, records):
    def loss(outputs, targets):
        try:
            interrupt()
        except BaseException as error:
            raise ValueError("a record") from error

    with pytest.raises(KeyboardInterrupt):
        asked(model, records, books, loss)


def test_a_signal_that_raises_nothing_changes_nothing(books, model, records):
    """A record that raises beside it contributes nothing, as without it."""
    arrived = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: arrived.append(number))

    def loss(outputs, targets):
        signal.raise_signal(signal.SIGUSR1)
        raise SystemExit

    try:
        assert asked(model, records, books, loss).abs().max() == 0
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert arrived


def test_an_earlier_interrupt_that_was_caught_is_over():
    with nothing_escapes(), watch_signals():
        with contain_errors(), contextlib.suppress(KeyboardInterrupt):
            interrupt()
        with contain_errors() as later:
            raise SystemExit
        assert later.failure == "SystemExit"


def test_what_is_passed_on():
    with pytest.raises(MemoryError), contain_errors(MemoryError):
        raise MemoryError
    with contain_errors() as attempt:
        raise MemoryError
    assert attempt.failure == "MemoryError"
    with contain_errors() as attempt:
        pass
    assert attempt.failure is None


def test_blocks_within_blocks_put_handlers_back_once():
    before = handlers()
    with watch_signals():
        within = handlers()
        assert within[signal.SIGINT] is not before[signal.SIGINT]
        with watch_signals(), contain_errors():
            assert handlers() == within
        assert handlers() == within
    assert handlers() == before


def test_a_handler_that_somebody_replaced_meanwhile_stays():
    def first(number, frame):
        pass

    def second(number, frame):
        pass

    before = signal.signal(signal.SIGUSR2, first)
    try:
        with watch_signals():
            signal.signal(signal.SIGUSR2, second)
        assert signal.getsignal(signal.SIGUSR2) is second
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_generator_that_is_closed_ends(records):
    batches = as_records(Items(list(zip(*records, strict=True)))).read(
        np.arange(40), cut_evenly(40, 4), Stream(bytes(32))
    )
    next(batches)
    batches.close()
    assert next(batches, None) is None


PROGRAM = """
import os, signal, sys, time, torch, apportion as ap
from torch.utils.data import Dataset

class Pairs(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        if index == 39:
            sys.exit("a damaged record")
        return torch.full((4,), float(index)), index % 2

class Slow(torch.nn.Linear):
    def forward(self, x):
        time.sleep(0.01)
        return super().forward(x)

def tell(entry):
    print("step", flush=True)

budget = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())
plan = ap.plan(ap.Recipe(), budget=budget, population=40, sample_rate=0.5, steps=2000)
execution = ap.Execution(workers=WORKERS, engine="loop")
ap.train(Slow(4, 2), torch.nn.functional.cross_entropy, Pairs(), plan, lr=0.1, execution=execution, progress=tell)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_program_with_a_damaged_record_runs_until_ctrl_c(workers):
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("WORKERS", str(workers))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        for _ in range(3):
            assert program.stdout.readline() == "step\n"
        time.sleep(0.05)
        os.killpg(program.pid, signal.SIGINT)
        _, told = program.communicate(timeout=60)
    finally:
        program.kill()
    assert program.returncode != 0
    assert "KeyboardInterrupt" in told
    assert "damaged" not in told
