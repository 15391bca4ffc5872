"""Whose the records are: what says so in which form, who is drawn how often, how many records of a user are used, what is never told."""

import numpy as np
import pytest
import torch
from scipy import stats

import apportion as ap
from apportion.curator import owners as owners_module
from apportion.curator.owners import RecordOwners, UserOwners, number_users, owners_of, pooling_weights
from apportion.curator.randomness import Randomness, poisson_sample
from apportion.curator.records import as_records
from apportion.errors import InvalidArgument
from people import group_budget

NAMES = ["strict", "loose", "loose", "strict", "medium", "loose"]
NUMBERS = [0, 2, 2, 0, 1, 2]
IDS = ["ann", "bob", "ann", "cem", "bob", "ann"]


def six(user=None, group=None):
    """Six records; whose they are may be one of their inputs."""
    inputs = {"x": torch.arange(6.0)[:, None]}
    inputs |= {} if user is None else {"user": torch.tensor(user)}
    inputs |= {} if group is None else {"group": torch.tensor(group)}
    return as_records((inputs, torch.tensor(NUMBERS)))


class SomeUnreadable(torch.utils.data.Dataset):
    """Record 2 cannot be read."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        if index == 2:
            raise OSError("record 2 of Mr Smith")
        return torch.tensor([float(index)]), index % 2


# --- labels -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "labels",
    [
        NAMES,
        tuple(NAMES),
        NUMBERS,
        np.array(NAMES),
        np.array(NUMBERS),
        np.array(NUMBERS)[:, None],
        np.array(NUMBERS, dtype=float),
        torch.tensor(NUMBERS),
        [str(number) for number in NUMBERS],
        (name for name in NAMES),
        "group",
        lambda inputs, target: NAMES[int(inputs["x"])],
        lambda inputs, target: target,
    ],
    ids=lambda value: type(value).__name__,
)
def test_labels_are_names_or_places_in_any_form(labels):
    owners = owners_of(six(group=NUMBERS), group_budget(labels=labels))
    assert owners.coin_groups.tolist() == NUMBERS
    assert owners.coins == 6


def test_groups_that_are_called_by_numbers_are_not_taken_for_places():
    budget = ap.Budget.of_groups({"2": (2.0, 0.5), "1": (1.0, 0.5)}, delta=1e-5, unit=ap.Record(), labels=[1, 2, 1.0])
    records = as_records((torch.zeros(3, 1), torch.zeros(3)))
    assert owners_of(records, budget).coin_groups.tolist() == [1, 0, 1]
    named = ap.Budget.of_groups(
        {"2.0": (2.0, 0.5), "1.0": (1.0, 0.5)}, delta=1e-5, unit=ap.Record(), labels=["2.0", "1.0", "2.0"]
    )
    assert owners_of(records, named).coin_groups.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        (None, "must be declared"),
        (NAMES[:-1], "one entry for each record"),
        ([*NAMES, "strict"], "one entry for each record"),
        (["nobody"] * 6, "no group"),
        ([-1] * 6, "no group"),
        ([float("nan")] * 6, "no group"),
        ([[0]] * 6, "cannot be read"),
        (np.zeros((6, 2)), "cannot be read"),
        (dict(enumerate(NAMES)), "order of the records"),
        (set(range(6)), "order of the records"),
        (3.5, "cannot be read"),
        ("no such input", "every record"),
        (lambda inputs, target: inputs, "every record"),
        (lambda inputs, target: 1 / 0, "every record"),
    ],
)
def test_labels_that_say_nothing_are_refused(labels, why):
    with pytest.raises(InvalidArgument, match=why):
        owners_of(six(), group_budget(labels=labels))


def test_a_wrong_column_is_refused_without_showing_what_is_in_it():
    private = as_records(({"x": torch.tensor([4711.5, 4712.5])}, torch.zeros(2)))
    for labels in ("x", lambda inputs, target: inputs["x"]):
        with pytest.raises(InvalidArgument) as caught:
            owners_of(private, group_budget(labels=labels))
        assert "471" not in str(caught.value)
    with pytest.raises(InvalidArgument, match="gold"):  # what a person declared is shown
        owners_of(private, group_budget(labels=["gold", "strict"]))


def test_a_record_of_which_a_function_says_nothing_is_in_the_strictest_group_and_nobodys():
    """Whether an exception comes must not depend on a record."""
    records = as_records(SomeUnreadable())
    groups = owners_of(records, group_budget(labels=lambda inputs, target: "loose")).coin_groups
    assert groups.tolist() == [2, 2, 0, 2, 2, 2]
    unit = ap.User(lambda inputs, target: int(inputs) // 3)
    owners = owners_of(records, group_budget(unit=unit, labels=["loose"] * 6))
    assert owners.coins == 2
    assert sorted(owners.records_of(np.arange(2)).tolist()) == [0, 1, 3, 4, 5]


# --- users ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ids",
    [IDS, np.array(IDS), [b"a", b"b", b"a", b"c", b"b", b"a"], [(1, 2), (1, 3), (1, 2), (9, 9), (1, 3), (1, 2)]],
)
def test_users_are_numbered_by_their_first_record(ids):
    owners = owners_of(six(), ap.Budget(epsilon=1.0, delta=1e-5, unit=ap.User(ids)))
    assert owners.owner(np.arange(6)).tolist() == [0, 1, 0, 2, 1, 0]
    assert owners.coins == 3
    assert owners.records_of(np.array([0, 2])).tolist() == [0, 2, 5, 3]
    assert owners.records_of(np.zeros(0, dtype=np.int64)).tolist() == []


def test_users_may_be_a_column():
    owners = owners_of(six(user=[7, 8, 7, 9, 8, 7]), ap.Budget(epsilon=1.0, delta=1e-5, unit=ap.User("user")))
    assert owners.owner(np.arange(6)).tolist() == [0, 1, 0, 2, 1, 0]


def test_records_without_a_known_owner_are_not_used():
    """As users of their own a person would count as many; as one user, somebody else's records could turn its vector."""
    missing = [float("nan"), "ann", None, np.float64("nan"), "bob", "ann"]
    assert number_users(owners_module.select(six(), "unit.ids", missing, "")).tolist() == [-1, 0, -1, -1, 1, 0]
    owners = UserOwners(owners_module.select(six(), "unit.ids", missing, ""), ap.User())
    assert owners.coins == 2
    assert sorted(owners.records_of(np.arange(2)).tolist()) == [1, 4, 5]
    for coins in ("user", "record"):  # nobody is a legal set of people, one less than somebody
        nobody = UserOwners([None, None], ap.User(coins=coins, k_max=2))
        assert (nobody.coins, nobody.records_of(np.arange(0)).tolist()) == (0, [])


@pytest.mark.parametrize(
    ("ids", "why"), [(dict(enumerate(IDS)), "order"), ([[1]] * 6, "cannot be read"), (None, "known")]
)
def test_ids_that_say_nothing_are_refused(ids, why):
    with pytest.raises(InvalidArgument, match=why):
        owners_of(six(), ap.Budget(epsilon=1.0, delta=1e-5, unit=ap.User(ids)))


def test_a_user_with_several_labels_is_in_the_strictest_of_their_groups():
    for labels in (["loose", "medium", "medium", "strict", "loose", "strict"], [2, 1, 1, 0, 2, 0]):
        owners = owners_of(six(), group_budget(unit=ap.User(IDS), labels=labels))
        assert owners.coin_groups.tolist() == [0, 1, 0]
    backwards = ap.Budget.of_groups(
        {"loose": (3.0, 0.5), "strict": (1.0, 0.5)},
        delta=1e-5,
        unit=ap.User(["a", "a", "b"]),
        labels=["loose", "strict", "loose"],
    )
    assert owners_of(as_records((torch.zeros(3, 1), torch.zeros(3))), backwards).coin_groups.tolist() == [1, 0]


def test_with_coins_for_records_each_record_has_the_group_of_its_user():
    labels = ["loose", "medium", "medium", "strict", "loose", "loose"]
    owners = owners_of(six(), group_budget(unit=ap.User(IDS, coins="record", k_max=2), labels=labels))
    members = owners.records_of(np.arange(owners.coins))
    assert len(members) == 5  # two of ann's three, two of bob's, one of cem's
    assert owners.coin_groups.tolist() == [[1, 1, 0][user] for user in owners.owner(members)]


# --- k_max ------------------------------------------------------------------------------------------------------------------------


def used_by(owners, name, ids):
    """Which of a user's own records are used, by their place among them."""
    members = set(owners.records_of(np.arange(owners.coins)).tolist())
    own = [place for place, one in enumerate(ids) if one == name]
    return [number for number, place in enumerate(own) if place in members]


@pytest.mark.parametrize("coins", ["user", "record"])
def test_of_a_user_with_many_records_as_many_are_used_as_declared_and_which_is_its_own_matter(coins):
    unit = ap.User(k_max=4, coins=coins)
    own = ["ann"] * 9
    alone = used_by(UserOwners(own, unit), "ann", own)
    assert len(alone) == 4
    generator = np.random.default_rng(0)
    for _ in range(5):
        others = [f"user {number}" for number in generator.integers(0, 5, 20)]
        ids = list(generator.permutation(own + others))
        assert used_by(UserOwners(ids, unit), "ann", ids) == alone
    for number in (3, 4):
        assert used_by(UserOwners(["ann"] * number, unit), "ann", ["ann"] * number) == list(range(number))
    assert len(used_by(UserOwners(["ann"] * 5, unit), "ann", ["ann"] * 5)) == 4  # k_max + 1


def test_another_name_keeps_other_records():
    unit = ap.User(k_max=4)
    kept = {tuple(used_by(UserOwners([name] * 12, unit), name, [name] * 12)) for name in ("ann", "bob", "cem", "dan")}
    assert len(kept) > 1


# --- micro-batches and weights -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("numbers", [1, 40, 1 << 24])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_micro_batches_hold_whole_users_or_parts_of_one(monkeypatch, numbers, size):
    monkeypatch.setattr(owners_module, "POOLED_NUMBERS", numbers)
    ids = [0, 0, 0, 0, 0, 1, 2, 2, 3, 4, 4, 4]
    owners = UserOwners(ids, ap.User())
    members = owners.records_of(np.arange(5))
    cuts = [members[cut] for cut in owners.cut(members, size, 10)]
    assert np.concatenate(cuts).tolist() == members.tolist()
    assert max(map(len, cuts)) <= size
    for cut in cuts:
        inside = set(owners.owner(cut).tolist())
        whole = all(np.isin(np.flatnonzero(np.array(ids) == user), cut).all() for user in inside)
        assert whole or len(inside) == 1
        assert len(inside) == 1 or 10 * len(cut) <= max(numbers, 10)


def test_a_mean_is_over_the_records_that_were_drawn():
    owners = UserOwners(["a", "a", "a", "b"], ap.User(coins="record", k_max=3))
    members = owners.records_of(np.array([0, 2, 3]))
    assert pooling_weights(owners, members)(members).tolist() == [0.5, 0.5, 1.0]
    summed = UserOwners(["a", "a", "a", "b"], ap.User(pooling="sum"))
    assert pooling_weights(summed, members)(members).tolist() == [1.0, 1.0, 1.0]


# --- coins ------------------------------------------------------------------------------------------------------------------------


def tosses(owners, rates, draws=400, seed=0):
    """How often each coin fell true."""
    randomness, found = Randomness.seeded(seed), np.zeros(owners.coins)
    for _ in range(draws):
        found[poisson_sample(owners.coins, rates, randomness.next_draw().coins, owners.coin_groups)] += 1
    return found


def likely(count, draws, rate):
    return stats.binomtest(int(count), draws, rate).pvalue > 1e-5


def test_everybody_is_drawn_with_the_rate_of_their_own_group():
    rates, groups = (0.1, 0.3, 0.6), np.arange(300) % 3
    found = tosses(RecordOwners(300, groups), rates, draws=2_000)
    for group, rate in enumerate(rates):
        total = found[groups == group].sum()
        assert likely(total, 100 * 2_000, rate)
        assert not likely(total, 100 * 2_000, rate * 1.05)


def test_coins_of_different_groups_are_tossed_one_by_one():
    """No two coins fall together: of 60 pairs, in the same and in different groups, as many agree as independent ones do."""
    randomness, groups, rows = Randomness.seeded(1), np.arange(12) % 2, []
    for _ in range(2_000):
        row = np.zeros(12)
        row[poisson_sample(12, (0.5, 0.5), randomness.next_draw().coins, groups)] = 1
        rows.append(row)
    table = np.corrcoef(np.array(rows).T) - np.eye(12)
    assert np.abs(table).max() < 5 / np.sqrt(2_000)


@pytest.mark.parametrize(("rate", "expected"), [(1.0, 40), (1 - 2**-53, 40), (1e-18, 0)])
def test_rates_at_the_ends(rate, expected):
    owners = RecordOwners(40, np.zeros(40, dtype=np.int64))
    assert tosses(owners, (rate,), draws=1).sum() == expected
    both = RecordOwners(40, np.arange(40) % 2)
    assert tosses(both, (rate, 1.0), draws=1)[1::2].sum() == 20


def test_with_coins_for_records_a_user_is_drawn_as_often_as_is_paid_for():
    """1 − (1 − q)^k for a user of k_max records, and less for others."""
    ids = [number // 3 for number in range(300)] + [1000]
    owners = UserOwners(ids, ap.User(coins="record", k_max=3))
    randomness, present, lonely = Randomness.seeded(2), 0, 0
    for _ in range(200):
        drawn = poisson_sample(owners.coins, (0.2,), randomness.next_draw().coins, owners.coin_groups)
        users = set(owners.owner(owners.records_of(drawn)).tolist())
        present, lonely = present + len(users - {100}), lonely + (100 in users)
    assert likely(present, 100 * 200, 1 - 0.8**3)
    assert likely(lonely, 200, 0.2)


def test_a_batch_is_as_large_as_declared():
    """q·N: the average over groups whose rates differ."""
    plan = ap.plan(
        ap.Recipe(clip=ap.clip.Fixed(1.0), people=ap.people.Sample()),
        budget=group_budget(),
        population=1_000,
        sample_rate=0.05,
        steps=50,
    )
    groups = np.repeat([0, 1, 2], [340, 430, 230])
    request = plan.request(plan.context(1, {"w": (1,)}), None)
    total = tosses(RecordOwners(1_000, groups), request.rates, draws=500).sum()
    assert total / 500 == pytest.approx(plan.expected_batch_size, rel=0.02)
    assert request.expected_weight == pytest.approx(plan.expected_batch_size, rel=0.003)
