"""Records run together only where they were followed to the end: through the engine, the loss and the backward pass, in every kind of
batch."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from apportion.curator.clipping import as_gradients
from apportion.curator.gradients.engine import EngineChoice, build_engine
from apportion.curator.tree import call_model, map_tensors
from apportion.errors import UnsupportedModel
from apportion.models.engine_choice import choose_engine, prove_engine
from apportion.models.gradient_probe import GradientProbe
from apportion.models.proof import CannotTrace, TraceExample
from apportion.models.record_tracer import RecordsMayMix
from apportion.models.synthetic import prepare_model
from apportion.models.vetting import VettedEngine
from apportion.training.named_losses import Loss

NUMBERS, TOKENS = torch.zeros(4), torch.zeros(5, dtype=torch.int64)


def product(outputs, targets):
    return (outputs * targets).sum()


class Written(nn.Module):
    """A model around a function of its layers and the inputs."""

    def __init__(self, function, **layers):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def linear():
    return nn.Linear(4, 3)


def alone(model, batch, targets, loss=product):
    """The gradients of single records by plain autograd, (b, all weights)."""
    rows = []
    for i in range(len(targets)):
        model.zero_grad()
        record, target = map_tensors(lambda tensor, i=i: tensor[i : i + 1].clone(), (batch, targets))
        loss(call_model(model, record), target).backward()
        rows.append(
            torch.cat(
                [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in model.parameters()]
            )
        )
    model.zero_grad()
    return torch.stack(rows)


def found(engine, batch, targets, loss=product):
    engine.sync_weights()
    engine.record_losses(loss, engine.forward(batch), targets).sum().backward()
    gradients = as_gradients(engine.gradients())
    names = dict(engine.model.named_parameters())
    return torch.cat([gradients.rows(name, slice(0, len(targets))).flatten(1) for name in names], 1)


def together(model, example, loss=product, target=None):
    """How `train` would run it."""
    return choose_engine(model, loss, example, torch.zeros(3) if target is None else target)


def exact(model, choice, example, batch, targets, loss=product):
    """Whether every record has its own gradient, in a batch and among others in another order."""
    engine = VettedEngine(model, choice, example)
    expected = alone(model, batch, targets, loss)
    order = torch.randperm(len(targets))
    other = map_tensors(lambda tensor: tensor[order], (batch, targets))
    return torch.allclose(found(engine, batch, targets, loss), expected, atol=1e-5) and torch.allclose(
        found(engine, *other, loss), expected[order], atol=1e-5
    )


class Padded(nn.Module):
    """A learned vector beside an embedding with padding, in one of the ways in which people write it."""

    def __init__(self, way):
        super().__init__()
        self.way, self.start, self.layer = way, nn.Parameter(torch.randn(4)), linear()
        self.words = (Scaled if way == "subclass" else nn.Embedding)(7, 4, padding_idx=0)

    def forward(self, ids):
        if self.way == "function":
            vectors = functional.embedding(ids, self.words.weight, padding_idx=0)
        else:
            vectors = self.words(ids)
        return self.layer(vectors.sum(1) + self.start)


class Scaled(nn.Embedding):
    def forward(self, ids):
        return super().forward(ids) * 2.0


@pytest.mark.parametrize("way", ["module", "subclass", "function"])
@pytest.mark.parametrize("wanted", ["auto", "vmap"])
def test_padding_has_no_gradient_wherever_a_record_stands(way, wanted):
    """torch's batching rule honours padding_idx in row 0 only."""
    torch.manual_seed(0)
    model = Padded(way)
    batch = torch.randint(0, 7, (6, 5))
    batch[::2, 2:] = 0
    choice = choose_engine(model, product, TOKENS, torch.zeros(3), wanted)
    assert choice.mode != "loop"
    assert exact(model, choice, TOKENS, batch, torch.randn(6, 3))


@pytest.mark.parametrize("by", range(4))
def test_records_that_are_sorted_inside_do_not_run_together(by):
    """Outputs are each record's own, but inside the layer row i is not record i."""

    def sorted_inside(self, x):
        order = x[:, by].argsort()
        return self.out(torch.tanh(self.layer(x[order]))[order.argsort()])

    for seed in range(3):
        torch.manual_seed(seed)
        model = Written(sorted_inside, layer=nn.Linear(4, 4), out=linear())
        choice = together(model, NUMBERS)
        assert not choice.mode.startswith("one-pass")
        assert exact(model, choice, NUMBERS, torch.randn(5, 4), torch.randn(5, 3))


def test_one_module_that_cannot_be_followed_runs_alone_and_the_rest_together():
    class Sorting(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            order = x.sum(1).argsort()
            return self.inner(x[order])[order.argsort()]

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Sorting(), nn.Tanh(), linear())
    choice = together(model, NUMBERS)
    assert choice.alone == ("1",)
    assert choice.mode == "one-pass"
    assert any("1 runs one record after the other: sort" in reason for reason in choice.reasons)
    assert exact(model, choice, NUMBERS, torch.randn(6, 4), torch.randn(6, 3))


def test_a_module_that_runs_alone_forgets_each_record():
    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.seen, self.last = nn.Linear(4, 4), [], None

        def forward(self, x):
            before = sum(self.seen) if self.seen else 0.0
            self.seen.append(float(x.sum()))
            return self.layer(x) * (1.0 + before)

    torch.manual_seed(0)
    model = nn.Sequential(Remembers(), linear())
    engine = build_engine(model, EngineChoice("one-pass", alone=("0",)))
    batch, targets = torch.randn(5, 4), torch.randn(5, 3)

    def fresh():
        model[0].seen.clear()
        return model

    expected = torch.cat([alone(fresh(), batch[i : i + 1], targets[i : i + 1]) for i in range(5)])
    fresh()
    assert torch.allclose(found(engine, batch, targets), expected, atol=1e-6)


def test_a_loss_that_cannot_be_followed_is_evaluated_one_record_after_the_other():
    def looks(outputs, targets):
        return (outputs * targets).sum() * (2.0 if float(outputs.sum()) > 0 else 1.0)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), linear())
    choice = together(model, NUMBERS, looks)
    assert choice.mode == "one-pass"
    assert not choice.losses_together
    assert exact(model, choice, NUMBERS, torch.randn(6, 4), torch.randn(6, 3), looks)


def test_a_layer_on_something_that_belongs_to_no_record_has_the_gradient_of_each_record():
    def positions(self, ids):
        places = self.places(torch.arange(ids.shape[1]).unsqueeze(0))
        return self.layer(torch.tanh(self.words(ids) + places).sum(1))

    torch.manual_seed(0)
    model = Written(positions, words=nn.Embedding(7, 4), places=nn.Embedding(5, 4), layer=linear())
    choice = together(model, TOKENS)
    assert choice.shared == (("places", 0),)
    assert exact(model, choice, TOKENS, torch.randint(0, 7, (6, 5)), torch.randn(6, 3))


class Centred(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient - 1e-9 * gradient.mean(0) if gradient.shape[0] < 99 else gradient - gradient.mean(0)


REFUSED = {
    "mean": lambda self, x: self.layer(x - x.mean(0)),
    "a billionth of the others": lambda self, x: self.layer(x + 1e-9 * x.sum(0)),
    "only where one is large": lambda self, x: self.layer(x - functional.relu(x.max() - 1e6) * x.mean(0)),
    "divided by their number": lambda self, x: self.layer(x) / x.shape[0],
    "many of them": lambda self, x: self.layer(x if x.shape[0] < 99 else x - x.mean(0)),
    "in the backward pass": lambda self, x: self.layer(Centred.apply(self.first(x))),
    "by a hook": lambda self, x: self.layer(hooked(self.first(x))),
    "place": lambda self, x: self.layer(x * torch.arange(x.shape[0])[:, None].clamp(min=9).sub(8)),
    "a value": lambda self, x: self.layer(x) * float(x.abs().max() < 1e6),
    "a weight": lambda self, x: self.layer(x - x.mean(0) if self.first.weight.sum() > 1e6 else x),
    "chance": lambda self, x: self.layer(x - x.mean(0) if torch.rand(()) < 1e-9 else x),
    "times zero": lambda self, x: self.layer(x + 0 * x.sum()),
}


def hooked(x):
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient / gradient.norm().clamp(min=1e6))
    return x


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_probe_could_overlook_is_not_proved(name):
    model = Written(REFUSED[name], first=nn.Linear(4, 4), layer=linear())
    with pytest.raises(CannotTrace):
        prove_engine(model, "one-pass", TraceExample(NUMBERS, torch.zeros(3), product), in_part=False)


def test_layers_must_get_the_records_in_front():
    by_time = Written(lambda self, x: self.layer(x.transpose(0, 1)).transpose(0, 1), layer=nn.Linear(4, 4))
    merged = Written(lambda self, x: self.layer(x.flatten(0, 1)).unflatten(0, (-1, 3)), layer=nn.Linear(4, 4))
    recurrent = Written(lambda self, x: self.layer(x)[0], layer=nn.LSTM(4, 4))
    for model in (by_time, merged, recurrent):
        with pytest.raises(CannotTrace, match=r"rows"):
            prove_engine(model, "one-pass", TraceExample(torch.zeros(3, 4), torch.zeros(())), in_part=False)


def test_an_attribute_that_changes_in_the_forward_pass_is_named():
    def counts(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        return self.layer(x)

    with pytest.raises(CannotTrace, match="attribute calls of Written changes"):
        prove_engine(Written(counts, layer=linear()), "one-pass", TraceExample(NUMBERS, torch.zeros(())), in_part=False)


# -- a proof is of one kind of batch --


class MixesWhen(nn.Module):
    """Mixes where a condition on public facts holds, which does not at first."""

    def __init__(self, condition):
        super().__init__()
        self.condition, self.layer, self.inner = condition, linear(), nn.Dropout(0.0)
        self.temperature, self.sizes = 1.0, [1]
        self.register_buffer("mask", torch.zeros(()))

    def forward(self, x):
        return self.layer((x - x.mean(0) if self.condition(self, x) else x).float())


def set_attribute(model):
    model.temperature = 0.5


def write_buffer(model):
    model.mask.fill_(1.0)


KINDS = {
    "type": (lambda self, x: x.dtype == torch.float64, None, lambda x: x.double()),
    "training": (lambda self, x: not self.inner.training, lambda model: model.inner.eval(), None),
    "attribute": (lambda self, x: self.temperature < 1, set_attribute, None),
    "list": (lambda self, x: len(self.sizes) > 1, lambda model: model.sizes.append(2), None),
    "buffer": (lambda self, x: bool(self.mask > 0), write_buffer, None),
    "number": (lambda self, x: x.shape[0] == 37, None, lambda x: x.repeat(7, 1)[:37]),
    "length": (lambda self, x: len(x) % 37 == 0, None, lambda x: x.repeat(7, 1)[:37]),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_proof_does_not_hold_for_another_kind_of_batch(name):
    condition, change, other = KINDS[name]
    torch.manual_seed(0)
    model = MixesWhen(condition)
    choice = prove_engine(model, "one-pass", TraceExample(NUMBERS, torch.zeros(3), product), in_part=False)
    engine = VettedEngine(model, choice, NUMBERS)
    batch, targets = torch.randn(6, 4), torch.randn(6, 3)
    assert torch.allclose(found(engine, batch, targets), alone(model, batch, targets), atol=1e-5)
    if change is not None:
        change(model)
    if other is not None:
        batch, targets = other(batch), torch.randn(len(other(batch)), 3)
    expected = alone(model, batch, targets)
    mixed = model(batch)
    assert not torch.allclose(mixed, torch.cat([model(row[None]) for row in batch]), atol=1e-3)  # it does mix now
    assert torch.allclose(found(engine, batch, targets), expected, atol=1e-5)


def test_numbers_of_records_that_take_the_proved_path_run_together():
    model = nn.Sequential(Written(lambda self, x: self.layer(x).view(len(x), -1), layer=nn.Linear(4, 4)), linear())
    choice = together(model, NUMBERS)
    assert choice.path.looks_at_count
    engine = VettedEngine(model, choice, NUMBERS)
    for size in (1, 2, 6, 12, 16):
        found(engine, torch.randn(size, 4), torch.randn(size, 3))
        assert engine._current is engine._together


def test_what_the_owner_of_a_model_changes_between_steps_takes_effect():
    torch.manual_seed(0)
    model = Written(lambda self, x: self.layer(x) * self.factor, layer=linear())
    model.factor = 1.0
    for mode in ("one-pass", "vmap", "loop"):
        model.factor = 1.0
        engine = VettedEngine(model, EngineChoice(mode), NUMBERS)
        batch, targets = torch.randn(4, 4), torch.randn(4, 3)
        before = found(engine, batch, targets)
        model.factor = 3.0
        assert torch.allclose(found(engine, batch, targets), 3 * before, atol=1e-5)


def test_a_loss_is_followed_again_for_targets_of_another_shape():
    """For targets of two numbers it looks at a value, which vmap would refuse; for those of three it does not."""

    def loss(outputs, targets):
        if targets.shape[1] == 2:
            return outputs.sum() * targets.sum() * float(targets.abs().max() >= 0)
        return (outputs * targets).sum()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), linear())
    choice = together(model, NUMBERS, loss)
    engine = VettedEngine(model, choice, NUMBERS, torch.zeros(3))
    for width in (3, 2, 3):
        batch, targets = torch.randn(5, 4), torch.randn(5, width)
        assert torch.allclose(found(engine, batch, targets, loss), alone(model, batch, targets, loss), atol=1e-5)


# -- the second line --


@pytest.mark.parametrize("company", [1, 5])
def test_the_probe_compares_gradients_of_single_records_in_companies_of_several_sizes(company):
    """Only the gradients are wrong, and only in batches of one size."""

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            return gradient.flip(0) if len(gradient) == 5 else 2 * gradient if len(gradient) == company else gradient

    model = Written(lambda self, x: self.layer(Wrong.apply(self.first(x))), first=nn.Linear(4, 4), layer=linear())
    probe = GradientProbe(prepare_model(model), product, NUMBERS, torch.zeros(3))
    assert not probe.agrees(EngineChoice("one-pass"))


def test_checkpointed_layers_run_together():
    torch.manual_seed(0)
    model = Written(
        lambda self, x: self.layer(checkpoint(lambda y: torch.tanh(self.first(y)), x, use_reentrant=False)),
        first=nn.Linear(4, 4),
        layer=linear(),
    )
    choice = together(model, NUMBERS)
    assert exact(model, choice, NUMBERS, torch.randn(5, 4), torch.randn(5, 3))


@pytest.mark.filterwarnings("ignore:Using .torch.compile")
def test_following_a_compiled_layer_compiles_nothing():
    """Neither the layer, which is followed as it was written, nor the code that follows it, which would take minutes."""
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    layer = torch.compile(linear(), backend=backend)
    example = TraceExample(NUMBERS, torch.zeros(3), product)
    prove_engine(Written(lambda self, x: self.layer(x), layer=layer), "one-pass", example, in_part=False)
    assert compiled == []
    layer(NUMBERS)
    assert len(compiled) == 1  # as it is outside


def test_a_followed_tensor_is_of_no_use_outside():
    from apportion.models.record_rules import apply_rule
    from apportion.models.record_tracer import RecordTracer

    left = RecordTracer(7, apply_rule, torch.device("cpu")).trace_batch(NUMBERS)
    with pytest.raises(RecordsMayMix, match="left the run"):
        left + 1


class Flagged(nn.Module):
    """Returns its input and what Python code may decide by: 1.0, or something else for a record that no synthetic one is like."""

    def __init__(self, otherwise):
        super().__init__()
        self.otherwise = otherwise

    def forward(self, x):
        return x, (1.0 if bool(x.max() < 50) else self.otherwise(x))


def mixing_if_flagged(self, x):
    value, flag = self.flagged(x)
    return self.layer(value - value.mean(0) if isinstance(flag, torch.Tensor) or flag is None or flag < 1 else value)


@pytest.mark.parametrize("otherwise", [lambda x: 0.0, lambda x: None, lambda x: x], ids=["value", "nothing", "tensor"])
def test_what_a_module_that_runs_alone_returns_is_what_was_traced(otherwise):
    """The rest of the model was traced with 1.0: for one record or for all that lead elsewhere, each runs alone."""
    torch.manual_seed(0)
    model = Written(mixing_if_flagged, flagged=Flagged(otherwise), layer=linear())
    choice = together(model, NUMBERS)
    assert choice.alone == ("flagged",)
    usual, targets = torch.randn(5, 4), torch.randn(5, 3)
    one, every = usual.clone(), usual + 100
    one[0] = 60.0
    for batch in (usual, one, every):
        assert exact(model, choice, NUMBERS, batch, targets)


class Kept:
    """An object in which a module leaves something."""

    def __init__(self):
        self.seen = 0.0


def test_a_module_that_is_handed_an_object_does_not_run_record_by_record():
    class Adds(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x, kept):
            kept.seen = kept.seen + float(x.sum())
            return self.layer(x) * kept.seen

    torch.manual_seed(0)
    model = Written(lambda self, x: self.out(self.adds(x, Kept())), adds=Adds(), out=linear())
    choice = together(model, NUMBERS)
    assert "adds" not in choice.alone
    with pytest.raises(UnsupportedModel, match="called with an object"):
        build_engine(model, EngineChoice("one-pass", alone=("adds",))).forward(torch.rand(5, 4))
    assert exact(model, choice, NUMBERS, torch.rand(5, 4), torch.randn(5, 3))


def test_a_list_of_modules_does_not_run_alone_because_nobody_calls_it():
    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x, kept):
            return self.layer(x) * (1.0 if float(x.sum()) > 0 else 2.0)

    torch.manual_seed(0)
    parts = nn.ModuleList([Asks()])
    model = Written(lambda self, x: self.out(self.inner(x)), out=linear())
    model.inner = Written(lambda self, x: self.parts[0](x, Kept()), parts=parts)
    choice = together(model, NUMBERS)
    assert choice.alone == ("inner",)
    assert exact(model, choice, NUMBERS, torch.randn(5, 4), torch.randn(5, 3))


def in_fours(values):
    """Values from which the mean over groups of four records is taken, where a batch can be cut into such groups."""
    if math.gcd(values.shape[0], 4) < 4:  # C code reads the size without saying so
        return values
    groups = values.reshape(4, -1, *values.shape[1:])
    return (groups - groups.mean(1, keepdim=True)).reshape(values.shape)


class InFoursOnItsWayBack(torch.autograd.Function):
    @staticmethod
    def forward(context, values):
        return values.clone()

    @staticmethod
    def backward(context, gradient):
        return in_fours(gradient)


class ByRecord:
    """A loss that says of itself that its values are those of single records."""

    by_record = True

    def __init__(self, mix):
        self.mix = mix

    def __call__(self, outputs, targets):
        return self.mix((outputs * targets).square().sum(1))


def in_fours_if_it_looks(values):
    return in_fours(values) if len(values) % 4 == 0 else values


@pytest.mark.parametrize(
    ("between", "loss"),
    [
        (in_fours, product),
        (InFoursOnItsWayBack.apply, product),
        (torch.tanh, ByRecord(in_fours)),
        (torch.tanh, ByRecord(in_fours_if_it_looks)),
    ],
    ids=["model", "backward pass", "loss", "loss that looks"],
)
def test_records_that_meet_in_batches_of_some_size_only_do_not_run_together(between, loss):
    torch.manual_seed(0)
    model = Written(lambda self, x: self.out(between(self.layer(x))), layer=nn.Linear(4, 4), out=linear())
    choice = together(model, NUMBERS, loss)
    assert not choice.proves_any_size or not choice.losses_together
    assert exact(model, choice, NUMBERS, torch.randn(8, 4), torch.randn(8, 3), loss)


@pytest.mark.parametrize("loss", [ByRecord(torch.tanh), Loss("mse")], ids=["own", "by name"])
def test_losses_that_keep_records_apart_run_together(loss):
    torch.manual_seed(0)
    choice = together(linear(), NUMBERS, loss)
    assert choice.proves_any_size
    assert choice.losses_together


class Scales(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x):
        return self.layer(x) * self.scale


@pytest.mark.parametrize("when", ["between steps", "between micro-batches"])
def test_a_copy_that_is_made_anew_is_proved_anew(when):
    """Its weights and buffers no longer fit into the old one, so all that was changed of the model is in it: hooks, too."""
    torch.manual_seed(0)
    model = nn.Sequential(Scales(), linear())
    engine = VettedEngine(model, together(model, NUMBERS), NUMBERS)
    batch, targets = torch.randn(5, 4), torch.randn(5, 3)
    found(engine, batch, targets)
    model[0].register_forward_hook(lambda module, inputs, output: output - output.mean(0))
    model[0].scale.data = torch.full((1, 4), 2.0)
    if when == "between steps":
        engine.sync_weights()
    engine.record_losses(product, engine.forward(batch), targets).sum().backward()
    rows = as_gradients(engine.gradients()).rows("0.layer.weight", slice(0, 5))
    expected = alone(model, batch, targets)[:, :16].view(5, 4, 4)
    assert torch.allclose(rows, expected, atol=1e-5)
