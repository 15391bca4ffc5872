"""The table of a comparison as CSV and LaTeX; other suffixes are refused."""

import csv
import io

import pytest
from report_samples import comparison

import apportion as ap
from apportion.errors import InvalidArgument
from apportion.reporting import Results, RunResult
from apportion.reporting.export import COLUMNS, escape_latex, export_csv, export_latex
from apportion.reporting.series import group_experiments


@pytest.fixture(scope="module")
def results():
    return Results.from_json(comparison())


def rows_of(results):
    return list(csv.DictReader(io.StringIO(export_csv(results))))


def test_csv_has_a_row_for_each_series_with_full_precision(results):
    rows = rows_of(results)
    series = [one for experiment in group_experiments(results.runs) for one in experiment.series]
    assert [row["recipe"] for row in rows] == [one.recipe for one in series]
    for row, one in zip(rows, series, strict=True):
        assert tuple(row) == COLUMNS
        assert row["epsilon"] == ("" if one.epsilon is None else repr(one.epsilon))
        assert (row["metric"], float(row["score"])) == ("accuracy", one.score)
        assert int(row["runs"]) == len(one.runs)
        assert row["private"] == str(one.status == "private")


def test_latex_has_the_winner_in_bold_and_marks_seeds(results):
    text = export_latex(results)
    assert text.startswith("% \\usepackage{booktabs}\n\\begin{tabular}{lrrr}\n")
    assert text.count("\\textbf{") == sum(len(one.winners()) for one in group_experiments(results.runs))
    seeded = any(one.status == "seeded" for each in group_experiments(results.runs) for one in each.series)
    assert ("$^*$" in text) == seeded
    body = [line for line in text.splitlines() if line.endswith("\\\\") and "multicolumn" not in line]
    assert all(line.count("&") == 3 for line in body)
    assert "$10^{-5}$" in text


def test_names_cannot_leave_their_cell():
    assert escape_latex("a_b & 50% {x} \\input ε = C₀\n~^") == (
        r"a\_b \& 50\% \{x\} \textbackslash{}input $\varepsilon$ = C$_0$ \textasciitilde{}\textasciicircum{}"
    )


@pytest.mark.parametrize("suffix", [".csv", ".tex", ".html"])
def test_the_suffix_decides(results, tmp_path, suffix):
    text = ap.report(results, tmp_path / f"table{suffix}").read_text(encoding="utf-8")
    assert text.startswith({".csv": "experiment,", ".tex": "% ", ".html": "<!DOCTYPE html>"}[suffix])


@pytest.mark.parametrize("name", ["table.pdf", "table", "table.xlsx"])
def test_another_suffix_is_refused(results, tmp_path, name):
    with pytest.raises(InvalidArgument, match=r"End it in \.html"):
        ap.report(results, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_another_metric_is_named_and_its_best_is_the_lowest():
    runs = [
        RunResult(
            recipe=name,
            data="d",
            epsilon=1.0,
            target_epsilon=1.0,
            delta=1e-5,
            details={"metric": "rmse", "better": "lower", "test_rmse": score},
        )
        for name, score in (("one", 2.5), ("two", 1.25))
    ]
    results = Results(tuple(runs))
    assert [(row["metric"], row["score"]) for row in rows_of(results)] == [("rmse", "2.5"), ("rmse", "1.25")]
    text = export_latex(results)
    assert "d: rmse}" in text
    assert r"\textbf{1.25}" in text
    assert r"\textbf{2.5}" not in text
