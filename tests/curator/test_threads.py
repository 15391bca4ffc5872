"""Blocks that threads share: each is done once, nobody returns before all are done, and nothing hangs."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import apportion as ap
from apportion.curator import threads as module
from apportion.curator.normal_field import NormalField
from apportion.curator.threads import share_blocks, torch_threads


@pytest.fixture(autouse=True)
def more_helpers_than_cores(monkeypatch):
    """A machine with one core has helpers too."""
    forget = module._pool.cache_clear
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    forget()
    yield
    forget()


@given(
    start=st.integers(0, 50), count=st.integers(0, 500), most=st.integers(1, 600), threads=st.sampled_from([1, 2, 3, 7])
)
def test_every_number_is_in_one_block(start, count, most, threads):
    times, lock = np.zeros(start + count + 700, dtype=int), threading.Lock()

    def work(blocks):
        for first, last in blocks:
            assert 0 < last - first <= most
            with lock:
                times[first:last] += 1

    share_blocks(start, count, most, work, threads)
    assert (times[start : start + count] == 1).all()
    assert times.sum() == count


def test_several_threads_work_at_the_same_time():
    together = threading.Barrier(3, timeout=30)

    def work(blocks):
        for _ in blocks:
            together.wait()  # breaks unless three are here

    share_blocks(0, 3, 1, work, 3)


def test_nobody_returns_before_every_block_is_done():
    """The block that a helper took is a part of the answer, however long it takes."""
    done, here = [], threading.current_thread()
    taken = threading.Event()

    def work(blocks):
        for first, _ in blocks:
            if threading.current_thread() is here:
                taken.wait(30)
            else:
                taken.set()
                time.sleep(0.3)
            done.append(first)

    share_blocks(0, 2, 1, work, 2)
    assert sorted(done) == [0, 1]


@pytest.mark.parametrize("who", ["helper", "caller"])
@pytest.mark.parametrize("kind", [ValueError, MemoryError, KeyboardInterrupt])
def test_an_error_in_any_thread_is_raised_and_nobody_writes_afterwards(who, kind):
    here, begun, finished = threading.current_thread(), threading.Barrier(2, timeout=30), []

    def work(blocks):
        for first, _ in blocks:
            if first < 2:  # one each
                begun.wait()
                if (threading.current_thread() is here) == (who == "caller"):
                    raise kind("out of order")
                time.sleep(0.2)
            finished.append(first)

    with pytest.raises(kind, match="out of order"):
        share_blocks(0, 100, 1, work, 2)
    seen = list(finished)
    assert 1 <= len(seen) < 100
    time.sleep(0.1)
    assert finished == seen


def test_a_helper_that_comes_too_late_does_nothing(monkeypatch):
    """All helpers are busy elsewhere: the caller does everything, does not wait for them, and they do not begin again later."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    module._pool.cache_clear()
    free, calls = threading.Event(), []
    module._pool().submit(free.wait, 30)

    def work(blocks):
        calls.append(list(blocks))

    share_blocks(0, 4, 1, work, 2)
    free.set()
    module._pool().shutdown(wait=True)
    assert calls == [[(0, 1), (1, 2), (2, 3), (3, 4)]]


def test_without_threads_the_caller_does_everything(monkeypatch):
    class Full:
        def submit(self, task):
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(module, "_pool", Full)
    assert np.array_equal(NormalField(bytes(32)).normals(0, 1000, 5), NormalField(bytes(32)).normals(0, 1000))


def test_a_queued_helper_whose_thread_could_not_be_started_is_waited_for(monkeypatch):
    """ThreadPoolExecutor puts a task into its queue before it fails to start a thread: another thread may take it."""
    started = []

    class Half:
        def submit(self, task):
            started.append(threading.Thread(target=task))
            started[-1].start()
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(module, "_pool", Half)
    done = []

    def work(blocks):
        for first, _ in blocks:
            time.sleep(0.05)
            done.append(first)

    share_blocks(0, 6, 1, work, 3)
    assert sorted(done) == list(range(6))
    assert len(started) == 1
    started[0].join()


def test_a_small_task_starts_no_thread(monkeypatch):
    monkeypatch.setattr(module, "_pool", lambda: pytest.fail("a thread for a single block"))
    share_blocks(0, 10, 10, lambda blocks: list(blocks), 8)
    share_blocks(0, 10, 3, lambda blocks: list(blocks), 1)


def test_a_forked_process_has_threads_of_its_own():
    """Those of its parent are gone; with them nobody would come to the barrier, or the child would wait forever."""
    expected = NormalField(bytes(32)).normals(0, 5000, 3)
    child = os.fork()
    if child == 0:
        together = threading.Barrier(3, timeout=20)
        try:
            share_blocks(0, 3, 1, lambda blocks: [together.wait() for _ in blocks], 3)
            same = np.array_equal(NormalField(bytes(32)).normals(0, 5000, 3), expected)
        except threading.BrokenBarrierError:
            same = False
        os._exit(0 if same else 1)
    deadline = time.monotonic() + 60
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if ended == (0, 0):
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    assert os.waitstatus_to_exitcode(ended[1]) == 0


PROGRAM = """
import atexit, threading
from apportion.curator.normal_field import NormalField
field = NormalField(bytes(32))
def late():
    print(*field.normals(0, 700_000, 3)[[0, 699_999]])
atexit.register(late)
late()
"""


def test_the_interpreter_ends_and_noise_can_still_be_made_then():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert first == second


@pytest.mark.parametrize(("count", "inside"), [(1, 1), (2, 2), (5, 3), ("auto", 3)])
def test_torch_has_no_more_threads_than_asked_for_and_has_them_back_afterwards(count, inside):
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with torch_threads(count):
            assert torch.get_num_threads() == inside
        with pytest.raises(ValueError, match="of a record"), torch_threads(count):
            raise ValueError("of a record")
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_a_small_model_is_trained_by_one_thread():
    seen = []

    class Small(nn.Linear):
        def forward(self, input):  # noqa: A002
            seen.append(torch.get_num_threads())
            return super().forward(input)

    data = torch.randn(40, 3), torch.randint(0, 2, (40,))
    plan = ap.plan(
        "abadi", budget=ap.Budget(epsilon=8.0, delta=1e-3, unit=ap.Record()), population=40, sample_rate=0.5, steps=3
    )
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        ap.train(Small(3, 2), nn.functional.cross_entropy, data, plan, lr=0.1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen[-1] == 1
