"""What a run keeps from one step to the next to be quicker: it must be what would have been found anew."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
from apportion.accounting.ledger import Ledger
from apportion.budget import Budget, Record
from apportion.curator.curator import Curator
from apportion.curator.gradients.model_walk import ModelWalk
from apportion.curator.gradients.reference import ReferenceGradients
from apportion.curator.randomness import Randomness, Stream
from apportion.curator.records import as_records
from apportion.errors import InvalidArgument
from apportion.event import Event
from apportion.releases import ClippedSum, Frame
from apportion.request import Request
from apportion.strategies.clip import Fixed
from apportion.strategies.context import Context
from apportion.training.recipe_state import RecipeState

BUDGET = Budget(epsilon=8.0, delta=1e-3, unit=Record())
DATA = torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)


class Books:
    def charge(self, event):
        pass


def curator_of(model):
    return Curator(as_records(DATA), ReferenceGradients(model, "vmap"), Books(), Randomness.seeded(0))


def test_a_request_that_holds_tensors_is_looked_at_at_every_draw():
    """A frame whose scale has become 0 in one place would show who was drawn: 0·∞ is NaN."""
    model = nn.Linear(3, 2, bias=False)
    frame = Frame({"weight": torch.zeros(2, 3)}, {"weight": torch.ones(2, 3)})
    asked = Request(1.0, 1.0, 4.0, (ClippedSum(1.0, ("weight",), frame=frame),))
    curator = curator_of(model)
    curator.answer(asked, cross_entropy)
    frame.scale["weight"][0, 0] = 0.0
    with pytest.raises(InvalidArgument, match="frame"):
        curator.open(asked)


def test_a_request_is_looked_at_again_when_other_parameters_learn():
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    asked = Request(1.0, 1.0, 4.0, (ClippedSum(1.0, ("weight",)),))
    curator = curator_of(model)
    curator.answer(asked, cross_entropy)
    model.bias.requires_grad_(True)
    with pytest.raises(InvalidArgument, match="releases"):
        curator.open(asked)


@pytest.mark.parametrize("recipe", ["abadi", "du-dynamic", "yu-noise-time", "lin-decay", "andrew"])
def test_every_step_asks_for_its_own_noise_and_threshold(recipe):
    plan = ap.plan(recipe, budget=BUDGET, population=200, sample_rate=0.3, steps=40)
    state = RecipeState(plan, {"weight": torch.zeros(2, 3)}, 0.1)
    for step in range(1, 41):
        context = plan.context(step, {"weight": (2, 3)})
        assert state.request(step) == plan.request(context, plan.clip.init(plan.context(1, {"weight": (2, 3)})))
        assert state.request(step).noise_multiplier == plan.multipliers[step - 1]


def test_a_schedule_asks_the_same_object_again():
    plan = ap.plan("abadi", budget=BUDGET, population=200, sample_rate=0.3, steps=40)
    plan = plan if plan.usable is None else replace(plan, usable=None)
    state = RecipeState(plan, {"weight": torch.zeros(2, 3)}, 0.1)
    assert state.request(1) is state.request(40)


def test_a_threshold_in_a_tensor_is_read_at_every_step():
    """A strategy may keep its threshold in a tensor and write to it."""
    threshold = torch.tensor(1.0)
    context = Context(step=1, steps=2, sample_rate=0.1, parameter_shapes={"weight": (2, 3)})
    before = Fixed(1.0).clipped_sums(context, [threshold])
    threshold.fill_(0.25)
    assert [before[0].threshold, Fixed(1.0).clipped_sums(context, [threshold])[0].threshold] == [1.0, 0.25]


def test_charges_in_memory_are_there_for_whoever_looks():
    ledger = Ledger.create()
    events = [Event(0.1, 1.0), Event(0.1, 2.0), Event(0.1, 2.0)]
    for token, event in enumerate(events, start=1):
        ledger.append(event, 1, token)
    assert list(ledger.events(1)) == events
    ledger.append(Event(0.1, 3.0), 1, 4)
    assert ledger.counts(1)[Event(0.1, 3.0)] == 1
    assert ledger.verify() is None
    assert [row.step for row in ledger.rows() if row.run] == [1, 2, 3, 4]


@pytest.mark.parametrize("looked", [True, False])
def test_no_token_in_memory_is_spent_twice(looked):
    ledger = Ledger.create()
    ledger.append(Event(0.1, 1.0), 1, 1)
    if looked:
        assert ledger.counts()
    with pytest.raises(InvalidArgument):
        ledger.append(Event(0.1, 1.0), 1, 1)


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_stream_cannot_be_doubled(duplicate, used):
    """The same bits twice would be the same noise twice."""
    stream = Stream(bytes(32))
    if used:
        stream.words(1)
    with pytest.raises(TypeError):
        duplicate(stream)


def test_a_parameter_that_was_replaced_is_found():
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    walk = ModelWalk(model)
    before = walk.find()
    assert walk.find() is before
    model[0].bias = nn.Parameter(torch.zeros(2))
    assert walk.find().parameters["0.bias"] is model[0].bias
    model[0].bias = None
    assert list(walk.find().parameters) == ["0.weight"]
    model[1].register_buffer("shift", torch.zeros(1))
    assert len(walk.find().buffers) == 1
