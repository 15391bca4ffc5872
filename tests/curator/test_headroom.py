"""‖clipped record‖ ≤ C·(1 + headroom), as it is added, in float32, whatever a record does to make rounding work for it.

One record at a time goes through `clip_and_sum`; its norm is taken again in float64. The noise of a request covers the headroom.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from apportion.curator.clipping import clip_and_sum
from apportion.curator.gradients.engine import build_engine
from apportion.curator.gradients.linear import LinearUse
from apportion.curator.gradients.rounding import squared_row_norms
from apportion.releases import FLOAT32_HEADROOM, ClippedSum
from apportion.request import Request

pytestmark = pytest.mark.usual_pieces  # rounding is worst in long sums


class First(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, *inputs):
        return self.layer(*inputs)[0]


class Often(nn.Module):
    """A layer used eight times on the same input, whose uses can be made to cancel."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return torch.stack([self.layer(x + 0) for _ in range(8)], 1)


def numbers(*shape):
    return lambda: torch.randn(1, *shape)


def tokens():
    return torch.randint(0, 3, (1, 40))


KINDS = {
    "linear": (lambda: nn.Linear(6, 5), numbers(6)),
    "linear, written out": (lambda: nn.Linear(2, 2), numbers(64, 2)),
    "linear, Gram": (lambda: nn.Linear(64, 64), numbers(8, 64)),
    "convolution": (lambda: nn.Conv1d(2, 2, 3), numbers(2, 64)),
    "convolution, written out twice": (lambda: nn.Conv2d(8, 16, 3), numbers(8, 6, 6)),
    "convolution, Gram": (lambda: nn.Conv2d(40, 40, 3), numbers(40, 5, 5)),
    "transposed convolution": (lambda: nn.ConvTranspose2d(8, 16, 3), numbers(8, 4, 4)),
    "embedding": (lambda: nn.Embedding(4, 3), tokens),
    "layer norm": (lambda: nn.LayerNorm(4), numbers(64, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 4), numbers(4, 6, 6)),
    "tied linear": (lambda: Often(nn.Linear(2, 2)), numbers(2)),
    "tied embedding": (lambda: Often(nn.Embedding(3, 2)), tokens),
    "recurrent": (lambda: First(nn.RNN(2, 2, batch_first=True)), numbers(64, 2)),
    "LSTM, Gram": (lambda: First(nn.LSTM(32, 32, batch_first=True)), numbers(8, 32)),
    "attention": (
        lambda: First(nn.MultiheadAttention(4, 2, batch_first=True)),
        lambda: (torch.randn(1, 16, 4),) * 3,
    ),
}
SHAPES = ("even", "one huge", "sums of zero", "pairs of opposites", "wide range")


def upstream(output, shape, scale):
    """The gradient of the output, chosen by an adversary."""
    values = torch.randn_like(output)
    match shape:
        case "one huge":
            values *= 1e-12
            values.flatten()[0] = 1.0
        case "sums of zero":
            for dimension in range(1, values.dim()):
                values = values - values.mean(dimension, keepdim=True)
        case "pairs of opposites" if values.dim() > 2:
            half = values.shape[1] // 2
            values = values[:, :1].expand_as(values).clone()
            values[:, half : 2 * half] *= -1
            values[:, 2 * half :] = 0
            values = values[:, torch.randperm(values.shape[1])]
        case "wide range":
            values *= 10.0 ** torch.randint(-20, 1, values.shape)
    return values * scale


def clipped_norm(engine, inputs, shape, scale, threshold):
    output = engine.forward(inputs)
    (output * upstream(output.detach(), shape, scale)).sum().backward()
    sums = clip_and_sum(engine.gradients(), [ClippedSum(threshold)])
    return math.sqrt(sum(float(part.double().square().sum()) for part in sums.values()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_makes_rounding_work_for_it_stays_within_the_headroom(kind):
    make_model, make_inputs = KINDS[kind]
    clipped = []

    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    @given(
        st.integers(0, 2**16),
        st.sampled_from(SHAPES),
        st.sampled_from([0, 4, 8, 12, 18, -20]),
        st.sampled_from([0, 0, 0, 15, -20]),
        st.integers(-3, 2),
    )
    def run(seed, shape, scale, input_scale, threshold):
        torch.manual_seed(seed)
        inputs = make_inputs()
        if isinstance(inputs, torch.Tensor) and inputs.is_floating_point():
            inputs = inputs[..., :1].expand_as(inputs) if seed % 2 else inputs
            inputs = inputs * 10.0**input_scale
        norm = clipped_norm(build_engine(make_model(), "one-pass"), inputs, shape, 10.0**scale, 10.0**threshold)
        assert norm <= 10.0**threshold * (1 + FLOAT32_HEADROOM)
        clipped.append(norm > 0.99 * 10.0**threshold)

    run()
    assert sum(clipped) >= 5, "too few of the records reach the bound"


@pytest.mark.parametrize("value", [1.0, 1.03, 1.1, 1.9])
@pytest.mark.parametrize("length", [1000, 100_000, 3_000_000])
def test_long_rows_lose_nothing(length, value):
    """One float32 sum of so many equal squares is too small by up to 0.2 %."""
    row = torch.full((1, length), value)
    assert float(squared_row_norms(row)) == pytest.approx(
        length * float(row[0, 0].double()) ** 2, rel=FLOAT32_HEADROOM / 10
    )


@pytest.mark.parametrize("size", [1e-18, 1e-20, 1e-22, 1e-24, 1e-30])
def test_small_numbers_are_not_lost(size):
    """Their squares do not exist in float32."""
    row = torch.full((2, 50), size)
    row[1] = 1.0
    exact = row.double().square().sum(1)
    assert torch.allclose(squared_row_norms(row), exact, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("positions", [1, 4])
def test_a_factor_brings_small_numbers_back(positions):
    """Inputs of 10⁻²⁴ and output gradients of 10¹⁸: a norm of zero would leave the record unclipped."""
    use = LinearUse({"weight": "w"}, torch.full((1, positions, 50), 1e-24))
    gradients = torch.full((1, positions, 50), 1e18)
    use.receive(gradients)
    assert use.kernel == ("product of norms" if positions == 1 else "Gram")
    assert float(use.squared_norms()["w"].sqrt()) == pytest.approx(positions * 50 * 1e-6, rel=1e-4)


@pytest.mark.parametrize("size", [512, 4096, 16384])
@pytest.mark.parametrize("positions", [2, 4, 8, 32])
def test_what_a_large_number_swallows_is_accounted_for(size, positions):
    """1 + e² = 1 in float32 for e² < 2⁻²⁴: β₁ = (1, e, e, …) and β₂ = (−1, 0, 0, …) add up to (0, e, e, …), but Grams say 0."""
    gradients, inputs = torch.zeros(1, positions, size), torch.zeros(1, positions, size)
    gradients[0, 0] = math.sqrt(0.98 * 2**-24)
    gradients[0, 0, 0], gradients[0, 1, 0] = 1.0, -1.0
    inputs[0, :2, 0] = 1.0
    use = LinearUse({"weight": "w"}, inputs)
    use.receive(gradients)
    assert use.kernel == "Gram"
    exact = float(gradients[0].double().sum(0).norm())
    assert float(use.squared_norms()["w"].sqrt()) >= exact / (1 + FLOAT32_HEADROOM)


@pytest.mark.parametrize("mode", ["one-pass", "vmap"])
@pytest.mark.parametrize(
    "kind", ["linear", "linear, written out", "convolution", "layer norm", "embedding", "attention"]
)
def test_weights_of_16_bits_are_clipped_as_well(kind, mode):
    """bfloat16 rounds by 1/256: nothing of clipping may happen in it."""
    make_model, make_inputs = KINDS[kind]
    for seed in range(10):
        torch.manual_seed(seed)
        inputs = torch.utils._pytree.tree_map(
            lambda tensor: tensor.bfloat16() if tensor.is_floating_point() else tensor, make_inputs()
        )
        norm = clipped_norm(build_engine(make_model().bfloat16(), mode), inputs, "even", 1.0, 1e-3)
        assert 1e-3 * (1 - 1e-3) <= norm <= 1e-3 * (1 + FLOAT32_HEADROOM)


def test_the_noise_pays_for_the_headroom():
    """A record may move the sum by C·(1 + h), so the noise is z·C·(1 + h) for a stated multiplier of z."""
    release = ClippedSum(2.0)
    request = Request(0.1, 1.5, 10.0, (release,))
    assert release.headroom == FLOAT32_HEADROOM
    assert release.sensitivity == 2.0 * (1 + FLOAT32_HEADROOM)
    assert request.standard_deviation(release) / release.sensitivity == pytest.approx(
        request.event().noise_multiplier, rel=1e-12
    )
