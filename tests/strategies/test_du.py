"""Du et al.: schedules at start, middle and end, and the true price of a growing μ."""

import math

import pytest

from apportion import InvalidArgument, clip, noise, recipes
from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.budget import Budget, Record
from apportion.sampling import Sampling
from apportion.strategies.context import Context
from runs import make_plan


def test_growing_mu_starts_just_below_its_scale_and_ends_at_the_ratio():
    strategy = noise.GrowingMu(ratio=4.0)
    values = [strategy.relative(Context(t, 100, 0.1)) for t in range(1, 101)]
    assert values[0] == pytest.approx(4.0**-0.01)
    assert values[49] == pytest.approx(0.5)
    assert values[-1] == pytest.approx(0.25)


def test_sensitivity_decay_and_its_floor():
    strategy = clip.SensitivityDecay(start=2.0, ratio=4.0, minimum=0.6)
    values = [strategy.propose(None, Context(t, 100, 0.1))[0].threshold for t in range(1, 101)]
    assert values[0] == pytest.approx(2.0 * 4.0**-0.01)
    assert values[49] == pytest.approx(1.0)
    assert values[-1] == 0.6


@pytest.mark.parametrize("ratio", [1.0])
def test_a_ratio_of_one_is_constant(ratio):
    assert {noise.GrowingMu(ratio).relative(Context(t, 9, 0.1)) for t in range(1, 10)} == {1.0}
    assert {clip.SensitivityDecay(1.5, ratio).propose(None, Context(t, 9, 0.1))[0].threshold for t in range(1, 10)} == {
        1.5
    }


def test_the_true_price_of_growing_mu():
    """δ = 1/600000, q = 256/60000, T = 5000, ρ = 1/0.3, ε = 1.2: the multiplier starts at 2.895."""
    plan = make_plan(
        Budget(epsilon=1.2, delta=1 / 600_000, unit=Record()),
        Sampling(60_000, 256 / 60_000, 5_000),
        clip.Fixed(1.0),
        noise.GrowingMu(ratio=1 / 0.3),
        PrivacyLossAccountant(),
    )
    assert plan.multipliers[0] == pytest.approx(2.895, abs=0.01)
    assert plan.multipliers[-1] / plan.multipliers[0] == pytest.approx(0.3 ** (4999 / 5000))
    assert 0.998 * 1.2 <= plan.epsilon <= 1.2


def test_recipes():
    dynamic = recipes.du_dynamic(start=1.5, clip_ratio=3.0, noise_ratio=1.25)
    assert dynamic.clip == clip.SensitivityDecay(start=1.5, ratio=3.0)
    assert dynamic.noise == noise.GrowingMu(ratio=1.25)
    assert recipes.named("du-growing").noise == noise.GrowingMu()
    assert recipes.named("du-sensitivity").noise == noise.Constant()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: noise.GrowingMu(ratio=0.5), "noise.ratio=0.5"),
        (lambda: noise.GrowingMu(ratio=math.nan), "noise.ratio"),
        (lambda: noise.GrowingMu(multiplier=0.0), "noise.multiplier"),
        (lambda: clip.SensitivityDecay(ratio=0.9), "clip.ratio"),
        (lambda: clip.SensitivityDecay(start=-1.0), "clip.start"),
        (lambda: clip.SensitivityDecay(start=0.1, minimum=0.2), "clip.minimum"),
    ],
)
def test_out_of_range(build, words):
    with pytest.raises(InvalidArgument, match=words):
        build()
