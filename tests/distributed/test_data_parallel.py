"""Several ranks make one run: one draw, one noise, one charge, one state. Two gloo processes unless it says four."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from parallel_runs import (
    WIDE,
    answer,
    curator,
    drawn_together,
    failing_rank,
    noise_alone,
    noise_of_counts,
    own_loop,
    plan_of,
    refused_charge,
    requests,
    run_recipes,
    small_model,
    some_records,
    spoiled_state,
    train,
    users,
)
from spawning import Failed
from torch.nn.functional import cross_entropy

import apportion as ap
from apportion.accounting.ledger import Ledger
from apportion.accounting.run_filter import RULES
from apportion.curator.owners import RecordOwners, UserOwners
from apportion.curator.shard import ShardOwners
from apportion.distributed import LocalShard, process_group
from apportion.ranks import ALONE
from apportion.request import Request
from apportion.strategies.recipes import RECIPES

SEED = 3


def same(found):
    first, *others = found
    for other in others:
        assert other == first
    return first


# --- one draw -------------------------------------------------------------------------------------------------------------


@given(
    some.lists(some.one_of(some.none(), some.integers(0, 6)), min_size=1, max_size=40).filter(any),
    some.integers(1, 5),
    some.sampled_from(["user", "record"]),
    some.integers(1, 4),
)
def test_every_coin_is_tossed_by_one_rank_and_no_user_is_divided(ids, ranks, coins, k_max):
    owners = UserOwners(ids, ap.User(ids, k_max=k_max, coins=coins))
    parts = [ShardOwners(owners, rank, ranks) for rank in range(ranks)]
    drawn = [part.records_of(np.arange(part.coins)) for part in parts]
    assert sorted(np.concatenate(drawn).tolist()) == sorted(owners.records_of(np.arange(owners.coins)).tolist())
    whose = [set(owners.owner(records).tolist()) for records in drawn]
    assert sum(map(len, whose)) == len(set().union(*whose))


def test_the_parts_keep_the_groups_of_their_members():
    groups = np.array([0, 1, 2, 0, 1, 2, 2])
    parts = [ShardOwners(RecordOwners(7, groups), rank, 3) for rank in range(3)]
    for part in parts:
        records = part.records_of(np.arange(part.coins))
        assert part.coin_groups.tolist() == groups[records].tolist()


def test_ranks_toss_independent_coins():
    """With equal streams the members of two parts would be drawn together: the same places of both."""
    owners = RecordOwners(40_000)
    first, second = drawn_together(owners, 0.3, SEED, 2)
    together = len(set(first // 2) & set(second // 2))
    assert abs(together / 20_000 - 0.09) < 0.012  # six standard deviations
    assert abs((len(first) + len(second)) / 40_000 - 0.3) < 0.014


# --- one sum, one noise ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise_from", ["every rank", "first rank"])
@pytest.mark.parametrize("kind", ["flat", "groups", "framed"])
@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_ranks_answer_what_one_process_answers_about_the_same_records(two, kind, rate, noise_from):
    found = two.run(answer, kind, rate, noise_from)
    for gradient, statistics in found[1:]:
        assert statistics == found[0][1]
        assert all(np.array_equal(gradient[name], found[0][0][name]) for name in gradient)
    inputs, targets = some_records()
    together = np.concatenate(drawn_together(RecordOwners(40), rate, SEED, 2)) if rate < 1 else np.arange(40)
    assert 5 < len(together) < 41
    request = Request(1.0, 1.0, 10.0, requests()[kind])
    alone = curator(small_model(), (inputs[together], targets[together]), ALONE).answer(request, cross_entropy)
    gradient, statistics = found[0]
    for name, value in alone.gradient.items():
        assert np.allclose(gradient[name], value.numpy(), rtol=1e-6, atol=1e-7)
    assert np.allclose(statistics, alone.statistics, rtol=1e-12)


def deviation(values):
    return float(np.sqrt(np.mean(values**2)))


def check_noise(found, multiplier):
    for other in found[1:]:
        assert np.array_equal(found[0], other)
    assert abs(deviation(found[0]) / (0.5 * multiplier * (1 + 1e-4)) - 1) < 0.015  # of 100,000 values: six deviations


@pytest.mark.parametrize("noise_from", ["every rank", "first rank"])
def test_the_noise_of_all_ranks_together_is_that_of_the_request(two, noise_from):
    """Fails if it were 5 % smaller, if each rank added all of it (√2) or if one share were missing."""
    check_noise(two.run(noise_alone, noise_from, 2.0), 2.0)


def test_the_noise_of_counts_of_all_ranks_together_is_that_of_the_request(two):
    first, second = two.run(noise_of_counts, 600)
    assert np.array_equal(first, second)
    assert abs(deviation(first) - 1) < 0.15  # five standard deviations; one share of two alone is 0.71


@pytest.mark.slow
@pytest.mark.parametrize("noise_from", ["every rank", "first rank"])
def test_the_noise_of_four_ranks(four, noise_from):
    check_noise(four.run(noise_alone, noise_from, 2.0), 2.0)


def test_sums_travel_in_several_buckets(two, tmp_path):
    whole = two.run(answer, "groups", 1.0, "every rank")
    pieces = two.run(answer_in_pieces, "groups", 1.0, "every rank")
    for name, value in whole[0][0].items():
        assert np.array_equal(value, pieces[0][0][name])
        assert np.array_equal(value, pieces[1][0][name])


def answer_in_pieces(rank, *arguments):
    before, process_group.BUCKET_BYTES = process_group.BUCKET_BYTES, 16
    try:
        return answer(rank, *arguments)
    finally:
        process_group.BUCKET_BYTES = before


# --- one state ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["andrew", "default", "yu-validation"])
def test_thresholds_weights_and_scores_are_the_same_on_all_ranks(two, recipe):
    options = {"validation": ap.Public(some_records(10))} if recipe == "yu-validation" else {}
    found = two.run(train_with, recipe, options)
    first = same([{key: value for key, value in one.items() if key != "statement"} for one in found])
    assert first["steps"] >= 10
    assert first["epsilon"] <= 20
    assert found[0]["statement"]["processes"] == 2
    assert any("trust each other" in line for line in found[0]["statement"]["assumptions"])


def train_with(rank, recipe, options):
    return train(rank, recipe, plan={"steps": 12}, **options)


@pytest.mark.slow
def test_every_recipe_works(two):
    check_recipes(two, set(RECIPES) - {"non-private", "lin-transfer"})  # which has thresholds from a search


def test_recipes_of_every_role_work(two):
    check_recipes(two, {"adaclip", "dc-sgd-e", "dp-agd", "noisy-btls", "adadp", "fay-adaptive"})


def check_recipes(two, names):
    first = same(two.run(run_recipes, sorted(names)))
    refused = {name: one for name, one in first.items() if isinstance(one, str)}
    assert set(first) == names
    assert not refused, refused


def test_a_loop_of_ones_own(two):
    """With draws that are often empty on a rank, and sometimes on both."""
    found = two.run(own_loop, 0.05)
    seen = [one.pop("seen") for one in found]
    assert same(found)["steps"] == 6
    assert sum(seen) < 40


def test_every_record_is_with_one_rank(two):
    found = two.run(own_loop, 1.0)
    assert [one["seen"] for one in found] == [6 * 20, 6 * 20]


@pytest.mark.parametrize("coins", ["user", "record"])
def test_users(two, coins):
    assert same(two.run(users, coins))["steps"] == 6


def test_ranks_that_drift_apart_are_found_before_the_next_charge(two):
    for name, text, charged in two.run(spoiled_state):
        assert name == "RankLost"
        assert "rank 1 is not in the same state" in text
        assert charged == 1


def test_a_refused_charge_ends_the_step_on_all_ranks(two):
    assert two.run(refused_charge) == [("BudgetExhausted", 1), ("RankLost", 1)]


def test_a_rank_that_fails_is_not_waited_for(two):
    first, second = two.run(failing_rank)
    assert first[0] == "RankLost"
    assert second[0] == "SumLost"
    assert first[1] == second[1] == 2  # the step that failed is charged
    assert first[2] == second[2]


# --- the books ------------------------------------------------------------------------------------------------------------


def test_one_charge_a_step_and_a_run_that_goes_on_with_another_number_of_ranks(two, tmp_path):
    folder = tmp_path / "run"
    plan = {"steps": 6, "spare": 3}
    with pytest.raises(Failed) as stopped:
        two.run(stopped_train, {"folder": str(folder), "every": 1}, plan)
    assert [error[0] for error in stopped.value.errors] == ["KeyboardInterrupt", "KeyboardInterrupt"]
    ledger = Ledger.open(folder / "secret" / "ledger.sqlite")
    assert len(list(ledger.charges(1))) == 3
    ledger.close()
    # one rank; then it is finished by two
    with pytest.raises(KeyboardInterrupt):
        stopped_train(0, {"folder": str(folder), "every": 1, "resume": True}, plan, after=4)
    found = two.run(alone_train, {"folder": str(folder), "every": 1, "resume": True}, plan)
    assert found[0]["weights"] == found[1]["weights"]
    assert found[0]["steps"] == found[1]["steps"] == 6
    ledger = Ledger.open(folder / "secret" / "ledger.sqlite")
    assert ledger.verify() is None
    assert len(list(ledger.charges(1))) == 6  # every step was paid for once


def alone_train(rank, storage, plan):
    return train(rank, storage=storage, plan=plan)


def stopped_train(rank, storage, plan, after=3):
    def stop(entry):
        if entry.step == after:
            raise KeyboardInterrupt

    if rank == 0:
        return train(rank, storage=storage, plan=plan, progress=stop)
    from apportion.training import train as module

    before = module.take_steps

    def stopping(session, loss_fn, evaluation, tell, early):
        before(session, loss_fn, evaluation, stop, early)

    module.take_steps = stopping
    try:
        return train(rank, storage=storage, plan=plan)
    finally:
        module.take_steps = before


def test_the_ledger_of_a_data_set_has_room_for_the_run_or_nobody_begins(two, tmp_path):
    path = tmp_path / "shared.sqlite"
    Ledger.create(path, name="few", rule=RULES["sum"](ap.Budget(epsilon=1.0, delta=1e-4, unit=ap.Record()))).close()
    with pytest.raises(Failed) as refused:
        two.run(alone_train, {"folder": str(tmp_path / "run"), "ledger": str(path)}, {})
    assert [error[0] for error in refused.value.errors] == ["BudgetExhausted", "RankLost"]
    assert not (tmp_path / "run").exists()


# --- what is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("odd", "field"),
    [
        ({"lr": 0.25}, "optimizer.lr"),
        ({"plan": {"steps": 7}}, "plan"),
        ({"execution": ap.Execution(micro_batch=3)}, "execution.micro_batch"),
        ({"seed": 5}, "private"),
        ({"optimizer": "adam"}, "optimizer"),
    ],
)
def test_different_settings_are_found_at_the_start_and_named(two, odd, field):
    with pytest.raises(Failed) as found:
        two.run(odd_train, odd)
    for name, text, _ in found.value.errors:
        assert name == "InvalidArgument"
        assert text.startswith(field)
        assert "rank 1 has" in text
        assert "nothing was charged" in text


def odd_train(rank, odd):
    return train(rank, odd=odd)


def test_different_numbers_of_records_are_named_with_the_way_out(two):
    with pytest.raises(Failed) as found:
        two.run(train_on, [some_records(40), some_records(30)])
    assert all("LocalShard" in text and text.startswith("data") for _, text, _ in found.value.errors)


def train_on(rank, data):
    return train(rank, data=data)


def test_a_rank_may_have_records_of_its_own_or_none(two):
    inputs, targets = some_records()
    found = two.run(train_on, [LocalShard((inputs, targets)), LocalShard((inputs[:0], targets[:0]))])
    assert same([{key: value for key, value in one.items() if key != "statement"} for one in found])["steps"] == 6


def test_what_one_process_does_is_refused_by_name(two, tmp_path):
    with pytest.raises(Failed, match="bit for bit"):
        two.run(alone_train, {"folder": str(tmp_path / "run"), "recovery": "exact"}, {})
    with pytest.raises(Failed, match="two ranks"):
        two.run(users_on_shards)
    with pytest.raises(Failed, match="draw clients and ask them for itself"):
        two.run(federated)


def federated(rank):
    budget = ap.Budget(epsilon=20.0, delta=1e-5, unit=ap.User())
    local = ap.federated.LocalSGD(lr=0.5)
    return ap.federated.train(small_model(), [some_records()], local, plan_of(budget=budget, population=8))


def users_on_shards(rank):
    ids = [number // 5 for number in range(40)]
    budget = ap.Budget(epsilon=20.0, delta=1e-5, unit=ap.User(ids, k_max=5))
    return ap.train(
        small_model(), "cross-entropy", LocalShard(some_records()), plan_of(budget=budget, population=8), lr=0.5
    )


def test_a_model_that_combines_gradients_itself_is_refused(two):
    with pytest.raises(Failed, match=r"model\.module"):
        two.run(wrapped)


def wrapped(rank):
    model = torch.nn.parallel.DistributedDataParallel(small_model())
    return ap.train(model, "cross-entropy", some_records(), plan_of(), lr=0.5)


def test_wide_is_large_enough_for_the_test_of_noise():
    assert WIDE[0] * WIDE[1] == 100_000
