"""What a run finds once of a model is found again when the model was rebuilt, in whatever way."""

import pytest
import torch
from torch import nn

from apportion.curator.gradients.model_walk import ModelWalk, devices_of, trained_parameters


def model():
    made = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.BatchNorm1d(4), nn.Dropout()), nn.Linear(4, 2))
    made[0].register_parameter("absent", None)
    return made


def as_torch_finds(one):
    return dict(one.named_modules()), dict(one.named_parameters()), list(one.buffers())


def same(found, expected):
    modules, parameters, buffers = expected
    return (
        list(found.modules) == list(modules)
        and all(found.modules[path] is module for path, module in modules.items())
        and list(found.parameters) == list(parameters)
        and all(found.parameters[name] is parameter for name, parameter in parameters.items())
        and len(found.buffers) == len(buffers)
        and all(own is other for own, other in zip(found.buffers, buffers, strict=True))
    )


def renamed(one):
    one[0].register_parameter("other", one[0]._parameters.pop("weight"))


def swapped(one):
    one[0]._parameters = dict(reversed(one[0]._parameters.items()))


def made_a_buffer(one):
    one[2]._buffers["bias"] = one[2]._parameters.pop("bias")  # all names and parts stay in their order


REBUILT = {
    "child added": lambda one: one.append(nn.ReLU()),
    "child removed": lambda one: one[1].pop(1),
    "child replaced": lambda one: one[1].__setitem__(1, nn.Dropout()),
    "parameter replaced": lambda one: setattr(one[2], "weight", nn.Parameter(one[2].weight.detach().clone())),
    "parameter removed": lambda one: one[2].register_parameter("bias", None),
    "parameter in an empty place": lambda one: setattr(one[0], "absent", nn.Parameter(torch.ones(1))),
    "parameter renamed": renamed,
    "parameters tied": lambda one: setattr(one[2], "bias", one[0].bias),
    "buffer replaced": lambda one: setattr(one[1][0], "running_mean", torch.zeros(4)),
    "another register": swapped,
    "parameter made a buffer": made_a_buffer,
}


@pytest.mark.parametrize("case", REBUILT)
def test_a_rebuilt_model_is_walked_through_again(case):
    one = model()
    walk = ModelWalk(one)
    before = walk.find()
    assert same(before, as_torch_finds(one))
    REBUILT[case](one)
    assert not same(before, as_torch_finds(one))  # otherwise this would show nothing
    assert same(walk.find(), as_torch_finds(one))


def test_the_same_parts_are_found_without_a_walk():
    one = model()
    walk = ModelWalk(one)
    before = walk.find()
    one.eval()
    with torch.no_grad():
        one[0].weight.add_(1.0)
    one[0].weight.data = torch.zeros(4, 3)
    one[0].note = "not a part"
    assert walk.find() is before


def test_what_needs_no_walk_is_read_anew():
    one = model()
    walk = ModelWalk(one)
    assert list(trained_parameters(walk)) == list(trained_parameters(one))
    assert all(walk.training_flags())
    one[2].bias.requires_grad_(False)
    one[1].eval()
    assert "2.bias" not in trained_parameters(walk)
    assert list(trained_parameters(walk)) == list(trained_parameters(one))
    assert walk.training_flags() == tuple(module.training for module in one.modules())
    assert devices_of(walk.find()) == {torch.device("cpu")}


class ShowsLess(nn.Linear):
    """Says something else of its parts than what it keeps."""

    shown = ("weight", "bias")

    def named_parameters(self, *arguments, **options):
        return ((name, one) for name, one in super().named_parameters(*arguments, **options) if name in self.shown)


def test_a_model_that_says_itself_what_its_parts_are_is_asked_every_time():
    one = ShowsLess(3, 2)
    walk = ModelWalk(one)
    one.shown = ("weight",)
    assert list(walk.find().parameters) == ["weight"]
