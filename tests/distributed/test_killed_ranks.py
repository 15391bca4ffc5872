"""kill -9 of a rank at a random moment: the others end in seconds and say why, the ledger is right, and the run goes on."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from parallel_runs import plan_of, train
from spawning import Failed, Team

from apportion.accounting.ledger import Ledger
from apportion.curator.curator import Curator
from apportion.distributed import ProcessGroupRanks
from apportion.training.session import Session

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
    first = processes[0].stdout.readline()  # the first step is taken
    if not first.strip().isdigit():  # an earlier life had taken the last one
        for one in processes:
            one.communicate(timeout=SECONDS)
        return False
    shown = int(first)
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


PHASES = {
    "when state is compared": (ProcessGroupRanks, "require_same"),
    "when a step is charged": (ProcessGroupRanks, "charge"),
    "when records are added": (Curator, "_add_records"),
    "when all have arrived": (ProcessGroupRanks, "arrive"),
    "when sums are sent": (ProcessGroupRanks, "add_up"),
    "when a step is applied": (Session, "apply"),
}


def dies(rank, phase, folder):
    """Trains; rank 1 ends at a phase of its third step."""
    place, name = PHASES[phase]
    honest, calls = getattr(place, name), []

    def killed(*arguments):
        calls.append(name)
        # each is met once a step, but sums, which travel apart from statistics
        if len(calls) == (5 if name == "add_up" else 3):
            os.kill(os.getpid(), signal.SIGKILL)
        return honest(*arguments)

    if rank == 1:
        setattr(place, name, killed)
    return train(rank, storage={"folder": str(folder), "every": 1}, plan={"steps": 6, "spare": 1, "rate": 1.0})


CORE = "when all have arrived"


@pytest.mark.parametrize(
    "phase", [pytest.param(phase, marks=() if phase == CORE else pytest.mark.slow) for phase in PHASES]
)
def test_a_rank_that_is_killed_at_any_phase_is_missed(tmp_path, phase):
    team, folder = Team(2), tmp_path / "run"
    try:
        with pytest.raises(Failed) as found:
            team.run(dies, phase, folder)
    finally:
        team.close()
    first, second = found.value.errors
    assert (first[0], second[0]) == ("RankLost", "Killed")
    assert "another rank ended" in first[1]
    assert len(charges(folder)) in (2, 3)  # the step under way is charged, or not yet
    run = train(
        0, storage={"folder": str(folder), "every": 1, "resume": True}, plan={"steps": 6, "spare": 1, "rate": 1.0}
    )
    assert run["steps"] in (6, 7)
    assert len(charges(folder)) in (6, 7)


@pytest.mark.slow
@pytest.mark.parametrize("times", [20])
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
