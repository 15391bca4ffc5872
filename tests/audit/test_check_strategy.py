"""The conformance suite: every built-in strategy passes it, and each of its checks can fail."""

import gc
import random
import re
from dataclasses import dataclass, is_dataclass
from pathlib import Path

import pytest
import torch

import apportion as ap
from apportion.audit import check_strategy
from apportion.releases import ClippedSum
from suites import thinned

LAYERS = {"groups": "layer"}
STRATEGIES = {
    "fixed": ap.clip.Fixed(0.1),
    "fixed, by layer": ap.clip.Fixed(0.1, **LAYERS),
    "decay": ap.clip.Decay(start=0.5),
    "linear decay": ap.clip.LinearDecay(start=0.5),
    "sensitivity decay": ap.clip.SensitivityDecay(start=0.5),
    "sequence": ap.clip.Sequence((0.5, 0.3, 0.2)),
    "fixed deviation": ap.clip.FixedDeviation(start=0.5, ramp_steps=4),
    "quantile": ap.clip.Quantile(),
    "quantile, arithmetic": ap.clip.Quantile(update="arithmetic", share=0.05),
    "quantile, by layer": ap.clip.Quantile(share=0.05, allocation="global", **LAYERS),
    "norms, by layer": ap.clip.NormBased(start=0.5, **LAYERS),
    "percentile": ap.clip.NormPercentile(),
    "least error": ap.clip.LeastError(),
    "percentile, by layer": ap.clip.NormPercentile(allocation="dimension", **LAYERS),
    "least error, by layer": ap.clip.LeastError(allocation="global", **LAYERS),
    "adaclip": ap.clip.AdaClip(),
    "adaclip, by layer": ap.clip.AdaClip(allocation="dimension", **LAYERS),
    "automatic": ap.clip.Automatic(0.5),
    "automatic, two groups": ap.clip.Automatic(0.5, groups=(("0.*",), ("2.*",))),
    "constant": ap.noise.Constant(),
    "constant, given": ap.noise.Constant(2.0),
    "growing": ap.noise.GrowingMu(),
    "time decay": ap.noise.TimeDecay(),
    "exponential decay": ap.noise.ExponentialDecay(),
    "step decay": ap.noise.StepDecay(),
    "polynomial decay": ap.noise.PolynomialDecay(),
    "geometric decay": ap.noise.GeometricDecay(),
    "linear noise": ap.noise.LinearDecay(),
    "influence": ap.noise.InfluenceWeighted(),
    "privacy-utility": ap.noise.PrivacyUtility(),
    "adaptive privacy-utility": ap.noise.AdaptivePrivacyUtility(),
    "validation": ap.noise.Validation(counts=(2, 1, 1)),
    "plain": ap.update.Plain(average=0.9, divide_by_clip=True),
    "adamw": ap.update.AdamW(),
    "adamw, corrected": ap.update.AdamW(corrected=True),
    "low pass": ap.update.LowPass(),
    "low pass, second order": ap.update.LowPass(a=(-0.7, -0.2), b=(0.05, 0.05)),
    "learning rate": ap.update.LearningRate(warm_up=0.3, decay="cosine"),
    "tail average": ap.update.TailAverage(0.5),
    "chain": ap.update.Chain(
        (
            ap.update.LowPass(),
            ap.update.AdamW(),
            ap.update.LearningRate(warm_up=0.2, decay="linear"),
            ap.update.TailAverage(0.5),
        )
    ),
}


CORE = (
    "fixed, by layer",
    "quantile",
    "adaclip",
    "validation",
    "chain",
)
"""One of each role, and those that follow what is released in ways of their own."""


@pytest.mark.parametrize("name", thinned(STRATEGIES, CORE.__contains__))
def test_a_built_in_strategy_passes(name):
    report = check_strategy(STRATEGIES[name])
    assert report.ok, str(report)
    assert len(report.checks) == 8


def test_every_built_in_strategy_is_here():
    def of(room):
        return {one for name in room.__all__ if is_dataclass(one := getattr(room, name))}

    checked = {type(strategy) for strategy in STRATEGIES.values()}
    steering = {ap.update.AdaDP, ap.update.DPAGD, ap.update.NoisyBTLS}  # tests/training/test_feedback_runs.py
    assert of(ap.clip) | of(ap.noise) | of(ap.update) <= checked | steering


@dataclass
class Faulty:
    """A clip that does nothing wrong; each child does one thing wrong."""

    def init(self, context):
        return 1.0

    def propose(self, state, context):
        return (ClippedSum(state),)

    def observe(self, state, released):
        return state


class TossesCoins(Faulty):
    def propose(self, state, context):
        return (ClippedSum(1.0 + random.random()),)


class RemembersElsewhere(Faulty):
    def __init__(self):
        self.calls = 0

    def observe(self, state, released):
        self.calls += 1
        return state

    def propose(self, state, context):
        return (ClippedSum(1.0 / (1 + self.calls)),)


class KeepsAnObject(Faulty):
    def observe(self, state, released):
        return Faulty()

    def propose(self, state, context):
        return (ClippedSum(1.0),)


class GrowsWithoutEnd(Faulty):
    maximum = 10.0

    def observe(self, state, released):
        return abs(float(next(iter(released.gradient.values())).sum())) + 1e-9


class StopsAtZero(Faulty):
    def observe(self, state, released):
        return float(next(iter(released.gradient.values())).sum())


class LooksAtRecords(Faulty):
    def observe(self, state, released):
        from apportion.audit.sealed import Sealed

        return state + 0 * sum(float(one.sum()) for one in gc.get_objects() if type(one) is Sealed)


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (TossesCoins(), "the same answers twice"),
        (RemembersElsewhere(), "its state survives a file"),
        (KeepsAnObject(), "its state survives a file"),
        (GrowsWithoutEnd(), "any released value is borne"),
        (StopsAtZero(), "any released value is borne"),
        (LooksAtRecords(), "no raw value is touched"),
    ],
)
def test_a_fault_is_found(fault, check):
    gc.freeze()  # what there was before holds no record, and need not be looked through at every step
    report = check_strategy(fault)
    assert check in {one.name for one in report.checks if one.problem}
    with pytest.raises(ap.audit.PrivacyViolation, match=type(fault).__name__):
        report.require()


@pytest.mark.parametrize("nothing", [object(), ap.clip.Fixed, None])
def test_what_fills_no_role_is_told_all_that_it_could_be(nothing):
    with pytest.raises(
        ap.InvalidArgument,
        match=r"^strategy=.* a clip has init.* a noise schedule has .* an update has init, transform",
    ):
        check_strategy(nothing)


def test_a_run_that_is_not_charged_or_noised_is_found(monkeypatch):
    from apportion.curator import mechanisms

    real = mechanisms.add_gaussian_noise
    monkeypatch.setattr(
        mechanisms, "add_gaussian_noise", lambda total, deviation, *rest: real(total, 0.5 * deviation, *rest)
    )
    problems = {one.name for one in check_strategy(ap.clip.Fixed(0.1)).checks if one.problem}
    assert "neighbours look the same" in problems


@pytest.mark.parametrize(
    "example", re.findall(r"```python\n(.*?)```", Path("docs/extending.md").read_text(), re.DOTALL)
)
def test_the_examples_of_the_page_run(example, tmp_path):
    assert len(example.splitlines()) <= 35
    exec(compile(example, "docs/extending.md", "exec"), {"__name__": "example", "torch": torch})
