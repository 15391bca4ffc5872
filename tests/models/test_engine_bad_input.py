"""Models that an engine built on captured inputs could get wrong: each is handled exactly, or refused with the layer and the fix."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from apportion.curator.clipping import clip_and_sum
from apportion.curator.gradients.engine import build_engine
from apportion.errors import UnsupportedModel, WrongOrder
from apportion.models.check import check
from apportion.models.engine_choice import choose_engine
from apportion.models.probe import probe_loss, probe_model
from apportion.releases import ClippedSum

MODES = ["one-pass", "vmap", "loop"]
EXAMPLE = torch.zeros(4), torch.tensor(0)


class Calls(nn.Module):
    """Two layers, and how they are called."""

    def __init__(self, call, first=None, second=None):
        super().__init__()
        self.first, self.second = first or nn.Linear(4, 4), second or nn.Linear(4, 3)
        self._call = call

    def forward(self, x):
        return self._call(self.first, self.second, x)


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def records():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(5, 4, generator=generator), torch.tensor([0, 1, 1, 0, 1])


def answer(engine, loss=functional.cross_entropy, threshold=0.5):
    inputs, targets = records()
    engine.record_losses(loss, engine.forward(inputs.clone()), targets).sum().backward()
    return clip_and_sum(engine.gradients(), [ClippedSum(threshold)])


def expected(model, loss=functional.cross_entropy, threshold=0.5):
    """Ordinary backward passes of single records, clipped by hand."""
    totals = {name: torch.zeros_like(p).double() for name, p in model.named_parameters()}
    for x, y in zip(*records(), strict=True):
        model.zero_grad(set_to_none=True)
        loss(model(x[None].clone()), y[None]).backward()
        norm = torch.stack([p.grad.double().norm() for p in model.parameters()]).norm()
        for name, p in model.named_parameters():
            totals[name] += p.grad.double() * min(1.0, threshold / max(float(norm), 1e-30))
    model.zero_grad(set_to_none=True)
    return totals


def same(found, wanted):
    return found.keys() == wanted.keys() and all(
        torch.allclose(found[name].double(), value, rtol=1e-4, atol=1e-5) for name, value in wanted.items()
    )


# Values that are overwritten. ------------------------------------------------------------------------------------------------


def added_to_the_input_of_a_layer(first, second, x):
    hidden = first(x)
    output = second(hidden)
    hidden += 1  # autograd does not need it: the weights of `second` do
    return output


def residual(first, second, x):
    hidden = torch.tanh(first(x)) * 1
    hidden += x
    return second(hidden)


IN_PLACE = {
    "activation": lambda first, second, x: second(functional.relu_(first(x))),
    "activation behind the last layer": lambda first, second, x: functional.relu_(second(first(x))),
    "sum": residual,
    "dropout": lambda first, second, x: second(functional.dropout(first(x), 0.0, inplace=True)),
    "part of a tensor": lambda first, second, x: second(first(x).index_fill_(1, torch.tensor([1]), 0.5)),
}


@pytest.mark.parametrize("case", IN_PLACE)
def test_what_is_overwritten_before_its_use_is_exact(case):
    torch.manual_seed(0)
    model = Calls(IN_PLACE[case])
    probe_model(model, EXAMPLE[0])
    mode = choose_engine(model, functional.cross_entropy, *EXAMPLE).mode
    assert mode.startswith("one-pass")
    assert same(answer(build_engine(model, mode)), expected(model))


def test_what_is_overwritten_after_its_use_is_refused():
    """As an ordinary backward pass refuses it; an engine without tracked weights has to see it by itself, and names the layer."""
    model = Calls(added_to_the_input_of_a_layer)
    with pytest.raises(UnsupportedModel, match="modified by an inplace operation"):
        choose_engine(model, functional.cross_entropy, *EXAMPLE)
    with pytest.raises(UnsupportedModel, match=r"second is overwritten in place.*x = x \+ y"):
        answer(build_engine(model, "one-pass"))


# Batches that are taken apart. -----------------------------------------------------------------------------------------------

RESHAPED = {
    "positions in the batch": lambda first, second, x: second(first(x).reshape(-1, 2, 2).reshape(-1, 4)),
    "records behind": lambda first, second, x: second(first(x).T.contiguous().T),
    "halves as records": lambda first, second, x: (
        second(first(x).reshape(-1, 2).repeat(1, 2)).reshape(x.shape[0], 2, -1).sum(1)
    ),
}


@pytest.mark.parametrize("case", RESHAPED)
def test_a_batch_dimension_that_comes_back_is_exact(case):
    torch.manual_seed(0)
    model = Calls(RESHAPED[case])
    probe_model(model, EXAMPLE[0])
    mode = choose_engine(model, functional.cross_entropy, *EXAMPLE).mode
    assert mode == ("vmap" if case == "halves as records" else "one-pass")
    assert same(answer(build_engine(model, mode)), expected(model))


def test_a_layer_that_does_not_see_the_batch_is_named():
    torch.manual_seed(0)
    with pytest.raises(UnsupportedModel, match="second.weight, second.bias got 10 rows for 5 records"):
        answer(build_engine(Calls(RESHAPED["halves as records"]), "one-pass"))


@pytest.mark.parametrize("call", [lambda a, b, x: b(a(x)).sum(), lambda a, b, x: b(a(x)).flatten()])
def test_a_batch_dimension_that_is_gone_is_refused(call):
    with pytest.raises(UnsupportedModel, match="first dimension is not the batch"):
        probe_model(Calls(call), EXAMPLE[0])


# Losses of a whole batch. ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_a_loss_reduced_over_the_batch_is_that_of_single_records(reduction, mode):
    model = plain()
    loss = nn.CrossEntropyLoss(reduction=reduction)
    probe_loss(model, loss, *EXAMPLE)
    assert same(answer(build_engine(model, mode), loss), expected(model))


# Hooks. ----------------------------------------------------------------------------------------------------------------------


def shrunk(module, inputs, gradients):
    """Mixes records, but only where gradients are large: no synthetic record shows it."""
    return (inputs[0] / inputs[0].norm().clamp(min=1e3),)


HOOKS = {
    "backward": (lambda model: model[1].register_full_backward_hook(shrunk), "1", "Remove it"),
    "before backward": (
        lambda model: model[1].register_full_backward_pre_hook(lambda module, gradients: gradients),
        "1",
        "Remove it",
    ),
    "parameter": (lambda model: model[2].weight.register_hook(lambda g: 0 * g), "2", "would not be called"),
    "accumulated": (
        lambda model: model[0].bias.register_post_accumulate_grad_hook(lambda p: None),
        "0",
        "would not be called",
    ),
}


@pytest.mark.parametrize("case", HOOKS)
def test_hooks_that_see_or_change_gradients_are_refused_by_name(case):
    model = plain()
    assert check(model).ok
    add, layer, text = HOOKS[case]
    handle = add(model)
    with pytest.raises(UnsupportedModel, match=rf"{layer} \(\w+\): .*{text}"):
        check(model).require()
    handle.remove()
    check(model).require()


def test_hooks_of_the_forward_pass_belong_to_the_model():
    model = plain()
    model[0].register_forward_hook(lambda module, inputs, output: output.relu() * 2)
    model[2].register_forward_pre_hook(lambda module, inputs: (inputs[0] * 3,))
    check(model).require()
    assert choose_engine(model, functional.cross_entropy, *EXAMPLE).mode == "one-pass"
    assert same(answer(build_engine(model, "one-pass")), expected(model))


def hooked(change):
    def call(first, second, x):
        hidden = first(x)
        if hidden.requires_grad:
            hidden.register_hook(change)
        return second(hidden)

    return Calls(call)


def test_a_hook_on_a_tensor_that_keeps_records_apart_is_exact():
    torch.manual_seed(0)
    model = hooked(lambda gradient: 2 * gradient.clamp(-0.1, 0.1))
    mode = choose_engine(model, functional.cross_entropy, *EXAMPLE).mode
    assert mode == "one-pass"
    assert same(answer(build_engine(model, mode)), expected(model))


def test_a_hook_on_a_tensor_that_mixes_records_gets_every_record_alone():
    torch.manual_seed(0)
    model = hooked(lambda gradient: gradient / gradient.norm())
    mode = choose_engine(model, functional.cross_entropy, *EXAMPLE).mode
    assert mode == "loop"
    assert same(answer(build_engine(model, mode)), expected(model))


# A model that changes while it is trained. -----------------------------------------------------------------------------------


def unfrozen(model):
    model[0].bias.requires_grad_(True)


REBUILT = {
    "frozen": (lambda model: model[0].weight.requires_grad_(False), "parameter '0.weight' was frozen"),
    "unfrozen": (unfrozen, "parameter '0.bias' was made to learn"),
    "parameter added": (
        lambda model: model[0].register_parameter("scale", nn.Parameter(torch.ones(3))),
        "parameter '0.scale' was made to learn",
    ),
    "parameter removed": (lambda model: model[2].register_parameter("bias", None), "parameter '2.bias' was removed"),
    "module added": (lambda model: model.append(nn.Linear(2, 2)), "module '3' was added"),
    "module replaced": (lambda model: model.__setitem__(1, nn.ReLU()), "module '1' was replaced"),
    "module removed": (lambda model: model.pop(2), "module '2' was removed"),
    "register replaced": (
        lambda model: vars(model[2]).update(_parameters={"weight": model[2].weight}),
        "parameter '2.bias' was removed",
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", REBUILT)
def test_a_model_that_is_rebuilt_in_a_run_is_refused(case, mode):
    model = plain()
    if case == "unfrozen":
        model[0].bias.requires_grad_(False)
    engine = build_engine(model, mode)
    answer(engine)
    change, text = REBUILT[case]
    change(model)
    with pytest.raises(WrongOrder, match=f"{text} after the private run had begun.*before the private run"):
        answer(engine)


def other_values(model):
    return {name: value + 0.3 for name, value in copy.deepcopy(model.state_dict()).items()}


def in_place(model):
    with torch.no_grad():
        model[0].weight.add_(0.3)


REWRITTEN = {
    "in place": in_place,
    "loaded": lambda model: model.load_state_dict(other_values(model)),
    "loaded as they are": lambda model: model.load_state_dict(other_values(model), assign=True),
    "new parameter": lambda model: setattr(model[0], "weight", nn.Parameter(model[0].weight.detach() + 0.3)),
    "new data": lambda model: setattr(model[0].weight, "data", model[0].weight.detach() + 0.3),
    "behind autograd": lambda model: model[0].weight.data.add_(0.3),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", REWRITTEN)
def test_new_values_are_followed(case, mode):
    model = plain()
    engine = build_engine(model, mode)
    before = answer(engine)
    REWRITTEN[case](model)
    engine.sync_weights()
    found = answer(engine)
    assert same(found, expected(model))
    assert not same(found, {name: value.double() for name, value in before.items()})


def test_a_buffer_that_a_forward_pass_replaced_does_not_stay():
    """Also if it was written to as often as the one that it replaced."""

    class Shifting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)
            self.register_buffer("shift", torch.zeros(4))

        def forward(self, x):
            shifted = x + self.shift
            self.shift = torch.ones(4).mul_(5)
            return self.layer(shifted)

    torch.manual_seed(0)
    engine = build_engine(Shifting(), "one-pass")
    first = answer(engine)
    assert same(answer(engine), {name: value.double() for name, value in first.items()})


# Embeddings with options. ----------------------------------------------------------------------------------------------------


def test_gradients_scaled_by_frequency_are_those_of_single_records():
    """The frequency in the batch would mix records; in a record alone it does not."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(3, 2, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(8, 2))
    mode = choose_engine(model, functional.cross_entropy, torch.zeros(4, dtype=torch.long), torch.tensor(0)).mode
    tokens, targets = torch.tensor([[0, 0, 1, 2], [2, 2, 2, 1]]), torch.tensor([0, 1])
    engine = build_engine(model, mode)
    engine.record_losses(functional.cross_entropy, engine.forward(tokens), targets).sum().backward()
    found = clip_and_sum(engine.gradients(), [ClippedSum(1e6)])["0.weight"]
    total = torch.zeros(3, 2)
    for x, y in zip(tokens, targets, strict=True):
        model.zero_grad()
        functional.cross_entropy(model(x[None]), y[None]).backward()
        total += model[0].weight.grad
    assert torch.allclose(found.float(), total, atol=1e-5)
