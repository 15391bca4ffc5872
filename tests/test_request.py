import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apportion import InvalidArgument
from apportion.event import Event
from apportion.releases import ClippedSum, Frame, NormHistogram, NormSum, UnclippedCount
from apportion.request import Request

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


# --- a strategy cannot have something else executed than what is priced ------------------------------------------------------


class Insensitive(ClippedSum):
    """Claims to move the sum less than it does."""

    @property
    def sensitivity(self):
        return 1e-3 * self.threshold


class Doubtful(UnclippedCount):
    sensitivity = 1e-3


class Narrow(NormSum):
    sensitivity = 1e-3


class Faint(NormHistogram):
    sensitivity = 1e-3


class Shifting(Frame):
    def restored(self, name, value):
        return value


FRAME = Frame({"a": torch.zeros(2)}, {"a": torch.ones(2)})


@pytest.mark.parametrize(
    "build",
    [
        lambda: Request(0.1, 1.0, 10.0, (Insensitive(1.0),)),
        lambda: Request(0.1, 1.0, 10.0, (ClippedSum(1.0, share=0.5), Doubtful(1.0, None, 0.5))),
        lambda: Request(0.1, 1.0, 10.0, (ClippedSum(1.0, share=0.5), Narrow(1.0, None, 0.5))),
        lambda: Request(0.1, 1.0, 10.0, (ClippedSum(1.0, share=0.5), Faint((0.0, 1.0), None, 0.5))),
        lambda: NormHistogram([0.0, 1.0]),
        lambda: NormHistogram((1.0,)),
        lambda: NormHistogram((-1.0, 1.0)),
        lambda: NormHistogram((0.0, 1.0, math.nan)),
        lambda: NormHistogram((0.0, 1.0, math.inf)),
        lambda: NormHistogram((0.0, 1e-31)),
        lambda: NormHistogram((0.0, "1")),
        lambda: Request(0.1, 1.0, 10.0, [ClippedSum(1.0)]),
        lambda: Request(0.1, 1.0, 10.0, type("Releases", (tuple,), {})((ClippedSum(1.0),))),
        lambda: ClippedSum(1.0, ("a",), frame=Shifting(FRAME.centre, FRAME.scale)),
        lambda: ClippedSum(1.0, ("a",), frame={"a": torch.ones(2)}),
        lambda: ClippedSum(1.0, (type("Name", (str,), {})("a"),)),
        lambda: ClippedSum(1.0, ("a", None)),
        lambda: ClippedSum(1.0, type("Names", (tuple,), {})(("a",))),
    ],
)
def test_types_of_a_request_are_final(build):
    with pytest.raises(InvalidArgument):
        build()


@pytest.mark.parametrize(
    "value", [math.inf, -math.inf, math.nan, -1.0, 0.0, 1e-31, 1e31, 1e-320, 1e308, True, "1", None]
)
@pytest.mark.parametrize("kind", [ClippedSum, UnclippedCount, NormSum])
def test_thresholds_lie_in_the_range_of_float32(kind, value):
    """Clipped at 1e-320, a record is rounded to 1.09 times that; and 1e308 with its headroom is infinite."""
    with pytest.raises(InvalidArgument, match=r"threshold=|bound="):
        kind(value)


@pytest.mark.parametrize("value", [1e-30, 1e30])
@pytest.mark.parametrize("kind", [ClippedSum, UnclippedCount, NormSum])
def test_thresholds_at_the_ends_of_the_range(kind, value):
    assert 0 < kind(value).sensitivity < math.inf


class Slippery(float):
    """A number that is smaller whenever it is multiplied."""

    def __mul__(self, other):
        return 1e-3 * float(other)

    __rmul__ = __mul__


@pytest.mark.parametrize("number", [Slippery(2.0), np.float32(2.0), np.float64(2.0), torch.tensor(2.0), 2])
def test_numbers_of_a_request_are_plain(number):
    release = ClippedSum(number, headroom=number, stabiliser=number)
    request = Request(Slippery(0.5), number, number, (release,))
    for plain in (
        release.threshold,
        release.headroom,
        release.stabiliser,
        release.share,
        request.sample_rate,
        request.noise_multiplier,
        request.expected_batch_size,
    ):
        assert type(plain) is float
    assert release.sensitivity == 6.0
    assert request.standard_deviation(release) == 12.0


class Fickle(dict):
    """A mapping that answers differently the second time."""

    asked = 0

    def __getitem__(self, name):
        Fickle.asked += 1
        return super().__getitem__(name) * Fickle.asked


def test_a_frame_holds_copies_of_its_own():
    centre, scale = {"a": torch.zeros(2)}, Fickle(a=torch.ones(2))
    frame = Frame(centre, scale)
    centre["a"] += 5
    centre["b"] = torch.zeros(1)
    assert type(frame.scale) is type(frame.centre) is dict
    assert frame.centre.keys() == {"a"}
    assert torch.equal(frame.centre["a"], torch.zeros(2))
    first, second = frame.scale["a"], frame.scale["a"]
    assert torch.equal(first, second)


@pytest.mark.parametrize("mapping", [None, [torch.ones(2)], {"a": 1.0}, {1: torch.ones(2)}, {"a": np.ones(2)}])
def test_a_frame_is_made_of_tensors_by_name(mapping):
    with pytest.raises(InvalidArgument, match="frame"):
        Frame({"a": torch.zeros(2)}, mapping)
