"""Copies, weights and turns: what is public about an ensemble."""

import math

import numpy as np
import pytest

import apportion as ap
from apportion.budget import Group
from apportion.errors import InvalidArgument
from apportion.teachers.ensemble import divide_seats, groups_of
from apportion.teachers.variants import approximate_ratios

DELTA = 1e-5


def groups(*epsilons, shares=None):
    shares = shares or [1 / len(epsilons)] * len(epsilons)
    return tuple(
        Group(f"g{n}", epsilon, share) for n, (epsilon, share) in enumerate(zip(epsilons, shares, strict=True))
    )


@pytest.mark.parametrize(
    ("budgets", "most", "copies"),
    [
        ((1, 2, 5), 5, (1, 2, 5)),
        ((1, 2, 5), 100, (1, 2, 5)),
        ((0.69, 1.39), 5, (1, 2)),
        ((0.69, 1.39), 200, (69, 139)),
        ((5, 8, 12), 5, (2, 3, 5)),
        ((3, 3, 3), 5, (1, 1, 1)),
        ((0.01, 10), 5, (1, 1)),
        ((2, 4), 1, (1, 1)),
    ],
)
def test_copies_have_the_ratios_of_the_budgets_as_far_as_the_cap_allows(budgets, most, copies):
    found = approximate_ratios([float(one) for one in budgets], most)
    assert max(found) <= most
    if budgets != (0.01, 10):
        assert found == copies
    assert min(found) == 1 or found == copies


def test_upsampling_scales_teachers_and_noise_by_the_mean_number_of_copies():
    ensemble = ap.teachers.Upsampling().arrange(groups(1, 2, 5, shares=[0.5, 0.3, 0.2]), DELTA, 100)
    assert ensemble.scale == pytest.approx(0.5 + 0.6 + 1.0)
    assert ensemble.teachers == 210
    assert list(ensemble.sensitivities(0)) == [1, 2, 5]
    mechanism = ap.teachers.ConfidentGNMax(sigma=10, check_sigma=30, threshold=60).mechanism(ensemble, DELTA, 9, 100)
    assert (mechanism.sigma, mechanism.check_sigma, mechanism.threshold) == pytest.approx((21, 63, 126))


def test_more_copies_than_teachers_are_refused():
    with pytest.raises(InvalidArgument, match="copied to 50 different teachers, and there are 5"):
        ap.teachers.Upsampling(most_copies=50).arrange(groups(1, 50, shares=[0.97, 0.03]), DELTA, 2)


def test_weights_add_up_to_the_number_of_teachers():
    random = np.random.default_rng(0)
    for _ in range(50):
        number = int(random.integers(1, 5))
        shares = random.dirichlet(np.ones(number))
        some = groups(*random.uniform(0.1, 20, number), shares=[float(share) for share in shares])
        for sized in (False, True):
            for by in ("epsilon", "mu"):
                ensemble = ap.teachers.Weighting(size_weighted=sized, by=by).arrange(some, DELTA, 37)
                assert math.fsum(ensemble.weights) == pytest.approx(37, rel=1e-12)
                assert ensemble.teachers == 37


def test_weights_rise_with_the_budget_and_with_the_size_only_if_that_is_asked_for():
    plain = ap.teachers.Weighting().arrange(groups(1, 2), DELTA, 10)
    assert plain.weights == pytest.approx([2 / 3] * 5 + [4 / 3] * 5)
    uneven = groups(1, 2, shares=[0.75, 0.25])
    one = ap.teachers.Weighting().arrange(uneven, DELTA, 8)
    assert one.weights == pytest.approx([8 / 10] * 6 + [16 / 10] * 2)
    sized = ap.teachers.Weighting(size_weighted=True).arrange(uneven, DELTA, 8)
    assert sized.weights == pytest.approx([8 * 6 / 44] * 6 + [8 * 4 / 44] * 2)


def test_mu_has_all_groups_pay_the_same_part():
    from apportion.accounting.gaussian import gaussian_mu

    ensemble = ap.teachers.Weighting(by="mu").arrange(groups(1, 4, 9), DELTA, 12)
    parts = [
        weight / gaussian_mu(epsilon, DELTA)
        for weight, epsilon in zip(ensemble.weights, ensemble.budgets(), strict=True)
    ]
    assert parts == pytest.approx([parts[0]] * 12)


def test_equal_budgets_are_plain_votes(variant):
    ensemble = variant.arrange(groups(3, 3, 3), DELTA, 12)
    assert ensemble.teachers == 12
    assert ensemble.weights == ensemble.rates == (1.0,) * 12
    assert ensemble.copies == (1, 1, 1)
    assert ensemble.scale == 1
    assert ensemble.seats == (tuple(range(12)),) * 3
    assert all(list(ensemble.votes(query)) == [1.0] * 12 for query in range(5))


def test_turns_are_the_declared_share_of_the_queries():
    ensemble = ap.teachers.Vanishing().arrange(groups(1, 2, 5), DELTA, 30)
    votes = np.array([ensemble.votes(query) for query in range(200)])
    assert set(votes.ravel()) == {0.0, 1.0}
    for seats, share in zip(ensemble.seats, (0.2, 0.4, 1.0), strict=True):
        turns = votes[:, list(seats)]
        assert np.abs(turns.sum(axis=0) - 200 * share).max() <= 1, "a teacher has more turns than its share"
        assert np.abs(turns.mean(axis=1) - share).max() <= 0.1 + 1e-9, "the turns of a group are not spread"
    assert ensemble.scale == pytest.approx((0.2 + 0.4 + 1) / 3)
    assert np.array_equal(votes, [ensemble.sensitivities(query) for query in range(200)])


def test_seats_are_divided_by_shares_and_nobody_has_none():
    assert divide_seats(10, [0.5, 0.5]) == [5, 5]
    assert divide_seats(50, [0.34, 0.43, 0.23]) == [17, 22, 11]
    assert divide_seats(12, [0.5, 0.3, 0.2]) == [6, 4, 2]
    assert divide_seats(3, [0.98, 0.01, 0.01]) == [1, 1, 1]
    assert divide_seats(10, [0.98, 0.01, 0.01]) == [8, 1, 1]
    for teachers in range(4, 60):
        found = divide_seats(teachers, [0.9, 0.05, 0.04, 0.01])
        assert sum(found) == teachers
        assert min(found) >= 1


def test_fewer_teachers_than_budgets_are_refused():
    for variant in (ap.teachers.Weighting(), ap.teachers.Vanishing()):
        with pytest.raises(
            InvalidArgument, match="teachers=2: each teacher has records of one budget, and there are 3"
        ):
            variant.arrange(groups(1, 2, 3), DELTA, 2)


def test_a_budget_without_groups_has_one():
    budget = ap.Budget(epsilon=2.0, delta=DELTA, unit=ap.Record())
    (everybody,) = groups_of(budget)
    assert (everybody.epsilon, everybody.share) == (2.0, 1.0)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("Upsampling", {"most_copies": 0}),
        ("Upsampling", {"by": "size"}),
        ("Weighting", {"size_weighted": "yes"}),
        ("Vanishing", {"by": None}),
        ("GNMax", {"sigma": 0}),
        ("GNMax", {"sigma": -1}),
        ("ConfidentGNMax", {"check_sigma": 0}),
        ("ConfidentGNMax", {"threshold": -1}),
        ("ConfidentGNMax", {"answers": 0}),
        ("Fit", {"epochs": 0}),
        ("Fit", {"optimizer": "lbfgs"}),
    ],
)
def test_invalid_settings_are_refused(kind, settings):
    with pytest.raises(InvalidArgument):
        getattr(ap.teachers, kind)(**settings)
