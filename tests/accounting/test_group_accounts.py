"""One account for each group: what is charged, declared, written to the ledger, stated, and read from a plan's file."""

import json
import pickle
from dataclasses import replace

import pytest

import apportion as ap
from apportion.accounting.account import Account
from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.accounting.ledger import Ledger
from apportion.accounting.rules import FixedPlan, Multiset, events_of_group
from apportion.accounting.run_filter import SumOfRuns
from apportion.errors import BudgetExhausted, InvalidArgument
from apportion.event import Choice, Event, GroupFactors
from apportion.releases import ClippedSum, Line, LowestLoss, UnclippedCount
from apportion.request import Request
from apportion.strategies.recipes import named
from people import GROUPS, group_budget

PRICE = PrivacyLossAccountant()
FACTORS = (
    GroupFactors(share=0.5, rate=0.5, clip=0.8),
    GroupFactors(share=0.3, rate=1.2, clip=1.1),
    GroupFactors(share=0.2, rate=2.0, clip=1.5),
)


def small_plan(people=None, unit=None, **options):
    recipe = replace(named("abadi"), people=people or ap.people.Scale())
    sampling = {"population": 1_000, "sample_rate": 0.05, "steps": 6}
    return ap.plan(recipe, budget=group_budget(unit=unit), **(sampling | options))


def request(factors=FACTORS, **options):
    releases = (ClippedSum(2.0, share=0.9), UnclippedCount(2.0, share=0.1))
    return Request(0.1, 1.2, 100.0, releases, factors, **options)


# --- requests and events --------------------------------------------------------------------------------------------------------------


def test_the_event_of_a_request_names_every_group_and_covers_all_of_them():
    event = request().event()
    assert event.groups == tuple((0.1 * one.rate, 1.2 / one.clip) for one in FACTORS)
    assert (event.sample_rate, event.noise_multiplier) == (0.2, 1.2 / 1.5)
    assert [event.of_group(number) for number in range(3)] == [Event(*pair) for pair in event.groups]


def test_noise_does_not_know_of_groups():
    for release in request().noised:
        assert request().standard_deviation(release) == request(()).standard_deviation(release)


def test_what_a_batch_weighs_follows_from_what_was_declared():
    both = 100.0 * (0.5 * 0.5 * 0.8 + 0.3 * 1.2 * 1.1 + 0.2 * 2.0 * 1.5)
    assert request().expected_weight == pytest.approx(both)
    assert request(()).expected_weight == 100.0
    users = 0.5 * (1 - 0.95**3) * 0.8 + 0.3 * (1 - 0.88**3) * 1.1 + 0.2 * (1 - 0.8**3) * 1.5
    assert request(coins_per_unit=3).expected_weight == pytest.approx(100.0 * users / (1 - 0.9**3))


def test_requests_that_cannot_be_priced_are_refused():
    with pytest.raises(InvalidArgument, match="exceeds 1"):
        Request(0.6, 1.0, 1.0, (ClippedSum(1.0),), FACTORS)
    with pytest.raises(InvalidArgument, match="tuple of GroupFactors"):
        Request(0.1, 1.0, 1.0, (ClippedSum(1.0),), ({"share": 1.0},))
    import torch

    line = Line({"w": torch.ones(1)}, (0.0, 1.0))
    with pytest.raises(InvalidArgument, match="alike"):
        Request(0.1, float("inf"), 1.0, (LowestLoss(line, 1.0, 0.5),), FACTORS)


@pytest.mark.parametrize(
    "change",
    [
        {"sample_rate": 0.19},
        {"noise_multiplier": 0.81},
        {"choices": (Choice(0.5),)},
        {"groups": ((0.1,),)},
        {"groups": "abc"},
        {"groups": ((0.0, 1.0),)},
        {"groups": ((0.1, 0.0),)},
    ],
)
def test_an_event_that_does_not_cover_its_groups_is_refused(change):
    content = {"sample_rate": 0.2, "noise_multiplier": 0.79, "groups": request().event().groups}
    Event(**content)
    with pytest.raises(InvalidArgument):
        Event(**(content | change))


def test_a_token_covers_an_event_only_if_it_does_so_in_every_group():
    token = Event(0.2, 0.8, groups=((0.05, 2.0), (0.2, 0.8)))
    assert token.covers(token)
    assert token.covers(replace(token, groups=((0.04, 2.1), (0.2, 0.8))))
    for pair in ((0.0501, 2.0), (0.05, 1.999)):
        assert not token.covers(replace(token, groups=(pair, (0.2, 0.8))))
    assert not token.covers(Event(0.2, 0.8))
    assert not Event(0.2, 0.8).covers(token)
    assert not token.covers(replace(token, groups=token.groups[::-1]))


# --- accounts -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("people", [ap.people.Sample(), ap.people.Scale(), ap.people.Uniform()], ids=str)
def test_every_group_has_the_price_of_its_own_events(people):
    plan = small_plan(people)
    account = Account(plan.budget, plan.rule(), Ledger.create())
    for step, token in enumerate(plan.tokens, start=1):
        account.charge(token)
        for number, name in enumerate(GROUPS):
            own = Event(0.05 * plan.factors[number].rate, plan.multipliers[0] / plan.factors[number].clip)
            assert account.epsilon(group=name) == pytest.approx(PRICE.epsilon({own: step}, 1e-5), rel=1e-3)
    for name, (epsilon, _) in GROUPS.items():
        assert account.planned_epsilon(group=name) == account.epsilon(group=name) == plan.group_epsilon(name) <= epsilon
    assert account.epsilon() == max(account.epsilon(group=name) for name in GROUPS)
    assert account.epsilon(group=2) > 1.9 * account.epsilon()
    with pytest.raises(InvalidArgument, match="no such group"):
        account.epsilon(group="nobody")


def test_without_groups_there_is_none_to_ask_for():
    plan = ap.plan(
        "abadi", budget=ap.Budget(epsilon=1.0, delta=1e-5, unit=ap.Record()), population=1000, sample_rate=0.05, steps=2
    )
    account = Account(plan.budget, plan.rule(), Ledger.create())
    with pytest.raises(InvalidArgument, match="same for everybody"):
        account.epsilon(group="strict")


def test_a_rule_that_costs_one_group_too_much_is_refused_although_it_fits_the_largest_budget():
    plan = small_plan()
    swapped = FixedPlan([replace(token, groups=token.groups[::-1]) for token in plan.tokens])
    assert swapped.epsilon(1e-5) <= plan.budget.epsilon
    with pytest.raises(BudgetExhausted, match="strict"):
        Account(plan.budget, swapped, Ledger.create())


def test_a_charge_that_is_dearer_for_one_group_is_refused():
    plan = small_plan()
    account = Account(plan.budget, plan.rule(), Ledger.create())
    token = plan.tokens[0]
    dearer = replace(token, groups=((token.groups[0][0], 0.99 * token.groups[0][1]), *token.groups[1:]))
    for event in (dearer, Event(token.sample_rate, token.noise_multiplier)):
        with pytest.raises(BudgetExhausted):
            account.charge(event)
    account.charge(token)


def test_spare_tokens_and_tokens_of_a_multiset_hold_their_groups():
    plan = small_plan(ap.people.Sample(), spare=2)
    rule = plan.rule()
    assert isinstance(rule, FixedPlan)
    assert len(rule.declared) == 8
    assert all(one.covers(plan.tokens[0]) for one in rule.declared)
    validated = replace(named("yu-validation"), noise=ap.noise.Validation(counts=(2, 2, 2)), people=ap.people.Scale())
    plan = ap.plan(validated, budget=group_budget(), population=1_000, sample_rate=0.05, steps=6, spare=1)
    rule = plan.rule()
    assert isinstance(rule, Multiset)
    for number, (epsilon, _) in enumerate(GROUPS.values()):
        assert rule.epsilon(1e-5, number) == PRICE.epsilon(events_of_group(plan.tokens, number), 1e-5) <= epsilon
    account = Account(plan.budget, rule, Ledger.create())
    for token in sorted(plan.tokens, key=lambda one: one.noise_multiplier)[:6]:
        account.charge(token)
    assert account.epsilon(group="strict") == rule.epsilon(1e-5, 0)


def test_a_ledger_keeps_the_groups_of_every_charge(tmp_path):
    plan = small_plan(ap.people.Sample())
    account = Account(plan.budget, plan.rule(), Ledger.create(tmp_path / "secret" / "ledger"))
    for token in plan.tokens[:4]:
        account.charge(token)
    identifier = account.identifier
    account.ledger.close()
    again = Ledger.attach(tmp_path / "secret" / "ledger")
    assert list(again.events(1)) == list(plan.tokens[:4])
    rows = [json.loads(row.content) for row in again.rows() if row.run == 1 and row.step == 1]
    assert rows[0]["groups"] == [list(pair) for pair in plan.tokens[0].groups]
    resumed = Account(plan.budget, plan.rule(), again, identifier=identifier, position=4)
    assert resumed.epsilon(group="strict") == pytest.approx(account.epsilon(group="strict"))
    with pytest.raises(InvalidArgument, match="another plan"):
        Account(plan.budget, small_plan(ap.people.Scale()).rule(), again, identifier=identifier, position=4)


@pytest.mark.parametrize("unit", [ap.Record(), ap.User()], ids=["record", "user"])
def test_a_data_set_whose_limit_protects_users_admits_no_run_that_protects_records(tmp_path, unit):
    path = tmp_path / "ledger"
    Ledger.create(path, name="hospital", rule=SumOfRuns(ap.Budget(epsilon=4.0, delta=1e-4, unit=unit))).close()
    ledger = Ledger.attach(path)
    assert ledger.rule.limit.unit == unit
    for own in (ap.Record(), ap.User(["a"], k_max=3)):
        plan = small_plan(unit=own)
        if type(own) is type(unit):
            assert ledger.price({plan.tokens[0]: 6}, plan.budget).main == pytest.approx(plan.epsilon)
        else:
            with pytest.raises(InvalidArgument, match="same unit"):
                ledger.price({plan.tokens[0]: 6}, plan.budget)


# --- plans in files --------------------------------------------------------------------------------------------------------------------


def test_a_plan_comes_back_from_its_file_without_owners():
    unit = ap.User([f"zq{number}" for number in range(9)], k_max=4, pooling="sum", coins="record")
    plan = small_plan(unit=unit)
    plan = plan.with_owners(labels=["zqlabel"] * 9)
    for copy in (ap.Plan.from_json(plan.to_json()), pickle.loads(pickle.dumps(plan))):
        assert copy == plan
        assert copy.budget.labels is None
        assert copy.budget.unit.ids is None
        assert copy.budget.unit.describe() == unit.describe()
        assert [copy.group_epsilon(name) for name in GROUPS] == [plan.group_epsilon(name) for name in GROUPS]
        assert copy.with_owners(ids=unit.ids, labels=["a"]).budget.unit.ids == unit.ids
    assert "zq" not in plan.to_json() + repr(plan) + str(plan) + repr(plan.budget)
    assert b"zq" not in pickle.dumps(plan)


def test_owners_that_a_plan_has_no_use_for_are_refused():
    plan = ap.plan(
        "abadi", budget=ap.Budget(epsilon=1.0, delta=1e-5, unit=ap.Record()), population=1000, sample_rate=0.05, steps=2
    )
    with pytest.raises(InvalidArgument, match="unit of privacy"):
        plan.with_owners(ids=["a"])
    with pytest.raises(InvalidArgument, match="no groups"):
        plan.with_owners(labels=["a"])


EDITS = {
    "factors swapped": lambda c: c["factors"].reverse(),
    "factors swapped with their shares": lambda c: c.update(
        factors=[
            {**one, "share": group["share"]}
            for one, group in zip(c["factors"][::-1], c["budget"]["groups"], strict=True)
        ]
    ),
    "factors left out": lambda c: c.pop("factors"),
    "one factor more": lambda c: c["factors"].append(c["factors"][0]),
    "a looser threshold": lambda c: c["factors"][0].update(clip=1.01 * c["factors"][0]["clip"]),
    "a higher rate": lambda c: c["factors"][0].update(rate=1.01),
    "a rate above one": lambda c: c["factors"][0].update(rate=25.0),
    "another share": lambda c: c["factors"][0].update(share=0.35),
    "a smaller budget": lambda c: c["budget"]["groups"][0].update(epsilon=0.9),
    "the groups left out": lambda c: c["budget"].pop("groups"),
    "coins for records": lambda c: c["budget"]["user"].update(coins="record"),
    "a unit too many": lambda c: c["budget"].update(unit="record"),
    "no unit": lambda c: c["budget"].pop("unit"),
    "users without their rule": lambda c: c["budget"].pop("user"),
    "labels": lambda c: c["budget"].update(labels=["strict"]),
    "an unknown word": lambda c: c["factors"][0].update(noise=0.0),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_plan_is_refused(edit):
    content = json.loads(small_plan(unit=ap.User(k_max=4)).to_json())
    EDITS[edit](content)
    with pytest.raises(InvalidArgument):
        ap.Plan.from_json(json.dumps(content))


def test_a_plan_shows_its_groups_and_what_they_spend_on_the_way():
    plan = small_plan(ap.people.Sample())
    text = str(plan)
    assert all(name in text for name in GROUPS)
    for number, (name, (epsilon, _)) in enumerate(GROUPS.items()):
        spent = plan.spending(3, group=number)
        assert [step for step, _ in spent] == [1, 2, 4, 6]
        assert spent == sorted(spent)
        assert spent[-1][1] == pytest.approx(plan.group_epsilon(name), rel=1e-6)
        assert 0.99 * epsilon <= spent[-1][1] <= epsilon
