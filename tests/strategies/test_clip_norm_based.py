"""Thresholds in proportion to the released mean norm."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion import InvalidArgument, clip
from apportion.releases import NormSum
from apportion.request import Released, Request
from apportion.strategies.context import Context
from apportion.training.packing import pack, unpack

LAYERS = {"0.weight": (4, 3), "0.bias": (3,), "2.weight": (3, 2), "2.bias": (2,)}


def context(z=1.0):
    return Context(1, 100, 0.1, 50.0, z, LAYERS)


def asked(strategy, state, public):
    return Request(0.1, public.noise_multiplier, public.expected_batch_size, strategy.propose(state, public))


def told(strategy, state, means):
    return strategy.observe(state, Released(asked(strategy, state, context()), {}, tuple(means)))


@pytest.mark.parametrize("groups", ["flat", "layer", (("*.weight",), ("0.bias",), ("2.bias",))])
@given(z=st.floats(0.3, 5), share=st.floats(0.005, 0.5))
def test_gradient_and_norms_together_have_the_stated_multiplier(groups, z, share):
    """σ_n = z·√(K/r) for each norm sum, z/√(1 − r) for the gradient: Σ (Δ/s)² = z⁻²."""
    strategy = clip.NormBased(groups=groups, share=share)
    request = asked(strategy, strategy.init(context(z)), context(z))
    count = {"flat": 1, "layer": 2}.get(groups, 3) if isinstance(groups, str) else 3
    assert len(request.sums) == len(request.statistics) == count
    for norm in request.statistics:
        assert request.standard_deviation(norm) == pytest.approx(z * math.sqrt(count / share) * norm.bound)
    whitened = math.fsum((one.sensitivity / request.standard_deviation(one)) ** 2 for one in request.releases)
    assert whitened == pytest.approx(z**-2, rel=1e-9)


def test_a_bound_follows_the_threshold_before():
    """c_t = β·C_{t−1}, C_t = α·Ñ_{t−1}; C₀ = C₁."""
    strategy = clip.NormBased(start=0.2, proportion=0.5, headroom=3.0)
    state, seen = strategy.init(context()), []
    for mean in (0.3, 0.5, 0.1):
        request = asked(strategy, state, context())
        seen.append((request.sums[0].threshold, request.statistics[0].bound))
        state = told(strategy, state, [mean])
    assert seen == [pytest.approx(pair) for pair in [(0.2, 0.6), (0.15, 0.6), (0.25, 0.45)]]
    assert state == {"thresholds": pytest.approx((0.05,)), "previous": pytest.approx((0.25,))}
    assert isinstance(request.statistics[0], NormSum)


@pytest.mark.parametrize("start", [0.01, 1.0, 100.0])
def test_constant_norms_are_found_from_anywhere(start):
    """Norms are all r; without noise C goes to α·r, also from where they are cut at first."""
    strategy = clip.NormBased(start=start, proportion=0.4, headroom=6.0)
    state = strategy.init(context())
    for _ in range(60):
        bound = asked(strategy, state, context()).statistics[0].bound
        state = told(strategy, state, [min(7.0, bound)])
    assert state["thresholds"] == pytest.approx((2.8,))


def test_the_mean_of_the_norms_is_found_through_the_noise():
    generator, size, z = np.random.default_rng(0), 500, 1.0
    strategy = clip.NormBased(proportion=0.5, headroom=20.0, groups="layer")
    scales = (0.3, 8.0)
    state, late = strategy.init(context(z)), []
    for step in range(300):
        request = Request(0.1, z, float(size), strategy.propose(state, context(z)))
        means = [
            (np.minimum(scale * generator.exponential(1, size), one.bound).sum()
             + generator.normal(0, request.standard_deviation(one))) / size
            for scale, one in zip(scales, request.statistics, strict=True)
        ]  # fmt: skip
        state = strategy.observe(state, Released(request, {}, tuple(means)))
        late += [state["thresholds"]] if step >= 100 else []
    assert np.mean(late, 0) == pytest.approx([0.15, 4.0], rel=0.05)


@pytest.mark.parametrize(("mean", "after"), [(-3.0, 0.01), (0.0, 0.01), (1e9, 20.0)])
def test_noise_cannot_drive_a_threshold_out_of_its_bounds(mean, after):
    strategy = clip.NormBased(minimum=0.01, maximum=20.0)
    state = told(strategy, strategy.init(context()), [mean])
    assert state["thresholds"] == (after,)
    asked(strategy, told(strategy, state, [mean]), context())  # and the next bound is one that can be asked for


def test_a_state_is_plain_data_and_is_not_changed():
    strategy = clip.NormBased(groups="layer")
    before = strategy.init(context())
    kept = unpack(pack(before))
    after = told(strategy, before, [0.9, 0.1])
    assert before == kept != after
    assert told(strategy, kept, [0.9, 0.1]) == after == unpack(pack(after))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: clip.NormBased(start=-1.0), "clip.start=-1.0"),
        (lambda: clip.NormBased(proportion=0.0), "clip.proportion=0.0"),
        (lambda: clip.NormBased(headroom=0.0), "clip.headroom=0.0"),
        (lambda: clip.NormBased(proportion=0.5, headroom=2.0), "could fall and never rise. Use more than 2"),
        (lambda: clip.NormBased(share=0.0), "clip.share=0.0"),
        (lambda: clip.NormBased(share=1.0), "clip.share=1.0"),
        (lambda: clip.NormBased(maximum=0.01), "outside of"),
    ],
)
def test_hyper_parameters_out_of_range_are_refused(build, words):
    with pytest.raises(InvalidArgument, match=words):
        build()
