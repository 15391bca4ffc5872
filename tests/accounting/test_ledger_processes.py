"""Several processes on one ledger, and processes that die: they never spend more than the limit, nor release more than is charged.

The processes import no torch. Plans are on all records (q = 1), whose cost is a closed form, so that nearly all time goes into the
ledger.
"""

import json
import subprocess
import sys
from collections import Counter

import pytest

from apportion import Budget, Record
from apportion.accounting.ledger import Ledger
from apportion.accounting.run_filter import GaussianRuns

LIMIT = Budget(epsilon=3.0, delta=1e-5, unit=Record())

PREAMBLE = """
import json, os, random, signal, sys, time
from pathlib import Path
from apportion import Budget, BudgetExhausted, Record
from apportion.accounting.account import Account
from apportion.accounting.rules import FixedPlan
from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.accounting.ledger import Ledger
from apportion.event import Event

def account(path, token, steps):
    budget = Budget(epsilon=3.0, delta=1e-6, unit=Record())
    return Account(budget, FixedPlan([token] * steps), Ledger.attach(path))
"""

# Forks eight children. For each path on standard input: each tries to start a run, and says whether it was admitted.
RACERS = (
    PREAMBLE
    + """
def race(questions, answers):
    for line in questions:
        path, multiplier = line.split()
        token = Event(1.0, float(multiplier))
        try:
            account(Path(path), token, 1).charge(token)
            print("admitted", file=answers, flush=True)
        except BudgetExhausted:
            print("refused", file=answers, flush=True)

racers = []
for _ in range(8):
    (asked, asking), (told, telling) = os.pipe(), os.pipe()
    if os.fork() == 0:
        for end in (asking, told, *(pipe.fileno() for both in racers for pipe in both)):
            os.close(end)  # or it would never hear that there are no more questions
        race(os.fdopen(asked), os.fdopen(telling, "w"))
        os._exit(0)
    os.close(asked)
    os.close(telling)
    racers.append((os.fdopen(asking, "w"), os.fdopen(told)))
for line in sys.stdin:
    for questions, _ in racers:
        print(line, end="", file=questions, flush=True)
    print(json.dumps([answers.readline().strip() for _, answers in racers]), flush=True)
"""
)

# Forks children that charge and release as fast as they can, and kills each at a random moment of its life.
KILLER = (
    PREAMBLE
    + """
path, kills = Path(sys.argv[1]), int(sys.argv[2])
token = Event(1.0, 1000.0)
chance = random.Random(int(sys.argv[3]))
released = []
for _ in range(kills):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        spending = account(path, token, 200)
        os.write(writer, b"%d\\n" % (len(spending.ledger.runs()) + 1))  # the number that this run will get
        while True:
            spending.charge(token)
            os.write(writer, b"released\\n")
    os.close(writer)
    # Wait for some lines (none: the child may still be opening the ledger), then for a part of the time that a line takes.
    seen, waited_for, started = b"", chance.randrange(8), time.monotonic()
    while seen.count(b"\\n") < waited_for:
        piece = os.read(reader, 1)
        assert piece, "the child ended by itself"
        seen += piece
    time.sleep(chance.random() * (time.monotonic() - started) / waited_for if waited_for else chance.random() * 0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        lines = (seen.decode() + pipe.read()).split()
    if lines:
        released.append([int(lines[0]), len(lines) - 1])
print(json.dumps(released))
"""
)


def new_ledger(path):
    Ledger.create(path, name="shared", rule=GaussianRuns(LIMIT)).close()
    return path


def test_racing_processes_never_exceed_the_limit_together(tmp_path):
    """8 processes, 30 races, each for a limit that has room for five of them."""
    multiplier = (GaussianRuns(LIMIT).capacity().main / 5.5) ** -0.5
    command = [sys.executable, "-c", RACERS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as racers:
        for race in range(30):
            path = new_ledger(tmp_path / f"race-{race}.sqlite")
            racers.stdin.write(f"{path} {multiplier!r}\n")
            racers.stdin.flush()
            outcomes = json.loads(racers.stdout.readline())
            ledger = Ledger.open(path)
            assert ledger.spent().fits(ledger.capacity)
            assert len(ledger.runs()) == sum(ledger.counts().values()) == outcomes.count("admitted") == 5
            assert outcomes.count("refused") == 3
            assert ledger.verify() is None
            ledger.close()


def kill_at_random(path, kills, seed):
    """Returns how many charges the ledger holds beyond what was released, for each run that began."""
    new_ledger(path)
    outcome = subprocess.run(
        [sys.executable, "-c", KILLER, str(path), str(kills), str(seed)], capture_output=True, text=True, check=True
    )
    ledger = Ledger.open(path)
    assert ledger.verify() is None
    began = {run.number for run in ledger.runs()}
    released_by: Counter[int] = Counter()
    for run, released in json.loads(outcome.stdout):
        released_by[run] += released  # a number is given again if its process died before it was admitted
    surplus = []
    for run, released in released_by.items():
        charged = sum(ledger.counts(run).values())
        assert charged >= released, f"run {run} released {released} answers and was charged for {charged}"
        assert run in began or released == 0
        surplus.append(charged - released)
    ledger.close()
    return surplus


def test_a_process_killed_at_any_moment_has_charged_what_it_released(tmp_path):
    surplus = kill_at_random(tmp_path / "killed.sqlite", 20, seed=1)
    assert max(surplus) <= 1, "more than the one charge that was under way is lost"


@pytest.mark.slow
def test_two_hundred_processes_killed_have_charged_what_they_released(tmp_path):
    surplus = kill_at_random(tmp_path / "killed.sqlite", 200, seed=2)
    assert max(surplus) <= 1
    assert len(surplus) >= 100
