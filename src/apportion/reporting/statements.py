"""The privacy statements, one for all the runs that promise the same, and the attacker's view of them.

The attacker's view is what (ε, δ) leaves to someone who knows everything but whether one record was used.

A test for the presence of the record has a true-positive rate TPR and a false-positive rate FPR. The guarantee holds for the event
"the test says present" from the data with the record to the data without it, TPR ≤ e^ε·FPR + δ, and for the event "the test
says absent" the other way round, 1 − FPR ≤ e^ε·(1 − TPR) + δ. So

    TPR ≤ min(e^ε·FPR + δ,  1 − e^(−ε)·(1 − δ − FPR)).

If a fair coin decides whether the record is used, a guess is right with probability (TPR + 1 − FPR)/2. That is largest where the two
bounds meet, at FPR = (1 − δ)/(1 + e^ε) = 1 − TPR, and is there (e^ε + δ)/(1 + e^ε).

These bounds know nothing of the mechanism but ε at one δ (`accounting.attacker` uses all of its privacy curve): they hold, and the
truth is smaller.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from apportion.reporting.formatting import format_delta, format_epsilon, format_value, list_facts
from apportion.reporting.result import RunResult
from apportion.reporting.series import Series

BADGES = {"none": "no privacy", "seeded": "seeded: reproducible, not private"}
FALSE_POSITIVE_RATES = (0.01, 0.001)


def collect_statements(series: Sequence[Series], colours: Mapping[str, int]) -> list[dict[str, Any]]:
    """The statement of every run with an ε; runs of which the page would say the same share one."""
    shared: dict[Any, list[tuple[Series, RunResult]]] = defaultdict(list)
    for one in series:
        for run in one.runs:
            if run.epsilon is not None:
                shown = tuple((fact["name"], fact["value"]) for fact in _list_promises(run))
                shared[run.private is not False, run.statement or "", shown].append((one, run))
    found = []
    for (secret, said, _), members in shared.items():
        status = "private" if secret else "seeded"
        labels = {one.label: colours[one.recipe] for one, _ in members}
        found.append(
            {
                "recipes": [{"name": label, "slot": slot} for label, slot in labels.items()],
                "runs": len(members),
                "badge": BADGES.get(status),
                "status": status,
                "text": said,
                "facts": _list_promises(members[0][1]),
            }
        )
    return found


def _list_promises(run: RunResult) -> list[dict[str, str]]:
    return list_facts(
        [
            ("ε spent", format_epsilon(run.epsilon)),
            ("δ", format_delta(run.delta)),
            ("protects one", format_value(run.unit)),
            ("neighbours", format_value(run.neighbours)),
            ("accountant", format_value(run.accountant)),
        ]
    )


def bound_true_positives(epsilon: float, delta: float, false_positive_rate: float) -> float:
    """The largest true-positive rate of any test with this false-positive rate."""
    grows = math.exp(min(epsilon, 700))
    steep = grows * false_positive_rate + delta
    flat = 1 - (1 - delta - false_positive_rate) / grows
    return min(steep, flat, 1.0)


def bound_guesses(epsilon: float, delta: float) -> float:
    """The largest probability of a right guess when a fair coin decides whether the record is used."""
    shrinks = math.exp(-epsilon)
    return min((1 + delta * shrinks) / (1 + shrinks), 1.0)


def describe_attacker(runs: Iterable[RunResult]) -> dict[str, Any] | None:
    """The bounds for every pair of ε and δ among the runs, beside what blind guessing achieves; None without such a pair."""
    found: dict[tuple[str, str], list[str]] = {}
    units, secret = [], []
    for run in sorted(runs, key=lambda run: -(run.epsilon or 0.0)):  # of those that are shown alike, the worst
        epsilon, delta = run.epsilon, run.delta
        if epsilon is None or delta is None or epsilon < 0 or not 0 <= delta <= 1:
            continue
        bounds = [bound_true_positives(epsilon, delta, rate) for rate in FALSE_POSITIVE_RATES]
        shown = [round_up_share(bound) for bound in (*bounds, bound_guesses(epsilon, delta))]
        found.setdefault((format_epsilon(epsilon), format_delta(delta)), shown)
        units.append(run.unit or "record")
        secret.append(run.private is not False)
    if not found:
        return None
    one, rarely = units[0], [f"1 in {round(1 / rate):,}" for rate in FALSE_POSITIVE_RATES]
    begin = "What" if all(secret) else "With secret randomness: what"
    return {
        "lead": f"{begin} is left to an attacker who knows every {one} but one, the model and all settings, sees every released "
        f"value, and asks whether that one {one} was used. At most these shares of used {one}s can be recognised when only "
        f"{' or '.join(rarely)} unused ones is mistaken for used; and a guess can be right at most so often when a fair coin "
        f"decided whether the {one} was used.",
        "heads": [*(f"recognised, {often} mistaken" for often in rarely), "right guesses"],
        "rows": [{"epsilon": pair[0], "delta": pair[1], "cells": shown} for pair, shown in found.items()],
        "blind": [f"{100 * rate:g}\u00a0%" for rate in (*FALSE_POSITIVE_RATES, 0.5)],
        "note": f"δ is not a probability that the promise fails. It is an allowance in the promise itself: a result that has "
        f"probability p without the {one} has at most e^ε·p + δ with it, and the other way round. These limits follow from ε and δ "
        "alone, whatever the attack; the limits of the noise that was really used are lower.",
    }


def round_up_share(share: float, digits: int = 1) -> str:
    """In percent, rounded up: a limit is never shown smaller than it is."""
    scale = 10**digits
    return f"{math.ceil(round(100 * scale * share, 6)) / scale:.{digits}f}\u00a0%"
