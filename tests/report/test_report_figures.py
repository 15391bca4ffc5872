"""The figures of the report: means, bands, budgets, groups, axes, and what is left out."""

from __future__ import annotations

from typing import Any

import pytest
from report_samples import EVERY, RECIPES, STEPS, comparison, make_run, paper_table, typed

from apportion.reporting import curves, panels
from apportion.reporting.drawing import fit_percent_axis
from apportion.reporting.palette import COLOURS
from apportion.reporting.series import assign_colours, group_series

DRAWN = ("score_by_steps", "score_by_epsilon", "epsilon_by_steps", "clip_by_steps", "noise_by_steps")


def figure(name: str, runs: list[dict[str, Any]]) -> Any:
    found = typed(runs)
    return getattr(panels, f"draw_{name}")(group_series(found), assign_colours(found, len(COLOURS)))


def lines(drawn: Any) -> list[Any]:
    return [trace for trace in drawn.data if trace.meta["role"] == "line"]


@pytest.fixture
def runs() -> list[dict[str, Any]]:
    return comparison()["runs"]


@pytest.fixture
def free(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Nothing but runs without privacy."""
    return [run for run in runs if run["epsilon"] is None]


def test_mean_and_band_over_seeds(runs: list[dict[str, Any]]) -> None:
    pair = [run for run in runs if run["recipe"] == "constant"]
    band, line = figure("score_by_steps", pair).data
    both = [run["history"][STEPS - 1]["test_accuracy"] for run in pair]
    assert line.y[-1] == pytest.approx(sum(both) / 2, rel=1e-6)
    at = len(line.x)  # the band runs right along its top and left along its bottom
    assert band.y[at - 1] == pytest.approx(max(both), rel=1e-6)
    assert band.y[at] == pytest.approx(min(both), rel=1e-6)
    assert list(line.x) == [1, *range(EVERY, STEPS + 1, EVERY)]  # only where it was measured


def test_one_seed_has_no_band() -> None:
    assert [trace.meta["role"] for trace in figure("score_by_steps", [make_run("constant", 0)]).data] == ["line"]


def test_a_recipe_has_one_colour_in_all_figures(runs: list[dict[str, Any]]) -> None:
    seen: dict[str, set[str]] = {}
    for name in DRAWN:
        for trace in figure(name, runs).data:
            if trace.meta["recipe"]:
                seen.setdefault(trace.meta["recipe"], set()).add(trace.line.color)
    assert set(seen) == set(RECIPES)
    assert all(len(colours) == 1 for colours in seen.values())
    assert len(set.union(*seen.values())) == len(RECIPES)
    assert assign_colours(typed(runs), len(COLOURS))["non-private"] == 0


def test_budget_is_a_dashed_line(runs: list[dict[str, Any]]) -> None:
    drawn = figure("epsilon_by_steps", runs)
    (budget,) = [trace for trace in drawn.data if trace.meta["role"] == "budget"]
    assert (set(budget.y), budget.line.dash) == ({3.0}, "dash")
    assert [note.text for note in drawn.layout.annotations] == ["budget ε = 3"]


def test_non_private_training_is_a_reference(runs: list[dict[str, Any]], free: list[dict[str, Any]]) -> None:
    (reference,) = [trace for trace in figure("score_by_epsilon", runs).data if trace.meta["role"] == "reference"]
    assert reference.y[0] == pytest.approx(sum(run["test_accuracy"] for run in free) / len(free), rel=1e-6)
    assert reference.meta["recipe"] == "non-private"


def test_without_epsilon_there_is_nothing_to_draw(free: list[dict[str, Any]]) -> None:
    assert {name for name in DRAWN if figure(name, free) is not None} == {"score_by_steps"}


def test_missing_values(runs: list[dict[str, Any]]) -> None:
    for entry in runs[2]["history"]:
        entry["epsilon"] = float("nan")
        entry.pop("clip")
        entry["noise_multiplier"] = None
    runs[3]["history"] = None
    assert "constant" not in {trace.meta["recipe"] for trace in lines(figure("epsilon_by_steps", runs))}
    assert "constant" not in {trace.meta["recipe"] for trace in lines(figure("clip_by_steps", runs))}
    assert "NaN" not in figure("score_by_epsilon", runs).to_json()


def test_what_is_no_share_is_no_accuracy(runs: list[dict[str, Any]]) -> None:
    for entry in runs[2]["history"]:
        entry["test_accuracy"] = 1e308
    runs[3]["history"][STEPS - 1]["test_accuracy"] = -0.5
    assert all(0 <= y <= 1 for trace in figure("score_by_steps", runs).data for y in trace.y)


def test_one_point_is_a_marker() -> None:
    run = make_run("lin-decay", 0)
    run["history"] = run["history"][:1]
    for name in ("score_by_steps", "epsilon_by_steps", "clip_by_steps"):
        (line,) = lines(figure(name, [run]))
        assert (len(line.x), line.mode) == (1, "lines+markers")
    assert list(figure("score_by_steps", [run]).layout.yaxis.range) == [0, 1.02]  # no accuracy below 0 %


def test_groups_of_parameters_are_a_mean_in_a_band() -> None:
    run = make_run("constant", 0)
    for entry in run["history"]:
        entry["clip"] = [1.0, 2.0, 6.0]
    band, line = figure("clip_by_steps", [run]).data
    assert (line.y[0], min(band.y), max(band.y)) == (3, 1, 6)


def test_each_group_has_a_line_of_its_own() -> None:
    first = [run for run in paper_table()["runs"] if run["experiment"] == "mnist, ε = 1.2"]
    drawn = figure("clip_by_groups", first).data
    assert {trace.meta["choice"] for trace in drawn} == {"lin-decay"}  # the other recipes have one threshold
    assert [trace.name for trace in drawn] == ["group 1", "group 2", "group 3", "group 4"]
    assert [trace.y[0] for trace in drawn] == pytest.approx([0.2, 0.35, 0.5, 0.8])
    assert [trace.meta["depth"] for trace in drawn] == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert figure("clip_by_groups", comparison()["runs"]) is None


def test_wide_thresholds_get_a_logarithmic_axis(runs: list[dict[str, Any]]) -> None:
    assert figure("clip_by_steps", [make_run("constant", 0)]).layout.yaxis.type is None
    axis = figure("clip_by_steps", runs).layout.yaxis
    assert (axis.type, list(axis.ticktext)) == ("log", ["0.02", "0.05", "0.1", "0.2", "0.5", "1", "2"])


def test_the_first_climb_does_not_flatten_the_rest(runs: list[dict[str, Any]]) -> None:
    drawn = figure("score_by_steps", runs)
    low, high = fit_percent_axis(drawn.data)["range"]
    assert min(trace.y[0] for trace in lines(drawn)) < 0.3 < low
    assert all(low < y < high for trace in drawn.data if trace.meta["role"] == "line" for y in trace.y[5:])


def test_coinciding_lines_take_turns(runs: list[dict[str, Any]]) -> None:
    dashes = {line.meta["recipe"]: line.line.dash for line in lines(figure("epsilon_by_steps", runs))}
    assert dashes == {"constant": "solid", "lin-decay": "18px,9px", "noise-falls": "9px,18px"}


def test_several_budgets_differ_in_dash_and_label() -> None:
    drawn = figure("score_by_steps", [make_run("constant", 0, target=target) for target in (1.0, 8.0)])
    shown = [(line.name, line.line.dash) for line in lines(drawn)]
    assert shown == [("constant (ε = 1)", "solid"), ("constant (ε = 8)", "dash")]


def test_long_histories_are_thinned_but_keep_their_ends() -> None:
    run = make_run("constant", 0)
    run["history"] = [{"step": step, "epsilon": step / 1000} for step in range(1, 9001)]
    (line,) = lines(figure("epsilon_by_steps", [run]))
    assert (len(line.x), line.x[0], line.x[-1]) == (curves.MOST_POINTS, 1, 9000)


def test_names_are_escaped_for_plotly(free: list[dict[str, Any]]) -> None:
    bad = '<a href="https://example.org">x</a>'
    runs = [make_run("constant", 0) | {"recipe": bad}, free[0] | {"recipe": f"free {bad}"}]
    for name in DRAWN:
        assert all("<a" not in trace.name + trace.hovertemplate for trace in lines(figure(name, runs)))
    rule = figure("score_by_epsilon", runs).data[-1]
    assert "<a" not in rule.name + rule.hovertemplate


def test_every_group_of_people_has_a_line_that_ends_at_its_budget(runs: list[dict[str, Any]]) -> None:
    assert figure("epsilon_by_people", runs) is None
    run = make_run("constant", 0)
    shares = {"strict <b>": 0.3, "loose": 1.0}
    for entry in run["history"]:
        if entry.get("epsilon") is not None:
            entry["group_epsilon"] = {name: share * entry["epsilon"] for name, share in shares.items()}
    ends = {name: share * run["history"][-1]["epsilon"] for name, share in shares.items()}
    run["groups"] = [{"name": name, "budget": end, "epsilon": end} for name, end in ends.items()]
    drawn = figure("epsilon_by_people", [run])
    assert [trace.name for trace in lines(drawn)] == ["strict &lt;b&gt;", "loose"]
    assert [trace.y[-1] for trace in lines(drawn)] == pytest.approx(list(ends.values()), rel=1e-3)
    levels = [trace.y[0] for trace in drawn.data if trace.meta["role"] == "budget"]
    assert levels == pytest.approx(sorted(ends.values()), rel=1e-3)
    said = panels.caption_people(group_series(typed([run])), drawn)
    assert "loose" in said
