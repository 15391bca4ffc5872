"""A hyper-parameter of a noise strategy out of range is refused in a sentence of its own."""

import dataclasses
import math

import numpy as np
import pytest

from apportion import InvalidArgument, noise

REFUSED = [
    (lambda: noise.Constant(0.0), "noise.multiplier", "without noise there is no privacy"),
    (lambda: noise.GrowingMu(ratio=0.5), "noise.ratio", "below 1 the noise would grow"),
    (lambda: noise.GrowingMu(ratio=0.0), "noise.ratio", "it is how much μ grows"),
    (lambda: noise.GrowingMu(ratio=1001.0), "noise.ratio", "more than 1000 times the last"),
    (lambda: noise.TimeDecay(rate=0.0), "noise.rate", "falls by 1/\\(1 \\+ rate\\)"),
    (lambda: noise.TimeDecay(per="batch"), "noise.per", "with every epoch or with every step"),
    (lambda: noise.TimeDecay(minimum=0.0), "noise.minimum", "0 would be no noise"),
    (lambda: noise.TimeDecay(minimum=1.1), "noise.minimum", "a part of the first multiplier"),
    (lambda: noise.TimeDecay(minimum=5e-324), "noise.minimum", "nothing but noise"),
    (lambda: noise.ExponentialDecay(rate=-1.0), "noise.rate", "exponent by which the noise falls"),
    (lambda: noise.StepDecay(factor=1.0), "noise.factor", "must fall, but not to 0"),
    (lambda: noise.StepDecay(factor=0.0), "noise.factor", "must fall, but not to 0"),
    (lambda: noise.StepDecay(period=0), "noise.period", "the noise stays for that long"),
    (lambda: noise.StepDecay(period=2.5), "noise.period", "a whole number"),
    (lambda: noise.PolynomialDecay(end=0.0), "noise.end", "the last multiplier as a part of the first"),
    (lambda: noise.PolynomialDecay(end=1.0), "noise.end", "the noise must fall"),
    (lambda: noise.PolynomialDecay(end=2.0), "noise.end", "strictly between 0 and 1"),
    (lambda: noise.PolynomialDecay(end=1e-9), "noise.end", "nothing but noise"),
    (lambda: noise.PolynomialDecay(power=0.0), "noise.power", "with 0 the noise would not fall"),
    (lambda: noise.PolynomialDecay(period=0), "noise.period", "the decay takes that long"),
    (lambda: noise.GeometricDecay(factor=1.0), "noise.factor", "the variance is multiplied by it"),
    (lambda: noise.LinearDecay(end=0.0), "noise.end", "where the line ends"),
    (lambda: noise.LinearDecay(end=1e-9), "noise.end", "nothing but noise"),
    (lambda: noise.InfluenceWeighted(contraction=1.0), "noise.contraction", "a step would gain nothing"),
    (lambda: noise.InfluenceWeighted(contraction=-0.1), "noise.contraction", "the part of the loss that a step leaves"),
    (lambda: noise.InfluenceWeighted(0.9, [1.0]), "noise.contraction", "noise.weights already say"),
    (lambda: noise.InfluenceWeighted(weights=[1.0, 0.0]), "noise.weights", "a step without influence"),
    (lambda: noise.InfluenceWeighted(weights=[]), "noise.weights", "there is no weight in it"),
    (lambda: noise.InfluenceWeighted(weights=3.0), "noise.weights", "not a list of numbers"),
    (lambda: noise.InfluenceWeighted(weights="1234"), "noise.weights", "not a list of numbers"),
    (lambda: noise.InfluenceWeighted(span=0.5), "noise.span", "the largest multiplier divided by the smallest"),
    (lambda: noise.InfluenceWeighted(span=-1.0), "noise.span", "a ratio of multipliers"),
    (lambda: noise.InfluenceWeighted(span=1e4), "noise.span", "more than 1000 times"),
    (lambda: noise.PrivacyUtility("concave"), "noise.loss", "three kinds of loss"),
    (lambda: noise.PrivacyUtility("convex"), "noise.horizon", "a convex loss needs it"),
    (lambda: noise.PrivacyUtility("convex", 7.0), "noise.horizon", "Δ₀ is at most"),
    (lambda: noise.PrivacyUtility("strongly convex"), "noise.horizon", "a strongly convex loss needs it"),
    (lambda: noise.PrivacyUtility("strongly convex", 1.9), "noise.horizon", "the curvature m is at most M"),
    (lambda: noise.PrivacyUtility("strongly convex", math.inf), "noise.horizon", "a number of steps"),
    (lambda: noise.PrivacyUtility(horizon=10.0), "noise.horizon", "has no horizon"),
]


@pytest.mark.parametrize(
    ("build", "argument", "reason"), REFUSED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_out_of_range(build, argument, reason):
    with pytest.raises(InvalidArgument, match=reason) as caught:
        build()
    assert caught.value.argument == argument


KINDS = [one for name in noise.__all__ if dataclasses.is_dataclass(one := getattr(noise, name))]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_hyper_parameter_takes_nonsense(kind):
    for field in (one for one in dataclasses.fields(kind) if one.type != "bool"):
        for nonsense in (math.nan, -math.inf, "much", True, object(), [None]):
            with pytest.raises(InvalidArgument, match=field.name):
                kind(**{field.name: nonsense})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_numbers_become_plain_ones(kind):
    strategy = kind(multiplier=np.float32(1.5))
    assert type(strategy.multiplier) is float
    assert strategy == dataclasses.replace(strategy)
    assert hash(strategy) == hash(dataclasses.replace(strategy))


def test_weights_may_come_from_an_array():
    strategy = noise.InfluenceWeighted(weights=np.array([1.0, 2.0]))
    assert strategy.weights == (1.0, 2.0)
    assert all(type(weight) is float for weight in strategy.weights)


def test_edges_that_are_allowed():
    noise.GrowingMu(ratio=1000.0)
    noise.TimeDecay(minimum=1.0)
    noise.TimeDecay(minimum=0.001)
    noise.InfluenceWeighted(span=1.0)
    noise.PrivacyUtility("convex", 8)
    noise.PrivacyUtility("strongly convex", 2)
