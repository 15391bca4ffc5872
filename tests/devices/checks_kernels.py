"""Engines, their kernels and what clips their gradients, on the second device and on the CPU: the same numbers, and in the same place."""

import math

import pytest
import torch
from torch import nn

import second_device
from apportion import devices
from apportion.curator import mechanisms
from apportion.curator.candidate_losses import sum_losses
from apportion.curator.clipping import as_gradients, clip_and_sum
from apportion.curator.gradients.engine import build_engine
from apportion.curator.gradients.model_walk import trained_parameters
from apportion.curator.gradients.one_pass import OnePass
from apportion.curator.pooling import NOBODY, pool
from apportion.curator.randomness import Stream
from apportion.curator.tree import map_tensors
from apportion.models.engine_choice import choose_engine
from apportion.models.inspection import inspect
from apportion.releases import (
    ClippedSum,
    FirstGain,
    Frame,
    Line,
    LowestLoss,
    NormHistogram,
    NormSum,
    UnclippedCount,
    UsableCount,
)
from second_device import SECOND, OtherDevice, move
from tests.guard.test_kernels import CASES, RECORDS
from zoo import ZOO

second_device.install()

MODES = ("one-pass", "one-pass, channels last", "one-pass, copying inputs", "vmap", "loop")
PLACES = ("cpu", SECOND)


def place_model(model, place):
    return move(model) if place == SECOND else model


def everything(gradients, size):
    """All that kernels compute."""
    given = as_gradients(gradients)
    norms = given.squared_norms()
    one = next(iter(norms.values()))
    weights = dict.fromkeys(norms, torch.linspace(0.1, 1.0, size, dtype=torch.float64).to(one.device))
    found = {f"norm of {name}": value for name, value in norms.items()}
    found |= {f"sum of {name}": value.clone() for name, value in given.weighted_sums(weights).items()}
    found |= {f"rows of {name}": given.rows(name, slice(1, size)).clone() for name in norms}
    given.zero_records(torch.arange(size, device=one.device) == 0)
    return found | {f"sum without one of {name}": value for name, value in given.weighted_sums(weights).items()}


def compare(of_place, tolerance=1e-9, on_cpu=()):
    """What is computed on the device is there, and what is on the CPU, is the same."""
    expected, found = (of_place(place) for place in PLACES)
    assert list(found) == list(expected)
    for name, value in found.items():
        assert value.device.type == ("cpu" if name in on_cpu else "second"), name
        scale = float(expected[name].double().abs().max()) if expected[name].numel() else 0.0
        torch.testing.assert_close(
            value.cpu().double(),
            expected[name].double(),
            rtol=tolerance,
            atol=max(tolerance * scale, 1e-12),  # a gradient may be nothing but rounding
            msg=lambda m, n=name: f"{n}: {m}",
        )


# the double itself


def test_tensors_of_two_devices_do_not_meet():
    here, there = torch.ones(3), torch.ones(3).to(SECOND)
    for attempt in (
        lambda: here + there,
        lambda: there + here,
        lambda: torch.cat([there, here]),
        lambda: torch.where(here > 0, there, 0.0),
        lambda: here.add_(there),
        lambda: torch.zeros(()).add_(there.sum()),
        lambda: here[there.long()],
        lambda: there.normal_(generator=torch.Generator()),
        lambda: nn.functional.linear(there, torch.ones(2, 3)),
    ):
        with pytest.raises(RuntimeError, match="device|indices"):
            attempt()
    with pytest.raises(TypeError):
        there.numpy()
    assert float((there + torch.tensor(1.0)).sum()) == 6.0  # of no dimension: allowed, as on CUDA
    assert there[torch.tensor([0, 1])].device == there.device
    with second_device.without_float64(), pytest.raises(TypeError, match="float64"):
        there.double()
    assert issubclass(OtherDevice, RuntimeError)


def test_the_device_draws_from_its_own_generator():
    before = torch.get_rng_state()
    torch.rand(3, device=SECOND)
    assert torch.equal(torch.get_rng_state(), before)


# kernels


def of_kernel(name, mode="one-pass"):
    make_model, make_inputs, kernel = CASES[name]

    def run(place):
        torch.manual_seed(5)
        inputs = map_tensors(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, make_inputs())
        model = place_model(make_model().double(), place)
        if name == "GRU, two ways, on sequences of different lengths":  # torch wants the lengths on the CPU
            inputs = (inputs[0].to(place), inputs[1])
        else:
            inputs = map_tensors(lambda leaf: leaf.to(place), inputs)
        engine = OnePass(model, mode)
        outputs = engine.forward(inputs)
        weights = torch.linspace(0.5, 2.0, outputs[0].numel(), dtype=outputs.dtype).reshape(outputs[0].shape)
        (outputs.sin() * weights.to(place)).sum().backward()
        gradients = engine.gradients()
        assert kernel in gradients.kernels().values()
        return everything(gradients, RECORDS)

    return run


@pytest.mark.parametrize("name", CASES)
def test_a_kernel(name):
    compare(of_kernel(name))


def of_zoo(name, mode, size=5):
    def run(place):
        torch.manual_seed(7)
        specimen = ZOO[name]
        model = place_model(specimen.model().double(), place)
        inputs, targets = map_tensors(
            lambda leaf: (leaf.double() if leaf.is_floating_point() else leaf).to(place), specimen.records(size)
        )
        engine = build_engine(model, mode)
        losses = engine.record_losses(specimen.loss, engine.forward(inputs), targets)
        assert losses.device.type == torch.device(place).type
        engine.require_own_parameters(losses.sum())
        losses.sum().backward()
        return {"losses": losses.detach()} | everything(engine.gradients(), size)

    return run


def can_run(run):
    try:
        run("cpu")
    except Exception:  # not every engine runs every model
        return False
    return True


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["convolutions with pooling", "tied words"])
def test_an_engine(name, mode):
    run = of_zoo(name, mode)
    if can_run(run):
        compare(run)


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_every_engine_over_the_zoo(name):
    ran = [mode for mode in MODES if can_run(of_zoo(name, mode))]
    for mode in ran:
        compare(of_zoo(name, mode))
    assert {"one-pass, copying inputs", "loop"} <= set(ran)


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_the_same_engine_is_chosen(name):
    specimen = ZOO[name]
    example = map_tensors(lambda leaf: leaf[0], specimen.records(1))

    def choice(place):
        torch.manual_seed(7)
        found = choose_engine(place_model(specimen.model(), place), specimen.loss, *example)
        return found.mode, found.alone, found.shared, found.losses_together

    assert choice(SECOND) == choice("cpu")


# what clips, pools and adds noise


class Small(nn.Module):
    """A few kinds of layers, and one that is not used."""

    def __init__(self):
        super().__init__()
        self.words, self.layer, self.output, self.spare = (
            nn.Embedding(6, 4),
            nn.Linear(4, 4),
            nn.Linear(4, 3),
            nn.Linear(2, 2),
        )

    def forward(self, ids):
        return self.output(torch.tanh(self.layer(self.words(ids))).mean(1))


IDS, LABELS = torch.tensor([[0, 1, 1], [2, 2, 2], [3, 4, 5], [0, 0, 5]]), torch.tensor([0, 1, 2, 0])


def of_small(place, mode="one-pass", dtype=torch.float32, spoilt=False):
    """The gradients of a few records; that of the first is not finite, if it is spoilt."""
    torch.manual_seed(3)
    engine = build_engine(place_model(Small().to(dtype), place), mode)
    factors = torch.tensor([math.nan if spoilt else 3.0, 1.0, 0.1, 10.0], dtype=dtype).to(place)
    losses = (
        engine.record_losses(nn.functional.cross_entropy, engine.forward(IDS.to(place)), LABELS.to(place)) * factors
    )
    losses.sum().backward()
    return engine.gradients(), engine


def frame_of(model, place):
    shapes = {name: value.shape for name, value in trained_parameters(model).items()}
    return Frame(
        {name: torch.full(shape, 0.01, dtype=torch.float64).to(place) for name, shape in shapes.items()},
        {name: torch.full(shape, 0.5, dtype=torch.float64).to(place) for name, shape in shapes.items()},
    )


def releases(model, kind, place):
    names = list(trained_parameters(model))
    match kind:
        case "groups":
            half = [ClippedSum(0.5, tuple(names[:3]), 0.5), ClippedSum(0.2, tuple(names[3:]), 0.5)]
            histogram = NormHistogram((0.0, 0.5, 1.0))
            return [*half, UnclippedCount(0.4, tuple(names[:2])), NormSum(0.6), histogram, UsableCount()]
        case "stabiliser":
            return [ClippedSum(0.5, stabiliser=0.01), UsableCount()]
        case "frame":
            return [ClippedSum(0.5, tuple(names), frame=frame_of(model, place)), UsableCount()]
    raise ValueError(kind)


@pytest.mark.parametrize(("scaled", "spoilt"), [(False, False), (True, True)])
@pytest.mark.parametrize("mode", ["one-pass", "loop"])
@pytest.mark.parametrize("kind", ["groups", "stabiliser", "frame"])
def test_clipped_sums(kind, mode, scaled, spoilt):
    """Also with a frame that a strategy has left on the CPU, and clips of groups, which come from there."""
    clips = torch.tensor([0.5, 1.0, 1.0, 0.25], dtype=torch.float64) if scaled else None

    def run(place):
        gradients, engine = of_small(place, mode, spoilt=spoilt)
        return clip_and_sum(gradients, releases(engine.model, kind, "cpu"), clips)

    compare(run, 1e-6)


@pytest.mark.parametrize("spoilt", [False, True])
@pytest.mark.parametrize("owners", [[0, 0, 1, 1], [2, 2, 2, 2]])
def test_users(owners, spoilt):
    def run(place):
        gradients, engine = of_small(place, spoilt=spoilt)
        names, sums = list(trained_parameters(engine.model)), [ClippedSum(0.5)]
        pooled = pool(gradients, names, sums, numpy_of(owners), torch.full((4,), 0.5, dtype=torch.float64))
        rows, _ = NOBODY.followed_by(pooled).followed_by(pooled[-1:]).present()
        return clip_and_sum(rows, sums)

    compare(run, 1e-6)


def numpy_of(values):
    return torch.tensor(values).numpy()


@pytest.mark.parametrize("kind", [LowestLoss, FirstGain])
def test_losses_of_candidates(kind):
    def run(place):
        _, engine = of_small(place)
        direction = {name: torch.full_like(value, 0.1) for name, value in trained_parameters(engine.model).items()}
        line = Line(direction, (0.0, 0.5, 2.0) if kind is LowestLoss else (0.5, 2.0))
        more = {"epsilon": 0.1} if kind is LowestLoss else {"epsilon": 0.1, "slope": 0.1}
        batch = IDS.to(place), LABELS.to(place)
        return {"totals": sum_losses(engine, nn.functional.cross_entropy, batch, kind(line, bound=1.0, **more))}

    compare(run, 1e-6, on_cpu=["totals"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_seed_gives_the_same_noise_on_every_device(dtype):
    """Bit for bit: there is one stream, of the CPU. And the answer is written over the sum, wherever that is."""

    def noisy(place):
        exact = torch.linspace(-1, 1, 1000).to(dtype).reshape(10, 100).to(place)
        answer = mechanisms.add_gaussian_noise(exact, 2.5, Stream(b"1" * 32), 7.0)
        assert torch.equal(answer.cpu(), exact.cpu())
        assert answer.device == exact.device
        return answer.cpu()

    assert torch.equal(noisy("cpu"), noisy(SECOND))


@pytest.mark.slow
def test_a_model_is_inspected():
    example = IDS[0], LABELS[0]
    here, there = (inspect(place_model(Small(), place), *example) for place in PLACES)
    assert (there.mode, there.kernels, there.fallbacks) == (here.mode, here.kernels, here.fallbacks)


# a device without float64, as "mps"


@pytest.fixture
def narrow():
    devices.has_float64.cache_clear()
    with second_device.without_float64():
        assert not devices.has_float64("second")
        yield
    devices.has_float64.cache_clear()


@pytest.mark.parametrize(("mode", "spoilt"), [("one-pass", True), ("one-pass", False), ("vmap", True)])
@pytest.mark.parametrize("kind", ["groups", "stabiliser", "frame"])
def test_without_float64(narrow, kind, mode, spoilt):
    """What is added up in float64 is added up on the CPU, to the same numbers."""

    def run(place):
        gradients, engine = of_small(place, mode, spoilt=spoilt)
        return {
            name: value.cpu() for name, value in clip_and_sum(gradients, releases(engine.model, kind, "cpu")).items()
        }

    expected, found = run("cpu"), run(SECOND)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_the_zoo_without_float64(narrow, name):
    def run(place):
        torch.manual_seed(7)
        specimen = ZOO[name]
        inputs, targets = map_tensors(lambda leaf: leaf.to(place), specimen.records(5))
        engine = build_engine(place_model(specimen.model(), place), "one-pass, copying inputs")
        engine.record_losses(specimen.loss, engine.forward(inputs), targets).sum().backward()
        gradients = engine.gradients()
        return {name: value.cpu() for name, value in clip_and_sum(gradients, [ClippedSum(0.3)]).items()}

    expected, found = run("cpu"), run(SECOND)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)
