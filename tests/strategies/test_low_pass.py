"""The low-pass filter: its recursion by hand, its start, and what it makes of noise."""

import math

import pytest
import torch

import apportion as ap
from apportion.releases import ClippedSum
from apportion.request import Released, Request

REQUEST = Request(0.1, 1.0, 50.0, (ClippedSum(1.0),))


def filtered(update, gradients):
    state, course = update.init({}), []
    for gradient in gradients:
        released = Released(REQUEST, {"w": torch.as_tensor(gradient, dtype=torch.float64)})
        course.append(update.transform(state, released)["w"].item())
        state = update.observe(state, released, {})
    return course


def test_the_first_order_is_a_corrected_moving_average():
    course = filtered(ap.update.LowPass(), [1.0, -2.0, 4.0])
    second = (0.9 * 0.1 * 1 + 0.1 * -2) / (0.1 + 0.09)
    third = (0.81 * 0.1 * 1 + 0.9 * 0.1 * -2 + 0.1 * 4) / (0.1 + 0.09 + 0.081)
    assert course == pytest.approx([1.0, second, third])


def test_a_filter_of_second_order_by_hand():
    """m_t = 0.7·m_{t−1} + 0.2·m_{t−2} + 0.06·g_t + 0.04·g_{t−1}; c_t likewise, with a 1 for every gradient that there is."""
    update, gradients = ap.update.LowPass(a=(-0.7, -0.2), b=(0.06, 0.04)), [3.0, 1.0, -2.0, 5.0]
    m, c, expected = [], [], []
    for t in range(4):
        for past, values in ((m, gradients), (c, [1.0] * 4)):
            value = 0.06 * values[t] + (0.04 * values[t - 1] if t else 0.0)
            value += 0.7 * past[t - 1] if t else 0.0
            value += 0.2 * past[t - 2] if t > 1 else 0.0
            past.append(value)
        expected.append(m[t] / c[t])
    assert filtered(update, gradients) == pytest.approx(expected)


@pytest.mark.parametrize("options", [{}, {"b": (0.05, 0.05)}, {"a": (-0.7, -0.2)}, {"a": (), "b": (1.0, 1.0, 1.0)}])
def test_a_constant_gradient_passes_as_it_is_from_the_first_step_on(options):
    assert filtered(ap.update.LowPass(**options), [2.5] * 8) == pytest.approx([2.5] * 8)


def test_noise_is_damped():
    """b²/(1 − a²) of the variance of white noise is left: 0.1/√(1 − 0.81) = 0.229 of its deviation."""
    noise = torch.randn(4000, generator=torch.Generator().manual_seed(0)).tolist()
    course = torch.tensor(filtered(ap.update.LowPass(), noise)[100:])
    assert course.std().item() == pytest.approx(0.1 / math.sqrt(1 - 0.81), rel=0.1)


def test_the_scale_of_b_has_no_effect():
    gradients = [1.0, -2.0, 4.0]
    assert filtered(ap.update.LowPass(b=(7.0,)), gradients) == pytest.approx(filtered(ap.update.LowPass(), gradients))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"a": (-1.0,)}, "noise would grow"),
        ({"a": (1.1,)}, "noise would grow"),
        ({"a": (-1.6, 0.64, -0.5)}, "noise would grow"),
        ({"b": ()}, "vanish"),
        ({"b": (0.1, -0.1), "a": ()}, "vanish"),
        ({"b": (-0.1,)}, "change its sign"),
        ({"a": 0.9}, "a list of numbers is needed"),
        ({"b": ("much",)}, r"update.b\[0\]"),
        ({"b": (math.inf,)}, r"update.b\[0\]"),
    ],
)
def test_a_filter_that_is_none_is_refused(wrong, words):
    with pytest.raises(ap.InvalidArgument, match=rf"^update\.[ab].*{words}|^{words}"):
        ap.update.LowPass(**wrong)
