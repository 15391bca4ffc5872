"""The privacy statement: what is promised, to whom, under which assumptions. Written from the run, never by hand."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from apportion.accounting.ledger import Ledger
from apportion.accounting.selection import TrialOfSearch
from apportion.budget import Unit, User
from apportion.curator.randomness import KEY_STREAM
from apportion.releases import POOLED_THRESHOLDS
from apportion.strategies.descriptions import describe
from apportion.strategies.roles import SteeringUpdate
from apportion.training.versions import package_versions

if TYPE_CHECKING:
    from apportion.training.session import Session

COVERED = (
    "the model's weights, at the end and after every step",
    "everything in the folder public/: the configuration, and a history that holds only released values",
)
OTHER_RUNS = "other runs on the same data: each spends a budget of its own, and together they cost more than one"
OTHER_LEDGERS = (
    "runs on the same data that were not charged to its ledger, and a ledger that was replaced by an older copy"
)
OTHER_TRIALS = "the other trials of the search: how many there were, their settings, weights and scores"
NOT_COVERED = (
    "whatever was learned about the data before this run: hyper-parameters tuned on it, features chosen by looking at it",
    OTHER_RUNS,
    "the folder secret/ and anything that a program of yours printed or stored while it saw single records",
    "timing, memory use and access patterns of the machine that trained",
    "attacks on the low bits of floating-point noise: noise is float64 from a cryptographic stream, not discrete",
    "a person with several records, beyond what the stated unit says",
    "the data that was declared public for evaluation: the accuracy on it is exact",
    "the truth of what was declared: the population, the unit, and which data is public",
)


OWN_LOOP = (
    "the loop's loss was a mean, a sum or a list of terms that each depend on one record (checked as far as autograd shows it)",
    "the batches were passed on as they came, without centring, mixing or otherwise combining records",
    "nothing that the loop saw of single records or batches was published, or used to decide what to do next",
)
RANKS = (
    "the processes of the run trust each other: what they send to one another is part of the curator, and is protected on its way",
)

CLIENTS = (
    "a client is one user: no person stands behind two clients, and no client trains for several people",
    "the server is trusted: updates of single clients reach it as they are, and nothing of one is stored or published",
    "who was asked in a round stays secret, and so do metrics and numbers of records that clients report",
    "a client answers in its own name: whoever could answer for others could add a vector for each",
)
CLIENT_RULE = (
    "the update of a client (the change of the weights by its local training) is clipped as one vector, and counted once; a client that "
    "does not answer, or whose answer is no update, contributes nothing"
)


def statement(session: Session) -> dict[str, Any]:
    """The statement as data (privacy.json)."""
    plan, budget, update = session.plan, session.plan.budget, session.plan.recipe.update
    rule = session.account.rule
    session.account.reload()
    draws = update.draws if isinstance(update, SteeringUpdate) else 1
    search, shared = None, data_set(session.account.ledger, session.account.run)
    if isinstance(rule, TrialOfSearch):
        search, shared = rule.search, None if rule.data_set is None else dict(rule.data_set)
    return {
        "private": session.randomness.private,
        "why_not_private": None
        if session.randomness.private
        else "a fixed seed was used: whoever knows it knows the noise",
        "epsilon": session.account.planned_epsilon(),
        "epsilon_spent": session.account.epsilon(),
        "target_epsilon": budget.epsilon,
        "delta": budget.delta,
        "unit": budget.unit.name,
        "neighbours": budget.unit.neighbours,
        "users": _users(budget.unit, session.federated) if isinstance(budget.unit, User) else None,
        "groups": _groups(session),
        "accountant": plan.accountant if search is None else search.accountant,
        "rule": rule.name,
        "validity": rule.validity,
        "search": None if search is None else search.describe(),
        "sampling": _sampling(budget.unit),
        "sample_rate": plan.sampling.sample_rate,
        "population": plan.sampling.population,
        "expected_batch_size": plan.expected_batch_size,
        "steps_planned": plan.steps // draws,
        "steps_taken": len(session.entries) // draws,
        "draws_charged": session.account.spent,
        "spare_draws_declared": plan.spare,
        "clip": describe(plan.clip),
        "noise": {**describe(plan.noise), "first": plan.multipliers[0], "last": plan.multipliers[-1]},
        "norm": plan.norm_facts(),
        "ledger": "durable before each release"
        if session.account.ledger.path
        else "in memory only: a crash would forget it",
        "data_set": shared,
        "federated": session.federated,
        "assumptions": [
            *(CLIENTS if session.federated else OWN_LOOP if session.own_loop else ()),
            *(() if session.ranks.count == 1 else RANKS),
        ],
        "processes": session.ranks.count,
        "randomness": f"{KEY_STREAM}, 256-bit key from "
        + ("the operating system" if session.randomness.private else "a fixed seed")
        + (", kept in secret/ until the run ends (recovery exact)" if session.repeatable else ""),
        "covered": list(COVERED),
        "not_covered": [OTHER_LEDGERS if item is OTHER_RUNS and shared else item for item in NOT_COVERED]
        + ([] if search is None else [OTHER_TRIALS]),
        "versions": package_versions(),
    }


def _sampling(unit: Unit) -> str:
    whose = "record" if isinstance(unit, User) and unit.coins == "record" else unit.name
    return f"Poisson: in every step each {whose} joins with probability sample_rate, independently of all others"


def _users(unit: User, federated: bool) -> dict[str, Any]:
    """How the records of a user were used. The rule for users with many is stated whether or not there was one."""
    if federated:
        return {"k_max": None, "coins": unit.coins, "rule": CLIENT_RULE}
    return {
        **unit.describe(),
        "rule": f"the {unit.pooling} of the gradients of a user's records in a batch, each cut at {POOLED_THRESHOLDS:g} thresholds, is "
        "clipped as one vector, and counted once; of a user "
        "with more than k_max records those with the smallest keyed hash of the user and their place among the user's own are used",
    }


def _groups(session: Session) -> list[dict[str, Any]]:
    """What each group of the budget got and pays."""
    plan, account = session.plan, session.account
    return [
        {
            "name": group.name,
            "share": group.share,
            "budget": group.epsilon,
            "epsilon": account.planned_epsilon(group=group.name),
            "epsilon_spent": account.epsilon(group=group.name),
            "sample_rate": plan.sampling.sample_rate * factors.rate,
            "clip_scale": factors.clip,
        }
        for group, factors in zip(plan.budget.groups, plan.factors, strict=True)
    ]


def data_set(ledger: Ledger, run: int | None) -> dict[str, Any] | None:
    """What the ledger of the data set promises for all runs together; `None` if the run has a ledger of its own."""
    if ledger.rule is None:
        return None
    limit = ledger.rule.limit
    return {
        "name": ledger.name,
        "limit_epsilon": limit.epsilon,
        "limit_delta": limit.delta,
        "unit": limit.unit.name,
        "rule": ledger.rule.name,
        "run": run,
        "runs_admitted": len(ledger.runs()),
        "epsilon_admitted": ledger.rule.epsilon(ledger.spent()),
        "left": ledger.rule.describe(ledger.left()),
        "ledger_head": ledger.head(),
    }


def in_words(facts: dict[str, Any]) -> str:
    """The guarantee in two sentences."""
    factor = math.exp(min(facts["epsilon"], 700))
    text = (
        f"Whatever is computed from the released model{_with_score(facts)}, the probability of any result changes by at most a factor "
        f"e^{show_epsilon(facts['epsilon'], 3)}, about {factor:.3g} (plus δ = {facts['delta']:g}), when one {facts['unit']} is added to "
        f"the training data or removed from it. This held for all {facts['steps_taken']} steps taken, each draw on a fresh Poisson batch "
        f"with sampling rate {facts['sample_rate']:.4g}."
    )
    if facts.get("norm"):
        text += " So it did for the constants by which features are normalised, which were asked for once, before the first step."
    if groups := facts.get("groups"):
        text += " Members of single groups have budgets of their own: " + ", ".join(
            f"{one['name']} e^{show_epsilon(one['epsilon'], 3)}" for one in groups
        )
        text += "."
    if not facts["private"]:
        return f"NOT PRIVATE: {facts['why_not_private']}. With secret randomness the same run would promise: {text}"
    return text


def _with_score(facts: dict[str, Any]) -> str:
    return " and the score of held-out records" if facts.get("holdout") else ""


def _asked_first(norm: dict[str, Any]) -> str:
    return (
        f"mean and variance of each channel of the features, by one question about all records with noise multiplier "
        f"{norm['multiplier']:g}; it is composed with the steps, and part of ε (alone {show_epsilon(norm['epsilon_alone'])})"
    )


def show_epsilon(epsilon: float, places: int = 4) -> str:
    """ε to so many places, never below the true one."""
    shown = f"{epsilon:.{places}f}"
    return shown if float(shown) >= epsilon else f"{float(shown) + 10**-places:.{places}f}"


def as_markdown(facts: dict[str, Any]) -> str:
    """The statement for people (privacy.md)."""
    lines = ["# Privacy statement", "", in_words(facts), "", "| | |", "|---|---|"]
    if "weights_sha256" in facts:
        lines += [f"| written | {facts['written']} |", f"| sha256 of weights.safetensors | {facts['weights_sha256']} |"]
    rows = {
        "ε (guarantee)": f"{show_epsilon(facts['epsilon'])}, of a budget of {facts['target_epsilon']:g}",
        f"ε of the steps taken{_with_score(facts)}": show_epsilon(facts["epsilon_spent"]),
        "δ": f"{facts['delta']:g}",
        "unit of privacy": facts["unit"],
        "neighbouring data sets": facts["neighbours"],
        "accountant": facts["accountant"],
        "rule": facts.get("rule", "plan fixed in advance"),
        "why the sum is valid": facts["validity"],
        "sampling": f"{facts['sampling']}; sample_rate = {facts['sample_rate']:.6g}",
        "declared population": facts["population"],
        "steps": f"{facts['steps_taken']} of {facts['steps_planned']} planned",
        "draws charged": f"{facts['draws_charged']}; {facts['spare_draws_declared']} spare ones were declared for crashes",
        "clip": _parameters(facts["clip"]),
        "noise": _parameters(facts["noise"]),
        **({"before the first step": _asked_first(norm)} if (norm := facts.get("norm")) else {}),
        "randomness": facts["randomness"],
        "ledger": facts["ledger"],
        "versions": ", ".join(f"{name} {number}" for name, number in facts["versions"].items()),
    }
    if shared := facts["data_set"]:
        rows |= {
            "data set": f"{shared['name']}, run {shared['run']} of {shared['runs_admitted']} so far",
            "all runs together": f"at most ε = {shared['limit_epsilon']:g}, δ = {shared['limit_delta']:g} (the limit; rule: "
            f"{shared['rule']}); admitted so far ε = {show_epsilon(shared['epsilon_admitted'])}, left {shared['left']}",
            "head of the ledger": shared["ledger_head"],
        }
    if users := facts.get("users"):
        rows["records of a user"] = users["rule"] + ("" if users["k_max"] is None else f"; k_max = {users['k_max']}")
    if held := facts.get("holdout"):
        parts = " + ".join(f"{show_epsilon(epsilon)} ({name})" for name, epsilon in facts["parts"].items())
        rows["parts of ε (guarantee)"] = f"{parts}: they add up"
        rows["score of held-out records"] = f"one noisy number about {held['fraction']:.3g} of the records, asked once"
        if held.get("useful"):
            rows[f"noisy held-out {held['metric']}"] = (
                f"{held['value']:.4f} ± {held['standard_error']:.4f} (standard error)"
            )
        elif held.get("standard_error") is not None:
            rows[f"noisy held-out {held['metric']}"] = f"no score: its standard error is {held['standard_error']:.4f}"
    lines += [f"| {key} | {value} |" for key, value in rows.items()]
    if groups := facts.get("groups"):
        lines += [
            "",
            "## Groups",
            "",
            "For data sets that differ in a member of a group, the ε of that group holds.",
            "",
        ]
        lines += [
            "| group | share | ε (guarantee) | budget | sampling rate | clipped to |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {one['name']} | {one['share']:g} | {show_epsilon(one['epsilon'])} | {one['budget']:g} | {one['sample_rate']:.6g} | "
            f"{one['clip_scale']:.4g}·C |"
            for one in groups
        ]
    if facts["assumptions"]:
        lines += [
            "",
            f"## Assumed of the {'clients' if facts.get('federated') else 'hand-written training loop'}",
            "",
            *(f"- {item}" for item in facts["assumptions"]),
        ]
    lines += ["", "## Covered", "", *(f"- {item}" for item in facts["covered"])]
    lines += ["", "## Not covered", "", *(f"- {item}" for item in facts["not_covered"]), ""]
    return "\n".join(lines)


def _parameters(described: dict[str, Any]) -> str:
    inner = ", ".join(f"{key}={value:.5g}" for key, value in described.items() if isinstance(value, (int, float)))
    return f"{described['kind']}({inner})"
