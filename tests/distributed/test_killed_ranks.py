"""kill -9 of a rank at a random moment: the others end in seconds and say why, the ledger is right, and the run goes on."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from parallel_runs import plan_of

from apportion.accounting.ledger import Ledger

HERE = Path(__file__).parent
SECONDS = 20
"""After which the other ranks must have ended."""


def start(folder, ranks, meeting, resume):
    environment = {"PYTHONPATH": ":".join([str(HERE), *sys.path]), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return [
        subprocess.Popen(
            [sys.executable, str(HERE / "killed_run.py"), str(folder), str(rank), str(ranks), str(meeting), resume],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for rank in range(ranks)
    ]


def charges(folder):
    ledger = Ledger.open(folder / "secret" / "ledger.sqlite")
    try:
        assert ledger.verify() is None
        return [token for token, _ in ledger.charges(1)]
    finally:
        ledger.close()


def kill_and_check(folder, meeting, ranks, resume, chance):
    """Returns whether a rank was killed before the run had ended."""
    processes = start(folder, ranks, meeting, resume)
    shown = int(processes[0].stdout.readline())  # the first step is taken
    time.sleep(chance.uniform(0, 0.8))
    victim = chance.choice(processes)
    victim.kill()
    victim.communicate()
    killed, others = time.monotonic(), [one for one in processes if one is not victim]
    texts = [one.communicate(timeout=SECONDS)[0] for one in others]
    assert time.monotonic() - killed < SECONDS
    if victim.returncode == 0 or any("done" in text for text in texts):
        return False
    for one, text in zip(others, texts, strict=True):
        assert one.returncode == 4, text
        assert "another rank ended" in text or "failed in this step" in text
        assert "resume" in text
    steps = [shown, *(int(line) for line in (texts[0] if others[0] is processes[0] else "").split() if line.isdigit())]
    spent = charges(folder)
    assert len(spent) == len(set(spent))
    assert len(spent) >= max(steps) - 1  # every step that was shown is paid for, and at most one more
    return True


@pytest.mark.parametrize("times", [pytest.param(2), pytest.param(20, marks=pytest.mark.slow)])
def test_a_killed_rank_ends_the_run_in_seconds_and_it_goes_on(tmp_path, times):
    chance, folder, killed = random.Random(times), tmp_path / "run", 0
    for turn in range(times):
        if not (folder / "secret" / "checkpoint").exists() or not killed:
            folder = tmp_path / f"run {turn}"
        resume = "resume" if (folder / "secret" / "checkpoint").exists() else "new"
        before = len(charges(folder)) if resume == "resume" else 0
        if kill_and_check(folder, tmp_path / f"meeting {turn}", chance.choice([2, 2, 3]), resume, chance):
            killed += 1
            assert len(charges(folder)) > before
    assert killed
    processes = start(folder, 2, tmp_path / "last meeting", "resume")
    texts = [one.communicate(timeout=120)[0] for one in processes]
    assert all("done" in text for text in texts), texts
    plan = plan_of(steps=400, spare=200, rate=0.3)
    assert len(charges(folder)) <= len(plan.rule().declared)
