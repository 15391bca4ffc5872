"""Early stopping by scores on public data: when, at which price, and what a resumed run does."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
from apportion.errors import InvalidArgument

INPUTS = torch.randn(60, 3, generator=torch.Generator().manual_seed(1))
RECORDS = INPUTS, (INPUTS[:, 0] > 0).long()
PUBLIC = ap.Public((INPUTS[:10], RECORDS[1][:10]))
BUDGET = ap.Budget(epsilon=5.0, delta=1e-5, unit=ap.Record())
PLAN = ap.plan("abadi", budget=BUDGET, population=60, sample_rate=0.3, steps=12)
SPARE = ap.plan("abadi", budget=BUDGET, population=60, sample_rate=0.3, steps=12, spare=2)


def metric(scores, better="higher"):
    """Scores one after the other; the first is that of the check before the run."""
    left = iter([0.0, *scores])
    return ap.Metric("made", lambda outputs, targets: next(left), better=better)


def run(scores, stop, better="higher", plan=PLAN, **more):
    chosen = {"metric": metric(scores, better), "evaluate_every": 2, "stop": stop} | more
    torch.manual_seed(0)
    return ap.train(nn.Linear(3, 2), cross_entropy, RECORDS, plan, lr=0.1, evaluate=PUBLIC, **chosen)


@pytest.mark.parametrize(
    ("scores", "better", "least", "reached"),
    [
        ([], "higher", 0.0, False),
        ([0.5], "higher", 0.0, False),
        ([0.5, 0.5], "higher", 0.0, False),
        ([0.5, 0.5, 0.5], "higher", 0.0, True),
        ([0.5, 0.5, 0.6, 0.6], "higher", 0.0, False),
        ([0.5, 0.5, 0.6, 0.6, 0.6], "higher", 0.0, True),
        ([0.5, 0.55, 0.58], "higher", 0.1, True),
        ([0.5, 0.55, 0.61], "higher", 0.1, False),  # small steps add up: each is compared with the best
        ([0.5, 0.4, 0.3], "lower", 0.0, False),
        ([0.5, 0.6, 0.7], "lower", 0.0, True),
        ([None, None], "higher", 0.0, True),  # it diverged at once
        ([-5.0, None, None], "lower", 0.0, True),
        ([None, -5.0, None], "higher", 1e9, False),  # the first score is better than none
    ],
)
def test_when_a_run_is_over(scores, better, least, reached):
    assert ap.EarlyStopping(patience=2, min_delta=least).is_reached(scores, better) is reached


def test_a_run_stops_and_costs_the_whole_plan():
    stopped = run([0.6, 0.5, 0.4, 0.9], ap.EarlyStopping(patience=2))
    assert stopped.steps == 6
    assert [entry.score for entry in stopped.history if entry.metric] == [0.6, 0.5, 0.4]
    statement = stopped.statement()
    assert statement["epsilon"] == PLAN.epsilon
    assert statement["epsilon_spent"] == stopped.epsilon() < 0.9 * PLAN.epsilon
    assert (statement["steps_taken"], statement["steps_planned"]) == (6, 12)


def test_errors_are_better_when_lower():
    assert run([0.6, 0.5, 0.4, 0.3, 0.2, 0.1], ap.EarlyStopping(patience=2), "lower").steps == 12
    assert run([0.6, 0.7, 0.8], ap.EarlyStopping(patience=2), "lower").steps == 6


def test_a_stopped_run_stays_stopped_or_goes_on(tmp_path):
    storage, again = ap.Storage(tmp_path), ap.Storage(tmp_path, resume=True)
    assert run([0.6, 0.5, 0.4], ap.EarlyStopping(patience=2), storage=storage).steps == 6
    assert run([], ap.EarlyStopping(patience=2), storage=again).steps == 6
    patient = run(
        [0.9, 0.8, 0.7], ap.EarlyStopping(patience=3), storage=again
    )  # a patience of 3 from 0.6 on, then from 0.9 on
    assert patient.steps == 12
    assert patient.epsilon() == patient.statement()["epsilon"] == PLAN.epsilon


def test_patience_counts_from_what_was_before_the_interruption(tmp_path):
    class Interrupted(Exception):
        pass

    def interrupt(entry):
        if entry.step == 5:
            raise Interrupted

    stop = ap.EarlyStopping(patience=3)
    with pytest.raises(Interrupted):
        run([0.6, 0.5], stop, plan=SPARE, storage=ap.Storage(tmp_path, every=1), log=interrupt)
    resumed = run([0.4, 0.3], stop, plan=SPARE, storage=ap.Storage(tmp_path, every=1, resume=True))
    assert resumed.steps == 8


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"stop": ap.EarlyStopping()}, "no public data whose score could stop the run"),
        ({"stop": 5, "evaluate": PUBLIC}, "stop=5: it is a int"),
    ],
)
def test_what_cannot_stop_a_run_is_refused_before_it(settings, reason, tmp_path):
    with pytest.raises(InvalidArgument, match=reason):
        ap.train(
            nn.Linear(3, 2), cross_entropy, RECORDS, PLAN, lr=0.1, storage=ap.Storage(tmp_path / "run"), **settings
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "value"), [("patience", 0), ("patience", 1.5), ("min_delta", -1e-9), ("min_delta", float("nan"))]
)
def test_settings_that_make_no_sense_are_refused(name, value):
    with pytest.raises(InvalidArgument, match=f"stop.{name}"):
        ap.EarlyStopping(**{name: value})
