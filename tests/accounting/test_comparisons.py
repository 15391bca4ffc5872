"""All accountants side by side, and the independent check."""

import math

import pytest

from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.accounting.buckets import bucket_multipliers
from apportion.accounting.comparisons import COMPARISONS, compare_accountants, compare_plans
from apportion.accounting.verification import IndependentPrice, independent_price
from apportion.errors import InvalidArgument
from apportion.event import Event


def test_every_accountant_says_what_its_number_is_worth():
    rows = {row.name: row for row in compare_accountants({Event(0.01, 4.0): 10_000}, 1e-5)}
    assert len(rows) == len(COMPARISONS) + 1
    ours = next(iter(rows.values()))
    assert ours.epsilon == pytest.approx(0.947, rel=1e-3)
    assert [row.standing for row in rows.values()].count("not an upper bound") == 1
    for row in rows.values():
        assert row.note
        if row.upper_bound and row.sampling == "Poisson":
            assert row.epsilon >= ours.epsilon
        if not row.upper_bound:
            assert row.epsilon < ours.epsilon
            assert "not an upper bound" in row.name
        if row.sampling != "Poisson":
            assert "not for Poisson" in row.standing


def test_a_refusal_is_a_row():
    (row,) = [row for row in compare_accountants({Event(0.01, 1.0): 10}, 1e-5) if row.name == "tCDP"]
    assert row.epsilon is None
    assert row.note == "refused: tCDP needs rho = 1/(2z²) <= 0.1, and it is 0.5"


def test_plans_by_the_limit_cost_more():
    for planned, rows in compare_plans(256 / 60_000, 4687, 1 / 600_000, [0.4, 1.2]):
        by_name = {row.name: row.epsilon for row in rows}
        assert by_name[COMPARISONS["gdp-clt"].name] == pytest.approx(planned, rel=1e-9)
        assert by_name[PrivacyLossAccountant.name] == pytest.approx({0.4: 0.405, 1.2: 1.248}[planned], rel=3e-3)


def test_buckets_are_on_the_side_they_should_be():
    events = {Event(0.01, 1.0 + 0.01 * t): t + 1 for t in range(100)} | {
        Event(0.02, 2.0 + 0.01 * t): 1 for t in range(9)
    }
    for upwards in (False, True):
        rounded = bucket_multipliers(events, upwards=upwards)
        assert len(rounded) <= 40
        assert sum(rounded.values()) == sum(events.values())
        for rate in (0.01, 0.02):
            before, after = (
                sorted(e.noise_multiplier for e, n in some.items() if e.sample_rate == rate for _ in range(n))
                for some in (events, rounded)
            )
            pairs = list(zip(before, after, strict=True))
            assert all(b <= a for b, a in pairs) if upwards else all(a <= b for b, a in pairs)
    assert bucket_multipliers({Event(0.01, 1.0): 3, Event(0.01, 2.0): 0}) == {Event(0.01, 1.0): 3}


@pytest.mark.parametrize(
    ("events", "delta"),
    [
        ({Event(0.2, 2.5): 200}, 1e-5),
        ({Event(1.0, 2.0): 7}, 1e-6),
        ({Event(0.01, 1.0): 300, Event(0.02, 1.5): 300}, 1e-6),
    ],
    ids=str,
)
def test_our_price_is_the_independent_one(events, delta):
    price = independent_price(events, delta)
    assert not price.rounded
    assert price.agrees(PrivacyLossAccountant().epsilon(events, delta))


@pytest.mark.slow
def test_many_multipliers_are_bracketed():
    events = {Event(0.3, 3.0 + 0.01 * t): 1 for t in range(60)}
    price = independent_price(events, 1e-5)
    assert price.rounded
    assert price.lowest < PrivacyLossAccountant().epsilon(events, 1e-5) < price.highest < 1.03 * price.lowest


def test_differences_have_a_side():
    price = IndependentPrice(1.0, 1.1)
    assert price.difference(1.05) == 0.0
    assert price.difference(0.9) == pytest.approx(-0.1)
    assert price.difference(1.21) == pytest.approx(0.1)
    assert price.agrees(0.996)
    assert not price.agrees(0.99)
    assert not IndependentPrice(0.0, 0.0).agrees(0.1)
    assert independent_price({}, 1e-5).agrees(0.0)


def test_a_delta_that_dp_accounting_cannot_resolve_is_refused():
    with pytest.raises(InvalidArgument, match="does not resolve"):
        independent_price({Event(0.1, 1.0): 50}, 1e-18)
    with pytest.raises(InvalidArgument, match="delta"):
        independent_price({}, math.nan)
