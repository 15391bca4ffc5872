"""Strategies in whole runs: what is really added and handed out at each step, against what is charged for it.

Deviations are read where noise is added, sensitivities are written down again from the definitions, and multipliers come from the ledger:
no number is taken from the request that is judged.
"""

import inspect
from dataclasses import dataclass, field, fields

import pytest
import torch
from torch.nn.functional import cross_entropy

import apportion as ap
import runs
from apportion import clip, noise, recipes
from apportion.accounting.accountant import PrivacyLossAccountant, count_events
from apportion.curator import mechanisms
from apportion.releases import FLOAT32_HEADROOM, ClippedSum, NormHistogram, NormSum, UnclippedCount
from apportion.request import Request
from apportion.sampling import Sampling
from apportion.training.session import REHEARSED
from runs import make_plan

STEPS, RATE, POPULATION = 4, 0.5, 40
PRIVATE = [name for name in recipes.READY if recipes.named(name).private]
PAIRS = {name: (recipes.named(name).clip, recipes.named(name).noise) for name in PRIVATE} | {
    "fixed deviation": (clip.FixedDeviation(0.5, ramp_steps=3), None),
    "quantiles of layers, growing μ": (
        clip.Quantile(0.3, share=0.3, groups="layer", allocation="global"),
        noise.GrowingMu(4.0),
    ),
    "norms of layers, growing μ": (clip.NormBased(0.3, share=0.3, groups="layer"), noise.GrowingMu(4.0)),
    "histograms of layers, growing μ": (clip.LeastError(0.3, share=0.3, groups="layer"), noise.GrowingMu(4.0)),
    "yu-validation": (clip.Fixed(0.3), noise.Validation(counts=(3, 1))),  # as many blocks as there are steps
    "layers by dimension": (clip.Fixed(0.3, groups="layer", allocation="dimension"), None),
}


@dataclass(frozen=True)
class Watched:
    """A clip that writes down what was released, as any strategy may."""

    clip: object
    seen: list = field(default_factory=list)

    def init(self, context):
        return self.clip.init(context)

    def propose(self, state, context):
        return self.clip.propose(state, context)

    def observe(self, state, released):
        if any(part.any() for part in released.gradient.values()):  # not an answer of zeros, which is rehearsed
            self.seen.append(released)
        return self.clip.observe(state, released)


@pytest.fixture
def watched_run(model, records, monkeypatch):
    """Runs a pair of strategies; returns what was released, every call (exact, deviation, noisy) of the mechanism, and the ledger."""

    def run(name):
        calls, original = [], mechanisms.add_gaussian_noise

        def gaussian(exact, deviation, stream, divisor):
            before = exact.double().clone()
            answer = original(exact.double(), deviation, stream, divisor)
            calls.append((before, deviation, answer * divisor))
            return answer

        monkeypatch.setattr(mechanisms, "add_gaussian_noise", gaussian)
        chosen = runs.recipe(*PAIRS[name])
        watched = Watched(chosen.clip)
        done = runs.train(
            model,
            cross_entropy,
            records,
            budget=ap.Budget(epsilon=30.0, delta=1e-3, unit=ap.Record()),
            population=POPULATION,
            sample_rate=RATE,
            steps=STEPS,
            lr=0.1,
            clip=watched,
            noise=chosen.noise,
            seed=5,
            validation=ap.Public(records),
            progress=False,
        )
        assert len(watched.seen) == STEPS
        return watched.seen, calls, list(done._session.account.ledger.events())

    return run


def sensitivity(release):
    """How far one record can move a release, from its definition."""
    match release:
        case ClippedSum():
            return release.threshold * (1 + FLOAT32_HEADROOM)
        case UnclippedCount():
            return 0.5
        case NormSum():
            return release.bound
        case NormHistogram():
            return 1 + FLOAT32_HEADROOM


@pytest.mark.parametrize("name", PAIRS)
def test_all_that_a_step_releases_is_within_its_price(watched_run, name):
    """Σ_j (Δ_j/s_j)² over gradient and statistics is 1/z² of the charged z, and nothing is handed out that was not noised."""
    seen, calls, charged = watched_run(name)
    assert len(charged) == STEPS
    handed_out = sum(len(released.gradient) + len(released.request.statistics) for released in seen)
    assert len(calls) == handed_out, "something was handed out that was not noised, or noised and not handed out"
    assert all(deviation > 0 for _, deviation, _ in calls)
    for released, event in zip(seen, charged, strict=True):
        whitened = 0.0
        for release in released.request.sums:
            names = release.parameters or tuple(released.gradient)
            deviations = set()
            for parameter in names:
                _, deviation, noisy = calls.pop(0)
                deviations.add(deviation)
                mean = noisy / (RATE * POPULATION)
                if release.frame is not None:
                    mean = release.frame.scale[parameter] * mean + release.frame.centre[parameter]
                torch.testing.assert_close(released.gradient[parameter].double(), mean, rtol=1e-5, atol=1e-7)
            (deviation,) = deviations
            whitened += (sensitivity(release) / deviation) ** 2
        statistics = list(released.statistics)
        for release in released.request.statistics:
            _, deviation, noisy = calls.pop(0)
            values = [statistics.pop(0) for _ in range(noisy.numel())]
            assert values == pytest.approx((noisy / (RATE * POPULATION)).view(-1).tolist(), rel=1e-12)
            whitened += (sensitivity(release) / deviation) ** 2
        assert not statistics
        assert whitened == pytest.approx(event.noise_multiplier**-2, rel=1e-9)
        assert event.sample_rate == RATE


LAYERS = [f"{kind} of layers, growing μ" for kind in ("quantiles", "norms", "histograms")]


@pytest.mark.parametrize("name", LAYERS)
def test_a_statistic_has_noise_of_its_own(watched_run, name):
    """Not that of the gradient, of another statistic or of another step: the difference would be without noise."""
    seen, calls, _ = watched_run(name)
    assert all(len(released.request.statistics) == 2 for released in seen)
    units = torch.cat([((noisy - exact) / deviation).flatten() for exact, deviation, noisy in calls])
    assert len({round(abs(float(unit)), 9) for unit in units}) == len(units)


@pytest.mark.parametrize(
    ("clipping", "schedule"),
    [
        (clip.FixedDeviation(1.0, ramp_steps=6), None),
        (None, noise.GrowingMu(3.0)),
        (None, noise.InfluenceWeighted(weights=[1.0, 5.0, 2.0, 1.0] * 2)),
        (clip.FixedDeviation(1.0, ramp_steps=6, multiplier=2.0), None),
    ],
    ids=["noise grows", "noise falls", "least noise in the middle", "a given multiplier"],
)
def test_spare_tokens_cost_what_they_can_pay_for(clipping, schedule):
    """All declared tokens together are within the budget, and a spare one may stand in for any step."""
    budget = ap.Budget(epsilon=4.0, delta=1e-5, unit=ap.Record())
    plan = make_plan(budget, Sampling(1000, 0.2, 8), clipping, schedule, spare=5)
    *_, spare = plan.tokens
    assert len(plan.tokens) == plan.steps + 5
    assert all(spare.covers(token) for token in plan.tokens)
    price = PrivacyLossAccountant().epsilon(count_events(plan.tokens), budget.delta)
    assert price <= budget.epsilon
    assert plan.epsilon == pytest.approx(price, rel=1e-9)


def test_a_request_is_refused_if_its_parts_cost_more_than_it_says():
    """Also by a little, and whether gradient or statistics take too much."""
    for shares in ((1.0, 0.01), (0.99, 0.02), (0.5, 1.0)):
        with pytest.raises(ap.InvalidArgument, match="shares of one batch must add up to 1"):
            Request(0.1, 1.0, 10.0, (ClippedSum(1.0, share=shares[0]), UnclippedCount(1.0, share=shares[1])))


def test_counts_that_do_not_fit_a_later_step_are_refused_before_the_first(model, records, tmp_path):
    """The last but one is the noisiest, beyond the steps that are rehearsed in any case: its counts would take four times its budget."""
    schedule = noise.InfluenceWeighted(weights=[1.0] * REHEARSED + [1e-4, 1.0], multiplier=2.0)
    with pytest.raises(ap.InvalidArgument, match="multiplier of 20 and 1 counts, nothing is left"):
        runs.train(
            model,
            cross_entropy,
            records,
            budget=ap.Budget(epsilon=8.0, delta=1e-3, unit=ap.Record()),
            population=POPULATION,
            sample_rate=0.1,
            steps=REHEARSED + 2,
            lr=0.1,
            clip=clip.Quantile(count_noise=5.0),
            noise=schedule,
            out=tmp_path / "run",
        )
    assert not list(tmp_path.rglob("*.sqlite"))


OTHERWISE = {
    "counts": (3, 1),
    "clip_ratio": 1.7,
    "noise_ratio": 1.7,
    "count_noise": 7.0,
    "contraction": 0.9,
    "ramp_steps": 33,
    "multiplier": 1.7,
    "thresholds": (1.0, 0.5),
    "a": (-0.8,),
    "b": (0.2,),
}


def settings_of(recipe):
    parts = {role: getattr(recipe, role) for role in ("clip", "noise", "update", "model")}
    return {(role, one.name): getattr(part, one.name) for role, part in parts.items() if part for one in fields(part)}


ARGUMENTS = [
    (name, argument)
    for name, function in recipes.RECIPES.items()
    for argument in inspect.signature(function).parameters
    if argument != "file" and (name, argument) != ("du-dynamic", "ratio")
]


def test_one_ratio_of_a_dynamic_run_is_that_of_both_strategies():
    both = recipes.du_dynamic(ratio=3.0)
    assert both == recipes.du_dynamic(clip_ratio=3.0, noise_ratio=3.0)
    assert recipes.du_dynamic(ratio=3.0, clip_ratio=1.5) == recipes.du_dynamic(clip_ratio=1.5, noise_ratio=3.0)


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS)
def test_every_argument_of_a_recipe_reaches_one_strategy(name, argument):
    """And changes nothing else: an argument that is ignored would be believed and published."""
    function = recipes.RECIPES[name]
    default = inspect.signature(function).parameters[argument].default
    value = (
        OTHERWISE[argument]
        if default is None or isinstance(default, tuple)
        else default - 1
        if type(default) is int
        else 0.9 * default
    )
    before, after = settings_of(function()), settings_of(function(**{argument: value}))
    changed = {key for key in before if before[key] != after[key]}
    assert len(changed) == 1
    assert after[changed.pop()] == (value if isinstance(value, tuple) else pytest.approx(value, rel=1e-12))
