"""The bound that the whole guarantee rests on: one record moves the sum by at most C."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.curator.clipping import clip_and_sum
from apportion.releases import FLOAT32_HEADROOM, ClippedSum

GROUPINGS = {
    "flat": lambda threshold: (ClippedSum(threshold),),
    "two groups": lambda threshold: (ClippedSum(threshold, ("a",), 0.5), ClippedSum(2 * threshold, ("b", "c"), 0.5)),
    "per layer": lambda threshold: tuple(ClippedSum(threshold, (name,), 1 / 3) for name in "abc"),
}
number = st.one_of(
    st.floats(-10, 10, width=32),
    st.sampled_from([0.0, 1e-30, 1e20, -1e38, math.inf, -math.inf, math.nan]),
)


def rows_of(values):
    table = torch.tensor(values, dtype=torch.float32)
    return {"a": table[:, :2], "b": table[:, 2:5].reshape(-1, 3, 1), "c": table[:, 5:]}


def flat(sums):
    return torch.cat([sums[name].flatten() for name in "abc"])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(number, min_size=6, max_size=6), min_size=1, max_size=5),
    st.floats(0.01, 100),
    st.sampled_from(sorted(GROUPINGS)),
    st.data(),
)
def test_removing_a_record_moves_each_sum_by_at_most_its_sensitivity(values, threshold, grouping, data):
    releases = GROUPINGS[grouping](threshold)
    removed = data.draw(st.integers(0, len(values) - 1))
    rows = rows_of(values)
    rest = {name: torch.cat([tensor[:removed], tensor[removed + 1 :]]) for name, tensor in rows.items()}
    with_record, without = clip_and_sum(rows, releases), clip_and_sum(rest, releases)
    for release in releases:
        names = release.parameters or tuple("abc")
        moved = torch.cat([(with_record[name] - without[name]).flatten() for name in names])
        assert moved.isfinite().all()
        assert moved.norm() <= release.sensitivity


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=6, max_size=6), st.floats(1e-3, 1e3))
def test_real_rounding_excess_is_far_below_the_declared_headroom(values, threshold):
    clipped = flat(clip_and_sum(rows_of([values]), (ClippedSum(threshold),)))
    assert clipped.norm() <= threshold * (1 + FLOAT32_HEADROOM / 100)


def test_a_record_within_the_threshold_is_untouched_and_one_beyond_keeps_its_direction():
    rows = rows_of([[0.3, 0, 0, 0, 0, 0], [30.0, 0, 0, 40.0, 0, 0]])
    clipped = flat(clip_and_sum({n: t[:1] for n, t in rows.items()}, (ClippedSum(1.0),)))
    assert torch.allclose(clipped, torch.tensor([0.3, 0, 0, 0, 0, 0], dtype=torch.float64))
    clipped = flat(clip_and_sum({n: t[1:] for n, t in rows.items()}, (ClippedSum(1.0),)))
    assert torch.allclose(clipped, torch.tensor([0.6, 0, 0, 0.8, 0, 0], dtype=torch.float64))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("grouping", GROUPINGS)
def test_a_non_finite_record_contributes_zero_and_the_others_stay(bad, grouping):
    releases = GROUPINGS[grouping](1.0)
    good = [0.1, 0.2, 0.3, 0.1, 0.2, 0.3]
    poisoned = [*good[:5], bad]
    assert torch.equal(
        flat(clip_and_sum(rows_of([good, poisoned]), releases)), flat(clip_and_sum(rows_of([good]), releases))
    )


def test_zero_gradients_and_an_empty_batch_sum_to_zero():
    assert flat(clip_and_sum(rows_of([[0.0] * 6]), (ClippedSum(1.0),))).abs().sum() == 0
    empty = {name: tensor[:0] for name, tensor in rows_of([[0.0] * 6]).items()}
    assert flat(clip_and_sum(empty, (ClippedSum(1.0),))).abs().sum() == 0


def test_norms_are_over_all_parameters_of_the_group():
    rows = rows_of([[3.0, 0, 0, 0, 0, 4.0]])
    together = clip_and_sum(rows, (ClippedSum(1.0),))
    assert flat(together).norm().item() == pytest.approx(1.0)
    assert together["a"][0].item() == pytest.approx(3 / 5)
    apart = clip_and_sum(rows, (ClippedSum(1.0, ("a", "b"), 0.5), ClippedSum(2.0, ("c",), 0.5)))
    assert apart["a"][0].item() == pytest.approx(1.0)
    assert apart["c"].norm().item() == pytest.approx(2.0)
