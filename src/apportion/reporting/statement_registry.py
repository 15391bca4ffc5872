"""The statement as a draft for the public registry of deployments of differential privacy (registry.opendp.org).

Names and nesting are those of its schema (opendp/deployments-registry-data, July 2026; the research behind it is Nanayakkara, Ghazi and
Vadhan, arXiv 2509.13509). The registry keeps YAML; JSON is YAML. A field that the run cannot know begins with `FILL IN` and says who
must: the registry's own check refuses the file until the date is one.
"""

from __future__ import annotations

import re
from typing import Any

from apportion.errors import InvalidArgument
from apportion.reporting.formatting import format_epsilon, format_value
from apportion.reporting.run_facts import CURATOR, PUBLISHER, TRAINER, RunFacts
from apportion.strategies import update as updates

FILL_IN = "FILL IN"


def make_registry_entry(facts: RunFacts) -> dict[str, Any]:
    """The entry, tier 3, with status Draft. Refuses a run with a seed: it protects nobody."""
    said = facts.statement
    if not said["private"]:
        reason = "a seed made its noise predictable, so that it is no deployment of differential privacy"
        raise InvalidArgument("run", facts.name or "the run", reason, "Train without a seed")
    name = facts.name or "model"
    deployment = {
        "basic": {
            "name": name,
            "data_curators": [_fill(CURATOR, "who publishes the model")],
            "description": f"A model trained with differentially private gradients ({_recipe(facts)}, {said['steps_taken']} steps)."
            + ("" if facts.held_out is None else f" {facts.held_out.describe()}."),
            "intended_use": _fill(PUBLISHER, "what the model is for"),
            "data_product_type": "Machine learning model",
            "data_product_region": _fill(CURATOR, "which region the data describes, and whose law applies"),
            "publication_date": _fill(PUBLISHER, "YYYY-MM-DD"),
        },
        "dp_variant": {
            "variant_name": "Approximate DP",
            "data_domain": _fill(
                CURATOR,
                f"which data sets could have been the input; declared: about {said['population']:,} {said['unit']}s",
            ),
            "unprotected_quantities": f"Covered: {'; '.join(said['covered'])}. Not covered: {'; '.join(said['not_covered'])}.",
        },
        "privacy_loss": _privacy_loss(facts),
        "deployment_model": _deployment_model(facts),
        "accounting": {
            "post_processing": _fill(PUBLISHER, "what was done to the model after training; it costs nothing"),
            "composition": describe_composition(facts),
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": describe_tuning(facts),
            "mechanisms": describe_mechanism(facts),
            "justification": _fill(TRAINER, "why this ε, this δ, this unit and these settings"),
        },
        "administrative": {
            "notes": f"Drafted by Apportion {said['versions'].get('apportion', '')} from the run's own statement.",
            "registry_authors": [_fill(CURATOR, "who completed this entry")],
        },
    }
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "model"
    return {"url_slug": slug, "status": "Draft", "tier": 3, "deployment": deployment}


def describe_composition(facts: RunFacts) -> str:
    """How the steps of the run, and the runs on the data set, were added up."""
    said = facts.statement
    text = f"Steps: {said['accountant']}. {said['validity']}."
    if parts := said.get("parts"):
        text += f" Parts of ε, which add up (basic composition): {format_value(parts)}."
    if search := said.get("search"):
        text += f" The run is the best trial of a search that was charged as a whole: {format_value(search)}."
    return f"{text} {describe_other_runs(facts)}"


def describe_other_runs(facts: RunFacts) -> str:
    """What is promised for this run and all others on the same data."""
    if shared := facts.shared:
        return (
            f"Runs: charged to the ledger of {shared['name']}, which admits runs only while all of them together stay within "
            f"ε = {shared['limit_epsilon']:g}, δ = {shared['limit_delta']:g} for one {shared['unit']} (rule {shared['rule']}). This was "
            f"run {shared['run']} of {shared['runs_admitted']} when the statement was written; "
            f"ε = {format_epsilon(shared['epsilon_admitted'])} was admitted."
        )
    return "Runs: this ε covers this run alone. Other runs on the same data, if there are any, are not covered by it."


def describe_tuning(facts: RunFacts) -> str:
    """What is known of choices that were made before the run."""
    if facts.statement.get("search"):
        return "Settings were searched for on the private data, and the whole search is part of the stated ε. " + _fill(
            TRAINER, "anything else that was chosen by looking at the data"
        )
    return _fill(TRAINER, "how features and settings were chosen, and on which data: the stated ε does not cover it")


def describe_mechanism(facts: RunFacts) -> str:
    """The noise, the bound on each contribution, the randomness and the library."""
    said = facts.statement
    versions = ", ".join(f"{name} {number}" for name, number in said["versions"].items())
    update = facts.configuration["plan"]["recipe"]["update"]
    kind = getattr(updates, update["kind"], updates.AskingUpdate)  # one of a person's own may ask for anything
    asks = hasattr(kind, "ask")
    chosen = f" and private selections, as the update asks ({format_value(update)})" if asks else ""
    return (
        f"Gaussian mechanism on sums of clipped gradients{chosen}. {said['sampling']} (sample rate {said['sample_rate']:.6g}). Clip: "
        f"{format_value(said['clip'])}. Noise: {format_value(said['noise'])}. Randomness: {said['randomness']}. Noise is added in float64, "
        f"not on a grid; timing is not hidden.{_held_out_mechanism(facts)} Ledger: {said['ledger']}. Library: {versions}."
    )


def _held_out_mechanism(facts: RunFacts) -> str:
    if facts.held_out is None:
        return ""
    return " The score of held-out records is the ratio of two sums with discrete Laplace noise, asked once."


def _privacy_loss(facts: RunFacts) -> dict[str, Any]:
    said = facts.statement
    details = [f"{whom}: ε = {format_epsilon(epsilon)}, δ = {delta:g}" for whom, epsilon, delta in facts.promises()]
    unit = f"Neighbouring data sets: {said['neighbours']}."
    if users := said.get("users"):
        unit += f" {users['rule'][:1].upper()}{users['rule'][1:]}."
    return {
        "privacy_unit": said["unit"],
        "privacy_unit_details": unit,
        "privacy_parameters": {"epsilon": said["epsilon"], "delta": said["delta"]},
        "privacy_parameters_details": "; ".join(details),
    }


def _deployment_model(facts: RunFacts) -> dict[str, str]:
    many = facts.shared is not None and facts.shared["runs_admitted"] > 1
    return {
        "model_name": "Central",
        "model_name_details": "The machine that trains sees the records; noise is added there, before anything is released.",
        "actors": _fill(CURATOR, "who can see the records, the folder secret/ and the model, and why they are trusted"),
        "release_type": "Many releases" if many else "One release",
        "release_type_details": describe_other_runs(facts)
        + " "
        + _fill(CURATOR, "which further uses of the data are planned"),
        "data_source_type": "Static",
        "data_source_type_details": "One data set, as it was when the run began.",
        "access_type": "Non-interactive",
        "access_type_details": "The model is published as a whole; nobody queries the records.",
    }


def _recipe(facts: RunFacts) -> str:
    return str(facts.configuration["plan"]["recipe"]["name"])


def _fill(who: str, what: str) -> str:
    return f"{FILL_IN} ({who}): {what}"
