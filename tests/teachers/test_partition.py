"""Who teaches whom depends on the record alone, and a record moves the votes of its own teachers, at the price that is charged."""

import numpy as np
import pytest
import torch
from small_teachers import MARK, Noticing

import apportion as ap
from apportion.accounting.account import Account
from apportion.accounting.ledger import Ledger
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.errors import InvalidArgument
from apportion.teachers.aggregation import Mechanism
from apportion.teachers.ballot_box import BallotBox
from apportion.teachers.group_filter import GroupFilter
from apportion.teachers.partition import People, choose_teachers, divide_records, spread_groups
from apportion.teachers.teaching import Fit, Lesson, collect_votes

KEY = bytes(range(32))
QUERIES = 8


def divided(data, groups, ensemble, ids=None, unit=None):
    """For each teacher the indices of its records."""
    budget = ap.Budget.of_groups(ensemble.groups, delta=1e-5, unit=unit or ap.Record(), labels=list(groups))
    return divide_records(People.of(as_records(data), budget, ids), ensemble, KEY)


def contents(data, groups, ensemble):
    """For each teacher its records."""
    inputs, _ = data
    parts = divided(data, groups, ensemble)
    return [sorted(tuple(inputs[index].tolist()) for index in part) for part in parts]


def arranged(variant, budget, teachers=15):
    return variant.arrange(budget.groups, budget.delta, teachers)


def test_a_record_more_moves_no_other(variant, three, people):
    (inputs, classes), groups = people
    ensemble = arranged(variant, three)
    whole = contents((inputs, classes), groups, ensemble)
    for missing in (0, 1, 2, 31, 59):
        rest = np.delete(np.arange(60), missing)
        fewer = contents((inputs[rest], classes[rest]), groups[rest], ensemble)
        gone = tuple(inputs[missing].tolist())
        assert [[one for one in part if one != gone] for part in whole] == fewer
        assert sum(gone in part for part in whole) == ensemble.copies[groups[missing]]


def test_the_order_of_the_records_plays_no_part(variant, three, people):
    (inputs, classes), groups = people
    ensemble, order = arranged(variant, three), np.random.default_rng(0).permutation(60)
    assert contents((inputs, classes), groups, ensemble) == contents(
        (inputs[order], classes[order]), groups[order], ensemble
    )


def test_copies_are_in_different_teachers_and_seats_are_kept(variant, three):
    ensemble = arranged(variant, three)
    for group in range(3):
        for number in range(300):
            chosen = choose_teachers(str(number).encode(), group, ensemble, KEY)
            assert len(set(chosen)) == ensemble.copies[group]
            assert set(chosen) <= set(ensemble.seats[group])


def test_records_are_spread_evenly_and_by_the_key(three):
    ensemble = arranged(ap.teachers.Upsampling(), three)
    chosen = np.array([choose_teachers(str(n).encode(), 1, ensemble, KEY) for n in range(3000)])
    for place in (0, 1):
        expected = 3000 / ensemble.teachers
        statistic = ((np.bincount(chosen[:, place], minlength=ensemble.teachers) - expected) ** 2 / expected).sum()
        assert statistic < 70  # 99.9 % of χ² with 31 degrees of freedom is 61
    others = np.array([choose_teachers(str(n).encode(), 1, ensemble, bytes(32)) for n in range(3000)])
    assert (chosen != others).any(axis=1).mean() > 0.9


def test_an_id_of_its_own_may_choose_in_place_of_the_content(three, people):
    (inputs, classes), groups = people
    ensemble, ids = arranged(ap.teachers.Weighting(), three), [f"person {n}" for n in range(60)]
    before = divided((inputs, classes), groups, ensemble, ids)
    after = divided((inputs + 1, classes), groups, ensemble, ids)
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


class Damaged(torch.utils.data.Dataset):
    def __init__(self, inputs, classes):
        self.inputs, self.classes = inputs, classes

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        if index == 7:
            raise SystemExit("damaged")
        return self.inputs[index], self.classes[index]


def test_a_record_that_cannot_be_read_has_no_teacher(three, people):
    (inputs, classes), groups = people
    ensemble = arranged(ap.teachers.Weighting(), three)
    parts = divided(Damaged(inputs, classes), groups, ensemble)
    assert sorted(np.concatenate(parts)) == [n for n in range(60) if n != 7]


def box_of(data, groups, ensemble, budget, mechanism):
    records, parts = as_records(data), divided(data, groups, ensemble)
    lesson = Lesson(Noticing, torch.zeros(QUERIES, 2), 2, Fit())
    readers = [lambda part=part: records.batch(part) for part in parts]
    votes = collect_votes(lesson, readers, [0] * len(parts), 1, lambda: None)
    account = Account(budget, GroupFilter(budget, ensemble, mechanism, QUERIES), Ledger.create())
    return BallotBox(votes, 2, ensemble, mechanism, account, Randomness.seeded(0)), account.rule


@pytest.mark.parametrize("group", [0, 1, 2])
def test_a_record_moves_the_votes_by_what_it_pays_for_and_no_more(variant, three, people, group):
    """Both neighbours, every group: √2·s of the histogram and s of its largest count, by a record that sways all its teachers."""
    (inputs, classes), groups = people
    ensemble, mechanism = arranged(variant, three), Mechanism(sigma=7.0, check_sigma=11.0, threshold=3.0)
    marked = torch.cat([inputs, torch.full((1, 2), MARK)]), torch.cat([classes, classes[:1]])
    with_it, rule = box_of(marked, [*groups, group], ensemble, three, mechanism)
    without, _ = box_of((inputs, classes), groups, ensemble, three, mechanism)
    teachers = choose_teachers(as_bytes(marked), group, ensemble, KEY)
    account = teachers[0] if ensemble.disjoint else group
    assert account in ensemble.accounts_of(group)
    for query in range(QUERIES):
        a, b = with_it.count(query), without.count(query)
        moved, largest = np.linalg.norm(a - b), abs(a.max() - b.max())
        check, answer = rule.cost(2 * query + 1)[account], rule.cost(2 * query + 2)[account]
        assert (moved / mechanism.sigma) ** 2 == pytest.approx(answer, abs=1e-12)
        assert (largest / mechanism.check_sigma) ** 2 == pytest.approx(check, abs=1e-12)
        expected = ensemble.copies[group] * ensemble.votes(query)[teachers[0]]
        assert moved == pytest.approx(np.sqrt(2) * expected)


def as_bytes(marked):
    inputs, classes = marked
    return inputs[-1:].numpy().tobytes() + classes[-1:].numpy().tobytes()


def test_all_records_of_a_user_have_the_same_teachers(variant, three, people):
    """So a user moves no more votes than a record; one whose records name several groups is in the strictest of them."""
    (inputs, classes), groups = people
    ensemble, users = arranged(variant, three), np.arange(60) // 6
    whole = divided((inputs, classes), groups, ensemble, unit=ap.User(ids=users))
    for user in range(10):
        mine = set(np.flatnonzero(users == user))
        holding = [set(part.tolist()) & mine for part in whole if mine & set(part.tolist())]
        assert holding == [mine] * ensemble.copies[0]
        rest = np.flatnonzero(users != user)
        fewer = divided((inputs[rest], classes[rest]), groups[rest], ensemble, unit=ap.User(ids=users[rest]))
        assert [sorted(set(part.tolist()) - mine) for part in whole] == [sorted(rest[part].tolist()) for part in fewer]


def test_of_a_user_at_most_k_max_records_are_used(three, people):
    (inputs, classes), groups = people
    ensemble, users = arranged(ap.teachers.Weighting(), three), np.arange(60) // 6
    parts = divided((inputs, classes), groups, ensemble, unit=ap.User(ids=users, k_max=2))
    assert list(np.bincount(users[np.concatenate(parts)])) == [2] * 10
    with pytest.raises(InvalidArgument, match="ids='list': the user whose record it is"):
        divided((inputs, classes), groups, ensemble, ids=list(range(60)), unit=ap.User(ids=users))


def test_benchmarks_are_spread_over_groups_by_their_shares(three):
    names = spread_groups((str(number).encode() for number in range(2000)), three.groups)
    assert [names.count(group.name) / 2000 for group in three.groups] == pytest.approx([0.5, 0.3, 0.2], abs=0.04)
