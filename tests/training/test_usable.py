"""The count of usable records: its price, its law, when a run stops by it, and what the owner of the data can read."""

import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
from apportion.curator.curator import Curator
from apportion.curator.gradients.engine import build_engine
from apportion.curator.gradients.reference import ReferenceGradients
from apportion.curator.problems import NOTE, Problems
from apportion.curator.randomness import Randomness
from apportion.curator.reader import Piece
from apportion.curator.records import as_records
from apportion.curator.sieve import within
from apportion.event import GroupFactors
from apportion.releases import ClippedSum, UsableCount
from apportion.request import Request
from apportion.usable import UsableCheck, UsableTally

RECORDS = 400


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Linear(3, 2)


@pytest.fixture
def records():
    torch.manual_seed(1)
    return torch.randn(RECORDS, 3), torch.arange(RECORDS) % 2


class Unpaid:
    def charge(self, event):
        pass


def answers(
    model, records, number=1, *, owners=None, groups=(), rate=1.0, noise=1e-6, domain=None, problems=None, engine="vmap"
):
    """Noisy sums of the count, as the curator answers them."""
    curator = Curator(
        as_records(records),
        build_engine(model, engine),
        Unpaid(),
        Randomness.seeded(3),
        owners=owners,
        domain=domain,
        problems=problems,
    )
    request = Request(rate, noise, 7.0, (ClippedSum(1.0, share=0.9), UsableCount(share=0.1)), groups)
    found = [curator.answer(request, cross_entropy) for _ in range(number)]
    return request, np.array([one.statistics[-1] * request.expected_weight for one in found])


def test_it_counts_a_half_for_each_that_contributes_and_takes_one_off_for_each_other(model, records):
    inputs, targets = records
    _, (all_good,) = answers(model, records)
    assert all_good == pytest.approx(RECORDS / 2, abs=1e-3)
    inputs[:100] = torch.nan
    targets[100:250] = 7
    inputs[250:260] = torch.inf
    _, (some,) = answers(model, (inputs, targets))
    assert some == pytest.approx(140 / 2 - 260 / 2, abs=1e-3)
    _, (masked,) = answers(model, (inputs, targets), domain=ap.Domain(classes=2))
    assert masked == pytest.approx(some, abs=1e-3), "a mask finds the same records that a loss refuses"


def test_one_record_moves_it_by_a_half_whatever_it_is(model, records):
    inputs, targets = records
    _, (before,) = answers(model, records)
    for value, target in ((0.0, 0), (math.nan, 0), (0.0, 9), (math.inf, 1)):
        more = torch.cat([inputs, torch.full((1, 3), value)]), torch.cat([targets, torch.tensor([target])])
        _, (after,) = answers(model, more)
        assert abs(after - before) == pytest.approx(0.5, abs=1e-3)


def test_members_of_a_group_weigh_as_much_as_they_are_clipped_to(model, records):
    from apportion.curator.owners import RecordOwners

    groups = (GroupFactors(share=0.5, clip=0.5), GroupFactors(share=0.5))
    owners = RecordOwners(RECORDS, np.arange(RECORDS) // 200)
    inputs, targets = records
    _, (good,) = answers(model, records, owners=owners, groups=groups)
    assert good == pytest.approx((200 * 0.5 + 200) / 2, abs=1e-3)
    inputs[0] = torch.nan
    _, (light,) = answers(model, (inputs, targets), owners=owners, groups=groups)
    inputs[399] = torch.nan
    _, (heavy,) = answers(model, (inputs, targets), owners=owners, groups=groups)
    assert good - light == pytest.approx(0.5, abs=1e-3)
    assert light - heavy == pytest.approx(1.0, abs=1e-3)


def test_a_user_counts_once(model, records):
    from apportion.curator.owners import UserOwners

    inputs, targets = records
    ids = [index // 4 for index in range(RECORDS)]
    owners = UserOwners(ids, ap.User(ids))
    inputs[:7] = torch.nan  # all of the first user, three of four of the second
    _, (count,) = answers(model, (inputs, targets), owners=owners)
    assert count == pytest.approx(99 / 2 - 1 / 2, abs=1e-3)


def test_its_noise_has_the_declared_size(model, records):
    request, found = answers(model, (records[0][:2], records[1][:2]), 4000, noise=2.0, engine="one-pass")
    deviation = request.standard_deviation(request.statistics[-1])
    assert deviation == pytest.approx(2.0 * 0.5 / math.sqrt(0.1))
    assert np.std(found) == pytest.approx(deviation, rel=0.03)  # 5 % less would be 4.5 standard errors away
    assert np.mean(found) == pytest.approx(1.0, abs=4 * deviation / math.sqrt(4000))


def planned(records=RECORDS, epsilon=3.0, **changes):
    budget = ap.Budget(epsilon=epsilon, delta=1e-5, unit=ap.Record())
    settings = {"batch_size": 100, "steps": 8} | changes
    return ap.plan("abadi", budget=budget, population=records, **settings)


def test_it_is_part_of_the_plan_and_costs_nothing_beyond_the_budget():
    plan, without = planned(), planned(count_usable=False)
    assert plan.usable == UsableCheck(3, 0.01)
    assert (plan.epsilon, plan.multipliers) == (without.epsilon, without.multipliers)
    assert without.usable is None
    assert ap.Plan.from_json(plan.to_json()) == plan != without
    assert "counted in the first 3 steps" in str(plan)
    assert "not counted" in str(without)
    shapes = {"weight": (2, 3)}
    for step in range(1, 9):
        context = plan.context(step, shapes)
        request = plan.request(context, plan.clip.init(context))
        assert [type(one).__name__ for one in request.releases] == ["ClippedSum", "UsableCount"][: 1 + (step <= 3)]
        assert request.event() == plan.tokens[step - 1]


def test_small_batches_are_counted_longer_or_not_at_all():
    lengths = [UsableCheck.affordable([1.0] * 1000, batch) for batch in (1000, 100, 40, 25, 16, 4)]
    assert [one and one.steps for one in lengths] == [3, 3, 5, 10, 50, None]
    assert UsableCheck.affordable([1.0] * 2, 1000) is None, "a run of two steps has nothing to stop"
    assert planned(batch_size=4).usable is None


def test_the_check_decides_as_often_wrongly_as_it_says():
    """With half of the records usable it stops about never; with none of them about always."""
    generator = np.random.default_rng(0)
    for batch, multiplier in ((100.0, 1.0), (25.0, 1.0), (600.0, 5.0)):
        check = UsableCheck.affordable([multiplier] * 200, batch)
        deviation = multiplier * 0.5 / math.sqrt(check.share)
        stopped = {0.0: 0, 0.5: 0, 1.0: 0}
        for fraction in stopped:
            for _ in range(2000):
                tally = UsableTally()
                for _ in range(check.steps):
                    size = generator.poisson(batch)
                    usable = generator.binomial(size, fraction)
                    tally.add(usable - size / 2 + generator.normal(0, deviation), deviation, batch, 1.0)
                stopped[fraction] += tally.too_few
        assert stopped[0.0] >= 1990
        assert stopped[0.5] <= 2
        assert stopped[1.0] == 0


def run(model, records, tmp_path, plan=None, loss=cross_entropy, **more):
    return ap.train(model, loss, records, plan or planned(), lr=0.1, storage=ap.Storage(tmp_path / "run"), **more)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda inputs, targets: (inputs, targets + 2),
        lambda inputs, targets: (inputs * torch.nan, targets),
        lambda inputs, targets: (inputs, targets - 7),
    ],
)
def test_a_run_whose_records_fail_stops_keeps_its_price_and_can_go_on(model, records, tmp_path, spoil):
    plan = planned(spare=2)
    with pytest.raises(
        ap.UnusableRecords,
        match=r"stopped after 3 steps.*if that is far larger than the number of records.*the 5 steps left.*problems\.jsonl",
    ):
        run(model, spoil(*records), tmp_path, plan)
    statement = json.loads((tmp_path / "run" / "public" / "privacy.json").read_text())
    assert statement["epsilon"] == pytest.approx(plan.epsilon)
    ledger = ap.Ledger.open(tmp_path / "run" / "secret" / "ledger.sqlite")
    assert len(list(ledger.charges())) == 3
    ledger.close()
    with pytest.warns(UserWarning, match="By a noisy count"):
        resumed = ap.train(
            model, cross_entropy, records, plan, lr=0.1, storage=ap.Storage(tmp_path / "run", resume=True)
        )
    assert resumed.steps == plan.steps, "the owner has mended the records, and the rest of the plan is spent"


def test_a_loop_of_ones_own_stops_too(model, records, tmp_path):
    inputs, targets = records
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = ap.make_private(model, optimizer, (inputs * torch.nan, targets), planned())
    with pytest.raises(ap.UnusableRecords, match="3 steps"):
        for x, y in private.batches():
            cross_entropy(private.model(x), y).backward()
            private.optimizer.step()
    assert private.steps == 3


def test_if_many_fail_the_run_goes_on_and_says_so(model, records, tmp_path):
    inputs, targets = records
    plan = planned(epsilon=30.0, batch_size=0.9 * RECORDS)  # half is far from all and from none, by many deviations
    with pytest.warns(UserWarning, match=r"about \d+% of the records can be used"):
        found = run(model, (inputs, targets + 1), tmp_path, plan)  # 1 and 2 instead of 0 and 1
    assert found.usable == pytest.approx(0.5, abs=0.2)
    assert found.steps == 8


def test_good_records_are_no_reason_to_say_anything(model, records, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(model, records, tmp_path).usable == pytest.approx(1.0, abs=0.2)


def test_a_number_too_large_for_the_model_is_not_spoken_of(model, records, tmp_path):
    inputs = records[0].double().numpy()
    inputs[7] = 1e300  # NumPy warns where it is turned into float32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(model, (inputs, records[1]), tmp_path).usable == pytest.approx(1.0, abs=0.2)


def test_strategies_do_not_see_the_count(model, records):
    """Those that ask for statistics of their own get the answers to these, in their order."""
    seen = []

    class Watching(ap.clip.Quantile):
        def observe(self, state, released):
            seen.append(len(released.statistics))
            return super().observe(state, released)

    recipe = ap.Recipe(clip=Watching(start=1.0), noise=ap.noise.Constant())
    budget = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())
    plan = ap.plan(recipe, budget=budget, population=RECORDS, batch_size=100, steps=5)
    assert plan.usable is not None
    ap.train(model, cross_entropy, records, plan, lr=0.1, seed=0)
    assert set(seen) == {1}


def test_a_strategy_may_not_ask_for_it_itself(model, records):
    class Asking(ap.clip.Fixed):
        def propose(self, state, context):
            return (ClippedSum(1.0, share=0.5), UsableCount(share=0.5))

    recipe = ap.Recipe(clip=Asking(1.0), noise=ap.noise.Constant())
    budget = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())
    with pytest.raises(ap.InvalidArgument, match="the plan itself counts"):
        ap.plan(recipe, budget=budget, population=RECORDS, batch_size=100, steps=5).thresholds()


def test_a_plan_cannot_be_given_another_kind_of_check():
    plan = planned()
    for wrong in (UsableCheck(9, 0.01), "yes", 3):
        with pytest.raises(ap.InvalidArgument, match="usable"):
            replace(plan, usable=wrong)
    with pytest.raises(ap.InvalidArgument, match="share"):
        UsableCheck(3, 1.0)


def test_trials_of_a_private_search_count_nothing():
    """Nothing of a trial is released but its place among the others: a count that stops it would be one more answer."""
    from apportion.tuning.private_search import plan_search

    plan = planned(steps=20)
    assert plan.usable is not None
    searched = plan_search(plan, space={"lr": [0.1, 0.5]}, expected_trials=4)
    assert all(one.usable is None for one in searched.plans)


# For the owner of the data.


def lines(tmp_path):
    return [json.loads(line) for line in (tmp_path / "run" / "secret" / "problems.jsonl").read_text().splitlines()]


def test_the_owner_reads_exact_counts_and_errors(model, records, tmp_path):
    inputs, targets = records
    targets[:30] = 5
    inputs[30:50] = torch.nan
    plan = planned(batch_size=RECORDS, steps=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(model, (inputs, targets), tmp_path, plan)
    note, totals, *found = lines(tmp_path)
    assert note == {"note": NOTE}
    assert "private" in NOTE
    assert (totals["records_drawn"], totals["not_usable"]) == (4 * RECORDS, 4 * 50)
    assert {one["problem"]: one["times"] for one in found} == {"outside the domain": 120, "not finite": 80}


def test_what_a_loss_says_of_a_record_is_kept_for_the_owner(model, records, tmp_path):
    inputs, targets = records
    targets[:300] = 5
    with pytest.raises(ap.UnusableRecords):
        ap.train(
            model,
            lambda outputs, wanted: cross_entropy(outputs, wanted),
            (inputs, targets),
            planned(batch_size=RECORDS),
            lr=0.1,
            storage=ap.Storage(tmp_path / "run"),
        )
    _, _, one = lines(tmp_path)
    assert one == {"problem": "cannot be evaluated", "error": one["error"], "times": 900}
    assert "5 is out of bounds" in one["error"]


def test_the_file_is_there_when_nothing_is_wrong_and_goes_on_after_a_crash(model, records, tmp_path):
    run(model, records, tmp_path, planned(batch_size=RECORDS, steps=4))
    note, totals = lines(tmp_path)
    assert totals["not_usable"] == 0
    assert totals["records_drawn"] == 4 * RECORDS
    problems = Problems()
    problems.restore(tmp_path / "run" / "secret" / "problems.jsonl")
    assert problems.lines() == [note, totals]
    (tmp_path / "torn").write_text('{"note": "…"}\n{"records_dr')
    problems.restore(tmp_path / "torn")
    problems.restore(tmp_path / "missing")
    assert problems.lines() == [note, totals], "a torn file is begun anew"


class Scans(torch.utils.data.Dataset):
    """Every eighth cannot be read."""

    def __len__(self):
        return RECORDS

    def __getitem__(self, index):
        if index % 8 == 1:
            raise OSError("a scan is torn")
        return torch.ones(3), index % 2


@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_data_set_raises_is_kept_for_the_owner(model, tmp_path, workers):
    run(model, Scans(), tmp_path, planned(batch_size=RECORDS, steps=4), execution=ap.Execution(workers=workers))
    _, totals, one = lines(tmp_path)
    assert totals["not_usable"] == 4 * RECORDS // 8
    assert one == {"problem": "cannot be read", "error": "OSError: a scan is torn", "times": 4 * RECORDS // 8}


def test_no_text_of_an_error_ends_a_run(model, records, tmp_path):
    def fails(outputs, targets):
        if bool((targets > 1).any()):
            raise ValueError("half a character \udc80")
        return cross_entropy(outputs, targets)

    inputs, targets = records
    targets[::10] = 5
    run(model, (inputs, targets), tmp_path, loss=fails)
    assert lines(tmp_path)[-1]["error"] == "ValueError: half a character \udc80"


def test_many_different_errors_are_not_kept_one_by_one():
    problems = Problems({"age: clamped": 3})
    for number in range(200):
        problems.count("cannot be evaluated", 1, f"ValueError: record {number}")
    _, totals, reading, *kinds = problems.lines()
    assert totals["not_usable"] == 200
    assert reading == {"while_reading": "age: clamped", "times": 3}
    assert len(kinds) <= 51


# What can be seen before anything is charged.


@pytest.mark.parametrize("classes", [0, -1, 2.5, "two"])
def test_a_domain_must_make_sense(classes):
    with pytest.raises(ap.InvalidArgument, match=r"domain\.classes"):
        ap.Domain(classes=classes)


@pytest.mark.parametrize("inputs", [(1, 0), (0,), "ab", 3, (0, math.nan)])
def test_a_range_must_make_sense(inputs):
    with pytest.raises(ap.InvalidArgument, match=r"domain\.inputs"):
        ap.Domain(inputs=inputs)


def test_a_domain_with_more_classes_than_outputs_is_refused(model, records):
    with pytest.raises(ap.InvalidArgument, match="the model has 2 outputs"):
        ap.train(model, cross_entropy, records, planned(), lr=0.1, domain=ap.Domain(classes=3))
    with pytest.raises(ap.InvalidArgument, match=r"Pass apportion\.Domain"):
        ap.train(model, cross_entropy, records, planned(), lr=0.1, domain=10)


@pytest.mark.parametrize(
    ("domain", "words"),
    [
        (ap.Domain(inputs=(-1, 1)), r"an input .*: domain.inputs declares -1 to 1"),
        (ap.Domain(classes=2), r"a target 4': domain.classes declares 2"),
    ],
)
def test_public_records_outside_of_the_domain_are_refused_before_anything_is_charged(domain, words, tmp_path):
    inputs, targets = torch.rand(RECORDS, 3), torch.arange(RECORDS) % 2
    public = ap.Public((inputs + 1.5, targets) if domain.inputs else (inputs, targets + 4))
    with pytest.raises(ap.InvalidArgument, match=words):
        run(nn.Linear(3, 6), (inputs, targets), tmp_path, domain=domain, evaluate=public)
    assert not (tmp_path / "run").exists()


def test_inputs_outside_of_a_declared_range_make_a_record_unusable(model, records):
    inputs, targets = records
    inputs = inputs.clamp(-1, 1)
    inputs[:40, 1] = 1.5
    problems = Problems()
    _, (count,) = answers(model, (inputs, targets), domain=ap.Domain(inputs=(-1, 1)), problems=problems)
    assert count == pytest.approx(360 / 2 - 40 / 2, abs=1e-3)
    assert problems.lines()[2] == {"problem": "outside the domain", "times": 40}


def test_padding_is_inside_of_every_domain_unless_there_is_nothing_else():
    targets = torch.tensor([[0, 1], [0, -100], [-100, 1], [-100, -100], [0, -1], [-100, 2]])
    domain, members = ap.Domain(classes=2), torch.arange(6)
    inside = within(Piece((targets, targets), members), domain)
    assert inside.tolist() == [True, True, True, False, False, False]
    assert within(Piece((targets, targets[:, 0]), members), domain).tolist() == [True, True, False, False, True, False]
    both = {"one": targets[:, 0], "other": targets[:, 1]}
    assert torch.equal(within(Piece((targets, both), members), domain), inside)


@pytest.mark.parametrize("start", [lambda *a, **k: ap.train(a[0], cross_entropy, *a[1:], lr=0.1), None])
def test_several_processes_that_do_not_know_of_each_other_are_refused(model, records, monkeypatch, start):
    def begin(model):
        if start:
            start(model, records, planned())
        else:
            ap.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), records, planned())

    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ap.InvalidArgument, match=r"torchrun has started several processes.*init_process_group"):
        begin(model)
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(ap.InvalidArgument, match="DataParallel"):
        begin(nn.DataParallel(model))


def test_a_record_outside_takes_no_other_with_it(model, records):
    """Neither from its micro-batch nor from the gradient: all others contribute what they contribute alone."""
    inputs, targets = records
    targets[::3] = 9
    kept = targets < 9
    alone = answers(model, (inputs[kept], targets[kept]), domain=ap.Domain(classes=2))
    mixed = answers(model, (inputs, targets), domain=ap.Domain(classes=2))
    outside = int((~kept).sum())
    assert mixed[1][0] == pytest.approx(alone[1][0] - outside / 2, abs=1e-3)


@pytest.mark.parametrize("kind", [torch.int64, torch.float32, torch.uint8, torch.bool])
def test_labels_of_yes_and_no_are_0_and_1_whatever_their_type(records, kind):
    problems = Problems()
    inputs, targets = records
    wrong = targets if kind is torch.bool else torch.where(torch.arange(RECORDS) < 30, 2, targets)
    curator = Curator(
        as_records((inputs, wrong.to(kind))),
        ReferenceGradients(nn.Linear(3, 1), "vmap"),
        Unpaid(),
        Randomness.seeded(3),
        domain=ap.Domain(classes=2),
        problems=problems,
    )
    request = Request(1.0, 1e-6, 7.0, (ClippedSum(1.0, share=0.9), UsableCount(share=0.1)))
    curator.answer(request, ap.Loss("bce"))
    outside = sum(line["times"] for line in problems.lines()[2:])
    assert outside == (0 if kind is torch.bool else 30)


def test_the_loss_says_what_labels_there_are(records):
    from apportion.training.preflight import expected_domain

    data, wide, narrow = as_records(records), nn.Linear(3, 5), nn.Linear(3, 1)
    assert expected_domain(None, wide, ap.Loss("cross-entropy"), data) == ap.Domain(classes=5)
    assert expected_domain(None, wide, nn.CrossEntropyLoss(ignore_index=255), data) == ap.Domain(5, None, 255)
    assert expected_domain(None, narrow, ap.Loss("bce"), data) == ap.Domain(classes=2)
    assert expected_domain(None, narrow, ap.Loss("mse"), data) == ap.Domain()
    assert expected_domain(None, wide, nn.BCEWithLogitsLoss(), data) == ap.Domain()
    assert expected_domain(ap.Domain(classes=3), wide, ap.Loss("cross-entropy"), data) == ap.Domain(classes=3)


def test_going_on_without_mending_is_not_silent(model, records, tmp_path):
    inputs, targets = records
    bad = (inputs, targets + 2)
    with pytest.raises(ap.UnusableRecords):
        run(model, bad, tmp_path)
    with pytest.warns(UserWarning, match="By a noisy count"):
        ap.train(model, cross_entropy, bad, planned(), lr=0.1, storage=ap.Storage(tmp_path / "run", resume=True))


def test_a_population_declared_far_too_large_is_named():
    """Ten times as many as there are: by the count 55 % are usable, which warns and does not stop."""
    tally = UsableTally()
    tally.add(noisy_sum=0.05 * 4000, deviation=10.0, weight=4000.0, largest=1.0)
    assert (tally.fraction, tally.too_few, tally.rather_few) == (pytest.approx(0.55), False, True)
    assert "far larger than the number of records" in tally.warning(None)
