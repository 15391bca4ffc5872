import gc
import os
import shutil
import signal
import sys
from contextlib import nullcontext
from pathlib import Path

# The suite runs one process for each core. Threads of numpy's BLAS wait for each other by spinning, which costs the other process its
# time; it looks at its settings when it is loaded.
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from hypothesis import settings
from torch import nn

import apportion as ap

sys.path.insert(0, str(Path(__file__).resolve().parent))
from pieces import BOOKS, WORK, changed
from proofs import PROVED_ONCE, proofs_remembered

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # as a shell starts what runs in the background; child processes would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

torch.set_num_threads(1)

# For every accelerator that is not there `torch.manual_seed` notes the stack it was called from, to seed that accelerator if it ever comes:
# a millisecond of each test, and all of them are kept.
for absent in (torch.cuda, torch.xpu, torch.mtia):
    if not absent.is_available():
        absent.manual_seed_all = lambda seed: None

MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2**30:
    # every charge and every checkpoint waits for the disk; in memory thousands of them need not
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# A change must not fail for what another run would have found: the suite tries the same examples every time. New ones are looked
# for on purpose, with `make fuzz`.
settings.register_profile("steady", derandomize=True, database=None, deadline=None)
settings.register_profile("search", max_examples=1000, deadline=None, print_blob=True)
settings.load_profile("search" if os.environ.get("APPORTION_FUZZ") else "steady")


def pytest_collection_finish():
    """What there is before the first test stays to the end: the collector need not look through it again and again, nor look so often."""
    gc.freeze()
    gc.set_threshold(50_000)


@pytest.fixture
def budget():
    return ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())


@pytest.fixture
def records():
    """Forty records of four features and two classes."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(40, 4, generator=generator)
    return inputs, (inputs.sum(1) > 0).long()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


class Books:
    """Keeps charges in a list and refuses nothing."""

    def __init__(self):
        self.events = []

    def charge(self, event):
        self.events.append(event)


@pytest.fixture
def books():
    return Books()


SMALL = {"accounting": BOOKS, "curator": WORK, "guard": WORK}


@pytest.fixture(autouse=True)
def small_pieces(request):
    """In the suites of books and mechanisms work is cut into small pieces, so that every test meets a second and a third one.

    A test that is about the usual sizes, about rounding (which is worst in long sums) or about millions of numbers says so with the
    marker `usual_pieces`.
    """
    usual = request.node.get_closest_marker("usual_pieces")
    with changed({} if usual else SMALL.get(request.path.parent.name, {})):
        yield


@pytest.fixture(autouse=True)
def remembered_proofs(request):
    """Where engines are not what is tested, the same small model is proved once."""
    with proofs_remembered() if {request.path.parent.name, request.path.stem} & PROVED_ONCE else nullcontext():
        yield
