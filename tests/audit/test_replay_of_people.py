"""The replay audit with groups and users: it finds nothing in the library, for neighbours of every group, and finds broken pieces."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import apportion as ap
from apportion.audit import replay
from apportion.audit.audited_owners import AuditedOwners
from apportion.curator import curator as curator_module
from apportion.curator import owners as owners_module
from apportion.curator import pooling as pooling_module
from apportion.curator.owners import UserOwners
from apportion.strategies.recipes import READY, named
from people import group_budget

LOSS = nn.CrossEntropyLoss()
PEOPLE = {"sample": ap.people.Sample(), "scale": ap.people.Scale(), "uniform": ap.people.Uniform()}
UNITS = {
    "record": ap.Record(),
    "user": ap.User(),
    "one record of each": ap.User(k_max=1, pooling="sum"),
    "coins by record": ap.User(coins="record", k_max=2),
}
RECIPES = [
    name
    for name in READY
    if named(name).private and not named(name).needs_filter and name not in ("papernot", "default")
]


def recipe_of(name, people=None):
    recipe = named(name)
    if name == "yu-validation":
        recipe = replace(recipe, noise=replace(recipe.noise, counts=(1, 1, 1)))
    if getattr(recipe.clip, "start", 0.0) > 1:
        recipe = replace(recipe, clip=replace(recipe.clip, start=1.0))
    return replace(recipe, people=people)


def plan_of(name, people=None, unit="record"):
    if people is None:
        budget = ap.Budget(epsilon=3.0, delta=1e-5, unit=UNITS[unit])
        return ap.plan(recipe_of(name), budget=budget, population=60_000, sample_rate=0.1, steps=4)
    recipe = recipe_of(name, PEOPLE[people])
    return ap.plan(recipe, budget=group_budget(unit=UNITS[unit]), population=60_000, sample_rate=0.01, steps=4)


def own_loop(private):
    for inputs, targets in private.batches():
        private.optimizer.zero_grad()
        LOSS(private.model(inputs), targets).backward()
        private.optimizer.step()


CORE = {
    ("abadi", "sample", "coins by record"), ("andrew", "scale", "user"), ("van-der-veen", "scale", "record"),
    ("adaclip", "scale", "user"), ("he-global", "sample", "user"), ("he-equal", "scale", "coins by record"),
    ("auto-s", "scale", "one record of each"), ("du-dynamic", "scale", "record"), ("yu-validation", "sample", "record"),
    ("adadp", "sample", "record"), ("abadi", None, "user"), ("andrew", "uniform", "record"),
    ("dc-sgd-e", "scale", "user"),
}  # fmt: skip
"""In the core suite every way with groups, every unit, and every kind of release; all of them together in the long one."""


def cases():
    engines = ["one-pass", "vmap", "loop"]
    for i, name in enumerate(RECIPES):
        for j, people in enumerate([None, *PEOPLE]):
            for k, unit in enumerate(UNITS):
                if people is not None or unit != "record":
                    marks = () if (name, people, unit) in CORE else pytest.mark.slow
                    yield pytest.param(name, people, unit, engines[(i + j + k) % 3], marks=marks)


@pytest.mark.parametrize(("name", "people", "unit", "engine"), list(cases()))
def test_every_recipe_holds_for_groups_and_users(model, records, name, people, unit, engine):
    execution = ap.Execution(micro_batch=2)
    report = replay(
        model,
        LOSS,
        records,
        plan_of(name, people, unit),
        steps=3 if name == "yu-validation" else 2,
        engine=engine,
        execution=execution,
    )
    report.require()
    assert report.sharp
    assert len(report.neighbours) == (10 if people is None else 30)


@pytest.mark.parametrize("people", ["sample", "scale"])
@pytest.mark.parametrize("unit", UNITS)
def test_a_loop_of_ones_own_holds_for_groups_and_users(model, records, people, unit):
    size = 1 if people == "sample" else 3
    report = replay(
        model,
        None,
        records,
        plan_of("andrew", people, unit),
        steps=2,
        loop=own_loop,
        execution=ap.Execution(micro_batch=size),
    )
    report.require()
    assert report.sharp


@pytest.mark.slow
def test_a_recipe_for_groups_is_audited_with_three_of_them(model, records):
    """Also by sampling, at the audit's own rate of one half."""
    for people in PEOPLE.values():
        report = replay(model, LOSS, records, recipe_of("abadi", people), steps=2)
        report.require()
        assert {one.neighbour.split("group ")[1] for one in report.neighbours} == {"strict", "medium", "loose"}


def test_the_last_user_owns_the_last_record_twice_and_is_in_the_group_looked_at():
    for unit in ("user", "coins by record"):
        budget = group_budget(unit=UNITS[unit])
        for group in range(3):
            audited = AuditedOwners.of(budget, 5, last=True, group=group)
            owners = audited.owners
            assert isinstance(owners, UserOwners)
            assert audited.copies == 2
            last = owners.records_of(np.arange(owners.coins)[audited.common :])
            assert last.tolist() == [5, 6]
            assert owners.coin_groups[audited.common :].tolist() == [group] * (owners.coins - audited.common)
            without = AuditedOwners.of(budget, 5, last=False)
            assert without.owners.coins == audited.common
            assert without.owners.coin_groups.tolist() == owners.coin_groups[: audited.common].tolist()


# --- the audit sees ---------------------------------------------------------------------------------------------------------------------


def broken_report(model, records, people="scale", unit="record", name="andrew"):
    return replay(model, LOSS, records, plan_of(name, people, unit), steps=2, execution=ap.Execution(micro_batch=2))


def findings(report):
    return {finding.kind for finding in report.findings}


def test_everybody_clipped_alike(model, records, monkeypatch):
    monkeypatch.setattr(owners_module, "_clips", lambda request, groups, owners: None)
    assert {"sensitivity", "multiplier"} <= findings(broken_report(model, records))


def test_factors_of_the_neighbour(model, records, monkeypatch):
    right = owners_module._clips

    def shifted(request, groups, owners):
        return right(request, groups, (owners - 1) % len(groups))

    monkeypatch.setattr(owners_module, "_clips", shifted)
    assert "sensitivity" in findings(broken_report(model, records))


def test_records_of_a_user_clipped_one_by_one(model, records, monkeypatch):
    def alone(owners, members):
        return None

    monkeypatch.setattr(curator_module, "pooling_weights", alone)
    for unit in ("user", "coins by record"):
        assert "sensitivity" in findings(broken_report(model, records, None, unit))


def test_a_user_that_is_forgotten_between_micro_batches(model, records, monkeypatch):
    """Every piece of a user is then a user."""

    def apart(self, other):
        if not len(self.users):
            return other
        return pooling_module.UserVectors(
            np.append(self.users, other.users),
            np.append(self.usable, other.usable),
            {name: torch.cat([self.rows[name], row]) for name, row in other.rows.items()},
        )

    monkeypatch.setattr(pooling_module.UserVectors, "followed_by", apart)
    report = replay(
        model, LOSS, records, plan_of("abadi", None, "user"), steps=2, execution=ap.Execution(micro_batch=1)
    )
    assert "sensitivity" in findings(report)


def test_coins_of_the_largest_rate_for_all(model, records, monkeypatch):
    right = curator_module.poisson_sample
    monkeypatch.setattr(
        curator_module,
        "poisson_sample",
        lambda records, rates, coins, groups=None: right(records, [max(rates)] * len(rates), coins, groups),
    )
    assert "sampling" in findings(broken_report(model, records, "sample"))


def test_a_batch_weighed_by_its_realised_labels(model, records, monkeypatch):
    monkeypatch.setattr(ap.request.Request, "expected_weight", property(lambda self: 0.97 * self.expected_batch_size))
    assert "release" in findings(broken_report(model, records))
