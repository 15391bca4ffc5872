"""Thresholds from a noisy histogram of the norms: a percentile, or the least error of noise and clipping."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion import InvalidArgument, clip
from apportion.releases import NormHistogram
from apportion.request import Released, Request
from apportion.strategies.citations import citation_keys
from apportion.strategies.clip.histogram import POINTS, estimate_distribution, spread_points
from apportion.strategies.context import Context
from apportion.training.packing import pack, unpack

LAYERS = {"0.weight": (4, 3), "0.bias": (3,), "2.weight": (3, 2), "2.bias": (2,)}
BOTH = [clip.NormPercentile, clip.LeastError]


def context(z=1.0, size=50.0, shapes=LAYERS):
    return Context(1, 100, 0.1, size, z, shapes)


def asked(strategy, state, public):
    return Request(0.1, public.noise_multiplier, public.expected_batch_size, strategy.propose(state, public))


def told(strategy, state, *histograms):
    """The state after these parts of a batch were seen at the points of each group."""
    request = asked(strategy, state, context())
    return strategy.observe(state, Released(request, {}, tuple(value for one in histograms for value in one)))


def threshold(strategy, state, public=None):
    return strategy.propose(state, public or context())[0].threshold


def at(**parts):
    """Parts by the number of their point: at(p3=0.5, p4=0.5)."""
    return tuple(parts.get(f"p{number}", 0.0) for number in range(POINTS))


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("groups", ["flat", "layer", (("*.weight",), ("0.bias",), ("2.bias",))])
@given(z=st.floats(0.3, 5), share=st.floats(0.005, 0.5))
def test_gradient_and_histograms_together_have_the_stated_multiplier(kind, groups, z, share):
    """σ_H = z·√(K/r) at every point, z/√(1 − r) for the gradient: Σ (Δ/s)² = z⁻²."""
    strategy = kind(groups=groups, share=share)
    request = asked(strategy, strategy.init(context(z)), context(z))
    count = {"flat": 1, "layer": 2}.get(groups, 3) if isinstance(groups, str) else 3
    assert len(request.sums) == len(request.statistics) == count
    assert [one.parameters for one in request.sums] == [one.parameters for one in request.statistics]
    assert request.statistic_numbers == count * POINTS
    for histogram in request.statistics:
        assert request.standard_deviation(histogram) == pytest.approx(z * math.sqrt(count / share), rel=1.1e-4)
    whitened = math.fsum((one.sensitivity / request.standard_deviation(one)) ** 2 for one in request.releases)
    assert whitened == pytest.approx(z**-2, rel=1e-9)


# --- the distribution ---


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=30))
def test_a_distribution_is_the_nearest_one_with_the_total_of_the_counts(counts):
    """No other vector of parts that add up to 1 is closer to the counts over their total."""
    found, total = np.array(estimate_distribution(tuple(counts))), math.fsum(counts)
    if total <= 0:
        assert not len(found)
        return
    if total < 1e-3:
        return  # counts a thousand times as large as their total: nothing but rounding
    assert (found >= 0).all()
    assert found.sum() == pytest.approx(1, abs=1e-9)
    slope = (
        np.array(counts) / total - found
    )  # of the squared distance: equal where parts are positive, smaller elsewhere
    largest = slope[found > 0]
    assert np.ptp(largest) <= 1e-7
    assert slope.max() <= largest.max() + 1e-7


def test_noise_at_empty_points_is_taken_off():
    """Two points with half of the norms each, and 18 empty ones with noise of 1 %: to cut counts at 0 would leave 7 % there."""
    generator = np.random.default_rng(0)
    true = np.array([0.5] * 2 + [0.0] * 18)
    parts = [estimate_distribution(tuple(true + generator.normal(0, 0.01, 20))) for _ in range(200)]
    assert np.mean(parts, 0)[2:].sum() < 0.035
    assert np.mean(parts, 0)[:2] == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("value", [0.0, -0.1])
def test_from_a_total_that_is_not_positive_nothing_is_learned(kind, value):
    strategy = kind(start=0.3)
    before = told(strategy, strategy.init(context()), at(p3=1.0))
    assert told(strategy, before, (value,) * POINTS) == before
    first = strategy.init(context())
    assert threshold(strategy, told(strategy, first, (value,) * POINTS)) == 0.3


# --- the range ---


@pytest.mark.parametrize(
    ("parts", "factor"),
    [
        (at(p19=0.51, p1=0.49), 2.0),
        (at(p19=0.49, p1=0.51), 1.0),
        (at(p10=0.06, p1=0.94), 1.0),
        (at(p10=0.04, p9=0.96), 0.5),
    ],
    ids=["half at the end", "less than half", "some in the upper half", "hardly any"],
)
def test_the_range_follows_the_norms(parts, factor):
    strategy = clip.LeastError(start=0.5)
    state = strategy.init(context())
    assert asked(strategy, state, context()).statistics[0].points == spread_points(2.0)
    after = told(strategy, state, parts)
    assert asked(strategy, after, context()).statistics[0].points == spread_points(2.0 * factor)
    assert after[0]["points"] == spread_points(2.0)  # those of the counts that were seen


def test_the_range_of_a_high_percentile_grows_until_it_holds_it():
    strategy = clip.NormPercentile(start=0.5, percentile=0.9)
    assert told(strategy, strategy.init(context()), at(p19=0.11, p1=0.89))[0]["range"] == 4.0
    assert told(strategy, strategy.init(context()), at(p19=0.09, p12=0.91))[0]["range"] == 2.0


def test_points_are_as_far_apart_as_a_histogram_allows():
    for end in (1e-3, 0.4, 1.0, 1e3):
        points = spread_points(end)
        assert (points[0], points[-1], len(points)) == (0.0, end, POINTS)
        NormHistogram(points)
        assert np.ptp([b - a for a, b in pairwise(points)]) < 1e-12 * end


# --- the threshold ---


@pytest.mark.parametrize("percentile", [0.1, 0.3, 0.5, 0.75, 0.95])
def test_a_percentile_is_that_of_the_norms(percentile):
    """Of exact counts of many norms, to a fraction of a point's width."""
    norms = np.random.default_rng(1).gamma(3.0, 0.1, 100_000)
    strategy = clip.NormPercentile(start=0.25, percentile=percentile)
    state = strategy.init(context())
    points = asked(strategy, state, context()).statistics[0].points
    counts = [np.interp(norms, points, tent).mean() for tent in np.eye(POINTS)]
    found = threshold(strategy, told(strategy, state, counts))
    assert found == pytest.approx(np.quantile(norms, percentile), abs=0.2 * points[1])


@given(
    st.lists(st.floats(0, 1), min_size=POINTS, max_size=POINTS).filter(lambda parts: sum(parts) > 0.01),
    st.floats(0.5, 5),
    st.floats(5, 500),
)
def test_the_error_of_noise_and_clipping_is_least(parts, z, size):
    """d·(z_Δ·C)²/B² + mean of max(‖g‖ − C, 0)², written down again, at C and around it; d = 23 and z_Δ² = z²/(1 − r)."""
    strategy = clip.LeastError(start=0.5, share=0.1, minimum=1e-9, maximum=1e9)
    public = context(z, size)
    state = told(strategy, strategy.init(public), parts)
    points, found = np.array(spread_points(2.0)), threshold(strategy, state, public)

    def error(bound):
        clipped = np.average(np.maximum(points - bound, 0) ** 2, weights=parts)
        return 23 * (z * bound) ** 2 / (0.9 * size**2) + clipped

    least = min(map(error, np.linspace(0, 2, 101)))
    assert error(found) <= least + 1e-9


@pytest.mark.parametrize("allocation", ["equal", "global", "dimension"])
def test_the_error_of_all_groups_is_least_for_every_allocation(allocation):
    """Noise of the request itself: its squared norm over all parameters, for thresholds around those that are chosen."""
    strategy = clip.LeastError(0.5, groups="layer", allocation=allocation)
    public, generator = context(2.0, 20.0), np.random.default_rng(3)
    state = strategy.init(public)
    parts = generator.dirichlet(np.ones(POINTS), 2)
    state = told(strategy, state, *parts)
    chosen = [one.threshold for one in strategy.propose(state, public)[:2]]
    points = [np.array(group["points"]) for group in state]

    def error(bounds):
        sums = strategy.clipped_sums(public, bounds, share=1 - strategy.share)
        request = asked(strategy, state, public)
        noise = sum(
            size * (request.standard_deviation(one) / 20.0) ** 2 for one, size in zip(sums, (15, 8), strict=True)
        )
        return noise + sum(
            np.average(np.maximum(at - bound, 0) ** 2, weights=part)
            for at, bound, part in zip(points, bounds, parts, strict=True)
        )

    around = [(a * chosen[0], b * chosen[1]) for a in (0.95, 1.0, 1.05) for b in (0.95, 1.0, 1.05)]
    assert error(chosen) <= min(map(error, around)) + 1e-6


def test_norms_are_found_through_the_noise_from_anywhere():
    """Gamma norms of mean 3, a batch of 500: the median is 2.67, and thresholds stay near it, whatever C₀ was."""
    generator, size = np.random.default_rng(0), 500
    for start in (0.01, 2.0, 100.0):
        strategy, late = clip.NormPercentile(start=start), []
        state = strategy.init(context(1.0, size))
        for step in range(60):
            request = asked(strategy, state, context(1.0, size))
            norms, (histogram,) = generator.gamma(3.0, 1.0, size), request.statistics
            deviation = request.standard_deviation(histogram)
            counts = [
                (np.interp(norms, histogram.points, tent).sum() + generator.normal(0, deviation)) / size
                for tent in np.eye(POINTS)
            ]
            state = strategy.observe(state, Released(request, {}, tuple(counts)))
            late += [threshold(strategy, state)] if step >= 20 else []
        assert np.mean(late) == pytest.approx(2.67, rel=0.1)
        assert np.std(late) < 0.3


def test_the_threshold_suits_the_noise_of_the_step_that_it_is_for():
    strategy = clip.LeastError(start=0.5)
    state = told(strategy, strategy.init(context()), at(p5=0.5, p15=0.5))
    assert threshold(strategy, state, context(z=20.0)) < threshold(strategy, state, context(z=10.0))
    assert threshold(strategy, state, context(size=20.0)) < threshold(strategy, state, context(size=50.0))


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(("parts", "after"), [(at(p0=1.0), 0.01), (at(p19=1.0), 20.0)])
def test_nothing_drives_a_threshold_out_of_its_bounds(kind, parts, after):
    strategy = kind(minimum=0.01, maximum=20.0)
    state = strategy.init(context(1e-9))
    for _ in range(30):
        state = told(strategy, state, parts)
    assert threshold(strategy, state, context(1e-9)) == pytest.approx(after, rel=0.1 if after > 1 else 1e-12)
    assert 0.01 <= state[0]["range"] <= 20.0


@pytest.mark.parametrize("kind", BOTH)
def test_a_state_is_plain_data_and_is_not_changed(kind):
    strategy = kind(groups="layer")
    before = strategy.init(context())
    kept = unpack(pack(before))
    after = told(strategy, before, at(p3=1.0), at(p19=1.0))
    assert before == kept != after
    assert told(strategy, kept, at(p3=1.0), at(p19=1.0)) == after == unpack(pack(after))
    assert after[0]["range"] != after[1]["range"]


def test_whose_work_it_is():
    assert citation_keys("dc-sgd-p")[0] == citation_keys("dc-sgd-e")[0] == "wei2025"


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: clip.NormPercentile(start=-1.0), "clip.start=-1.0"),
        (lambda: clip.NormPercentile(percentile=1.0), "clip.percentile=1.0"),
        (lambda: clip.NormPercentile(percentile=0.0), "clip.percentile=0.0"),
        (lambda: clip.LeastError(share=0.0), "clip.share=0.0"),
        (lambda: clip.LeastError(share=1.0), "clip.share=1.0"),
        (lambda: clip.LeastError(maximum=0.01), "outside of"),
    ],
)
def test_hyper_parameters_out_of_range_are_refused(build, words):
    with pytest.raises(InvalidArgument, match=words):
        build()
