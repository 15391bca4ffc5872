"""Votes leave with noise, and after they were paid for."""

import math

import numpy as np
import pytest
from scipy.stats import norm

import apportion as ap
from apportion.accounting.account import Account
from apportion.accounting.ledger import Ledger
from apportion.curator.randomness import Randomness
from apportion.errors import BudgetExhausted
from apportion.teachers.aggregation import Mechanism
from apportion.teachers.ballot_box import BallotBox
from apportion.teachers.group_filter import GroupFilter

MANY = 16_000
FAR = 1.6
"""Where the chance tells most about the noise: at 5 % less it is five standard errors off."""


class OpenBooks:
    """Keeps charges and refuses nothing."""

    def __init__(self, rule):
        self.rule, self.tokens = rule, []

    def charge_token(self, token, event):
        self.tokens.append(token)

    def is_spent(self, token):
        return token in self.tokens


class NoCost:
    """Counts nothing: the secret cost takes longer than the answer."""

    def add_check(self, query):
        pass

    def add_answer(self, query, counts):
        pass


def plain(budget, teachers):
    return ap.teachers.Weighting().arrange(budget.groups or (group(budget),), budget.delta, teachers)


def group(budget):
    from apportion.teachers.ensemble import groups_of

    return groups_of(budget)[0]


def open_box(budget, mechanism, votes, classes=2, seed=0):
    ensemble = plain(budget, len(votes))
    books = OpenBooks(GroupFilter(budget, ensemble, mechanism, votes.shape[1]))
    box = BallotBox(votes, classes, ensemble, mechanism, books, Randomness.seeded(seed))
    box.secret_cost = NoCost()
    return box, books


def test_an_answer_has_the_noise_that_was_paid_for(budget):
    """P(the majority wins) = Φ(gap/(√2·σ))."""
    votes = np.repeat(np.array([0] * 15 + [1] * 5)[:, None], MANY, axis=1)
    box, _ = open_box(budget, Mechanism(10 / (math.sqrt(2) * FAR)), votes)
    won = np.mean([box.ask(query) == 0 for query in range(MANY)])
    assert won == pytest.approx(norm.cdf(FAR), abs=0.0043)
    assert norm.cdf(FAR / 0.95) - norm.cdf(FAR) > 0.0086


def test_a_check_has_the_noise_that_was_paid_for(budget):
    """P(enough agree) = Φ((largest − T)/σ₁); here seldom, which saves the answers."""
    votes = np.repeat(np.array([0] * 15 + [1] * 5)[:, None], MANY, axis=1)
    box, books = open_box(budget, Mechanism(0.001, 10 / FAR, 25.0), votes)
    for query in range(MANY):
        box.ask(query)
    passed = np.mean([token % 2 == 0 for token in books.tokens]) * len(books.tokens) / MANY
    assert passed == pytest.approx(norm.cdf(-FAR), abs=0.0043)


def test_noise_is_new_in_every_release_and_comes_from_the_secret_stream(budget):
    votes = np.zeros((1, 400), dtype=np.int64)
    found = []
    for seed in (0, 0, 1):
        np.random.seed(0)
        box, _ = open_box(budget, Mechanism(50.0), votes, classes=10, seed=seed)
        found.append([box.ask(query) for query in range(400)])
    assert found[0] == found[1] != found[2]
    assert min(np.bincount(found[0], minlength=10)) > 15, "some noise is used twice"


def test_a_fresh_stream_for_the_check_and_for_the_answer(budget):
    """A check that passed because its noise was large says nothing about the noise of the answer."""
    votes = np.repeat(np.array([0] * 5 + [1] * 5)[:, None], 4000, axis=1)
    box, _ = open_box(budget, Mechanism(10.0, 10.0, 15.0), votes)
    answers = [one for query in range(4000) if (one := box.ask(query)) is not None]
    assert 400 < len(answers) < 900
    assert np.mean(answers) == pytest.approx(0.5, abs=0.08)


def test_votes_are_counted_with_their_weights(three):
    ensemble = plain(three, 15)
    votes = np.arange(15)[:, None] % 3
    mechanism = Mechanism(5.0)
    box = BallotBox(
        votes, 3, ensemble, mechanism, OpenBooks(GroupFilter(three, ensemble, mechanism, 1)), Randomness.seeded(0)
    )
    expected = [sum(w for t, w in enumerate(ensemble.weights) if t % 3 == c) for c in range(3)]
    assert box.count(0) == pytest.approx(expected)
    assert box.count(0).sum() == pytest.approx(15)


class Watched(Randomness):
    """Notes what the ledger on disk holds whenever noise is drawn."""

    def __init__(self, path):
        super().__init__(bytes(32), private=False)
        self.path, self.seen = path, []

    def next_draw(self):
        ledger = Ledger.open(self.path)
        self.seen.append([token for token, _ in ledger.charges()])
        ledger.close()
        return super().next_draw()


@pytest.fixture
def on_disk(three, tmp_path):
    def make(mechanism, votes):
        ensemble = plain(three, len(votes))
        rule = GroupFilter(three, ensemble, mechanism, votes.shape[1])
        account = Account(three, rule, Ledger.create(tmp_path / "run" / "ledger.sqlite"))
        randomness = Watched(account.ledger.path)
        return BallotBox(votes, 2, ensemble, mechanism, account, randomness), account, randomness

    return make


def test_every_release_is_charged_on_disk_before_its_noise_is_drawn(on_disk):
    votes = np.zeros((15, 3), dtype=np.int64)
    box, account, randomness = on_disk(Mechanism(90.0, 60.0, -1e6), votes)
    assert None not in [box.ask(query) for query in range(3)]
    assert randomness.seen == [list(range(1, n + 1)) for n in range(1, 7)]
    account.ledger.close()


def test_a_query_that_is_not_answered_is_charged_for_its_check(on_disk):
    votes = np.zeros((15, 3), dtype=np.int64)
    box, account, randomness = on_disk(Mechanism(60.0, 40.0, 1e6), votes)
    assert [box.ask(query) for query in range(3)] == [None] * 3
    assert [token for token, _ in account.ledger.charges()] == [1, 3, 5]
    assert randomness.seen == [[1], [1, 3], [1, 3, 5]]
    assert account.rule.spent_epsilon(2) > 0.1
    account.ledger.close()


def test_a_query_that_does_not_fit_draws_nothing_and_charges_nothing(on_disk):
    box, account, randomness = on_disk(Mechanism(8.0), np.zeros((15, 50), dtype=np.int64))
    asked = 0
    with pytest.raises(BudgetExhausted, match="would exceed the budget of a group"):
        for query in range(50):
            box.ask(query)
            asked += 1
    assert 0 < asked < 50
    assert len(randomness.seen) == asked == len(list(account.ledger.charges()))
    account.ledger.close()


def test_equal_budgets_give_the_decisions_of_plain_votes(variant):
    equal = ap.Budget.of_groups({"a": (3.0, 0.4), "b": (3.0, 0.6)}, delta=1e-5, unit=ap.Record())
    votes = np.random.default_rng(0).integers(0, 4, (12, 60))
    ensemble, mechanism = variant.arrange(equal.groups, equal.delta, 12), Mechanism(20.0, 15.0, 4.0)
    books = OpenBooks(GroupFilter(equal, ensemble, mechanism, 60))
    box = BallotBox(votes, 4, ensemble, mechanism, books, Randomness.seeded(5))
    randomness, expected = Randomness.seeded(5), []
    for query in range(60):
        counts = np.bincount(votes[:, query], minlength=4).astype(float)
        passed = counts.max() + 15.0 * randomness.next_draw().noise.normals(1)[0] >= 4.0
        expected.append(int(np.argmax(counts + 20.0 * randomness.next_draw().noise.normals(4))) if passed else None)
    assert [box.ask(query) for query in range(60)] == expected
