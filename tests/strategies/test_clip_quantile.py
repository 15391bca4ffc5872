"""Quantile tracking: how the budget is divided, where thresholds go, and the numbers of Andrew et al. and He et al."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import apportion as ap
import runs
from apportion import InvalidArgument, clip
from apportion.releases import UnclippedCount
from apportion.request import Released, Request
from apportion.strategies.context import Context
from apportion.training.packing import pack, unpack

LAYERS = {"0.weight": (4, 3), "0.bias": (3,), "2.weight": (3, 2), "2.bias": (2,)}


def context(z=1.0, size=100.0, shapes=LAYERS):
    return Context(1, 100, 0.1, size, z, shapes)


def asked(strategy, public, state=None):
    """The request of a step."""
    state = strategy.init(public) if state is None else state
    return Request(0.1, public.noise_multiplier, public.expected_batch_size, strategy.propose(state, public))


def told(strategy, state, fractions, public=None):
    """The next state after these fractions were released."""
    request = asked(strategy, public or context(), state)
    return strategy.observe(state, Released(request, {}, tuple(fraction - 0.5 for fraction in fractions)))


def gradient_multiplier(request):
    """z_Δ: the multiplier of all gradient sums together."""
    return math.fsum((one.sensitivity / request.standard_deviation(one)) ** 2 for one in request.sums) ** -0.5


# --- the division of the budget ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [clip.Quantile(count_noise=5.0), clip.Quantile()], ids=["given", "B/20"])
@pytest.mark.parametrize(("z", "expected"), [(1.0, 1.005038), (2.0, 2.041241)])
def test_the_multiplier_that_is_left_for_the_gradient(strategy, z, expected):
    request = asked(strategy, context(z))
    assert gradient_multiplier(request) == pytest.approx(expected, abs=5e-7)
    (count,) = request.statistics
    assert request.standard_deviation(count) == pytest.approx(5.0)
    assert count.threshold == request.sums[0].threshold == 0.1


@given(
    st.floats(0.3, 5),
    st.floats(0.005, 0.5),
    st.sampled_from(["flat", "layer", (("*.weight",), ("*.bias",))]),
    st.sampled_from(["equal", "global", "dimension"]),
)
def test_gradient_and_counts_together_have_the_stated_multiplier(z, share, groups, allocation):
    """He: σ_b = (z/2)·√(K/r), σ_new = z/√(1 − r). In all, Σ (Δ/s)² = z⁻²."""
    strategy = clip.Quantile(share=share, groups=groups, allocation=allocation)
    request = asked(strategy, context(z))
    counts = request.statistics
    assert len(counts) == len(request.sums) == (1 if groups == "flat" else 2)
    assert [request.standard_deviation(one) for one in counts] == pytest.approx(
        [z / 2 * math.sqrt(len(counts) / share)] * len(counts)
    )
    assert gradient_multiplier(request) == pytest.approx(z / math.sqrt(1 - share))
    whitened = math.fsum((one.sensitivity / request.standard_deviation(one)) ** 2 for one in request.releases)
    assert whitened == pytest.approx(z**-2, rel=1e-9)


def test_a_share_is_another_way_to_say_a_count_noise():
    z, groups, share = 1.7, 2, 0.04
    by_share = asked(clip.Quantile(share=share, groups="layer"), context(z))
    by_noise = asked(clip.Quantile(count_noise=z / 2 * math.sqrt(groups / share), groups="layer"), context(z))
    assert [one.share for one in by_noise.releases] == pytest.approx([one.share for one in by_share.releases])


@pytest.mark.parametrize("groups", ["flat", "layer"])
def test_counts_that_would_take_the_whole_budget_are_refused_with_what_would_do(groups):
    count = 1 if groups == "flat" else 2
    edge = 3.0 * math.sqrt(count) / 2  # z = 2σ_b/√K
    for deviation in ((1 - 1e-12) * edge, 0.5 * edge):
        with pytest.raises(InvalidArgument, match=f"clip.count_noise.*more than {edge:.4g}.*share=0.01"):
            asked(clip.Quantile(count_noise=deviation, groups=groups), context(3.0))
    asked(clip.Quantile(count_noise=1.01 * edge, groups=groups), context(3.0))
    with pytest.raises(InvalidArgument, match="count_noise=") as refused:
        asked(clip.Quantile(groups=groups), context(3.0, size=8.0))  # B/20 = 0.4
    advised = float(refused.value.fix.split("count_noise=")[1].split(",")[0])
    request = asked(clip.Quantile(count_noise=advised, groups=groups), context(3.0, size=8.0))
    assert math.fsum(one.share for one in request.statistics) == pytest.approx(0.01, rel=0.01)


def test_a_run_whose_counts_do_not_fit_charges_nothing(model, records, budget, tmp_path):
    with pytest.raises(InvalidArgument, match="batch_size/20, because none was given"):
        runs.train(
            model,
            nn.CrossEntropyLoss(),
            records,
            budget=budget,
            population=40,
            sample_rate=0.1,
            steps=3,
            lr=0.1,
            clip=clip.Quantile(),
            noise=ap.noise.GrowingMu(3.0, multiplier=4.0),  # only the first step is too noisy
            out=tmp_path / "run",
        )
    assert not list(tmp_path.rglob("*.sqlite"))


# --- where thresholds go ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("update", ["geometric", "arithmetic"])
@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
def test_thresholds_find_the_quantile_of_independent_norms(quantile, update):
    """Lognormal norms, B = 200 with noise of B/20: after 300 steps from far below, the mean threshold lies at the quantile."""
    generator, size = np.random.default_rng(1), 200
    strategy = clip.Quantile(start=0.01, quantile=quantile, update=update)
    state, late = (0.01,), []
    for step in range(900):
        (threshold,) = state
        norms = generator.lognormal(0.5, 1.0, size)
        noise = generator.normal(0, size / 20)
        state = told(strategy, state, [0.5 + (np.sum(norms <= threshold) - size / 2 + noise) / size])
        late += [threshold] if step >= 300 else []
    below = np.mean(generator.lognormal(0.5, 1.0, (1, 200_000)) <= np.array(late[::6])[:, None])
    assert below == pytest.approx(quantile, abs=0.02)


def test_each_group_finds_its_own_quantile():
    generator, size = np.random.default_rng(2), 500
    strategy = clip.Quantile(groups="layer", share=0.05, quantile=0.7)
    public = context(1.0, size)
    state = strategy.init(public)
    assert state == pytest.approx((0.1 / math.sqrt(2),) * 2)
    scales = np.array([0.05, 20.0])
    for _ in range(400):
        fractions = [
            np.mean(scale * generator.exponential(1, size) <= c) for scale, c in zip(scales, state, strict=True)
        ]
        state = told(strategy, state, fractions, public)
    assert np.array(state) / scales == pytest.approx([-math.log(0.3)] * 2, rel=0.1)


def test_one_group_of_he_is_andrew():
    """One layer as a group of its own, or all parameters together: the same requests and the same thresholds."""
    shapes = {"layer.weight": (4, 3), "layer.bias": (3,)}
    flat, layer = (clip.Quantile(groups=groups, count_noise=7.0) for groups in ("flat", "layer"))
    public, generator = context(1.3, shapes=shapes), np.random.default_rng(3)
    one, other = flat.init(public), layer.init(public)
    for _ in range(20):
        assert one == other
        first, second = asked(flat, public, one), asked(layer, public, other)
        assert [dataclasses.replace(r, parameters=None) for r in second.releases] == list(first.releases)
        fraction = generator.uniform(-0.2, 1.2)
        one, other = told(flat, one, [fraction], public), told(layer, other, [fraction], public)
    assert one != flat.init(public)


@pytest.mark.parametrize("update", ["geometric", "arithmetic"])
def test_nothing_drifts_at_the_quantile(update):
    strategy = clip.Quantile(quantile=0.75, update=update)
    assert told(strategy, (0.37,), [0.75]) == (0.37,)


def test_one_step():
    assert told(clip.Quantile(rate=0.3, quantile=0.6), (2.0,), [0.9]) == pytest.approx((2 * math.exp(-0.09),))
    assert told(clip.Quantile(rate=0.3, quantile=0.6, update="arithmetic"), (2.0,), [0.1]) == pytest.approx((2.15,))


@given(st.floats(-1e6, 1e6), st.floats(0, 1), st.floats(0.01, 1e4), st.sampled_from(["geometric", "arithmetic"]))
def test_noise_moves_a_threshold_by_a_bounded_step_and_within_its_bounds(fraction, quantile, rate, update):
    strategy = clip.Quantile(0.5, quantile, rate, update=update, minimum=0.01, maximum=20.0)
    (after,) = told(strategy, (0.5,), [fraction])
    assert 0.01 <= after <= 20.0
    if update == "geometric" and rate <= 1:
        assert abs(math.log(after / 0.5)) <= rate * max(quantile, 1 - quantile) + 1e-9


def test_a_state_is_plain_data_and_is_not_changed():
    strategy = clip.Quantile(groups="layer", share=0.1)
    before = strategy.init(context())
    kept = unpack(pack(before))
    after = told(strategy, before, [0.9, 0.1])
    assert before == kept != after
    assert unpack(pack(after)) == after
    assert told(strategy, kept, [0.9, 0.1]) == after


def test_counts_stand_after_the_sums_with_the_same_parameters():
    request = asked(clip.Quantile(groups="layer", share=0.1), context(), (0.2, 0.4))
    assert [type(one) for one in request.releases[2:]] == [UnclippedCount] * 2
    assert [(one.threshold, one.parameters) for one in request.statistics] == [
        (one.threshold, one.parameters) for one in request.sums
    ]


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: clip.Quantile(start=0.0), "clip.start=0.0"),
        (lambda: clip.Quantile(start=1e-4), "outside of"),
        (lambda: clip.Quantile(start=2.0, maximum=1.0), "outside of"),
        (lambda: clip.Quantile(minimum=0.0), "clip.minimum=0.0"),
        (lambda: clip.Quantile(maximum=math.inf), "clip.maximum=inf"),
        (lambda: clip.Quantile(quantile=-0.1), "clip.quantile=-0.1"),
        (lambda: clip.Quantile(quantile=1.1), "clip.quantile=1.1"),
        (lambda: clip.Quantile(rate=0.0), "clip.rate=0.0"),
        (lambda: clip.Quantile(count_noise=0.0), "clip.count_noise=0.0"),
        (lambda: clip.Quantile(share=0.0), "clip.share=0.0"),
        (lambda: clip.Quantile(share=1.0), "clip.share=1.0"),
        (lambda: clip.Quantile(count_noise=5.0, share=0.1), "Pass one of them"),
        (lambda: clip.Quantile(update="geometrical"), "Did you mean 'geometric'"),
    ],
)
def test_hyper_parameters_out_of_range_are_refused(build, words):
    with pytest.raises(InvalidArgument, match=words):
        build()
