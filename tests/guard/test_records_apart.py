"""Models, hooks and surroundings that would let records meet, or count one record several times, past what a first look shows."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn

import apportion as ap
from apportion.curator.curator import Curator
from apportion.curator.gradients.engine import EngineChoice, build_engine
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.errors import UnsupportedModel
from apportion.execution import MAX_MICRO_BATCH
from apportion.models.gradient_probe import GradientProbe
from apportion.models.synthetic import prepare_model
from apportion.models.vetting import VettedEngine
from apportion.releases import FLOAT32_HEADROOM, ClippedSum, Frame
from apportion.request import Request
from apportion.training.opening import require_trainable
from items import Items
from runs import Gaussian

BOUND = 1 + FLOAT32_HEADROOM


def product(outputs, targets):
    """A loss whose gradient is whatever the target says."""
    return (outputs * targets).sum()


def total(model, data, books, *, engine="auto", loss=product, release=None, micro_batch=MAX_MICRO_BATCH):
    """What would get noise: all records are drawn, by the engine that `train` would choose."""
    records = as_records(data)
    choice = require_trainable(model, loss, records, ap.Execution(engine=engine))
    own = VettedEngine(model, choice, *records.example)
    sums = []

    def noiseless(exact, deviation, noise, divisor):
        sums.append(exact.double().flatten().clone())
        return exact

    execution = ap.Execution(micro_batch=micro_batch)
    curator = Curator(records, own, books, Randomness.seeded(0), execution, mechanisms=Gaussian(noiseless))
    curator.answer(Request(1.0, 1.0, 1.0, (release or ClippedSum(1.0),)), loss)
    return torch.cat(sums)


def moved(model, items, odd, books, **options):
    """By how much one record more moves the sum."""
    more = total(model, Items([*items, odd]), books, **options)
    return float(torch.linalg.vector_norm(more - total(model, Items(items), books, **options)))


# -- one row for each record --


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3))

    def forward(self, x):
        return x @ self.weight


class Last(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return (self.layer(x) if isinstance(self.layer, nn.LSTM) else self.layer(x, x, x))[0][:, -1]


class Sentences(nn.Module):
    """Every sentence of a document through an encoder, then their sum."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, x):
        return self.encoder(x.flatten(0, 1)).unflatten(0, x.shape[:2]).sum(1)


@pytest.mark.parametrize(
    ("encoder", "sentence", "width"),
    [
        (Own, (6,), 3),
        (lambda: Last(nn.LSTM(6, 3, batch_first=True)), (4, 6), 3),
        (lambda: Last(nn.MultiheadAttention(6, 2, batch_first=True)), (4, 6), 6),
        (lambda: nn.EmbeddingBag(10, 3, mode="sum"), None, 3),
        (lambda: nn.Linear(6, 3), (6,), 3),
    ],
    ids=["hand-written", "LSTM", "attention", "bag", "linear"],
)
def test_several_rows_of_a_record_are_not_clipped_one_by_one(books, encoder, sentence, width):
    """The first document has one sentence, so that its rows are records; another one has nine. Nor are they left out."""
    torch.manual_seed(0)
    model = Sentences(encoder())

    def document(sentences):
        one = torch.randint(0, 10, (1, 4)) if sentence is None else torch.randn(1, *sentence)
        return one.repeat(sentences, *[1] * (one.dim() - 1)), 1e4 * torch.randn(width)

    assert 0.999 <= moved(model, [document(1) for _ in range(3)], document(9), books) <= BOUND


@pytest.mark.parametrize(
    "layer", [Own, lambda: nn.Linear(6, 3), lambda: nn.LSTMCell(6, 3)], ids=["own", "linear", "cell"]
)
def test_a_layer_that_gets_several_rows_of_a_record_is_refused(layer):
    engine = build_engine(Sentences(nn.Sequential(layer(), First())), "one-pass")
    engine.forward(torch.randn(3, 1, 6))
    with pytest.raises(UnsupportedModel, match="got 27 rows for 3 records"):
        engine.forward(torch.randn(3, 9, 6))


class First(nn.Module):
    def forward(self, output):
        return output[0] if isinstance(output, tuple) else output


# -- what autograd hands to others as well --


class LimitsInPlace(nn.Module):
    """Both branches of a sum get the same gradient; one of them limits it where it lies."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(128, 128, 1, bias=False), nn.Conv2d(128, 128, 1, bias=False)

    def forward(self, x):
        small = 1e-6 * self.first(x)
        if small.requires_grad:
            small.register_hook(lambda gradient: gradient.clamp_(-1e10, 1e10))
        return small + self.second(x)


def test_an_output_gradient_that_is_overwritten_after_its_norm_was_taken_is_noticed():
    torch.manual_seed(0)
    x, targets = torch.ones(4, 128, 1, 11), torch.randn(4, 128, 1, 11)
    assert require_trainable(LimitsInPlace(), product, as_records((x, targets))).mode in ("vmap", "loop")
    engine = build_engine(LimitsInPlace(), "one-pass")
    product(engine.forward(x), targets).backward()
    gradients = engine.gradients()
    weights = {name: torch.ones(4, dtype=torch.float64) for name in gradients.squared_norms()}
    with pytest.raises(UnsupportedModel, match="overwritten in place after its norm was taken"):
        gradients.weighted_sums(weights)


class LimitsTheNorm(nn.Module):
    """A hook sees the gradients of all records of a micro-batch."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        hidden = self.first(x)
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient * (10 / gradient.norm()).clamp(max=1))
        return self.second(hidden)


class Limit(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * (10 / gradient.norm()).clamp(max=1)


class LimitsByFunction(LimitsTheNorm):
    def forward(self, x):
        return self.second(Limit.apply(self.first(x)))


@pytest.mark.parametrize("model", [LimitsTheNorm, LimitsByFunction])
def test_a_limit_on_the_norm_of_gradients_that_only_large_ones_feel_is_left_to_records_alone(model):
    torch.manual_seed(0)
    data = (torch.randn(4, 4), torch.randn(4, 3))
    assert require_trainable(model(), product, as_records(data)).mode in ("vmap", "loop")


# -- surroundings --


@pytest.mark.parametrize("layer", [lambda: nn.Linear(4, 1), lambda: nn.Conv1d(1, 4, 2)], ids=["linear", "convolution"])
def test_autocast_does_not_reach_norms_and_sums(books, layer):
    """A loop that runs in bfloat16 must not clip in bfloat16."""
    worst = 0.0
    for seed in range(20):
        torch.manual_seed(seed)
        model = layer()
        execution, records = ap.Execution(micro_batch=8), as_records((torch.randn(8, 1, 4), torch.randn(8, 1, 1)))
        engine = build_engine(model, "one-pass")
        curator = Curator(records, engine, books, Randomness.seeded(seed), execution)
        draw = curator.open(Request(1.0, 1.0, 1.0, (ClippedSum(1.0),)))
        (((inputs, _), members),) = draw.micro_batches()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = engine.forward(inputs[:1])
            (1e3 * torch.randn(outputs.shape) * outputs).sum().backward()
            draw.add(engine.gradients(), members[:1])
        worst = max(worst, float(torch.cat([part.double().flatten() for part in draw._sums.values()]).norm()))
    assert 0.999 <= worst <= BOUND


class Remembers(nn.Module):
    """A running mean in a plain attribute, of which nothing is seen before the fortieth call."""

    def __init__(self, how):
        super().__init__()
        self.layer, self.how = nn.Linear(4, 3), how
        self.calls, self.mean = 0, torch.zeros(4)

    def forward(self, x):
        self.calls += 1
        mean = x.detach().mean(0) if x.dim() > 1 else x.detach()
        if self.how == "rebinds":
            self.mean = 0.9 * self.mean + mean
        else:
            self.mean.mul_(0.9).add_(mean)
        return self.layer(x + (100.0 * self.mean if self.calls > 40 else 0.0))


@pytest.mark.parametrize("how", ["rebinds", "writes"])
@pytest.mark.parametrize("engine", ["one-pass", "loop"])
def test_what_a_module_keeps_of_records_in_an_attribute_is_forgotten(engine, how):
    torch.manual_seed(0)
    own = build_engine(Remembers(how), engine)
    x = torch.randn(60, 4)
    once = [own.forward(record[None]).detach() for record in x]
    again = own.forward(x[-1:]).detach()
    assert torch.equal(once[-1], again)
    assert torch.allclose(once[-1], own.model.layer(x[-1:]).detach())


class AllocatesByValue(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        if float(x.detach().abs().max()) > 1e3:
            np.empty(1 << 55)
        return self.layer(x)


def test_a_record_that_exhausts_the_memory_ends_nothing_and_says_nothing(books):
    torch.manual_seed(0)
    model, items = AllocatesByValue(), list(zip(torch.randn(4, 4), torch.randn(4, 3), strict=True))
    assert moved(model, items, (1e6 * torch.ones(4), torch.zeros(3)), books) <= BOUND


# -- what the probe tries --


class JoinsMasks(nn.Module):
    """A padding mask, joined over the batch by mistake."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x, padding):
        return self.layer(x.masked_fill(padding.any(0), 0.0))


class JoinsWords(nn.Module):
    """Mixes where a record has several words, which synthetic records of one word each have not."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Embedding(10, 3)

    def forward(self, words):
        other = (words != words[:, :1]).any(0)
        return self.layer(words).masked_fill(other[None, :, None], 0.0).sum(1)


class Sorts(nn.Module):
    """Sorts records by length and puts them back: inside, row i is not record i."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x, padding):
        order = padding.sum(1).argsort(stable=True)
        return self.layer(x.masked_fill(padding[..., None], 0.0).sum(1)[order])[order.argsort()]


class NormalisesFours(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        if len(x) % 4 == 0:
            groups = x.unflatten(0, (-1, 4))
            x = (groups - groups.mean(1, keepdim=True)).flatten(0, 1)
        return self.layer(x)


NEED_MASKS_OR_WORDS = [
    (JoinsMasks, (torch.zeros(4), torch.zeros(4, dtype=torch.bool))),
    (JoinsWords, torch.zeros(6, dtype=torch.int64)),
    (Sorts, (torch.zeros(4, 3), torch.zeros(4, dtype=torch.bool))),
]


@pytest.mark.parametrize(("model", "example"), NEED_MASKS_OR_WORDS)
def test_the_probe_alone_sees_mixing_that_needs_masks_or_words(model, example):
    torch.manual_seed(0)
    probe = GradientProbe(prepare_model(model()), product, example, torch.zeros(3))
    with suppress(RuntimeError):
        assert not probe.agrees(EngineChoice("one-pass"))


@pytest.mark.parametrize(("model", "example"), NEED_MASKS_OR_WORDS)
def test_mixing_that_needs_masks_or_words_of_some_kind_is_left_to_records_alone(model, example):
    torch.manual_seed(0)
    data = Items([(example, torch.zeros(3))] * 3)
    assert require_trainable(model(), product, as_records(data)).mode in ("vmap", "loop")


def test_mixing_that_needs_companies_of_some_size_is_found():
    with pytest.raises(UnsupportedModel, match="mixes records"):
        require_trainable(NormalisesFours(), product, as_records((torch.zeros(3, 4), torch.zeros(3, 3))))


class Confuses(nn.Module):
    """(b, T, d) to (T, b, d) without a transposition: right for T = 1, the shape of the first record."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        steps = x.reshape(x.shape[1], x.shape[0], x.shape[2])
        return self.layer(steps.cumsum(0)[-1])


def test_records_of_another_shape_run_together_only_if_the_model_keeps_those_apart(books):
    torch.manual_seed(0)
    first = (torch.randn(1, 3), 1e3 * torch.randn(2))
    longer = [(torch.randn(8, 3), 1e3 * torch.randn(2)) for _ in range(20)]
    found = [moved(Confuses(), [first, *longer[:at]], longer[at], books, micro_batch=4) for at in range(4, 20)]
    assert max(found) <= BOUND


def test_in_a_loop_of_ones_own_too():
    torch.manual_seed(0)
    model = Confuses()
    engine = VettedEngine(model, EngineChoice("one-pass"), torch.zeros(1, 3))
    for shape in ((5, 1, 3), (5, 8, 3), (5, 1, 3), (5, 8, 3)):
        x = torch.randn(shape)
        alone = torch.cat([model(record[None]) for record in x])
        outputs = engine.forward(x)
        assert torch.allclose(outputs, alone, atol=1e-6)
        outputs.sum().backward()
        assert len(engine.gradients()) > 0


class LooksAtSteps(nn.Module):
    """Mixes where a later step is large; the first record has one step."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        total = self.layer(x[:, 0])
        for at in range(1, x.shape[1]):
            step = x[:, at]
            if step.abs().max() > 20:
                step = step - step.mean(0)
            total = total + self.layer(step)
        return total


def test_records_of_another_shape_for_which_the_model_looks_at_values_run_alone(books):
    torch.manual_seed(0)
    first = (torch.randn(1, 3), torch.randn(2))
    longer = [(50 * torch.randn(8, 3), 1e3 * torch.randn(2)) for _ in range(9)]
    for at in range(4, 8):
        assert moved(LooksAtSteps(), [first, *longer[:at]], longer[at], books, micro_batch=4) <= BOUND


class Grows(nn.Module):
    """A table that is made anew when a longer record comes."""

    def __init__(self, how):
        super().__init__()
        self.layer, self.how = nn.Linear(3, 2), how
        if how == "buffer":
            self.register_buffer("table", torch.zeros(4))
        else:
            self.table = torch.zeros(4)

    def forward(self, x):
        if x.shape[1] > len(self.table):
            if self.how == "resizes":
                self.table.resize_(x.shape[1]).zero_()
            else:
                self.table = torch.zeros(x.shape[1])
        return self.layer((x + self.table[: x.shape[1], None]).sum(1))


@pytest.mark.parametrize("how", ["buffer", "attribute", "resizes"])
def test_a_longer_record_does_not_silence_the_others(books, how):
    torch.manual_seed(0)
    usual = [(torch.randn(4, 3), 1e3 * torch.randn(2)) for _ in range(12)]
    longer = (torch.randn(9, 3), 1e3 * torch.randn(2))
    for at in (0, 6):
        more = total(Grows(how), Items([usual[0], *usual[1:at], longer, *usual[max(at, 1) :]]), books, micro_batch=2)
        assert float((more - total(Grows(how), Items(usual), books, micro_batch=2)).norm()) <= 1 + BOUND


class Kept:
    """An object of somebody's own class, as a cache is."""

    seen = None


def left_behind(how):
    class Leaves(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.register_buffer("nothing", None)
            self.kept = Kept()

        def forward(self, x):
            seen = x.detach().mean(0)
            before = {
                "object": lambda: self.kept.seen,
                "buffer": lambda: self.nothing,
                "new buffer": lambda: getattr(self, "late", None),
                "module": lambda: self.late.bias.detach() if "late" in self._modules else None,
                "flag": lambda: None if self.layer.training else torch.ones(4),
            }[how]()
            if how == "buffer":
                self.nothing = seen
            elif how == "new buffer":
                self.register_buffer("late", seen)
            elif how == "module":
                self.late = nn.Linear(1, 4)
            elif how == "object":
                self.kept.seen = seen
            else:
                self.layer.eval()
            return self.layer(x if before is None else x + 100 * before)

    torch.manual_seed(0)
    return Leaves()


@pytest.mark.parametrize("engine", ["one-pass", "loop"])
@pytest.mark.parametrize("how", ["buffer", "new buffer", "module", "flag", "object"])
def test_what_a_module_leaves_in_other_places_is_gone_as_well(engine, how):
    own = build_engine(left_behind(how), engine)
    x = torch.randn(3, 4)
    outputs = [own.forward(record[None]).detach() for record in x]
    own.sync_weights()
    assert torch.allclose(torch.cat(outputs), own.model.layer(x).detach())


class RunningLoss(nn.Module):
    """Divides by a running mean of itself, once that is large."""

    def __init__(self):
        super().__init__()
        self.running = 0.0

    def forward(self, outputs, targets):
        value = (outputs * targets).sum()
        scale = max(1.0, self.running)
        self.running = 0.9 * self.running + 0.1 * 1e-3
        return value / scale


def test_what_a_loss_remembers_is_forgotten(books):
    torch.manual_seed(0)
    loss = RunningLoss()
    total(nn.Linear(4, 3), (torch.randn(6, 4), torch.randn(6, 3)), books, loss=loss, micro_batch=2)
    assert loss.running <= 1e-4


# -- rounding --


def test_one_record_more_hardly_changes_how_the_others_are_rounded(books):
    """Not part of the headroom: records that all point the same way lose digits of each other (docs/promise.md)."""
    worst = 0.0
    for seed in range(4):
        torch.manual_seed(seed)
        model, size = nn.Linear(3, 1, bias=False), MAX_MICRO_BATCH
        x = torch.randn(1, 3) * torch.rand(size, 1) * 100 + 1e-3 * torch.randn(size, 3)
        targets = 1e3 * (1 + torch.rand(size, 1))
        more = total(model, (x, targets), books, engine="one-pass")
        fewer = total(model, (x[1:], targets[1:]), books, engine="one-pass")
        worst = max(worst, float((more - fewer).norm()))
    assert worst <= 1 + 5e-4


@pytest.mark.usual_pieces  # rounding is worst in long sums
def test_the_norm_of_a_very_wide_embedding_is_not_too_small(books):
    torch.manual_seed(0)
    width = 1 << 18
    engine = build_engine(nn.Embedding(3, width), "one-pass")
    gradient = torch.full((1, width), 1.389830470085144)  # one float32 sum of its squares loses 0.05 %
    (engine.forward(torch.tensor([[1]])).squeeze(1) * gradient).sum().backward()
    (found,) = engine.gradients().squared_norms().values()
    assert float(found.sqrt()) == pytest.approx(float(gradient.double().norm()), rel=1e-5)


@pytest.mark.parametrize("engine", ["one-pass", "vmap"])
def test_a_parameter_may_be_a_single_number(books, engine):
    class Scales(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.layer = nn.Parameter(torch.tensor(1.5)), nn.Linear(4, 3)

        def forward(self, x):
            return self.scale * self.layer(x)

    torch.manual_seed(0)
    data = (torch.randn(6, 4), torch.randn(6, 3))
    found = total(Scales(), data, books, engine=engine)
    assert found.shape == (16,)
    assert found.norm() > 0.5
    scale = {name: torch.ones(parameter.shape) for name, parameter in Scales().named_parameters()}
    frame = Frame({name: torch.zeros_like(value) for name, value in scale.items()}, scale)
    framed = total(Scales(), data, books, engine=engine, release=ClippedSum(1.0, tuple(scale), frame=frame))
    assert framed.norm() > 0.5
