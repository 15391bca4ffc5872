"""What the report says about the attacker, about the cost of an accuracy, and how it writes numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_samples import comparison, make_run, page_of, typed

from apportion.reporting import RunResult, formatting
from apportion.reporting.curves import find_costs
from apportion.reporting.series import group_series
from apportion.reporting.statements import bound_guesses, bound_true_positives, describe_attacker


def randomised_response(epsilon: float, delta: float) -> tuple[np.ndarray, np.ndarray]:
    """The four results of the mechanism that (ε, δ) just allows, with the record and without: no test beats one on it."""
    share = (1 - delta) / (1 + math.exp(epsilon))
    return np.array([delta, math.exp(epsilon) * share, share, 0]), np.array(
        [0, share, math.exp(epsilon) * share, delta]
    )


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.05])
class TestAttacker:
    @pytest.mark.parametrize("rate", [0.001, 0.01, 0.2, 0.9])
    def test_the_best_test_against_the_worst_mechanism(self, epsilon: float, delta: float, rate: float) -> None:
        present, absent = randomised_response(epsilon, delta)  # already sorted by likelihood ratio
        power = np.interp(rate, np.cumsum(absent), np.cumsum(present))  # Neyman and Pearson, with a coin
        assert bound_true_positives(epsilon, delta, rate) == pytest.approx(float(power), rel=1e-9)

    def test_the_best_guess_against_the_worst_mechanism(self, epsilon: float, delta: float) -> None:
        present, absent = randomised_response(epsilon, delta)
        assert bound_guesses(epsilon, delta) == pytest.approx(float(np.maximum(present, absent).sum()) / 2, rel=1e-9)


class TestAttackerInWords:
    def test_bounds_are_shown_rounded_up(self) -> None:
        view = describe_attacker([RunResult(epsilon=1.0, delta=1e-5)])
        assert view is not None
        assert view["rows"] == [{"epsilon": "1", "delta": "10⁻⁵", "cells": ["2.8\u00a0%", "0.3\u00a0%", "73.2\u00a0%"]}]
        assert view["blind"] == ["1\u00a0%", "0.1\u00a0%", "50\u00a0%"]
        assert "δ is not a probability that the promise fails" in view["note"]

    def test_of_runs_that_look_alike_the_worst_is_shown(self) -> None:
        pair = [RunResult(epsilon=epsilon, delta=1e-5) for epsilon in (2.9951, 2.9959, 1.0)]
        view, alone = describe_attacker(pair), describe_attacker(pair[1:2])
        assert view is not None
        assert alone is not None
        assert [row["epsilon"] for row in view["rows"]] == ["2.996", "1"]
        assert view["rows"][0] == alone["rows"][0]

    def test_large_and_missing(self) -> None:
        assert bound_true_positives(1e6, 1e-5, 0.01) == bound_guesses(1e6, 1e-5) == 1.0
        assert (
            describe_attacker([RunResult(epsilon=1.0), RunResult(epsilon=-1.0, delta=1e-5), RunResult(delta=1e-5)])
            is None
        )

    def test_once_for_an_experiment(self, tmp_path: Path) -> None:
        results = comparison()
        page = page_of(results, tmp_path)
        assert page.count("The attacker’s view") == page.count("δ is not a probability") == 1
        assert "With secret randomness: what is left" in page  # one of the recipes is seeded
        results["runs"] = [run for run in results["runs"] if run["private"]]
        assert "With secret randomness" not in page_of(results, tmp_path)


class TestReach:
    def test_points_are_means_over_seeds_where_all_were_measured(self) -> None:
        runs = [make_run("constant", seed) for seed in (0, 1)]
        runs[1]["history"] = runs[1]["history"][:100]  # one seed stops early
        found = find_costs(group_series(typed(runs)), {"constant": 4})
        assert found is not None
        (row,) = found["rows"]
        assert (row["label"], row["slot"], row["private"]) == ("constant", 4, True)
        assert [point["step"] for point in row["points"]] == ["1", "20", "40", "60", "80", "100"]
        both = [run["history"][99]["test_accuracy"] for run in runs]
        assert row["points"][-1]["accuracy"] == pytest.approx(sum(both) / 2)
        assert row["points"][-1]["epochs"] == "10.0"  # 100 steps at a sampling rate of 0.1
        assert row["points"][-1]["epsilon"] == formatting.format_epsilon(2.997 * math.sqrt(0.5))

    def test_the_first_choice_is_reached_by_some_and_not_by_all(self) -> None:
        found = find_costs(group_series(typed(comparison()["runs"])), {})
        assert found is not None
        best = [max(point["accuracy"] for point in row["points"]) for row in found["rows"]]
        assert 0 < sum(one >= found["start"] / 100 for one in best) < len(best)
        assert found["low"] <= found["start"] <= found["high"]

    def test_without_an_accuracy_there_is_no_such_section(self, tmp_path: Path) -> None:
        run = make_run("constant", 0)
        run["history"] = [entry | {"test_accuracy": None} for entry in run["history"]]
        assert find_costs(group_series(typed([run])), {}) is None
        assert "What an accuracy costs" not in page_of({"runs": [run]}, tmp_path)

    def test_non_private_training_has_no_epsilon(self) -> None:
        found = find_costs(group_series(typed([make_run("non-private", 0)])), {})
        assert found is not None
        assert {point["epsilon"] for point in found["rows"][0]["points"]} == {"no privacy"}


@pytest.mark.parametrize(
    ("write", "value", "expected"),
    [
        (formatting.format_epsilon, 2.9961, "2.997"),
        (formatting.format_epsilon, 3.0, "3"),
        (formatting.format_epsilon, 100.0, "100"),
        (formatting.format_epsilon, 1e300, f"{1e300:.0f}"),
        (formatting.format_epsilon, float("nan"), formatting.DASH),
        (formatting.format_delta, 1e-5, "10⁻⁵"),
        (formatting.format_delta, 2.5e-6, "2.5\u00a0×\u00a010⁻⁶"),
        (formatting.format_percent, 0.9213, "92.1\u00a0%"),
        (formatting.format_percent, True, formatting.DASH),
        (formatting.format_points, -0.0004, "0.0"),
        (formatting.format_points, 0.012, "+1.2"),
        (formatting.format_count, 12345, "12,345"),
        (formatting.format_epochs, 3.21, "3.2"),
        (formatting.format_epochs, 250.4, "250"),
        (formatting.format_seconds, 61, "1\u00a0min 01\u00a0s"),
        (formatting.format_value, {"kind": "Decay", "start": 0.5}, "Decay(start = 0.5)"),
    ],
)
def test_numbers_in_words(write: Any, value: Any, expected: str) -> None:
    assert write(value) == expected
