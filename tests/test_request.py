import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion import InvalidArgument
from apportion.request import ClippedSum, Event, Request

positive = st.floats(0.01, 100)


@given(positive, st.lists(st.tuples(positive, st.floats(0.05, 1)), min_size=1, max_size=6))
def test_the_stated_multiplier_is_the_executed_one(multiplier, groups):
    """Σ (sensitivity/std)² = 1/z² for any thresholds and any shares: the price does not follow the clip."""
    total = math.fsum(share for _, share in groups)
    releases = tuple(
        ClippedSum(threshold, parameters=(f"p{i}",), share=share / total) for i, (threshold, share) in enumerate(groups)
    )
    request = Request(0.1, multiplier, 10.0, releases)
    whitened = math.fsum((release.sensitivity / request.standard_deviation(release)) ** 2 for release in releases)
    assert whitened == pytest.approx(multiplier**-2, rel=1e-9)


def test_noise_follows_the_threshold_of_the_same_request():
    small, large = (Request(0.1, 2.0, 10.0, (ClippedSum(threshold),)) for threshold in (0.5, 1.0))
    assert large.standard_deviation(large.releases[0]) == 2 * small.standard_deviation(small.releases[0])
    assert large.standard_deviation(large.releases[0]) == pytest.approx(2.0, rel=2e-4)


def test_noise_covers_the_headroom():
    request = Request(0.1, 2.0, 10.0, (ClippedSum(1.0, headroom=0.01),))
    assert request.standard_deviation(request.releases[0]) == pytest.approx(2.02)


def test_a_request_is_frozen():
    request = Request(0.1, 2.0, 10.0, (ClippedSum(1.0),))
    with pytest.raises(dataclasses.FrozenInstanceError):
        request.noise_multiplier = 1.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        request.releases[0].threshold = 2.0


def test_the_event_has_the_rate_and_the_joint_multiplier():
    assert Request(0.1, 2.0, 10.0, (ClippedSum(1.0),)).event() == Event(0.1, 2.0)


@pytest.mark.parametrize(
    ("rate", "multiplier", "covered"),
    [(0.1, 2.0, True), (0.05, 2.0, True), (0.1, 3.0, True), (0.2, 2.0, False), (0.1, 1.9, False)],
)
def test_a_token_covers_only_what_it_dominates(rate, multiplier, covered):
    assert Event(0.1, 2.0).covers(Event(rate, multiplier)) is covered


@pytest.mark.parametrize(
    "build",
    [
        lambda: Event(0.0, 1.0),
        lambda: Event(1.1, 1.0),
        lambda: Event(math.nan, 1.0),
        lambda: Event(0.1, 0.0),
        lambda: Event(0.1, math.nan),
        lambda: Event(0.1, -1.0),
        lambda: ClippedSum(0.0),
        lambda: ClippedSum(math.inf),
        lambda: ClippedSum(math.nan),
        lambda: ClippedSum(1.0, headroom=-0.1),
        lambda: Request(0.1, 1.0, 0.0, (ClippedSum(1.0),)),
        lambda: Request(0.1, 1.0, 10.0, ()),
        lambda: Request(0.1, 1.0, 10.0, (ClippedSum(1.0, ("a",)), ClippedSum(1.0, ("b",)))),
        lambda: Request(0.1, 1.0, 10.0, (ClippedSum(1.0, ("a",), 0.5), ClippedSum(1.0, ("a",), 0.5))),
        lambda: Request(0.1, 1.0, 10.0, (ClippedSum(1.0, None, 0.5), ClippedSum(1.0, ("a",), 0.5))),
    ],
)
def test_impossible_requests_are_refused(build):
    with pytest.raises(InvalidArgument):
        build()
