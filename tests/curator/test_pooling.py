"""A user's records are one vector: against a plain double loop, however the records are cut, and whoever else is in the batch."""

import copy

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
from apportion.curator import mechanisms
from apportion.curator import owners as owners_module
from apportion.curator.owners import RecordOwners, UserOwners
from apportion.errors import InvalidArgument
from apportion.event import GroupFactors
from apportion.releases import FLOAT32_HEADROOM, ClippedSum, Frame, NormHistogram, NormSum, UnclippedCount
from apportion.request import Request
from people import Books, curator, double_loop, flat, pooled, record_gradients

FACTORS = (GroupFactors(share=0.5, clip=0.4), GroupFactors(share=0.5, clip=1.6))
SIZE = 5.0


class Sequences(nn.Module):
    """Words, an LSTM, a linear layer."""

    def __init__(self):
        super().__init__()
        self.words, self.cells, self.last = nn.Embedding(11, 4), nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(self.cells(self.words(x))[0][:, -1])


class Shared(nn.Module):
    """One layer that is used twice."""

    def __init__(self):
        super().__init__()
        self.twice, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.twice(torch.tanh(self.twice(x)))))


def problem(kind, records=13):
    """A model and records of which some gradients are clipped and some are not."""
    torch.manual_seed(3)
    targets = torch.randint(0, 3, (records,))
    if kind == "sequences":
        return Sequences(), (torch.randint(0, 11, (records, 3)), targets)
    if kind == "images":
        model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3))
        return model, (torch.randn(records, 1, 3, 3), targets)
    inputs = 2 * torch.randn(records, 4)
    inputs[5] = torch.nan
    model = Shared() if kind == "shared" else nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    return model, (inputs, targets)


def releases_for(model, per_layer):
    names = tuple(name for name, _ in model.named_parameters())
    if per_layer:
        first, rest = ClippedSum(0.5, names[:2], 0.3), ClippedSum(1.0, names[2:], 0.3)
        return first, rest, UnclippedCount(0.5, names[:2], 0.2), NormHistogram((0.0, 0.5, 1.0), names[2:], 0.2)
    counts = UnclippedCount(0.7, share=0.2), NormHistogram((0.0, 0.7, 1.4), share=0.1), NormSum(1.1, share=0.2)
    return ClippedSum(0.7, share=0.5), *counts


IDS = [0, 1, 0, 2, 2, 3, 0, 2, 4, 0, 2, 1, 0]
"""One user of five records, and one (3) of a single record that is NaN where inputs are numbers."""


@pytest.mark.parametrize("grouped", [False, True], ids=["alike", "groups"])
@pytest.mark.parametrize(("kind", "mode"), [
    ("dense", "one-pass"), ("dense", "vmap"), ("dense", "loop"), ("sequences", "one-pass"), ("sequences", "loop"),
    ("shared", "one-pass"), ("shared", "vmap"), ("images", "one-pass"), ("images", "vmap"),
])  # fmt: skip
def test_users_are_clipped_as_in_a_double_loop(monkeypatch, kind, mode, grouped):
    model, data = problem(kind)
    generator = np.random.default_rng(0)
    scale = {user: FACTORS[user % 2].clip for user in range(5)} if grouped else None
    for number, (micro_batch, numbers) in enumerate(
        [(1, 1 << 24), (2, 60), (3, 1 << 24), (3, 1), (256, 150), (256, 1)]
    ):
        pooling, releases = ("mean", "sum")[number % 2], releases_for(model, per_layer=number % 3 == 1)
        monkeypatch.setattr(owners_module, "POOLED_NUMBERS", numbers)
        order = generator.permutation(len(IDS))
        ids = [IDS[place] for place in order]
        groups = np.array([user % 2 for user in dict.fromkeys(ids)]) if grouped else None
        owners = UserOwners(ids, ap.User(pooling=pooling), groups)
        shuffled = tuple(part[torch.from_numpy(order)] for part in data)
        asked = Request(1.0, 1.0, SIZE, releases, FACTORS if grouped else ())
        released = curator(model, shuffled, owners, mode=mode, micro_batch=micro_batch).answer(asked, cross_entropy)
        sums, statistics = double_loop(model, cross_entropy, data, IDS, releases, pooling, scale)
        torch.testing.assert_close(flat(released.gradient) * SIZE, flat(sums), atol=2e-5, rtol=0)
        found = torch.tensor(released.statistics) * asked.expected_weight
        torch.testing.assert_close(found, torch.tensor(statistics), atol=2e-4, rtol=0)


def test_a_user_who_goes_on_in_the_next_micro_batch_is_counted_once(model, records, monkeypatch):
    monkeypatch.setattr(owners_module, "POOLED_NUMBERS", 1 << 24)
    data = tuple(part[:7] for part in records)
    owners = UserOwners(["a"] * 7, ap.User())
    asked = Request(1.0, 1.0, 1.0, (ClippedSum(1e-3, share=0.5), UnclippedCount(1e6, share=0.5)))
    for size in (1, 2, 3, 7):
        released = curator(model, data, owners, micro_batch=size).answer(asked, cross_entropy)
        assert float(flat(released.gradient).norm()) == pytest.approx(1e-3, rel=1e-6)
        assert released.statistics == (0.5,)


def test_a_user_without_a_usable_record_adds_nothing_to_any_release(model, records):
    """Also in a frame, where a vector of zeros is not zero, and to a count, where it would be unclipped."""
    inputs, targets = records[0][:4].clone(), records[1][:4]
    inputs[2:] = torch.nan
    names = tuple(name for name, _ in model.named_parameters())
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    frame = Frame({n: torch.full(s, 5.0) for n, s in shapes.items()}, {n: torch.ones(s) for n, s in shapes.items()})
    asked = Request(1.0, 1.0, 1.0, (ClippedSum(1.0, names, 0.5, frame=frame), UnclippedCount(0.7, share=0.5)))
    for last in ("one user", "two users"):
        ids = ["a", "a", "b", "b" if last == "one user" else "c"]
        all_four = curator(model, (inputs, targets), UserOwners(ids, ap.User())).answer(asked, cross_entropy)
        first_two = curator(model, (inputs[:2], targets[:2]), UserOwners("aa", ap.User())).answer(asked, cross_entropy)
        assert torch.equal(flat(all_four.gradient), flat(first_two.gradient))
        assert all_four.statistics == first_two.statistics


def test_a_record_that_cannot_be_evaluated_takes_nothing_from_its_user_but_its_part_of_the_mean(model, records):
    inputs, targets = records[0][:3].clone(), records[1][:3]
    inputs[1] = torch.inf
    asked = Request(1.0, 1.0, 1.0, (ClippedSum(100.0),))
    owners = UserOwners(["a"] * 3, ap.User())
    released = curator(model, (inputs, targets), owners).answer(asked, cross_entropy)
    first, third = record_gradients(model, cross_entropy, (inputs[::2], targets[::2]))
    expected = {name: (first[name] + third[name]) / 3 for name in first}
    torch.testing.assert_close(flat(released.gradient), flat(expected), atol=1e-6, rtol=0)


@pytest.mark.parametrize("mode", ["one-pass", "vmap"])
@pytest.mark.parametrize("clip", [ClippedSum(1.0), ClippedSum(1.0, stabiliser=0.01)], ids=["clipped", "normalised"])
def test_what_is_left_when_huge_gradients_cancel_does_not_follow_other_users(monkeypatch, mode, clip):
    """The last user's two gradients of 10⁷ nearly cancel. Without the cut, their rounding would be a vector of norm C, and other users
    of the micro-batch would turn it: the sum moved by 1.6·C when one of them left."""

    monkeypatch.setattr(owners_module, "POOLED_NUMBERS", 1 << 24)  # or every user would be alone

    def squares(outputs, targets):
        return ((outputs - targets) ** 2).sum(-1) / 2

    worst, ids = 0.0, [0, 1, 1, 2, 2, 3, 3, 4, 4]
    for seed in range(6):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(13, 170), nn.Tanh(), nn.Linear(170, 3))
        inputs, targets = torch.randn(9, 13), torch.randn(9, 3)
        inputs[-1] = inputs[-2] + 1e-7 * torch.randn(13)
        targets[-2], targets[-1] = 1e7, -1e7

        def total(kept, model=model, inputs=inputs, targets=targets):
            owners = UserOwners([ids[place] for place in kept], ap.User())
            one = curator(model, (inputs[kept], targets[kept]), owners, mode=mode, micro_batch=4)
            return flat(one.answer(Request(1.0, 1.0, 1.0, (clip,)), squares).gradient)

        everyone = total(list(range(9)))
        for user in range(4):
            without = total([place for place in range(9) if ids[place] != user])
            worst = max(worst, float((everyone - without).norm()))
    assert worst <= 1 + FLOAT32_HEADROOM / 10


def test_a_cut_gradient_keeps_its_direction(model, records):
    data = tuple(part[:3] for part in records)
    asked = Request(1.0, 1.0, 1.0, (ClippedSum(1e-4),))
    own = record_gradients(model, cross_entropy, data)
    released = curator(model, data, UserOwners(["a"] * 3, ap.User(pooling="sum"))).answer(asked, cross_entropy)
    vector = flat(pooled(own, asked.releases, "sum"))
    torch.testing.assert_close(flat(released.gradient), 1e-4 * vector / vector.norm(), atol=1e-9, rtol=1e-5)


@pytest.mark.parametrize("unit", ["record", "user"])
def test_somebody_moves_every_release_by_at_most_the_part_of_the_group(model, records, unit):
    """Added or removed, in every group; and the bound is reached."""
    data = tuple(part[:12] for part in records)
    asked = Request(
        1.0,
        1.0,
        1.0,
        (
            ClippedSum(0.01, share=0.4),
            UnclippedCount(0.01, share=0.2),
            NormSum(0.01, share=0.2),
            NormHistogram((0.0, 0.01, 0.02), share=0.2),
        ),
        FACTORS,
    )

    def released(kept, group):
        if unit == "record":
            owners = RecordOwners(len(kept), np.array([0] * 10 + [group, group])[kept])
        else:
            ids = [number // 2 for number in kept]
            owners = UserOwners(ids, ap.User(), np.array([group if user == 5 else 0 for user in dict.fromkeys(ids)]))
        return curator(model, tuple(part[kept] for part in data), owners, micro_batch=3).answer(asked, cross_entropy)

    removed = 1 if unit == "record" else 2
    for group, factors in enumerate(FACTORS):
        more, fewer = released(list(range(12)), group), released(list(range(12 - removed)), group)
        moved = float((flat(more.gradient) - flat(fewer.gradient)).norm())
        weight = asked.expected_weight
        count, norms, *points = ((a - b) * weight for a, b in zip(more.statistics, fewer.statistics, strict=True))
        assert moved == pytest.approx(factors.clip * 0.01, rel=1e-5)
        assert abs(count) == pytest.approx(factors.clip * 0.5, rel=1e-5)
        assert norms == pytest.approx(factors.clip * 0.01, rel=1e-5)
        assert points == pytest.approx([0.0, 0.0, factors.clip], abs=1e-5)


def test_a_statistic_is_weighted_by_the_factor_of_the_group_and_divided_by_the_declared_weight(model, records):
    """Σ s_p·(b_i − ½) over q·N·Σ r_p·s_p: a fraction of one half more than 0 when nobody is clipped, whatever the shares."""
    data = tuple(part[:10] for part in records)
    groups = np.array([0] * 4 + [1] * 6)
    factors = (GroupFactors(share=0.4, clip=0.4), GroupFactors(share=0.6, clip=1.6))
    asked = Request(1.0, 1.0, 10.0, (ClippedSum(1.0, share=0.5), UnclippedCount(1e6, share=0.5)), factors)
    assert asked.expected_weight == pytest.approx(10 * (0.4 * 0.4 + 0.6 * 1.6))
    released = curator(model, data, RecordOwners(10, groups)).answer(asked, cross_entropy)
    assert released.statistics == (pytest.approx(0.5),)


def test_noise_is_that_of_the_common_threshold_whoever_is_in_which_group():
    """N(0, (z·C)²) on every coordinate; 5 % more or less noise is noticed."""
    model = nn.Linear(200, 100, bias=False)
    data = torch.zeros(4, 200), torch.zeros(4, dtype=torch.long)
    asked = Request(1e-18, 2.0, 3.0, (ClippedSum(0.5),), FACTORS)
    for owners in (RecordOwners(4, np.array([0, 0, 0, 1])), UserOwners("aabb", ap.User(), np.array([0, 1]))):
        one = curator(model, data, owners, mechanism=mechanisms.add_gaussian_noise)
        noise = flat(one.answer(asked, cross_entropy).gradient).numpy() * 3.0
        right = 2.0 * 0.5 * (1 + FLOAT32_HEADROOM)
        assert stats.kstest(noise / right, "norm").pvalue > 1e-4
        low, high = stats.chi2.ppf([5e-5, 1 - 5e-5], len(noise)) / len(noise)
        assert low < np.mean((noise / right) ** 2) < high
        assert not any(low < np.mean((noise / (right * wrong)) ** 2) < high for wrong in (0.95, 1.05))


@pytest.mark.parametrize(("factors", "groups"), [((), [0, 1]), (FACTORS[:1], None), (FACTORS, None), (FACTORS, [0, 2])])
def test_a_request_that_is_priced_for_other_groups_is_refused_before_it_is_charged(model, records, factors, groups):
    data, books = tuple(part[:2] for part in records), Books()
    owners = RecordOwners(2, None if groups is None else np.array(groups))
    asked = Request(0.5, 1.0, 1.0, (ClippedSum(1.0),), factors)
    with pytest.raises(InvalidArgument, match="groups"):
        curator(model, data, owners, books=books).answer(asked, cross_entropy)
    assert books.events == []


def test_what_is_charged_is_the_event_of_every_group(model, records):
    books, data = Books(), tuple(part[:4] for part in records)
    factors = (GroupFactors(share=0.5, rate=0.5, clip=0.4), GroupFactors(share=0.5, rate=1.5, clip=1.6))
    asked = Request(0.2, 2.0, 1.0, (ClippedSum(1.0),), factors, coins_per_unit=3)
    curator(model, data, RecordOwners(4, np.array([0, 1, 0, 1])), books=books).answer(asked, cross_entropy)
    (event,) = books.events
    assert event.groups == (
        (pytest.approx(1 - 0.9**3), pytest.approx(2 / 0.4)),
        (pytest.approx(1 - 0.7**3), pytest.approx(2 / 1.6)),
    )
    assert (event.sample_rate, event.noise_multiplier) == (pytest.approx(1 - 0.7**3), pytest.approx(2 / 1.6))


def test_users_of_one_record_are_records(model, records):
    data = tuple(part[:8] for part in records)
    asked = Request(0.5, 1.0, 4.0, (ClippedSum(0.1, share=0.5), UnclippedCount(0.5, share=0.5)))
    users = curator(copy.deepcopy(model), data, UserOwners(list("abcdefgh"), ap.User())).answer(asked, cross_entropy)
    records_ = curator(copy.deepcopy(model), data, RecordOwners(8)).answer(asked, cross_entropy)
    torch.testing.assert_close(flat(users.gradient), flat(records_.gradient), atol=1e-8, rtol=1e-6)
    assert users.statistics == pytest.approx(records_.statistics, abs=1e-6)
