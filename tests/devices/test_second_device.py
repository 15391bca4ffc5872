"""What runs on the CPU runs on another device, with the same results: everything in `checks_*.py`, in processes that have a second device.

No GPU is at hand: the device is a double (`tests/second_device.py`), on which a tensor that was left on the CPU raises, as it does on CUDA.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def run_checks(marked):
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-m", marked]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(
        [*command, *map(str, HERE.glob("checks_*.py"))],
        capture_output=True,
        text=True,
        env=environment,
        cwd=HERE.parents[1],
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_kernels_and_runs_on_a_second_device():
    run_checks("not slow")


@pytest.mark.slow
def test_every_kernel_engine_and_recipe_on_a_second_device():
    run_checks("slow")
