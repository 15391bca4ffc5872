"""The batch rule: all that prices a batch is fixed before its coins are tossed. Every public door is tried.

A controller that looks at its first answer about a batch, and then asks the *same* batch for more, undoes the amplification: q = 0.02,
z = 1 on each of at most 100 batches, and z = ½ on the one whose first answer exceeded 2.7, has an ε(10⁻³) of at least 4.4.
"""

import dataclasses
import math
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
import runs
from apportion.accounting.account import Account
from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.curator.curator import Curator
from apportion.curator.gradients.engine import build_engine
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.errors import InvalidArgument, WrongOrder
from apportion.event import Choice, Event
from apportion.releases import KINDS, ClippedSum, Line, LowestLoss
from apportion.request import Released, Request
from apportion.strategies.roles import AskGradient

LOSS = nn.CrossEntropyLoss()
BUDGET = ap.Budget(epsilon=8.0, delta=1e-5, unit=ap.Record())
SAMPLING = {"budget": BUDGET, "population": 40, "sample_rate": 0.5, "steps": 6}


@pytest.mark.usual_pieces
def test_a_second_look_that_follows_the_first_costs_far_more_than_two_batches():
    """Simulated with the record: δ(4.3) is above 10⁻³, and the price of all these releases, each on a batch of its own, is 1.2."""
    generator, rate, count = np.random.default_rng(0), 0.02, 100_000
    present = generator.random((count, 100)) < rate
    first = generator.standard_normal(present.shape) + present
    stop = np.where((first > 2.7).any(1), (first > 2.7).argmax(1), 99)
    every, rows = np.log1p(rate * np.expm1(first - 0.5)), np.arange(count)
    second = generator.standard_normal(count) + 2 * present[rows, stop]
    looked = first[rows, stop] > 2.7
    joint = np.log1p(rate * np.expm1(first[rows, stop] - 0.5 + looked * (2 * second - 2)))
    loss = np.where(np.arange(100) < stop[:, None], every, 0.0).sum(1) + joint
    assert np.maximum(0.0, -np.expm1(4.3 - loss)).mean() > 1.1e-3
    assert PrivacyLossAccountant().epsilon({Event(rate, 1.0): 100, Event(rate, 0.5): 1}, 1e-3) < 1.25


# --- requests and draws -----------------------------------------------------------------------------------------------------


def test_a_request_has_one_multiplier_and_cannot_be_changed():
    assert not any("noise_multiplier" in [field.name for field in dataclasses.fields(kind)] for kind in KINDS)
    request = Request(0.5, 1.0, 20.0, (ClippedSum(0.3),))
    for name in ("noise_multiplier", "sample_rate", "releases"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(request, name, getattr(request, name))
    with pytest.raises(InvalidArgument):
        Request(0.5, 1.0, 20.0, (request,))
    with pytest.raises(InvalidArgument, match="released twice"):
        Request(0.5, 1.0, 20.0, (ClippedSum(0.3, share=0.5), ClippedSum(0.3, share=0.5)))


def drawn(model, records, books, request=None):
    curator = Curator(as_records(records), build_engine(model, "vmap"), books, Randomness.seeded(0))
    return curator, curator.open(request or Request(0.5, 2.0, 20.0, (ClippedSum(0.3),)))


def test_a_draw_answers_its_own_request_once(model, records, books):
    _, draw = drawn(model, records, books)
    stronger = dataclasses.replace(draw.request, noise_multiplier=0.01)
    with pytest.raises(AttributeError):
        draw.request = stronger
    assert len(list(draw.micro_batches())) > 0
    assert list(draw.micro_batches()) == []
    draw.release()
    with pytest.raises(WrongOrder, match="one answer"):
        draw.release()
    assert books.events == [Event(0.5, 2.0)]


def test_the_same_request_has_a_new_batch_and_is_charged_again(model, records, books, monkeypatch):
    from apportion.curator import curator as module

    batches, right = [], module.poisson_sample
    monkeypatch.setattr(module, "poisson_sample", lambda *a: batches.append(right(*a).tolist()) or right(*a))
    curator, draw = drawn(model, records, books)
    for _ in range(3):
        curator.answer(draw.request, cross_entropy)
    assert len(books.events) == 4 == len(batches)
    assert len({tuple(batch) for batch in batches}) == 4


def test_an_answer_leads_back_to_no_batch():
    assert {field.name for field in dataclasses.fields(Released)} == {"request", "gradient", "statistics", "selected"}


# --- strategies -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def log(monkeypatch):
    """What happens in a run, in its order: d(ecide), c(harge), t(oss), o(bserve)."""
    happened = []
    charge, toss = Account.charge_token, Randomness.next_draw
    monkeypatch.setattr(Account, "charge_token", lambda *a: (charge(*a), happened.append("c"))[0])
    monkeypatch.setattr(Randomness, "next_draw", lambda self: (happened.append("t"), toss(self))[1])
    return happened


@dataclasses.dataclass(frozen=True)
class LoggedClip:
    log: list = dataclasses.field(default_factory=list, compare=False, repr=False)

    def init(self, context):
        return 0.3

    def propose(self, state, context):
        self.log.append("d")
        return (ClippedSum(state),)

    def observe(self, state, released):
        self.log.append("o")
        return 0.9 * state


@dataclasses.dataclass(frozen=True)
class LoggedNoise:
    log: list = dataclasses.field(default_factory=list, compare=False, repr=False)
    multiplier = None

    def init(self, context):
        return 1.5

    def choose(self, state, context):
        self.log.append("d")
        return state

    def observe(self, state, released):
        self.log.append("o")
        return 1.1 * state


@dataclasses.dataclass(frozen=True)
class LoggedUpdate:
    """Asks for a gradient and then which step along it is best, each with its own ε₀."""

    log: list = dataclasses.field(default_factory=list, compare=False, repr=False)
    question: object = None
    draws = 1

    def init(self, parameters, learning_rate):
        return None

    def learning_rate(self, state):
        return 0.1

    def reference(self, events):
        ((event, count),) = events.items()
        return {event: (count + 1) // 2, Event(event.sample_rate, math.inf, (Choice(0.2, True),)): count // 2}

    def ask(self, state, context):
        self.log.append("d")
        if self.question is not None:
            return self.question
        return AskGradient() if state is None else LowestLoss(Line(state, (0.0, 0.1)), 1.0, 0.2)

    def move(self, state, released, parameters):
        self.log.append("o")
        return (dict(released.gradient) if released.request.noised else None), None


def roles(log):
    clip, noise, update = LoggedClip(log), LoggedNoise(log), LoggedUpdate(log)
    return {
        "clip": {"clip": clip},
        "noise": {"clip": clip, "noise": noise},
        "update": {"clip": ap.clip.Fixed(0.3), "update": update},
        "all": {"clip": clip, "noise": noise, "update": update},
    }


def require_the_rule(log, least):
    story = "".join(log)
    story = story[max(story.index("c") - 1, 0) :].lstrip("o")  # before it, answers of zeros were rehearsed
    assert re.fullmatch("(d*cto+)+d*", story), story
    assert story.count("c") >= least


@pytest.mark.parametrize("which", ["clip", "noise", "update", "all"])
def test_strategies_decide_before_the_coins_and_hear_nothing_until_the_answer(model, records, log, which):
    runs.train(model, LOSS, records, **SAMPLING, **roles(log)[which], lr=0.1, optimizer="sgd", seed=0)
    require_the_rule(log, 3)


@pytest.mark.parametrize("which", ["clip", "noise"])
def test_a_loop_of_ones_own_cannot_ask_a_batch_again(model, records, log, which):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = runs.make_private(model, optimizer, records, **SAMPLING, **roles(log)[which], seed=0)
    for inputs, targets in private.batches():
        private.optimizer.zero_grad()
        LOSS(private.model(inputs), targets).backward()
        private.optimizer.step()
        with pytest.raises(WrongOrder):
            private.optimizer.step()
        with pytest.raises(WrongOrder):
            LOSS(private.model(inputs), targets).backward()
    require_the_rule(log, 3)


def test_a_loop_of_ones_own_has_no_update_that_asks(model, records):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InvalidArgument, match=r"apportion\.train"):
        runs.make_private(model, optimizer, records, **SAMPLING, clip=ap.clip.Fixed(0.3), update=LoggedUpdate())


LOWEST = LowestLoss(Line({"0.weight": torch.zeros(3, 4)}, (0.0, 1.0)), 1.0, 0.2)
QUESTIONS = {
    "two questions": (AskGradient(), LOWEST),
    "a request of its own": Request(0.5, math.inf, 20.0, (LOWEST,)),
    "a sum of its own": ClippedSum(0.3),
    "no noise": AskGradient(noise=0.0),
    "noise that is no number": AskGradient(noise=math.nan),
    "infinite noise": AskGradient(noise=math.inf),
    "a threshold of nothing": AskGradient(threshold=0.0),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_update_asks_one_question_of_a_batch(model, records, log, question):
    update = LoggedUpdate(question=QUESTIONS[question])
    with pytest.raises(InvalidArgument):
        runs.train(model, LOSS, records, **SAMPLING, clip=ap.clip.Fixed(0.3), update=update, lr=0.1, optimizer="sgd")
    assert "c" not in log


@pytest.mark.parametrize("relative", [0.0, -1.0, math.nan, math.inf])
def test_a_noise_chooses_one_positive_number(model, records, log, relative):
    class Odd(LoggedNoise):
        def choose(self, state, context):
            return relative

    with pytest.raises(InvalidArgument):
        runs.train(model, LOSS, records, **SAMPLING, clip=ap.clip.Fixed(0.3), noise=Odd(), lr=0.1, optimizer="sgd")
    assert "c" not in log
