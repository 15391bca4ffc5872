import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion import InvalidArgument, clip, noise
from apportion.strategies.context import Context, epoch_length


def thresholds(strategy, steps=1000, rate=0.1):
    state = strategy.init(Context(1, steps, rate))
    return [strategy.propose(state, Context(t, steps, rate))[0].threshold for t in range(1, steps + 1)]


def test_fixed_never_moves():
    assert set(thresholds(clip.Fixed(0.7))) == {0.7}


def test_decay_follows_the_epochs():
    """C_1 = C₀, C_4 = C₀/2 for a = ½; constant within an epoch of round(1/q) = 10 steps; no epoch 0."""
    values = thresholds(clip.Decay(start=0.8, power=0.5))
    assert values[0] == values[9] == 0.8
    assert values[10] == pytest.approx(0.8 / math.sqrt(2))
    assert values[30] == values[39] == pytest.approx(0.4)
    assert values[-1] == pytest.approx(0.8 / math.sqrt(100))


@given(st.floats(0.01, 10), st.floats(0.05, 1))
def test_decay_falls_from_epoch_to_epoch_and_stays_above_its_minimum(start, power):
    values = thresholds(clip.Decay(start=start, power=power, minimum=0.005), steps=400)[::10]
    assert all(later < earlier or later == 0.005 for earlier, later in itertools.pairwise(values))
    assert min(values) >= 0.005


@pytest.mark.parametrize(("rate", "length"), [(1.0, 1), (0.1, 10), (0.3, 3), (1024 / 60_000, 59), (0.9, 1)])
def test_an_epoch_is_the_rounded_inverse_of_the_rate(rate, length):
    assert epoch_length(rate) == length
    assert Context(length, 10_000, rate).epoch == 1
    assert Context(length + 1, 10_000, rate).epoch == 2


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: clip.Fixed(0.0), "clip.threshold=0.0"),
        (lambda: clip.Fixed(-1.0), "positive"),
        (lambda: clip.Fixed(math.nan), "clip.threshold=nan"),
        (lambda: clip.Fixed("big"), "a number is needed"),
        (lambda: clip.Fixed(True), "a number is needed"),
        (lambda: clip.Decay(start=0.0), "clip.start"),
        (lambda: clip.Decay(power=0.0), "clip.power"),
        (lambda: clip.Decay(power=1.5), "clip.power"),
        (lambda: clip.Decay(start=0.1, minimum=0.2), "clip.minimum"),
        (lambda: noise.Constant(0.0), "noise.multiplier"),
        (lambda: noise.Constant(math.nan), "noise.multiplier"),
    ],
)
def test_hyper_parameters_out_of_range_are_refused(build, words):
    with pytest.raises(InvalidArgument, match=words):
        build()
