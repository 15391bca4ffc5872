"""Worker processes change how fast records are read, and nothing else."""

import gc
import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, get_worker_info

import runs
from apportion.curator.curator import Curator
from apportion.curator.gradients.reference import ReferenceGradients
from apportion.curator.randomness import Randomness, Stream
from apportion.curator.records import as_records, cut_evenly
from apportion.errors import ApportionError, InvalidArgument, WrongOrder
from apportion.execution import Execution
from apportion.releases import ClippedSum
from apportion.request import Request
from suites import thinned

RECORDS = 200
WORKERS = pytest.mark.parametrize("workers", [0, 2])


class Plain(Dataset):
    """Two hundred records of four features; the first feature is the number of the record."""

    def __init__(self, size=RECORDS):
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(RECORDS, 4, generator=generator)[:size]
        self.inputs[:, 0] = torch.arange(size)
        self.targets = (self.inputs.sum(1) > 0).long()

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], int(self.targets[index])


class Augmented(Plain):
    """Adds noise from all three global generators."""

    def __getitem__(self, index):
        inputs, target = super().__getitem__(index)
        return inputs + torch.tensor([0, torch.rand(()).item(), np.random.rand(), random.random()]), target


class Broken(Plain):
    """One record is broken in a way of choice."""

    def __init__(self, how, broken=150):
        super().__init__()
        self.how, self.broken = how, broken

    def __getitem__(self, index):
        item = super().__getitem__(index)
        return self.how(item, index) if index == self.broken else item


def raising(item, index):
    raise OSError(f"record {index} cannot be read")


def exhausting(item, index):
    raise MemoryError(f"record {index} is too large")


BREAKAGES = {
    "raises": raising,
    "memory": exhausting,
    "no pair": lambda item, index: item[0],
    "a text": lambda item, index: ("text", item[1]),
    "nothing": lambda item, index: (None, None),
    "a dict": lambda item, index: ({"x": item[0]}, item[1]),
    "another shape": lambda item, index: (torch.zeros(7), item[1]),
}


def no_worker_is_left():
    """Those of a run that nobody holds any more may wait for the garbage collector."""
    if multiprocessing.active_children():
        gc.collect()
    return multiprocessing.active_children() == []


@pytest.fixture(autouse=True)
def without_left_overs():
    assert no_worker_is_left()
    yield
    assert no_worker_is_left()


@pytest.fixture
def opened():
    """Wraps data as records with workers, which are closed after the test."""
    made = []

    def open_records(data, workers):
        made.append(as_records(data))
        made[-1].start_workers(workers)
        return made[-1]

    yield open_records
    for records in made:
        records.close()


def read(records, members=None, *, size=256, seed=0):
    members = np.arange(len(records)) if members is None else np.array(members, dtype=np.int64)
    pieces = records.read(members, cut_evenly(len(members), size), Stream(bytes([seed]) * 32))
    return (piece.batch for piece in pieces)


def rows(batches):
    """All inputs, one below the other."""
    return torch.cat([inputs for inputs, _ in batches])


def a_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def curator(data, books, *, workers, micro_batch=256):
    execution = Execution(micro_batch, workers=workers)
    return Curator(as_records(data), ReferenceGradients(a_model(), "vmap"), books, Randomness.seeded(0), execution)


def request(rate=1.0):
    return Request(rate, 1.0, 40.0, (ClippedSum(0.3),))


def answer(data, books, workers):
    held = curator(data, books, workers=workers)
    try:
        return held.answer(request(), cross_entropy).gradient
    finally:
        held._records.close()


# --- the same batches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "micro_batch"),
    thinned([(Plain(), 7), (Plain(), 256), (Augmented(), 64), (Augmented(), 100)], lambda _, size: size in (7, 64)),
)
def test_training_gives_the_same_weights_bit_for_bit(budget, data, micro_batch):
    def weights(workers):
        model = a_model()
        runs.train(
            model,
            cross_entropy,
            data,
            budget=budget,
            population=RECORDS,
            sample_rate=0.7,
            steps=4,
            lr=0.5,
            seed=0,
            execution=Execution(micro_batch, workers=workers),
            progress=False,
        )
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    assert torch.equal(weights(0), weights(2))


def test_the_workers_do_read(opened):
    class Where(Plain):
        def __getitem__(self, index):
            return torch.tensor([os.getpid(), get_worker_info() is not None]), 0

    processes, in_worker = rows(read(opened(Where(), 2), size=50)).unbind(1)
    assert in_worker.all()
    assert len(set(processes.tolist())) == 2
    assert os.getpid() not in processes


@WORKERS
@pytest.mark.parametrize("size", [1, 63, 64, 65, 200, 1000])
def test_micro_batches_have_their_size_and_order(opened, workers, size):
    batches = list(read(opened(Plain(), workers), size=size))
    assert [len(targets) for _, targets in batches] == [min(size, RECORDS - k) for k in range(0, RECORDS, size)]
    assert torch.equal(rows(batches), Plain().inputs)
    assert torch.equal(torch.cat([targets for _, targets in batches]), Plain().targets)


@WORKERS
def test_an_empty_draw_has_no_piece(opened, workers):
    assert list(read(opened(Plain(), workers), [])) == []


def test_a_loop_of_ones_own(budget):
    def weights(workers):
        model = a_model()
        private = runs.make_private(
            model,
            torch.optim.SGD(model.parameters(), lr=0.5),
            Plain(),
            budget=budget,
            population=RECORDS,
            sample_rate=0.5,
            steps=3,
            seed=0,
            execution=Execution(40, workers=workers),
        )
        for inputs, targets in private.batches():
            cross_entropy(private.model(inputs), targets).backward()
            private.optimizer.step()
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    assert torch.equal(weights(0), weights(2))


# --- augmentation ----------------------------------------------------------------------------------------------------------


@WORKERS
def test_the_augmentation_of_a_record_does_not_depend_on_the_others(opened, workers):
    records = opened(Augmented(), workers)
    everyone = rows(read(records))
    some = [3, 70, 71, 199]
    assert torch.equal(rows(read(records, some, size=3)), everyone[some])
    assert not torch.equal(rows(read(records, some, seed=1)), everyone[some]), "every draw has its own"
    added = (everyone - Plain().inputs)[:, 1:]
    for column in added.T:
        assert len(column.unique()) > RECORDS - 5, "every record has its own"
    assert not torch.allclose(added[:, 0], added[:, 1])


@WORKERS
def test_a_larger_data_set_does_not_change_the_augmentation(opened, workers):
    everyone, without = (rows(read(opened(Augmented(size), workers))) for size in (RECORDS, RECORDS - 1))
    assert torch.equal(everyone[:-1], without)


@WORKERS
def test_the_amount_of_secret_that_is_used_does_not_depend_on_the_draw(opened, workers):
    records, left = opened(Augmented(), workers), []
    for members in ([], [5], range(RECORDS)):
        secret = Stream(bytes(32))
        list(records.read(np.array(members, dtype=np.int64), cut_evenly(len(members), 64), secret))
        left.append(secret.words(1)[0])
    assert len(set(left)) == 1


@WORKERS
def test_the_generators_of_this_process_stay_as_they_were(books, workers):
    def states():
        kind, key, *rest = np.random.get_state()
        return torch.get_rng_state().tolist(), (kind, key.tolist(), *rest), random.getstate()

    held = curator(Augmented(), books, workers=workers)
    before = states()
    held.answer(request(), cross_entropy)
    assert states() == before
    held._records.close()


# --- records that cannot be read -------------------------------------------------------------------------------------------


def in_core(how, workers):
    """Here all of them; from worker processes two, and what is left of a batch (below) of all."""
    return not workers or how in ("raises", "another shape")


@pytest.mark.parametrize(("how", "workers"), thinned(itertools.product(BREAKAGES, (0, 2)), in_core))
def test_a_broken_record_changes_nothing_for_the_others_and_is_not_named(books, capfd, workers, how):
    broken = answer(Broken(BREAKAGES[how]), books, workers)
    others = Plain()
    keep = torch.arange(RECORDS) != 150
    others.inputs, others.targets = others.inputs[keep], others.targets[keep]
    for name, expected in answer(others, books, 0).items():
        torch.testing.assert_close(broken[name], expected, rtol=1e-4, atol=1e-6)
    assert capfd.readouterr() == ("", "")


@WORKERS
@pytest.mark.parametrize("how", BREAKAGES)
def test_what_is_left_of_a_batch_with_a_broken_record(opened, workers, how):
    batches = list(read(opened(Broken(BREAKAGES[how]), workers)))
    assert torch.equal(
        torch.cat([inputs for inputs, _ in batches if inputs.shape[1] == 4]), Plain().inputs[np.arange(RECORDS) != 150]
    )
    assert len(batches) == (RECORDS if how == "another shape" else 1)


@WORKERS
@pytest.mark.parametrize(
    "how",
    [
        lambda item, index: (item[0].double(), item[1]),
        lambda item, index: (item[0].numpy().astype(np.float64), item[1]),
        lambda item, index: (item[0], float(item[1])),
    ],
    ids=["float64 tensor", "float64 array", "float target"],
)
def test_a_record_of_another_type_does_not_change_the_type_of_the_others(books, workers, how):
    """A batch that became float64 would fail as a whole: one record would take all others with it."""
    odd, plain = answer(Broken(how), books, workers), answer(Plain(), books, 0)
    for name, expected in plain.items():
        assert torch.equal(odd[name], expected)


class Many(Plain):
    """Reads several records at once, and breaks in a way of choice."""

    def __init__(self, spoil=lambda items, indices: items):
        super().__init__()
        self.spoil = spoil

    def __getitem__(self, index):
        raise AssertionError("there is __getitems__")

    def __getitems__(self, indices):
        return self.spoil([Plain.__getitem__(self, index) for index in indices], indices)


def one_broken(items, indices):
    if 150 in indices:
        raise OSError("record 150")
    return items


@WORKERS
def test_getitems_is_used(opened, workers):
    batches = list(read(opened(Many(), workers)))
    assert len(batches) == 1
    assert torch.equal(rows(batches), Plain().inputs)


@WORKERS
def test_a_broken_record_among_many(opened, workers):
    assert torch.equal(rows(read(opened(Many(one_broken), workers))), Plain().inputs[np.arange(RECORDS) != 150])


@WORKERS
def test_getitems_cannot_add_records(opened, workers):
    """One that returns too many would give a record more than its share."""
    twice = Many(lambda items, indices: items + items[-1:] if 150 in indices else items)
    assert torch.equal(rows(read(opened(twice, workers))), Plain().inputs[np.arange(RECORDS) != 150])


def test_records_that_need_gradients_can_be_sent(opened):
    class Tracked(Plain):
        def __getitem__(self, index):
            inputs, target = super().__getitem__(index)
            return inputs.requires_grad_() * 1, target

    batch = rows(read(opened(Tracked(), 2)))
    assert torch.equal(batch, Plain().inputs)
    assert not batch.requires_grad


def test_many_records_of_different_shapes_take_no_file_descriptors(opened):
    class Ragged(Plain):
        def __getitem__(self, index):
            return torch.zeros(1 + index % 5), 0

    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else pytest.skip("no /proc")
    batches = list(read(opened(Ragged(), 2)))
    assert [inputs.shape[1] for inputs, _ in batches] == [1 + k % 5 for k in range(RECORDS)]
    assert len(os.listdir("/proc/self/fd")) < before + 30


# --- processes that die, and the end ---------------------------------------------------------------------------------------


# torch's handler of SIGCHLD raises wherever Python happens to be, be it in a `__del__`, where nobody can catch it. torch finds the dead
# worker again at its next look.
ANYWHERE = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Deadly(Plain):
    """A worker that reads record 150 is killed while the file is there."""

    def __init__(self, switch):
        super().__init__()
        self.switch = switch

    def __getitem__(self, index):
        if index == 150 and get_worker_info() is not None and self.switch.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@ANYWHERE
def test_a_worker_that_is_killed_burns_the_charge_and_does_not_hang(tmp_path, books):
    switch = tmp_path / "deadly"
    switch.touch()
    held, started = curator(Deadly(switch), books, workers=2), time.monotonic()
    with pytest.raises(ApportionError, match="worker process.*charge of this step is spent") as caught:
        held.answer(request(), cross_entropy)
    assert time.monotonic() - started < 30
    assert "150" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert len(books.events) == 1
    assert multiprocessing.active_children() == []
    switch.unlink()
    held.answer(request(), cross_entropy)  # with new workers
    assert len(books.events) == 2
    held._records.close()


@ANYWHERE
def test_a_worker_that_is_killed_between_two_draws_is_noticed(books):
    held = curator(Plain(), books, workers=2)
    held.answer(request(), cross_entropy)
    victim = multiprocessing.active_children()[0]
    with pytest.raises((ApportionError, RuntimeError), match="worker"):
        os.kill(victim.pid, signal.SIGKILL)
        held.answer(request(), cross_entropy)
    held._records.close()
    assert multiprocessing.active_children() == []


def test_a_data_set_that_no_worker_can_read_is_refused_before_the_charge(books):
    class AtHome(Plain):
        def __getitem__(self, index):
            assert get_worker_info() is None
            return super().__getitem__(index)

    with pytest.raises(InvalidArgument, match="workers=2.*cannot read the first record.*workers=0"):
        answer(AtHome(), books, 2)
    assert books.events == []
    assert multiprocessing.active_children() == []


def test_the_secret_generator_does_not_work_in_a_worker(opened):
    class Curious(Plain):
        secret = Randomness.fresh()

        def __getitem__(self, index):
            try:
                self.secret.next_draw()
            except WrongOrder:
                return super().__getitem__(index)[0], 1
            return super().__getitem__(index)[0], 0

    targets = torch.cat([targets for _, targets in read(opened(Curious(), 2))])
    assert (targets == 1).all()


def test_workers_start_before_the_draw_that_they_read_for(books):
    """So they inherit nothing of its random bits."""
    log = []

    class Loud(Randomness):
        def next_draw(self):
            log.append(len(multiprocessing.active_children()))
            return super().next_draw()

    records = as_records(Plain())
    held = Curator(
        records, ReferenceGradients(a_model(), "vmap"), books, Loud(bytes(32), private=False), Execution(workers=2)
    )
    held.open(request())
    records.close()
    assert log == [2]


def test_a_draw_that_was_left_does_not_reach_into_the_next(books):
    held = curator(Plain(), books, workers=2, micro_batch=10)
    left = held.open(request()).micro_batches()
    next(left)
    assert torch.equal(rows(piece.batch for piece in held.open(request()).micro_batches()), Plain().inputs)
    with pytest.raises(WrongOrder, match="one draw is read at a time"):
        next(left)
    held._records.close()


def test_workers_end_when_nobody_holds_them():
    records = as_records(Plain())
    records.myself = records  # found by the garbage collector only
    records.start_workers(2)
    started = time.monotonic()
    del records
    gc.collect()
    assert multiprocessing.active_children() == []
    assert time.monotonic() - started < 4, "they were told to end, not waited for in vain"


def test_workers_end_with_the_records(opened):
    records = opened(Plain(), 2)
    assert len(multiprocessing.active_children()) == 2
    records.close()
    assert multiprocessing.active_children() == []
    records.close()  # twice is fine
    records.start_workers(2)
    assert torch.equal(rows(read(records)), Plain().inputs)


@pytest.mark.parametrize("recovery", [None, runs.Recovery(mode="exact")])
def test_no_worker_outlives_the_run(budget, tmp_path, recovery):
    run = runs.train(
        a_model(),
        cross_entropy,
        Plain(),
        budget=budget,
        population=RECORDS,
        sample_rate=0.5,
        steps=2,
        lr=0.5,
        execution=Execution(workers=2),
        out=tmp_path / "run",
        recovery=recovery,
        progress=False,
    )
    assert multiprocessing.active_children() == []
    assert run.steps == 2


def test_no_worker_outlives_a_loop_of_ones_own(budget):
    model = a_model()
    private = runs.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        Plain(),
        budget=budget,
        population=RECORDS,
        sample_rate=0.5,
        steps=2,
        execution=Execution(workers=2),
    )
    for epoch in range(2):
        for inputs, targets in private.batches(steps=1):
            cross_entropy(private.model(inputs), targets).backward()
            private.optimizer.step()
        assert len(multiprocessing.active_children()) == (0 if epoch else 2)


PROGRAM = """
import torch, apportion as ap
from torch.utils.data import Dataset

class Pairs(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return torch.full((4,), float(index)), index % 2

model = torch.nn.Linear(4, 2)
budget = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())
plan = ap.plan(ap.Recipe(), budget=budget, population=40, sample_rate=0.5, steps=2)
run = ap.train(model, torch.nn.functional.cross_entropy, Pairs(), plan, lr=0.1, execution=ap.Execution(workers=2), progress=False)
assert run.steps == 2
"""


@pytest.mark.slow
def test_a_program_ends_silently_with_its_workers():
    done = subprocess.run([sys.executable, "-W", "error", "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("workers", [-1, 1.5, "two", None])
def test_workers_is_a_number_of_processes(workers):
    assert type(Execution(workers=np.int64(2)).workers) is int
    with pytest.raises(InvalidArgument, match="workers="):
        Execution(workers=workers)
