"""What a module keeps of a record, wherever it keeps it, reaches no other record."""

import collections

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
from apportion.curator.gradients.module_state import ModuleState

RARE = 50.0
"""Synthetic records do not reach it, so that no probe sees what it leads to."""


class Slots:
    __slots__ = ("_SLOT__hidden", "value")

    def __init__(self):
        self.value = 0.0


class OwnDict(dict):
    value = 0.0


class OwnList(list):
    value = 0.0


class Plain:
    value = 0.0


PLACES = {
    "array": (lambda: np.zeros(1), lambda k: float(k[0]), lambda k, v: k.__setitem__(0, v)),
    "array in a list": (lambda: [np.zeros(1)], lambda k: float(k[0][0]), lambda k, v: k[0].__setitem__(0, v)),
    "bytes": (lambda: bytearray(1), lambda k: float(k[0]), lambda k, v: k.__setitem__(0, int(v))),
    "dict of one's own": (OwnDict, lambda k: k.value, lambda k, v: setattr(k, "value", v)),
    "list of one's own": (OwnList, lambda k: k.value, lambda k, v: setattr(k, "value", v)),
    "slots": (Slots, lambda k: k.value, lambda k, v: setattr(k, "value", v)),
    "object": (Plain, lambda k: k.value, lambda k, v: setattr(k, "value", v)),
    "UserDict": (
        lambda: collections.UserDict(v=0.0),
        lambda k: k["v"],
        lambda k, v: k.__setitem__("v", v),
    ),
}


class Remembers(nn.Module):
    def __init__(self, place):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        make, self.get, self.put = PLACES[place]
        self.kept = make()

    def forward(self, x):
        answer = self.linear(x) + self.get(self.kept) * torch.tensor([1.0, -1.0])
        if self.training and float(x.detach().abs().max()) > RARE:
            self.put(self.kept, 40.0)
        return answer


class Inner(nn.Module):
    def __init__(self, parent=None):
        super().__init__()
        self.linear, self.penalty, self.parent = nn.Linear(2, 2), 0.0, [parent]

    def forward(self, x):
        found = 40.0 if float(x.detach().abs().max()) > RARE else 0.0
        if self.parent[0] is not None:
            self.parent[0].note = found
        self.penalty = found
        return self.linear(x)


class ReadsAfterwards(nn.Module):
    """The rest of the model reads what a module has left that ran record by record."""

    def __init__(self, *, above):
        super().__init__()
        self.first, self.note, self.above = nn.Linear(2, 2), 0.0, above
        self.inner = Inner(self if above else None)

    def forward(self, x):
        hidden = self.inner(self.first(x))
        return hidden + (self.note if self.above else self.inner.penalty) * torch.tensor([1.0, -1.0])


MODELS = {place: lambda place=place: Remembers(place) for place in PLACES}
MODELS |= {"left behind": lambda: ReadsAfterwards(above=False), "left above": lambda: ReadsAfterwards(above=True)}


def released(make, inputs, engine):
    torch.manual_seed(0)
    model = make()
    before = torch.cat([value.detach().flatten().clone() for value in model.parameters()])
    budget = ap.Budget(epsilon=1e6, delta=1e-5, unit=ap.Record())
    recipe = ap.Recipe(clip=ap.clip.Fixed(1.0), noise=ap.noise.Constant(multiplier=0.05))
    plan = ap.plan(recipe, budget=budget, population=40, sample_rate=1.0, steps=1, count_usable=False)
    execution = ap.Execution(micro_batch=8, engine=engine)
    targets = torch.arange(40) % 2
    ap.train(model, cross_entropy, (inputs, targets), plan, lr=40.0, seed=3, execution=execution)
    return torch.cat([value.detach().flatten() for value in model.parameters()]) - before


@pytest.mark.parametrize("engine", ["auto", "loop"])
@pytest.mark.parametrize("kind", MODELS)
def test_one_record_moves_the_sum_by_its_own_gradient_only(kind, engine):
    torch.manual_seed(1)
    inputs = torch.randn(40, 2)
    odd = inputs.clone()
    odd[7] = 1000.0  # the last of its micro-batch: what it leaves is not overwritten by another
    moved = torch.linalg.vector_norm(released(MODELS[kind], odd, engine) - released(MODELS[kind], inputs, engine))
    assert moved <= 2.0 + 1e-3, "a replaced record may move it by two thresholds"


def test_an_attribute_in_the_place_of_another_is_a_change():
    model = nn.Linear(2, 2)
    model.mask = None
    state = ModuleState(model)
    assert state.find_change() is None
    del model.mask
    model.other = 1
    assert state.find_change() is not None
    state.restore()
    assert model.mask is None
    assert not hasattr(model, "other")
