"""Accounts of single people in a run: who may keep them, how they begin, and where the owner of the data finds them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from apportion.accounting.individual_accounts import (
    GaussianMeasure,
    IndividualAccounts,
    Measure,
    RenyiMeasure,
    make_levels,
)
from apportion.accounting.renyi import ORDERS
from apportion.accounting.rules import IndividualFilters, RenyiFilter
from apportion.budget import Record
from apportion.curator.curator import Curator
from apportion.curator.individual_bounds import IndividualBounds
from apportion.errors import InvalidArgument
from apportion.planning import Plan
from apportion.strategies.people import IndividualEstimate, IndividualFilter
from apportion.strategies.people.individual import LEVELS
from apportion.training.checkpoint import explained, replace_file

if TYPE_CHECKING:
    from apportion.training.session import Session, Setup

FILE = Path("secret") / "individual.json"
LABEL = (
    "An estimate, and secret: what each record would have paid in this run if its gradient had kept its length between the steps at which "
    "it was measured. It is no guarantee, and tells of single records: do not publish it. apportion.statistics makes noisy summaries."
)
_ESTIMATED_ORDERS = ORDERS[::6]


def individual_bounds(plan: Plan, records: int) -> IndividualBounds | None:
    """What a run on so many records begins with; `None` where no accounts of single records are kept."""
    people = plan.recipe.people
    if isinstance(people, IndividualFilter):
        rule = plan.rule()
        assert isinstance(rule, IndividualFilters)
        measure: Measure
        if isinstance(rule.each, RenyiFilter):
            measure, allowed = RenyiMeasure(tuple(rule.each.allowances)), list(rule.each.allowances.values())
        else:
            measure, allowed = GaussianMeasure(), [rule.each.total]
        accounts = IndividualAccounts(records, measure, allowed, make_levels(people.floor, LEVELS))
        return IndividualBounds(accounts, people.refresh, people.margin, enforced=True)
    if isinstance(people, IndividualEstimate):
        unsampled = plan.tokens[0].sample_rate == 1
        measure = GaussianMeasure() if unsampled else RenyiMeasure(_ESTIMATED_ORDERS)
        accounts = IndividualAccounts(records, measure, None, make_levels(people.floor, LEVELS))
        return IndividualBounds(accounts, people.refresh, 1.0, enforced=False)
    return None


def require_individual_fits(setup: Setup) -> None:
    """Refuse, before anything is read, what accounts of single records cannot be kept for."""
    people = setup.plan.recipe.people
    if not isinstance(people, (IndividualEstimate, IndividualFilter)):
        return
    context = setup.plan.context(1, {"parameter": (1,)}, setup.plan.begin_noise({"parameter": (1,)}))
    asked = setup.plan.request(context, setup.plan.clip.init(context))
    name, reason, fix = type(people).__name__, "", ""
    if setup.own_loop:
        reason, fix = "a loop of your own does not compute the norms of all records", "Use apportion.train"
    elif type(setup.plan.budget.unit) is not Record:
        reason, fix = "it keeps an account for each record, and the unit is the user", "Use unit=apportion.Record()"
    elif setup.storage.recovery == "exact":
        reason, fix = "a draw that is repeated would have to repeat everybody's bounds", 'Use recovery="fresh"'
    elif setup.records.views is not None:
        reason, fix = "the norm of a record follows its random views", "Hand in the data without apportion.augment"
    elif asked.statistics:
        reason = (
            "records weigh their own bounds in statistics, so that a clip that follows them would follow something else"
            if isinstance(people, IndividualFilter)
            else "a record pays for statistics too, whatever the length of its gradient, so that its estimate would be too small"
        )
        fix = "Use a clip that is known in advance, as clip.Fixed or clip.Decay"
    if reason:
        raise InvalidArgument("people", name, reason, fix)


def write_estimate(root: Path, session: Session) -> None:
    """What each record paid by its own account, for the owner of the data alone."""
    assert isinstance(session.curator, Curator)
    delta, worst = session.plan.budget.delta, session.account.epsilon()
    found = session.curator.individual_epsilons(delta)
    assert found is not None
    content = {
        "label": LABEL,
        "delta": delta,
        "worst_case": worst,
        "epsilon": [round(min(float(one), worst), 6) for one in found],
    }
    path = root / FILE
    with explained(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(path, (json.dumps(content) + "\n").encode(), mode=0o600)
