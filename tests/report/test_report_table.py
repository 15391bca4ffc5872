"""The page of a whole table of a paper: experiments, published figures, claimed ε, controls."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from report_samples import EXPERIMENTS, comparison, make_run, page_of, paper_table, typed

from apportion.errors import InvalidArgument
from apportion.reporting import Results
from apportion.reporting.judging import CLOSE, compare_accuracy
from apportion.reporting.results_table import make_overview, make_rows, summarise, write_notes
from apportion.reporting.series import Experiment, group_experiments

NAMES = [label for label, *_ in EXPERIMENTS]


@pytest.fixture
def results() -> dict[str, Any]:
    return paper_table()


def experiments(runs: list[dict[str, Any]]) -> list[Experiment]:
    return group_experiments(typed(runs))


def rows_of(results: dict[str, Any], place: int) -> dict[str, dict[str, Any]]:
    return {row["recipe"]: row for row in make_rows(experiments(results["runs"])[place], {})}


def part(page: str, place: int) -> str:
    return re.findall(r'<article class="experiment".*?</article>', page, re.DOTALL)[place]


def test_one_section_for_each_experiment_and_a_choice(results: dict[str, Any], tmp_path: Path) -> None:
    page = page_of(results, tmp_path)
    assert re.findall(r'<article class="experiment" id="experiment-(\d)">', page) == ["0", "1", "2"]
    (chooser,) = re.findall(r'<select id="experiment">.*?</select>', page, re.DOTALL)
    assert re.findall(r">([^<>]+)</option>", chooser) == NAMES
    for place, name in enumerate(NAMES):
        assert f"<h2>{name}</h2>" in part(page, place)
        assert f'id="accuracy-epsilon-{place}"' in part(page, place)


def test_a_comparison_has_nothing_to_choose(tmp_path: Path) -> None:
    page = page_of(comparison(), tmp_path)
    assert 'id="experiment"' not in page
    assert "All experiments" not in page


def test_source_note_and_provenance(results: dict[str, Any], tmp_path: Path) -> None:
    page = page_of(results, tmp_path)
    assert '<p class="source">Nobody et al., Table 2 (made up)</p>' in page
    assert '<p class="note">None of these figures was measured' in page
    assert "<dt>commit</dt><dd>0123abc</dd>" in page
    assert "<dt>momentum</dt><dd>0.9</dd>" in page
    assert "learning rate schedule" not in page  # null: left out


def test_published_accuracy_beside_ours(results: dict[str, Any]) -> None:
    for run in results["runs"]:
        run["test_accuracy"] = 0.905
    rows = rows_of(results, 0)
    assert [(row["paper"], row["difference"]) for row in rows.values()] == [
        ("90.0\u00a0%", "+0.5"),
        ("91.0\u00a0%", "−0.5"),
        (None, None),
    ]


def test_true_epsilon_beside_the_claimed_one(results: dict[str, Any], tmp_path: Path) -> None:
    rows = rows_of(results, 0)
    assert (rows["constant"]["epsilon"], rows["constant"]["claimed"], rows["constant"]["above_claim"]) == (
        "1.197",
        "1.044",
        True,
    )
    assert not rows["lin-decay"]["above_claim"]
    page = page_of(results, tmp_path)
    assert part(page, 0).count('<td class="num above">') == 1
    assert "Claimed ε" in part(page, 0)
    assert "The true ε is above the claimed one in 2 of 6 results." in page


def test_that_all_runs_are_seeded_is_said_once(results: dict[str, Any], tmp_path: Path) -> None:
    (table_part,) = re.findall(r'<table class="results">.*?</table>', part(page_of(results, tmp_path), 0), re.DOTALL)
    assert "badge seeded" not in table_part
    assert "every run with an ε is seeded: reproducible, not private" in part(page_of(results, tmp_path), 0)
    results["runs"][0]["private"] = True
    results["runs"][1]["private"] = results["runs"][2]["private"] = True
    (table_part,) = re.findall(r'<table class="results">.*?</table>', part(page_of(results, tmp_path), 0), re.DOTALL)
    assert table_part.count("badge seeded") == 2


def test_a_control_is_marked_and_follows_its_recipe(results: dict[str, Any], tmp_path: Path) -> None:
    results["runs"].sort(key=lambda run: run["recipe"] != "noise-falls")  # the control comes first in the file
    assert list(rows_of(results, 0)) == ["constant", "lin-decay", "noise-falls"]
    page = page_of(results, tmp_path)
    assert part(page, 0).count("control of lin-decay") == 1
    assert "A control is set beside" in part(page, 0)
    assert "A control is set beside" not in part(page, 1)


def test_columns_that_say_nothing_are_left_out(results: dict[str, Any], tmp_path: Path) -> None:
    for run in results["runs"]:
        for name in ("paper_accuracy", "paper_epsilon", "control_of", "commit", "momentum"):
            del run[name]
    page = page_of(results, tmp_path)
    for heading in ("Claimed ε", ">Paper<", "Difference", "control of", "<dt>commit", ">Data<"):
        assert heading not in page
    assert "At ε = " in page


def test_runs_of_one_experiment_compete_whatever_their_budgets(results: dict[str, Any]) -> None:
    first, *_ = experiments(results["runs"])
    assert first.labelled
    assert len(first.winners()) == 1
    budgets = [make_run("constant", 0, target=1.0), make_run("lin-decay", 0, target=8.0)]
    (apart,) = experiments(budgets)
    assert apart.winners() == set()  # alone at their budgets
    (together,) = experiments([run | {"experiment": "x"} for run in budgets])
    assert together.winners() == {"lin-decay (ε = 8)"}
    assert any("did not all spend the same ε" in note for note in write_notes(together))


def test_the_lead_counts_what_agrees_with_the_paper(results: dict[str, Any]) -> None:
    for run in results["runs"]:
        run["test_accuracy"] = 0.9
        run["paper_epsilon"] = 1000.0
    lead, _ = summarise(experiments(results["runs"]))
    assert lead == "1 of 6 accuracies are within 0.3 points of the published figure, 2 above and 3 below."


def test_close_is_at_most_0_3_points_apart_whatever_floats_do() -> None:
    assert compare_accuracy(0.903, 0.9) == compare_accuracy(0.9, 0.903) == "close to"  # 0.903 - 0.9 > 0.003 in floats
    assert (compare_accuracy(0.9031, 0.9), compare_accuracy(0.9, 0.9031)) == ("above", "below")
    assert CLOSE == 0.003


def test_what_spent_more_than_it_claims_neither_wins_nor_agrees_with_the_paper() -> None:
    runs = [make_run("constant", 0, target=1.0), make_run("lin-decay", 0, target=1.0)]
    for run, accuracy in zip(runs, (0.9, 0.95), strict=True):
        run |= {"experiment": "x", "test_accuracy": accuracy, "paper_accuracy": accuracy, "paper_epsilon": 1.0}
    (fair,) = experiments(runs)
    assert fair.winners() == {"lin-decay"}
    runs[1]["epsilon"] = 1.05
    (found,) = experiments(runs)
    assert found.winners() == set(), "nobody is left to be compared with"
    assert any("does not compete" in note for note in write_notes(found))
    assert summarise([found])[0].startswith("1 of 1 accuracies")


def test_what_a_study_left_out_is_shown_with_the_reason(results: dict[str, Any], tmp_path: Path) -> None:
    why = "without data: apportion data fetch cifar10"
    results["not_run"] = [{"experiment": "CIFAR-10", "recipe": name, "reason": why} for name in ("abadi", "papernot")]
    page = page_of(results, tmp_path)
    assert "Not run" in page
    assert "abadi, papernot" in page
    assert why in page


def test_a_study_without_a_run_says_why_it_cannot_be_reported() -> None:
    entry = {"experiment": "people", "recipe": "scaling", "reason": "needs budgets of single people"}
    with pytest.raises(InvalidArgument, match="needs budgets of single people"):
        Results.from_json({"runs": [], "not_run": [entry, 7]})
    with pytest.raises(InvalidArgument, match="nothing of it was run"):
        Results.from_json({"runs": [], "not_run": 7})


def test_the_overview_has_a_column_for_each_experiment(results: dict[str, Any]) -> None:
    overview = {row["recipe"]: row for row in make_overview(experiments(results["runs"]), {})}
    assert list(overview) == ["constant", "lin-decay", "noise-falls", "non-private"]
    assert [len(cells) for cells in overview["non-private"]["cells"]] == [0, 1, 0]
    assert [cells[0]["best"] for cells in overview["lin-decay"]["cells"]][:2] == [True, False]
    assert overview["lin-decay"]["cells"][2][0]["paper"] == "93.0\u00a0%"


def test_one_private_recipe_alone_is_no_winner(results: dict[str, Any]) -> None:
    assert experiments(results["runs"])[1].winners() == set()
