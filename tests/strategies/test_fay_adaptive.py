"""fay-adaptive: noise as long as the gradient, as the gradient released one step before shows it."""

import math

import numpy as np
import pytest
import torch

import apportion as ap
from apportion.accounting.rules import GaussianFilter, RenyiFilter
from apportion.releases import ClippedSum, Frame, Line, LowestLoss
from apportion.request import Released, Request
from apportion.strategies.context import Context

SIZE = 50.0
CONTEXT = Context(1, 10, 0.1, SIZE, 2.0, {"w": (400,)})


def released(gradient, multiplier=2.0, **options):
    return Released(Request(0.1, multiplier, SIZE, (ClippedSum(1.0, **options),)), {"w": gradient})


def answer(signal, multiplier=2.0, numbers=400):
    """A gradient whose squared length is that of the signal and of its noise together."""
    deviation = released(torch.zeros(1), multiplier).request
    power = deviation.standard_deviation(deviation.releases[0]) ** 2 / SIZE**2 * numbers
    return released(torch.full((numbers,), math.sqrt((signal**2 + power) / numbers), dtype=torch.float64), multiplier)


def deviation_of(multiplier):
    """σ on the mean gradient."""
    request = released(torch.zeros(1), multiplier).request
    return request.standard_deviation(request.releases[0]) / SIZE


def best_deviation(norm, numbers, smoothness):
    """argmin_σ (1/σ)/max_η U(η, σ), U = η‖∇F‖² − (Mη²/2)(‖∇F‖² + dσ²), by trying."""
    deviations, rates = np.geomspace(1e-3, 1, 3001), np.geomspace(1e-2, 1, 1001)
    power = norm**2 + numbers * deviations**2
    utility = np.fmax(1e-300, [rate * norm**2 - smoothness * rate**2 / 2 * power for rate in rates]).max(axis=0)
    best = int(np.argmin(1 / deviations / utility))
    rate = rates[np.argmax(rates * norm**2 - smoothness * rates**2 / 2 * power[best])]
    return deviations[best], rate


@pytest.mark.parametrize(("norm", "smoothness"), [(0.3, 1.0), (1.0, 4.0)])
def test_the_noise_is_the_cheapest_per_expected_decrease(norm, smoothness):
    deviation, rate = best_deviation(norm, 400, smoothness)
    assert deviation == pytest.approx(norm / math.sqrt(400), rel=5e-3)
    assert rate == pytest.approx(1 / (2 * smoothness), rel=5e-3)
    noise = ap.noise.AdaptivePrivacyUtility(least=1e-3, most=1e3)
    state = noise.observe(noise.init(CONTEXT), answer(norm))
    multiplier = noise.choose(state, CONTEXT) * CONTEXT.noise_multiplier
    assert deviation_of(multiplier) == pytest.approx(norm / math.sqrt(400), rel=1e-6)


def test_the_choice_does_not_depend_on_the_noise_of_the_release():
    noise = ap.noise.AdaptivePrivacyUtility(least=1e-3, most=1e3)
    chosen = [noise.observe(noise.init(CONTEXT), answer(0.5, multiplier))["relative"] for multiplier in (0.5, 2.0, 9.0)]
    assert chosen == pytest.approx([chosen[0]] * 3)


@pytest.mark.parametrize(("signal", "expected"), [(0.0, 0.5), (1e6, 4.0)])
def test_the_bounds_hold(signal, expected):
    noise = ap.noise.AdaptivePrivacyUtility()
    assert noise.observe(noise.init(CONTEXT), answer(signal))["relative"] == expected


def test_it_begins_with_the_reference_multiplier_or_the_nearest_bound():
    assert ap.noise.AdaptivePrivacyUtility().init(CONTEXT)["relative"] == 1.0
    assert ap.noise.AdaptivePrivacyUtility(least=2.0).init(CONTEXT)["relative"] == 2.0
    assert ap.noise.AdaptivePrivacyUtility(least=0.1, most=0.5).init(CONTEXT)["relative"] == 0.5


def test_a_choice_on_other_weights_says_nothing_about_the_gradient():
    noise = ap.noise.AdaptivePrivacyUtility()
    state = noise.observe(noise.init(CONTEXT), answer(0.5))
    choice = LowestLoss(Line({"w": torch.ones(400)}, (0.0, 1.0)), 3.0, 0.5)
    assert noise.observe(state, Released(Request(0.1, math.inf, SIZE, (choice,)), {}, (), (1,))) == state


def test_in_a_frame_the_noise_of_every_coordinate_counts():
    """Half of the coordinates have a hundred times the noise: the rest of the squared length is the signal."""
    scale = torch.cat([torch.full((200,), 1.0), torch.full((200,), 100.0)]).double()
    frame = Frame({"w": torch.zeros(400)}, {"w": scale})
    plain = released(torch.zeros(400)).request
    deviations = plain.standard_deviation(plain.releases[0]) / SIZE * scale
    noise = ap.noise.AdaptivePrivacyUtility(least=1e-9, most=1e9)

    def relative(signal):
        power = float(deviations.square().sum()) + signal**2
        gradient = torch.full((400,), math.sqrt(power / 400), dtype=torch.float64)
        return noise.observe(noise.init(CONTEXT), released(gradient, parameters=("w",), frame=frame))["relative"]

    length = float(deviations.norm())
    assert relative(length) == pytest.approx(1.0), "with a signal as long as the noise nothing changes"
    assert relative(3 * length) == pytest.approx(3.0)


def test_on_a_quadratic_it_contracts_as_one_step_of_delay_allows():
    """x ← x − (g + σν)/(2M) with σ_t = ‖g_{t−1}‖/√d: E‖x_{t+1}‖²/‖x_t‖² = ¼ + ¼/r, so r = (1 + √17)/8; without delay it would be ½."""
    numbers, generator = 40_000, torch.Generator().manual_seed(0)
    noise = ap.noise.AdaptivePrivacyUtility(least=1e-6, most=1e6)
    weights = torch.ones(numbers, dtype=torch.float64)
    context = Context(1, 10, 0.1, SIZE, SIZE / 1.0001, {"w": (numbers,)})
    state, ratios = noise.init(context), []
    for _ in range(12):
        multiplier = noise.choose(state, context) * context.noise_multiplier
        deviation = deviation_of(multiplier)
        gradient = weights + deviation * torch.randn(numbers, generator=generator, dtype=torch.float64)
        state = noise.observe(state, released(gradient, multiplier))
        ratios.append(float((weights - gradient / 2).square().sum() / weights.square().sum()))
        weights = weights - gradient / 2
    assert np.mean(ratios[-6:]) == pytest.approx((1 + math.sqrt(17)) / 8, abs=0.02)


def test_its_rule_is_a_filter(budget):
    def rule(rate):
        return ap.plan("fay-adaptive", budget=budget, population=1000, sample_rate=rate, steps=10).rule()

    assert type(rule(0.2)) is RenyiFilter
    assert type(rule(1.0)) is GaussianFilter


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"least": 0.0}, "least"),
        ({"most": -1.0}, "most"),
        ({"least": 2.0, "most": 1.0}, "least"),
        ({"multiplier": 0}, "multiplier"),
    ],
)
def test_bad_input_is_named(wrong, named):
    with pytest.raises(ap.InvalidArgument, match=rf"^noise\.{named}"):
        ap.noise.AdaptivePrivacyUtility(**wrong)


def test_a_filter_has_no_spare_steps(budget):
    with pytest.raises(ap.InvalidArgument, match=r"^spare=5: a filter pays for every draw as it comes"):
        ap.plan("fay-adaptive", budget=budget, population=1000, sample_rate=0.2, steps=10, spare=5)


def test_a_reference_beyond_the_budget_is_refused(budget):
    recipe = ap.recipes.fay_adaptive(multiplier=0.5)
    with pytest.raises(ap.InvalidArgument, match=r"^noise.multiplier=0.5: the reference run would need"):
        ap.plan(recipe, budget=budget, population=1000, sample_rate=0.2, steps=10)
