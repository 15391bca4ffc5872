"""Any clip with any noise, groups and update: thirty combinations drawn at random end within their budget and pass the replay audit."""

import random
from dataclasses import replace

import pytest
from torch import nn

import apportion as ap
import runs
from runs import replay

LOSS = nn.CrossEntropyLoss()
CLIPS = [
    ap.clip.Fixed(0.2),
    ap.clip.Decay(start=0.5),
    ap.clip.LinearDecay(start=0.4, ramp_steps=3),
    ap.clip.SensitivityDecay(start=0.5),
    ap.clip.Sequence((0.3, 0.1)),
    ap.clip.Quantile(share=0.05),
    ap.clip.Quantile(update="arithmetic", share=0.02),
    ap.clip.NormBased(),
    ap.clip.AdaClip(),
    ap.clip.Automatic(0.3),
]
NOISES = [
    ap.noise.Constant(),
    ap.noise.GrowingMu(ratio=3.0),
    ap.noise.TimeDecay(rate=0.3, per="step"),
    ap.noise.ExponentialDecay(rate=0.2, per="step"),
    ap.noise.StepDecay(factor=0.6, period=2, per="step"),
    ap.noise.PolynomialDecay(period=4, per="step"),
    ap.noise.GeometricDecay(factor=0.8),
    ap.noise.LinearDecay(),
    ap.noise.InfluenceWeighted(contraction=0.9),
    ap.noise.PrivacyUtility(),
]
GROUPS = ["flat", "layer", (("0.*",), ("2.*",)), (("*.weight",), ("*.bias",))]
ALLOCATIONS = ["equal", "global", "dimension"]


def combinations(number):
    draw = random.Random(20)
    for _ in range(number):
        clip = replace(draw.choice(CLIPS), groups=draw.choice(GROUPS), allocation=draw.choice(ALLOCATIONS))
        divide = draw.random() < 0.3 and not isinstance(clip, ap.clip.AdaClip)
        update = ap.update.Plain(average=draw.choice([None, 0.9]), divide_by_clip=divide)
        yield {"clip": clip, "noise": draw.choice(NOISES), "update": update}


def named(chosen):
    groups = chosen["clip"].groups if isinstance(chosen["clip"].groups, str) else len(chosen["clip"].groups)
    return f"{type(chosen['clip']).__name__}-{groups}-{chosen['clip'].allocation}-{type(chosen['noise']).__name__}"


def drawn():
    """The first four in the core suite, all in the long one."""
    for number, chosen in enumerate(combinations(30)):
        yield pytest.param(chosen, id=named(chosen), marks=() if number < 4 else pytest.mark.slow)


@pytest.mark.parametrize("chosen", list(drawn()))
def test_a_combination_is_within_budget_and_holds(model, records, budget, chosen):
    declared = {"budget": budget, "population": 400, "sample_rate": 0.3, "steps": 6, "count_usable": False}
    run = runs.train(model, LOSS, records, **declared, lr=0.1, **chosen)
    assert 0.98 * budget.epsilon <= run.epsilon() <= budget.epsilon
    report = replay(model, LOSS, records, steps=3, **chosen)
    report.require()
    assert report.noise_calls
