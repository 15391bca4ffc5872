"""The statement as answers by the components of the differential privacy pyramid of NIST SP 800-226 (March 2025).

The publication evaluates a guarantee from the top (parameters and unit, its section 2) over the algorithms (section 3) down to the
deployment (section 4), where each part rests on those below it. Each answer is made of the run's own facts; `fill_in` says who must add
what.
"""

from __future__ import annotations

from typing import Any

from apportion.reporting.held_out_score import HeldOutScore
from apportion.reporting.run_facts import CURATOR, PUBLISHER, TRAINER, RunFacts, attacker_limits
from apportion.reporting.statement_registry import describe_composition, describe_mechanism, describe_other_runs

DOCUMENT = "NIST SP 800-226, Guidelines for Evaluating Differential Privacy Guarantees, March 2025"
_LEVELS = {
    "record": "record level: where a person can have several records, each is protected by itself (event level)",
    "user": "user level: all records of a person together",
}


def make_nist_answers(facts: RunFacts) -> dict[str, Any]:
    """The answers, from the top of the pyramid to its base. Those about a run with a seed say that nothing is promised."""
    said = facts.statement
    return {
        "follows": DOCUMENT,
        "run": {
            "name": facts.name,
            "written": said.get("written"),
            "weights_sha256": said.get("weights_sha256"),
            "versions": dict(said["versions"]),
        },
        "guarantee_holds": said["private"],
        "why_it_does_not_hold": said.get("why_not_private"),
        "guarantee": _guarantee(facts),
        "algorithms": _algorithms(facts),
        "deployment": _deployment(facts),
    }


def _guarantee(facts: RunFacts) -> dict[str, Any]:
    said = facts.statement
    return {
        "privacy_parameters": {
            "section": "2.2",
            "epsilon": said["epsilon"],
            "delta": said["delta"],
            "delta_times_population": said["delta"] * said["population"],
            **({"parts": said["parts"]} if said.get("parts") else {}),
            "promises": [
                {"for": whom, "epsilon": epsilon, "delta": delta, "attacker_at_most": attacker_limits(epsilon, delta)}
                for whom, epsilon, delta in facts.promises()
            ],
            "fill_in": _fill(TRAINER, "why this ε and this δ"),
        },
        "variant": {
            "section": "2.3",
            "name": "(ε, δ)-differential privacy",
            "computed_by": said["accountant"],
            "from": {name: said[name] for name in ("sample_rate", "steps_planned", "noise")},
        },
        "unit_of_privacy": {
            "section": "2.4",
            "unit": said["unit"],
            "level": _LEVELS.get(said["unit"], said["unit"]),
            "neighbouring_data_sets": said["neighbours"],
            "bounded": False,
            "bounding_contributions": said.get("users"),
            "fill_in": _fill(CURATOR, f"how many {said['unit']}s one person can be"),
        },
        "other_releases": {
            "section": "2.6",
            "answer": describe_other_runs(facts),
            "fill_in": _fill(
                CURATOR, "what else was published from the same data, with and without differential privacy"
            ),
        },
        "auditing": {"section": "2", "fill_in": _fill(PUBLISHER, "results of `apportion audit`, if it was run")},
    }


def _algorithms(facts: RunFacts) -> dict[str, Any]:
    said = facts.statement
    return {
        "algorithms_and_correctness": {
            "section": "3.1, 3.5",
            "answer": describe_mechanism(facts),
            "composition": describe_composition(facts),
            "assumptions": list(said.get("assumptions") or ()),
        },
        "utility": {
            "section": "3.2",
            "metric": facts.measure.to_json(),
            "score_on_public_data": facts.score,
            **({} if (held := facts.held_out) is None else {"noisy_score_of_held_out_records": _held_out(held)}),
            "fill_in": _fill(PUBLISHER, "which score the intended use needs"),
        },
        "bias": {
            "section": "3.3",
            "statistical": "Clipping shortens large gradients, so that the mean gradient is biased towards common records.",
            "systemic": _fill(PUBLISHER, "scores on small groups: noise and clipping cost them more than others"),
            "human": _fill(PUBLISHER, "how the noise is explained to those who use the model"),
        },
    }


def _held_out(held: HeldOutScore) -> dict[str, Any]:
    told = {"score": held.score, "standard_error": held.error, "epsilon": held.epsilon}
    return held.measure.to_json() | told | {"answer": held.describe()}


def _deployment(facts: RunFacts) -> dict[str, Any]:
    said = facts.statement
    searched = "The whole search for settings is part of the stated ε." if said.get("search") else None
    return {
        "query_model": {
            "section": "4.1",
            "answer": "Data release: one model, trained under rules that were declared before any record was read.",
        },
        "trust_model": {
            "section": "4.2",
            "answer": "Central: whoever runs the training sees the records and must be trusted; whoever gets the model need not be.",
        },
        "side_channels": {
            "section": "4.3",
            "floating_point": "Noise is float64 from a cryptographic stream, not discrete: attacks on its low bits are not covered.",
            "timing": "Not covered: timing, memory use and access patterns of the machine that trained.",
            "backend": "Messages and exit codes do not depend on single records; records that fail count as zero.",
            "tuning_hyperparameters": {
                "answer": searched,
                "fill_in": _fill(TRAINER, "how the remaining settings and features were chosen"),
            },
        },
        "access_control": {
            "section": "4.4",
            "answer": f"Ledger: {said['ledger']}. The folder secret/ must not be published.",
            "fill_in": _fill(CURATOR, "who can read the records and the folder secret/, and how both are protected"),
        },
        "data_collection_exposure": {
            "section": "4.5",
            "fill_in": _fill(CURATOR, "which data was collected, whether all of it is needed, and when it is deleted"),
        },
    }


def _fill(who: str, what: str) -> dict[str, str]:
    return {"who": who, "what": what}
