"""The replay audit over several ranks: what they release together holds for every recipe, and broken pieces are found."""

from dataclasses import replace

import numpy as np
import pytest
from test_replay_of_people import LOSS, own_loop, plan_of

import apportion as ap
from apportion.audit import replay
from apportion.curator import curator as curator_module
from apportion.curator.shard import ShardOwners
from apportion.distributed import process_group
from apportion.strategies.recipes import READY, named
from apportion.training import opening

CORE = {"abadi", "dc-sgd-e"}
RECIPES = [pytest.param(name, marks=() if name in CORE else pytest.mark.slow) for name in READY if named(name).private]


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_holds_over_two_ranks(model, records, name):
    report = replay(model, LOSS, records, name, ranks=2)
    assert report.ok, report
    assert report.largest_ratio > 0.9


@pytest.mark.parametrize(
    ("name", "people", "unit"),
    [
        pytest.param("abadi", "sample", "coins by record", marks=pytest.mark.slow),
        pytest.param("andrew", "scale", "user", marks=pytest.mark.slow),
        pytest.param("adaclip", "scale", "user", marks=pytest.mark.slow),
        pytest.param("dc-sgd-e", "uniform", "record", marks=pytest.mark.slow),
        pytest.param("abadi", None, "one record of each", marks=pytest.mark.slow),
    ],
)
def test_groups_and_users_over_three_ranks(model, records, name, people, unit):
    report = replay(model, LOSS, records, plan_of(name, people, unit), ranks=3)
    assert report.ok, report


def test_a_loop_of_ones_own(model, records):
    assert replay(model, None, records, "andrew", loop=own_loop, ranks=2).ok


def test_noise_of_the_first_rank_alone(model, records):
    assert replay(model, LOSS, records, "abadi", execution=ap.Execution(noise_from="first rank"), ranks=2).ok


@pytest.mark.slow
def test_more_ranks_than_records(model, records):
    assert replay(model, LOSS, records, "abadi", ranks=15).ok


# --- broken pieces --------------------------------------------------------------------------------------------------------


def kinds(report):
    return {finding.kind for finding in report.findings}


def test_a_record_with_two_ranks_is_found(model, records, monkeypatch):
    monkeypatch.setattr(opening, "divided", lambda owners, setup: owners)
    found = kinds(replay(model, LOSS, records, "abadi", ranks=2))
    assert {"sampling", "sensitivity", "multiplier"} <= found


def test_a_user_with_two_ranks_is_found(model, records, monkeypatch):
    def by_coin(self, owners, rank, ranks):
        honest(self, owners, rank, ranks)
        self._own = np.flatnonzero(np.arange(owners.coins) % ranks == rank)
        self.coins = len(self._own)

    honest = ShardOwners.__init__
    monkeypatch.setattr(ShardOwners, "__init__", by_coin)
    found = kinds(replay(model, LOSS, records, plan_of("abadi", None, "coins by record"), ranks=2))
    assert "sensitivity" in found


@pytest.mark.parametrize("share", [0.5, 0.95 * 2**-0.5], ids=["a share of the deviation", "5 % too small"])
def test_noise_that_is_too_small_together_is_found(model, records, monkeypatch, share):
    def too_small(self, *arguments, **named):
        honest(self, *arguments, **named)
        self.share = share

    honest = process_group.ProcessGroupRanks.__init__
    monkeypatch.setattr(process_group.ProcessGroupRanks, "__init__", too_small)
    assert "multiplier" in kinds(replay(model, LOSS, records, "abadi", ranks=2))


def test_a_rank_without_noise_on_its_counts_is_found(model, records, monkeypatch):
    def count(self, one):
        exact = self._pop_sum(one, curator_module.torch.zeros((), dtype=curator_module.torch.float64))
        return exact / self.request.expected_weight if self._ranks.rank else self._add_noise(one, exact)

    monkeypatch.setattr(curator_module.Draw, "_count", count)
    assert "calls" in kinds(replay(model, LOSS, records, "andrew", ranks=2))


def test_means_instead_of_sums_are_found(model, records, monkeypatch):
    honest = process_group.ProcessGroupRanks.add_up
    monkeypatch.setattr(
        process_group.ProcessGroupRanks, "add_up", lambda self, tensors: (one / 2 for one in honest(self, tensors))
    )
    assert "release" in kinds(replay(model, LOSS, records, "abadi", ranks=2))


def test_ranks_that_draw_before_the_charge_are_found(model, records, monkeypatch):
    def late(self, request):
        self._ranks, ranks = Uncharged(self._ranks), self._ranks
        draw = honest(self, request)
        ranks.charge(lambda: self._charges.charge(request.event()))
        self._ranks = draw._ranks = ranks
        return draw

    class Uncharged:
        def __init__(self, ranks):
            self.count, self.require_same = ranks.count, ranks.require_same

        def charge(self, action):
            pass

    honest = curator_module.Curator.open
    monkeypatch.setattr(curator_module.Curator, "open", late)
    assert "charge" in kinds(replay(model, LOSS, records, "abadi", ranks=2))


def test_choices_of_every_rank_are_found(model, records, monkeypatch):
    """Each rank would go its own way, and be stopped before its next charge."""
    monkeypatch.setattr(process_group.ProcessGroupRanks, "choose", lambda self, indices: tuple(indices))
    with pytest.raises(ap.RankLost, match="not in the same state"):
        replay(model, LOSS, records, "dp-agd", steps=6, ranks=2)


def test_what_is_kept_for_one_process_is_refused(model, records):
    with pytest.raises(ap.InvalidArgument, match="one process"):
        replay(model, LOSS, records, replace(named("abadi"), people=ap.people.IndividualEstimate()), ranks=2)
