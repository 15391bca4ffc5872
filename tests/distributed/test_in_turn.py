"""Ranks that take turns in one process do what processes do: here four of them, and what must not be told apart or left waiting."""

import json
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from parallel_runs import (
    Books,
    Silent,
    curator,
    facts,
    plan_of,
    requests,
    small_model,
    some_records,
)
from taking_turns import each_in_turn, in_turn
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
from apportion.curator.curator import Curator, Draw
from apportion.curator.gradients.engine import build_engine
from apportion.curator.owners import RecordOwners, UserOwners
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.curator.shard import ShardOwners
from apportion.curator.state_digest import state_digest
from apportion.distributed import LocalShard, ProcessGroupRanks, Turns
from apportion.ranks import ALONE
from apportion.releases import ClippedSum
from apportion.request import Request
from apportion.strategies.recipes import named

FOUR = 4


def trained(rank, recipe="abadi", data=None, plan=None, **options):
    options = {"lr": 0.5} | {name: value(rank) if callable(value) else value for name, value in options.items()}
    records = some_records() if data is None else data(rank)
    return ap.train(small_model(), "cross-entropy", records, plan_of(recipe, **(plan or {})), **options)


# --- taking turns ---------------------------------------------------------------------------------------------------------


def test_what_each_says_is_heard_by_all():
    def talk(link):
        ranks = ProcessGroupRanks(link=link)
        found = [ranks.gather(ranks.rank), ranks.agree(f"rank {ranks.rank}")]
        total = next(ranks.add_up([torch.full((2,), float(ranks.rank + 1))]))
        ranks.arrive()
        return [*found, total.tolist()]

    assert Turns(3).run(talk) == [[[0, 1, 2], "rank 0", [6.0, 6.0]]] * 3


@pytest.mark.parametrize("odd", range(3))
def test_one_that_ends_is_not_waited_for(odd):
    def leave(link):
        ranks = ProcessGroupRanks(link=link)
        ranks.arrive()
        if ranks.rank == odd:
            return "gone"
        try:
            ranks.arrive()
        except ap.RankLost as error:
            return str(error)

    found = Turns(3).run(leave)
    assert found.pop(odd) == "gone"
    assert all("resume" in text for text in found)


# --- four ranks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise_from", ["every rank", "first rank"])
@pytest.mark.parametrize("kind", ["flat", "groups", "framed"])
def test_four_ranks_answer_what_one_process_answers(kind, noise_from):
    request = Request(1.0, 1.0, 10.0, requests()[kind])

    def answer(link):
        one = curator(small_model(), some_records(), ProcessGroupRanks(noise_from, link=link))
        return one.answer(request, cross_entropy)

    found = Turns(FOUR).run(answer)
    alone = curator(small_model(), some_records(), ALONE).answer(request, cross_entropy)
    for one in found:
        assert one.statistics == found[0].statistics
        assert np.allclose(one.statistics, alone.statistics, rtol=1e-12)
        for name, value in alone.gradient.items():
            assert torch.equal(one.gradient[name], found[0].gradient[name])
            assert torch.allclose(one.gradient[name], value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("noise_from", ["every rank", "first rank"])
def test_the_noise_of_four_ranks_is_that_of_the_request(noise_from):
    """Of 100,000 values: six standard deviations, and a third of what one 5 % too small would show."""
    asked = Request(1e-18, 2.0, 8.0, (ClippedSum(0.5),))
    data = torch.zeros(3, 400), torch.zeros(3, dtype=torch.long)

    def noise(link):
        torch.manual_seed(0)
        model = nn.Linear(400, 250, bias=False)
        one = curator(model, data, ProcessGroupRanks(noise_from, link=link), silent=False)
        return one.answer(asked, cross_entropy).gradient["weight"].double() * 8.0

    found = Turns(FOUR).run(noise)
    assert all(torch.equal(one, found[0]) for one in found)
    assert abs(float(found[0].square().mean().sqrt()) / (1 + 1e-4) - 1) < 0.015


def test_adaptive_thresholds_are_the_same_on_four_ranks():
    runs = in_turn(FOUR, trained, "andrew")
    found = [facts(run) for run in runs]
    assert found == [found[0]] * FOUR
    assert len(set(found[0]["clip"])) == 6


def test_a_digest_does_not_depend_on_threads_and_sees_the_last_bit():
    request = Request(0.5, 1.0, 10.0, (ClippedSum(0.3),))
    weights = {"w": torch.randn(300_000, generator=torch.Generator().manual_seed(0)), "b": torch.ones(3).bfloat16()}
    found = set()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.add(state_digest(request, weights))
    torch.set_num_threads(1)
    assert len(found) == 1
    weights["w"][7] = torch.nextafter(weights["w"][7], torch.tensor(9.0))
    assert state_digest(request, weights) not in found
    other = Request(0.5, 1.0, 10.0, (ClippedSum(np.nextafter(0.3, 1)),))
    assert len({state_digest(one, weights) for one in (request, other)}) == 2


def test_a_seed_gives_every_rank_its_own_streams():
    first = [Randomness.choose(5, rank).next_draw() for rank in range(3)]
    for purpose in ("coins", "noise", "model", "views"):
        words = [getattr(streams, purpose).words(4).tobytes() for streams in first]
        assert len(set(words)) == 3


def test_keys_of_a_private_run_are_fresh_in_every_process():
    """So a run that goes on, with however many ranks, has no stream again."""
    keys = [Randomness.choose(None, rank)._key for rank in (0, 0, 1, 1)]
    assert len(set(keys)) == 4


def test_half_precision_travels_wide_enough_to_hide_the_side_of_a_rounding():
    """In bfloat16 a sum of 1000 has steps of 4. Noise of 1 on two ranks hides on which side 1002 was rounded; half of it would not."""
    asked = Request(1.0, 1.0, 1.0, (ClippedSum(1.0),))
    sent = []

    class Counting(ProcessGroupRanks):
        def add_up(self, tensors):
            tensors = list(tensors)
            sent.extend(one.dtype for one in tensors)
            return super().add_up(tensors)

    def answer(link):
        torch.manual_seed(0)
        model = nn.Linear(4, 2, bias=False).to(torch.bfloat16)
        inputs, targets = some_records()
        one = curator(model, (inputs.to(torch.bfloat16), targets), Counting(link=link))
        return one.answer(asked, cross_entropy).gradient["weight"].dtype

    assert Turns(2).run(answer) == [torch.bfloat16] * 2
    assert set(sent) == {torch.float32}


# --- whoever has no records -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("people", [ap.people.Sample(), ap.people.Scale()], ids=["sample", "scale"])
def test_ranks_without_anybody_in_any_group_stay_in_step(people):
    """Three records on four ranks."""
    groups = [ap.Group("strict", 1.0, 0.5), ap.Group("loose", 4.0, 0.5)]
    budget = ap.Budget.of_groups(groups, delta=1e-5, unit=ap.Record(), labels=["strict", "loose", "loose"])
    plan = ap.plan(replace(named("abadi"), people=people), budget=budget, population=40, sample_rate=0.3, steps=3)

    def run(rank):
        data = tuple(part[:3] for part in some_records())
        return facts(ap.train(small_model(), "cross-entropy", data, plan, lr=0.5))

    found = in_turn(FOUR, run)
    assert found == [found[0]] * FOUR


@pytest.mark.parametrize("people", [ap.people.IndividualFilter(), ap.people.IndividualEstimate()])
def test_accounts_of_single_people_are_refused_by_name(people):
    recipe = replace(named("abadi"), people=people)
    found = each_in_turn(2, lambda rank: trained(rank, recipe))
    assert type(people).__name__ in str(found[0])
    assert all("one process" in str(error) for error in found)


def test_a_shard_without_records_and_labels_by_a_function():
    groups = [ap.Group("strict", 1.0, 0.5), ap.Group("loose", 4.0, 0.5)]
    budget = ap.Budget.of_groups(
        groups, delta=1e-5, unit=ap.Record(), labels=lambda inputs, target: "strict" if target else "loose"
    )
    plan = ap.plan("abadi", budget=budget, population=40, sample_rate=0.3, steps=3)
    inputs, targets = some_records()

    def run(rank):
        data = LocalShard((inputs, targets) if rank else (inputs[:0], targets[:0]))
        return facts(ap.train(small_model(), "cross-entropy", data, plan, lr=0.5))

    found = in_turn(2, run)
    assert found[0] == found[1]


# --- what was given to the ranks ------------------------------------------------------------------------------------------


def refused(errors, argument):
    for error in errors:
        assert isinstance(error, ap.InvalidArgument), error
        assert error.argument == argument
    return str(errors[0])


def test_the_same_records_in_another_order_are_refused():
    """Some would be with two ranks, and weigh twice."""

    def shuffled(rank):
        inputs, targets = some_records()
        order = torch.randperm(40, generator=torch.Generator().manual_seed(rank))
        return inputs[order], targets[order]

    text = refused(each_in_turn(2, lambda rank: trained(rank, data=shuffled)), "data")
    assert "rank 1 has others than rank 0" in text
    assert "LocalShard" in text


def test_users_that_are_numbered_otherwise_are_refused():
    def run(rank):
        ids = [(number + rank) // 5 for number in range(40)]
        budget = ap.Budget(epsilon=20.0, delta=1e-5, unit=ap.User(ids, k_max=5))
        return trained(rank, plan={"budget": budget, "population": 8})

    refused(each_in_turn(2, run), "data")


def test_records_that_differ_whenever_they_are_read_are_not_compared():
    class Augmented(torch.utils.data.Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            return torch.randn(4), torch.tensor(index % 2)

    assert [run.steps for run in in_turn(2, lambda rank: trained(rank, data=lambda rank: Augmented()))] == [6, 6]


def test_nothing_of_the_records_is_in_the_refusal():
    text = refused(each_in_turn(2, lambda rank: trained(rank, data=lambda rank: some_records(40 - rank))), "data")
    assert "40" not in text
    assert "39" not in text


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"evaluate": lambda rank: ap.Public(some_records(20)) if rank == 0 else None}, "evaluate"),
        ({"evaluate": ap.Public(some_records(20)), "evaluate_every": lambda rank: 2 + rank}, "evaluate_every"),
        ({"validation": lambda rank: ap.Public(some_records(20)) if rank else None}, "validation"),
        ({"domain": lambda rank: ap.Domain(classes=2, inputs=(-9, 9 + rank))}, "domain"),
    ],
)
def test_what_decides_when_ranks_meet_must_be_the_same(options, argument):
    assert "rank 1 has" in refused(each_in_turn(2, lambda rank: trained(rank, **options)), argument)


# --- one that fails -------------------------------------------------------------------------------------------------------


def test_a_charge_that_fails_in_any_way_is_told_to_all():
    class Broken(Books):
        def charge(self, event):
            raise OSError("the disk is full")

    def run(link):
        ranks = ProcessGroupRanks(link=link)
        one = curator(small_model(), some_records(), ranks, books=Books() if ranks.rank else Broken())
        try:
            one.answer(Request(0.5, 1.0, 10.0, (ClippedSum(0.3),)), cross_entropy)
        except (OSError, ap.RankLost) as error:
            return type(error).__name__, ranks.gather("still here")

    assert [name for name, _ in Turns(2).run(run)] == ["OSError", "RankLost"]


def test_a_rank_that_fails_at_its_last_user_is_not_waited_for():
    ids = [number // 5 for number in range(40)]
    everybody = UserOwners(ids, ap.User(ids, k_max=5))
    add = Draw._add_last_user

    def fail(draw):
        if draw._ranks.rank == 1:
            raise MemoryError
        add(draw)

    def run(link):
        ranks = ProcessGroupRanks(link=link)
        one = curator(small_model(), some_records(), ranks, owners=everybody)
        try:
            one.answer(Request(1.0, 1.0, 10.0, (ClippedSum(0.3),)), cross_entropy)
        except (MemoryError, ap.RankLost) as error:
            return type(error).__name__, ranks.gather("still here")

    with patch.object(Draw, "_add_last_user", fail):
        assert [name for name, _ in Turns(2).run(run)] == ["RankLost", "MemoryError"]


def test_a_loop_that_is_left_in_the_middle_is_not_waited_for():
    def run(rank):
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        execution = ap.Execution(micro_batch=5)
        private = ap.make_private(model, optimizer, some_records(), plan_of(rate=1.0), execution=execution)
        batches = private.batches()
        for inputs, targets in batches:
            if rank == 1:
                break
            cross_entropy(private.model(inputs), targets).backward()
            private.optimizer.step()
        batches.close()

    first, second = each_in_turn(2, run)
    assert isinstance(first, ap.RankLost)
    assert "rank 1 failed in this step" in str(first)
    assert second is None


def test_whether_a_rank_raises_does_not_follow_from_its_records():
    """NaN, labels out of range and unreadable records on one rank alone: all go on, and agree."""
    inputs, targets = some_records()
    inputs, targets = inputs.clone(), targets.clone()
    inputs[1::2] = torch.nan
    targets[3::4] = 99
    runs = in_turn(2, lambda rank: trained(rank, data=lambda rank: (inputs, targets), plan={"count_usable": False}))
    assert facts(runs[0]) == facts(runs[1])


# --- the folder -----------------------------------------------------------------------------------------------------------


def test_problems_of_all_ranks_are_counted_and_the_first_writes(tmp_path):
    inputs, targets = some_records()
    targets = targets.clone()
    targets[1::4] = 99  # all of them with rank 1

    def run(rank):
        storage = ap.Storage(tmp_path / "run", every=2)
        plan = {"rate": 1.0, "count_usable": False}
        run = trained(rank, data=lambda rank: (inputs, targets), plan=plan, storage=storage)
        run.save(tmp_path / f"copy of rank {rank}")
        run.report(tmp_path / f"report of rank {rank}.html")
        return run.steps

    assert in_turn(2, run) == [6, 6]
    _, total, *lines = (
        json.loads(line) for line in (tmp_path / "run" / "secret" / "problems.jsonl").read_text().splitlines()
    )
    assert total["records_drawn"] == 6 * 40
    assert total["not_usable"] == 6 * 10
    assert [line["problem"] for line in lines] == ["outside the domain"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy of rank 0", "report of rank 0.html", "run"]


def test_counts_of_usable_records_and_histograms_add_up_over_ranks():
    """The halves that are taken off are those of each rank's own draw."""
    from apportion.releases import NormHistogram, UsableCount

    releases = (ClippedSum(0.3, share=0.5), UsableCount(share=0.25), NormHistogram((0.0, 0.2, 0.5, 1.0), share=0.25))
    request = Request(1.0, 1.0, 10.0, releases)
    inputs, targets = some_records(41)
    inputs[::3] = torch.nan

    def answer(ranks):
        owners = RecordOwners(41)
        return Curator(
            as_records((inputs, targets)),
            build_engine(small_model(), "vmap"),
            Books(),
            Randomness.seeded(1, ranks.rank),
            mechanisms=Silent(),
            owners=owners if ranks.count == 1 else ShardOwners(owners, ranks.rank, ranks.count),
            ranks=ranks,
        ).answer(request, cross_entropy)

    alone = answer(ALONE).statistics
    assert alone[0] * 10 == pytest.approx(27 - 20.5)
    for found in Turns(3).run(lambda link: answer(ProcessGroupRanks(link=link))):
        assert np.allclose(found.statistics, alone, rtol=1e-9)


# --- processes that know nothing of each other ----------------------------------------------------------------------------


@pytest.fixture
def torchrun(monkeypatch):
    """As if torchrun had started two processes."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    monkeypatch.setenv("WORLD_SIZE", "2")


def test_what_one_process_does_is_refused_in_several(torchrun):
    public = ap.Public(some_records(20))
    with pytest.raises(ap.InvalidArgument, match="init_process_group"):
        trained(0)
    with pytest.raises(ap.InvalidArgument, match="`tune` for itself"):
        ap.tune(small_model, cross_entropy, public, plan_of(), space={"lr": [0.1]}, evaluate=public, trials=1)
    with pytest.raises(ap.InvalidArgument, match="`pate` for itself"):
        budget = ap.Budget(epsilon=5.0, delta=1e-5, unit=ap.Record())
        ap.pate(some_records(), budget, queries=ap.Public(some_records(5)[0]), classes=2, teacher=small_model)
