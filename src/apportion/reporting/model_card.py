"""A model card: Markdown with YAML front matter, as model hubs read it. What the run does not know is listed with who must fill it in."""

from __future__ import annotations

import json
from typing import Any

from apportion.reporting.formatting import format_delta, format_epsilon, format_value
from apportion.reporting.run_facts import CURATOR, PUBLISHER, TRAINER, RunFacts
from apportion.reporting.statement_registry import describe_mechanism, describe_other_runs

_UNKNOWN = {
    "License": PUBLISHER,
    "Intended use, and uses that are out of scope": PUBLISHER,
    "Training data: where it comes from, whom it describes, and on which legal basis": CURATOR,
    "Evaluation on the groups that the model will meet": PUBLISHER,
    "How settings and features were chosen": TRAINER,
    "Contact": PUBLISHER,
}
_TASKS = dict.fromkeys(("accuracy", "auc", "f1"), "classification") | dict.fromkeys(("mae", "rmse", "r2"), "regression")


def make_model_card(facts: RunFacts) -> str:
    """The card. Everything in it is from the run."""
    from apportion.training.statement import in_words

    said = facts.statement
    title = facts.name or "Model"
    lines = ["---", *_front_matter(facts), "---", "", f"# {_plain(title)}", ""]
    if not said["private"]:
        lines += ["**This run is not private: a seed made its noise predictable.**", ""]
    lines += ["## Model", "", *_describe_model(facts), "", "## Privacy", "", _plain(in_words(dict(said))), ""]
    lines += ["| for | ε | δ |", "| --- | ---: | ---: |"]
    lines += [f"| {_plain(whom)} | {format_epsilon(e)} | {format_delta(d)} |" for whom, e, d in facts.promises()]
    lines += ["", _plain(describe_other_runs(facts)), "", f"Unit: {said['unit']} ({said['neighbours']}).", ""]
    lines += [_plain(describe_mechanism(facts)), "", "Not covered:", ""]
    lines += [f"- {_plain(item)}" for item in said["not_covered"]]
    lines += ["", "## Evaluation", "", _describe_score(facts), "", "## To be filled in", ""]
    lines += ["| what | by |", "| --- | --- |", *(f"| {what} | {who} |" for what, who in _UNKNOWN.items()), ""]
    return "\n".join(lines)


def _front_matter(facts: RunFacts) -> list[str]:
    """Values are written as JSON, which is YAML: no name can end a line or begin a key."""
    said = facts.statement
    privacy: dict[str, Any] = {
        "guarantee_holds": said["private"],
        "epsilon": said["epsilon"],
        "delta": said["delta"],
        "unit": said["unit"],
        "accountant": said["accountant"],
    }
    if said.get("parts"):
        privacy["parts"] = said["parts"]
    if facts.shared:
        together = {"epsilon": facts.shared["limit_epsilon"], "delta": facts.shared["limit_delta"]}
        privacy["all_runs_on_the_data"] = together
    lines = ["library_name: pytorch", 'tags: ["differential-privacy", "dp-sgd", "apportion"]']
    lines += [f"differential_privacy: {json.dumps(privacy, ensure_ascii=False)}"]
    held = facts.held_out
    where = "data declared public" if held is None else "held-out private records, with noise"
    score, name = (facts.score, facts.measure.name) if held is None else (held.score, held.measure.name)
    if score is not None:
        metric: dict[str, Any] = {"type": name, "value": score, "name": f"{name} on {where}"}
        metric |= {} if held is None else {"standard_error": held.error}
        data = {"name": facts.data or where, "type": facts.data or "unknown"}
        result = {"task": {"type": _TASKS.get(name, "other")}, "dataset": data, "metrics": [metric]}
        index = [{"name": facts.name or "model", "results": [result]}]
        lines.append(f"model-index: {json.dumps(index, ensure_ascii=False)}")
    return lines


def _describe_model(facts: RunFacts) -> list[str]:
    said, plan = facts.statement, facts.configuration["plan"]
    rows = {
        "model": facts.model,
        "data": facts.data or (facts.shared or {}).get("name"),
        "recipe": plan["recipe"]["name"],
        "optimizer": facts.configuration.get("optimizer"),
        "steps": f"{said['steps_taken']} of {said['steps_planned']} planned",
        "declared population": f"{said['population']:,} {said['unit']}s",
        "sha256 of weights.safetensors": said.get("weights_sha256"),
        "written": said.get("written"),
    }
    return [f"- {name}: {_plain(format_value(value))}" for name, value in rows.items() if value is not None]


def _describe_score(facts: RunFacts) -> str:
    if facts.held_out is not None:
        return f"{_plain(facts.held_out.describe())}; {facts.held_out.measure.better} is better."
    if facts.score is None:
        return "Nothing was measured on public data."
    where = f" ({_plain(facts.data)}, its test part)" if facts.data else ""
    return f"On data declared public{where}: {_plain(facts.shown_score)}; {facts.measure.better} is better."


def _plain(text: str) -> str:
    """On one line, without what would end a cell of a table, begin HTML or a heading."""
    words = " ".join(text.split())
    for letter in "\\|<`*_[#":
        words = words.replace(letter, f"\\{letter}")
    return words
