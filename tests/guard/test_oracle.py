"""The released value against a loop written down again from the formula: one record at a time, ordinary `backward`, float64.

The noise is switched off where it is added, so that what is left must equal Σ_i g_i·min(1, C/‖g_i‖) / (q·N) to rounding, for every kind
of layer, both modes of the engine, every grouping and both tiers.
"""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
import runs
from apportion.curator import mechanisms
from apportion.curator.curator import Curator
from apportion.curator.gradients.engine import build_engine
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.execution import Execution
from apportion.releases import ClippedSum
from apportion.request import Request

SIZE = 12
DECLARED = 30.0


class Tied(nn.Module):
    """The embedding is also the output layer; a record uses it twice."""

    def __init__(self):
        super().__init__()
        self.words, self.middle = nn.Embedding(6, 4), nn.Linear(4, 4)
        self.output = nn.Linear(4, 6, bias=False)
        self.output.weight = self.words.weight

    def forward(self, ids):
        return self.output(torch.tanh(self.middle(self.words(ids).mean(1))))


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.scale, self.head = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.scale.requires_grad_(False)

    def forward(self, x):
        return self.head(torch.tanh(self.scale(torch.tanh(self.body(x)))))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent, self.output = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.output(self.recurrent(x)[0][:, -1])


MODELS = {
    "linear": (lambda: nn.Linear(5, 3), lambda: torch.randn(SIZE, 5)),
    "deep": (
        lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)),
        lambda: torch.randn(SIZE, 5),
    ),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3)),
        lambda: torch.randn(SIZE, 1, 5, 5),
    ),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(6, 3), nn.Flatten(), nn.LayerNorm(12), nn.Linear(12, 3)),
        lambda: torch.randint(0, 6, (SIZE, 4)),
    ),
    "tied": (Tied, lambda: torch.randint(0, 6, (SIZE, 4))),
    "frozen": (Frozen, lambda: torch.randn(SIZE, 5)),
    "recurrent": (Recurrent, lambda: torch.randn(SIZE, 4, 3)),
}
CASES = [
    (name, mode)
    for name in MODELS
    for mode in (("one-pass", "loop") if name == "recurrent" else ("one-pass", "vmap", "loop"))
]


def build(name):
    torch.manual_seed(3)
    make_model, make_inputs = MODELS[name]
    model, inputs = make_model().double(), make_inputs()
    if inputs.is_floating_point():
        inputs = inputs.double() * torch.logspace(-2, 2, SIZE).double().reshape(-1, *[1] * (inputs.dim() - 1))
    return model, (inputs, torch.randint(0, 3, (SIZE,)))


def record_gradients(model, data):
    """One dictionary a record, by ordinary backward passes on a copy."""
    model = copy.deepcopy(model)
    found = []
    for i in range(len(data[1])):
        model.zero_grad(set_to_none=True)
        cross_entropy(model(data[0][i : i + 1]), data[1][i : i + 1]).backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad})
    return found


def expected_sum(gradients, groups):
    """Σ_i g_i·min(1, C/‖g_i‖) over each (names, C)."""
    total = {name: torch.zeros_like(value) for name, value in gradients[0].items()}
    clipped = 0
    for gradient in gradients:
        for names, threshold in groups:
            norm = math.sqrt(sum(float((gradient[name] ** 2).sum()) for name in names))
            clipped += norm > threshold
            for name in names:
                total[name] += gradient[name] * min(1.0, threshold / norm if norm else 1.0)
    return total, clipped


def groupings(names):
    half = len(names) // 2
    return {
        "flat": [(names, 0.4)],
        "two groups": [(names[:half], 0.2), (names[half:], 0.9)],
        "per parameter": [((name,), 0.3) for name in names],
        "unclipped": [(names, 1e6)],
    }


@pytest.fixture
def silent(monkeypatch):
    """No noise, so that the exact part can be compared to the last digit."""
    monkeypatch.setattr(mechanisms, "add_gaussian_noise", lambda total, deviation, noise, divisor: total / divisor)


@pytest.mark.parametrize("grouping", ["flat", "two groups", "per parameter", "unclipped"])
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_the_curator_releases_the_clipped_sum_over_the_declared_size(silent, books, name, mode, grouping):
    model, data = build(name)
    trained = [key for key, parameter in model.named_parameters() if parameter.requires_grad]
    groups = groupings(trained)[grouping]
    expected, clipped = expected_sum(record_gradients(model, data), groups)
    assert bool(clipped) == (grouping != "unclipped"), "the case would not notice missing clipping"
    releases = tuple(ClippedSum(threshold, tuple(names), 1 / len(groups)) for names, threshold in groups)
    held = Curator(as_records(data), build_engine(model, mode), books, Randomness.seeded(0), Execution(micro_batch=5))
    released = held.answer(Request(1.0, 1.0, DECLARED, releases), cross_entropy).gradient
    assert released.keys() == expected.keys()
    for key, value in released.items():
        torch.testing.assert_close(value, expected[key] / DECLARED, rtol=1e-9, atol=1e-12)


def train_by_hand(model, data, clips, lr, declared):
    """Full-batch clipped gradient descent: θ ← θ − lr·Σ clip(g_i)/(q·N)."""
    model = copy.deepcopy(model)
    for threshold in clips:
        names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        total, _ = expected_sum(record_gradients(model, data), [(names, threshold)])
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name in total:
                    parameter -= lr * total[name] / declared
    return model


def loop(run, reduction):
    for x, y in run.batches():
        run.optimizer.zero_grad()
        cross_entropy(run.model(x), y, reduction=reduction).backward()
        run.optimizer.step()


TIERS = ("train", "mean", "sum", "none")


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", ["deep", "tied", "frozen", "recurrent"])
def test_a_whole_run_is_clipped_gradient_descent(silent, budget, name, tier):
    """Three steps on all records with a falling threshold, population declared as 30 while there are 12 records."""
    model, data = build(name)
    clip = ap.clip.SensitivityDecay(start=0.8, ratio=4.0)
    expected = train_by_hand(model, data, [0.8 * 4 ** (-t / 3) for t in (1, 2, 3)], 0.5, 30)
    options = {"budget": budget, "population": 30, "sample_rate": 1.0, "steps": 3, "clip": clip, "seed": 0}
    options["execution"] = ap.Execution(micro_batch=5)
    if tier == "train":
        runs.train(model, cross_entropy, data, lr=0.5, **options)
    else:
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
        declared = "sum" if tier == "sum" else "mean"
        loop(runs.make_private(model, optimizer, data, loss_reduction=declared, **options), tier)
    for (key, value), (_, wanted) in zip(model.named_parameters(), expected.named_parameters(), strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-8, atol=1e-10, msg=key)
        assert value.grad is None, "a gradient stays behind where a program can read it"


SIZES = [(1e-30, 1.0), (1e-3, 1.0), (1e3, 1.0), (1e15, 1.0), (1e15, 1e15)]


@pytest.mark.usual_pieces  # rounding is worst in long sums
@pytest.mark.parametrize(
    ("mode", "size", "slope"),
    [("one-pass", *sizes) for sizes in SIZES] + [("vmap", *sizes) for sizes in [*SIZES, (1e25, 1.0)]],
)
def test_a_record_of_any_finite_size_is_clipped_and_not_dropped(silent, books, mode, size, slope):
    """float32 squares overflow at 1e19: such a gradient, here input times slope, must still count with norm C."""
    model = nn.Linear(4, 1, bias=False)
    data = (torch.tensor([[3.0, 0.0, 4.0, 0.0]]) * size / 5, torch.zeros(1))
    held = Curator(as_records(data), build_engine(model, mode), books, Randomness.seeded(0))
    released = held.answer(Request(1.0, 1.0, 1.0, (ClippedSum(0.5),)), lambda output, _: slope * output.sum())
    expected = torch.tensor([[0.6, 0.0, 0.8, 0.0]]).double() * min(size * slope, 0.5)
    torch.testing.assert_close(released.gradient["weight"].double(), expected, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("mode", ["one-pass", "vmap", "loop"])
@pytest.mark.parametrize("grouping", ["flat", "per parameter"])
def test_a_broken_record_is_as_if_it_were_not_there(silent, books, mode, grouping):
    """Not a number in one layer only, infinite, and huge: every group of that record is zero or clipped, the others untouched."""
    model, (inputs, targets) = build("deep")
    names = [name for name, _ in model.named_parameters()]
    groups = groupings(names)[grouping]
    releases = tuple(ClippedSum(threshold, tuple(group), 1 / len(groups)) for group, threshold in groups)

    def released(x, y):
        held = Curator(as_records((x, y)), build_engine(model, mode), books, Randomness.seeded(0), Execution(5))
        return held.answer(Request(1.0, 1.0, DECLARED, releases), cross_entropy).gradient

    without = released(inputs[1:], targets[1:])
    for bad in (math.nan, math.inf, -math.inf):
        spoilt = inputs.clone()
        spoilt[0, 1] = bad
        for name, value in released(spoilt, targets).items():
            torch.testing.assert_close(value, without[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("mode", ["one-pass", "vmap", "loop"])
def test_weights_that_were_written_behind_autograd_count_from_the_next_answer(silent, books, mode):
    """`.data` leaves no trace that an engine could look for: every request takes over the weights as they are."""
    model, data = build("deep")
    names = [name for name, _ in model.named_parameters()]
    held = Curator(as_records(data), build_engine(model, mode), books, Randomness.seeded(0), Execution(micro_batch=5))
    request = Request(1.0, 1.0, DECLARED, (ClippedSum(0.4),))
    for _ in range(3):
        expected, _ = expected_sum(record_gradients(model, data), [(names, 0.4)])
        for key, value in held.answer(request, cross_entropy).gradient.items():
            torch.testing.assert_close(value, expected[key] / DECLARED, rtol=1e-9, atol=1e-12)
        for parameter in model.parameters():
            parameter.data.mul_(0.7)


@pytest.mark.parametrize("mode", ["one-pass", "vmap", "loop"])
def test_the_forward_pass_leaves_no_trace_in_the_model(silent, books, mode):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 3)
            self.register_buffer("seen", torch.zeros(()).double())

        def forward(self, x):
            self.seen = self.seen + x.detach().abs().sum()
            return self.layer(x)

    torch.manual_seed(0)
    model, data = Counting().double(), (torch.randn(SIZE, 5).double(), torch.randint(0, 3, (SIZE,)))
    held = Curator(as_records(data), build_engine(model, mode), books, Randomness.seeded(0), Execution(5))
    held.answer(Request(1.0, 1.0, DECLARED, (ClippedSum(1.0),)), cross_entropy)
    assert model.seen.item() == 0
    assert not model.seen.requires_grad
