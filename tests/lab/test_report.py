"""The report: figures, words, escaping, and that a real browser draws every plot without asking the network for anything."""

from __future__ import annotations

import copy
import json
import math
import random
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from apportion.errors import InvalidArgument
from apportion.lab.report import figures, read_results, write_report

STEPS, EVERY = 200, 20
RECIPES = {
    "non-private": (0.971, None, None),
    "constant": (0.902, {"kind": "Constant", "threshold": 1.0}, {"kind": "Constant", "multiplier": 1.31}),
    "lin-decay": (0.921, {"kind": "Decay", "start": 0.5, "power": 0.5}, {"kind": "Constant", "multiplier": 1.31}),
    "noise-falls": (0.913, {"kind": "Constant", "threshold": 0.8}, {"kind": "Geometric", "start": 1.9, "rate": 0.996}),
}
PANELS = ("accuracy-steps", "accuracy-epsilon", "epsilon-steps", "clip-steps", "noise-steps")


def make_run(
    recipe: str, seed: int, *, target: float = 3.0, data: str = "digits", seeded: bool = False
) -> dict[str, Any]:
    final, clip, noise = RECIPES[recipe]
    rng = random.Random(f"{recipe}{seed}{target}{data}")
    private = clip is not None
    final = final - (0.03 / target if private else 0) + rng.uniform(-0.008, 0.008)
    history = []
    for step in range(1, STEPS + 1):
        measured = step == 1 or step % EVERY == 0
        accuracy = 0.1 + (final - 0.1) * (1 - math.exp(-step / 22)) / (1 - math.exp(-STEPS / 22)) + rng.gauss(0, 0.015)
        falls = 1.9 * 0.996**step if recipe == "noise-falls" else 1.31
        history.append(
            {
                "step": step,
                "epoch": 1 + step // 10,
                "epsilon": (target - 0.003) * math.sqrt(step / STEPS) if private else None,
                "clip": (0.5 / math.sqrt(step) if recipe == "lin-decay" else clip.get("threshold")) if clip else None,
                "noise_multiplier": falls if private else None,
                "test_accuracy": (final if step == STEPS else accuracy) if measured else None,
            }
        )
    return {
        "recipe": recipe,
        "data": data,
        "model": "mlp",
        "epsilon": target - 0.003 if private else None,
        "target_epsilon": target if private else None,
        "delta": 1e-5 if private else None,
        "unit": "record" if private else None,
        "neighbours": "add or remove one record" if private else None,
        "test_accuracy": final,
        "steps": STEPS,
        "seed": seed,
        "seconds": 12.3 + seed,
        "sample_rate": 0.1,
        "expected_batch_size": 143.7,
        "population": 1437,
        "lr": 1.0,
        "optimizer": "sgd",
        "private": private and not seeded,
        "accountant": "PLD (dp-accounting)" if private else None,
        "clip": clip,
        "noise": noise,
        "statement": (
            f"Whoever sees this model and knows all records but one can tell at most (ε = {target:g}, δ = 1e-5) about whether "
            "that record was among the training records. The guarantee covers every step of this run and nothing else."
            if private
            else None
        ),
        "history": history,
    }


def make_cells(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    cells: dict[Any, dict[str, Any]] = {}
    for run in runs:
        key = (run["recipe"], run["data"], run["model"], run["target_epsilon"])
        names = ("recipe", "data", "model", "target_epsilon", "epsilon", "delta", "steps", "seconds")
        cell = cells.setdefault(key, {**{name: run[name] for name in names}, "seeds": [], "all": []})
        cell["seeds"].append(run["seed"])
        cell["all"].append(run["test_accuracy"])
    for cell in cells.values():
        found = cell.pop("all")
        mean = sum(found) / len(found)
        cell["test_accuracy"] = mean
        spread = sum((one - mean) ** 2 for one in found)
        cell["test_accuracy_std"] = math.sqrt(spread / (len(found) - 1)) if len(found) > 1 else None
    return list(cells.values())


def make_results(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "version": 1,
        "title": "Three recipes on digits",
        "created": "2026-05-01T12:00:00Z",
        "apportion": "0.1.0",
        "versions": {"python": "3.11.9", "torch": "2.4.0"},
        "runs": runs,
        "cells": make_cells(runs),
    }


@pytest.fixture
def runs() -> list[dict[str, Any]]:
    return [make_run(recipe, seed, seeded=recipe == "noise-falls") for recipe in RECIPES for seed in (0, 1)]


@pytest.fixture
def results(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return make_results(runs)


@pytest.fixture
def free(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Nothing but runs without privacy."""
    return [run for run in runs if run["epsilon"] is None]


def page_of(results: dict[str, Any], folder: Path) -> str:
    """The page without plotly.js, whose own source holds all kinds of strings."""
    text = write_report(results, folder / "report.html").read_text(encoding="utf-8")
    return text.replace(figures_script(), "")


def figures_script() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def lines(figure: Any) -> list[Any]:
    return [trace for trace in figure.data if trace.meta["role"] == "line"]


class TestFigures:
    def test_mean_and_band_over_seeds(self, runs: list[dict[str, Any]]) -> None:
        pair = [run for run in runs if run["recipe"] == "constant"]
        band, line = figures.accuracy_by_steps(pair).data
        both = [run["history"][STEPS - 1]["test_accuracy"] for run in pair]
        assert line.y[-1] == pytest.approx(sum(both) / 2, rel=1e-6)
        at = len(line.x)  # the band runs right along its top and left along its bottom
        assert band.y[at - 1] == pytest.approx(max(both), rel=1e-6)
        assert band.y[at] == pytest.approx(min(both), rel=1e-6)
        assert list(line.x) == [1, *range(EVERY, STEPS + 1, EVERY)]  # only where it was measured

    def test_one_seed_has_no_band(self) -> None:
        figure = figures.accuracy_by_steps([make_run("constant", 0)])
        assert [trace.meta["role"] for trace in figure.data] == ["line"]

    def test_a_recipe_has_one_colour_in_all_figures(self, runs: list[dict[str, Any]]) -> None:
        draw = (figures.accuracy_by_steps, figures.accuracy_by_epsilon, figures.epsilon_by_steps, figures.clip_by_steps)
        seen: dict[str, set[str]] = {}
        for function in (*draw, figures.noise_by_steps):
            for trace in function(runs).data:
                if trace.meta["recipe"]:
                    seen.setdefault(trace.meta["recipe"], set()).add(trace.line.color)
        assert set(seen) == set(RECIPES)
        assert all(len(colours) == 1 for colours in seen.values())
        assert len(set.union(*seen.values())) == len(RECIPES)
        assert figures.slots(runs)["non-private"] == 0

    def test_budget_is_a_dashed_line(self, runs: list[dict[str, Any]]) -> None:
        figure = figures.epsilon_by_steps(runs)
        (budget,) = [trace for trace in figure.data if trace.meta["role"] == "budget"]
        assert (set(budget.y), budget.line.dash) == ({3.0}, "dash")
        assert [note.text for note in figure.layout.annotations] == ["budget ε = 3"]

    def test_non_private_training_is_a_reference(self, runs: list[dict[str, Any]], free: list[dict[str, Any]]) -> None:
        figure = figures.accuracy_by_epsilon(runs)
        (reference,) = [trace for trace in figure.data if trace.meta["role"] == "reference"]
        assert reference.y[0] == pytest.approx(sum(run["test_accuracy"] for run in free) / len(free), rel=1e-6)
        assert reference.meta["recipe"] == "non-private"

    def test_without_epsilon_there_is_nothing_to_draw(self, free: list[dict[str, Any]]) -> None:
        assert figures.accuracy_by_epsilon(free) is None
        assert figures.epsilon_by_steps(free) is None
        assert figures.clip_by_steps(free) is None
        assert figures.noise_by_steps(free) is None
        assert figures.accuracy_by_steps(free) is not None

    def test_missing_values(self, runs: list[dict[str, Any]]) -> None:
        for entry in runs[2]["history"]:
            entry["epsilon"] = float("nan")
            entry.pop("clip")
            entry["noise_multiplier"] = None
        runs[3]["history"] = None
        assert "constant" not in {trace.meta["recipe"] for trace in lines(figures.epsilon_by_steps(runs))}
        assert "constant" not in {trace.meta["recipe"] for trace in lines(figures.clip_by_steps(runs))}
        assert "NaN" not in figures.accuracy_by_epsilon(runs).to_json()

    def test_one_point_is_a_marker(self) -> None:
        run = make_run("lin-decay", 0)
        run["history"] = run["history"][:1]
        for draw in (figures.accuracy_by_steps, figures.epsilon_by_steps, figures.clip_by_steps):
            (line,) = lines(draw([run]))
            assert (len(line.x), line.mode) == (1, "lines+markers")
        assert list(figures.accuracy_by_steps([run]).layout.yaxis.range) == [0, 1.02]  # no accuracy below 0 %

    def test_a_clip_for_each_group(self) -> None:
        run = make_run("constant", 0)
        for entry in run["history"]:
            entry["clip"] = [0.1, 0.2, 0.4]
        few = lines(figures.clip_by_steps([run]))
        assert [(line.name, line.y[0]) for line in few] == [
            ("constant, group 1", 0.1),
            ("constant, group 2", 0.2),
            ("constant, group 3", 0.4),
        ]
        for entry in run["history"]:
            entry["clip"] = [float(group) for group in range(1, 12)]
        band, line = figures.clip_by_steps([run]).data
        assert (line.y[0], min(band.y), max(band.y)) == (6, 1, 11)

    def test_wide_thresholds_get_a_logarithmic_axis(self, runs: list[dict[str, Any]]) -> None:
        assert figures.clip_by_steps([make_run("constant", 0)]).layout.yaxis.type is None
        axis = figures.clip_by_steps(runs).layout.yaxis
        assert (axis.type, list(axis.ticktext)) == ("log", ["0.02", "0.05", "0.1", "0.2", "0.5", "1", "2"])

    def test_coinciding_lines_take_turns(self, runs: list[dict[str, Any]]) -> None:
        dashes = {line.meta["recipe"]: line.line.dash for line in lines(figures.epsilon_by_steps(runs))}
        assert dashes == {"constant": "solid", "lin-decay": "18px,9px", "noise-falls": "9px,18px"}

    def test_several_budgets_differ_in_dash_and_label(self) -> None:
        figure = figures.accuracy_by_steps([make_run("constant", 0, target=target) for target in (1.0, 8.0)])
        shown = [(line.name, line.line.dash) for line in lines(figure)]
        assert shown == [("constant (ε = 1)", "solid"), ("constant (ε = 8)", "dash")]

    def test_long_histories_are_thinned_but_keep_their_ends(self) -> None:
        run = make_run("constant", 0)
        run["history"] = [{"step": step, "epsilon": step / 1000} for step in range(1, 9001)]
        (line,) = lines(figures.epsilon_by_steps([run]))
        assert (len(line.x), line.x[0], line.x[-1]) == (figures.MOST_POINTS, 1, 9000)

    def test_names_are_escaped_for_plotly(self) -> None:
        run = make_run("constant", 0)
        run["recipe"] = '<a href="https://example.org">x</a>'
        assert all("<a" not in trace.name for trace in figures.accuracy_by_steps([run]).data)


class Resources(HTMLParser):
    """Every attribute of the page that could make a browser fetch something, and every inline event handler."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str, str | None]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        fetching = ("src", "href", "srcset", "data", "action", "poster", "xlink:href", "background")
        self.found += [(tag, name, value) for name, value in attributes if name in fetching or name.startswith("on")]


class TestPage:
    def test_loads_nothing(self, results: dict[str, Any], tmp_path: Path) -> None:
        page = page_of(results, tmp_path)
        parser = Resources()
        parser.feed(page)
        assert parser.found == [("link", "href", "data:,"), ("a", "href", "#results")]
        assert "@import" not in page
        assert "@font-face" not in page
        assert "url(" not in page
        assert "default-src 'none'" in page
        assert "http://" not in page
        assert "https://" not in page

    def test_plotly_is_embedded_once(self, results: dict[str, Any], tmp_path: Path) -> None:
        text = write_report(results, tmp_path / "report.html").read_text(encoding="utf-8")
        assert text.count(figures_script()) == 1

    def test_summary_in_words(self, results: dict[str, Any], tmp_path: Path) -> None:
        cells = {cell["recipe"]: cell for cell in results["cells"]}
        for recipe, accuracy in (
            ("lin-decay", 0.921),
            ("constant", 0.9),
            ("noise-falls", 0.91),
            ("non-private", 0.971),
        ):
            cells[recipe]["test_accuracy"] = accuracy
        reached, gap = "At ε = 3, lin-decay reached 92.1\u00a0% on digits", "5.0 points below non-private training."
        assert f'<p class="lead">{reached}, the highest of 3 recipes and {gap}</p>' in page_of(results, tmp_path)
        results["cells"] = [cells["lin-decay"], cells["non-private"]]
        assert f'<p class="lead">{reached}, {gap}</p>' in page_of(results, tmp_path)

    def test_badges_and_best_row(self, results: dict[str, Any], tmp_path: Path) -> None:
        table = re.search(r"<tbody>.*?</tbody>", page_of(results, tmp_path), re.DOTALL)
        assert table is not None
        rows = dict(zip(RECIPES, re.findall(r"<tr.*?</tr>", table[0], re.DOTALL), strict=True))
        assert "no privacy" in rows["non-private"]
        assert "seeded: reproducible, not private" in rows["noise-falls"]
        assert "badge" not in rows["constant"]
        best = max((cell for cell in results["cells"] if cell["epsilon"]), key=lambda cell: cell["test_accuracy"])
        assert [name for name, row in rows.items() if "best mean at ε = 3" in row] == [best["recipe"]]

    def test_epsilon_is_never_rounded_down(self, results: dict[str, Any], tmp_path: Path) -> None:
        results["cells"][1]["epsilon"] = 3.00001
        assert "3.001 <span" in page_of(results, tmp_path)

    def test_statements_stand_once_for_all_seeds(self, results: dict[str, Any], tmp_path: Path) -> None:
        page = page_of(results, tmp_path)
        assert page.count('<article class="statement">') == 3
        assert page.count("seeds 0 and 1") == 3
        assert "add or remove one record" in page
        assert "PLD (dp-accounting)" in page

    def test_every_configuration_and_the_provenance(self, results: dict[str, Any], tmp_path: Path) -> None:
        results["runs"][0]["dropout"] = 0.25  # a key that this release does not know
        page = page_of(results, tmp_path)
        assert page.count("<details>") == len(results["runs"])
        for text in ("Decay(start = 0.5, power = 0.5)", "Geometric(start = 1.9, rate = 0.996)", "dropout", "0.25"):
            assert text in page
        for text in ("2026-05-01T12:00:00Z", "3.11.9", "2.4.0"):
            assert f"<dd>{text}</dd>" in page

    def test_user_strings_are_escaped(self, results: dict[str, Any], tmp_path: Path) -> None:
        bad = "</script><script>document.title = 'owned'</script><img src=x onerror=alert(1)>\"'"
        for run in results["runs"]:
            for name in ("data", "model", "statement", "unit", "neighbours", "accountant", "optimizer", bad):
                run[name] = bad
        for one in (*results["runs"], *results["cells"]):
            one["recipe"] = f"{one['recipe']}{bad}"
            one["data"] = one["model"] = bad
        results |= {"title": bad, "created": bad, "apportion": bad, "versions": {bad: bad}}
        page = page_of(results, tmp_path)
        parser = Resources()
        parser.feed(page)
        assert {(tag, name) for tag, name, _ in parser.found} == {("link", "href"), ("a", "href")}
        assert page.count("<script") == 3  # the figures, plotly.js and the code of the page
        assert "<img" not in page
        assert "&lt;img src=x" in page

    def test_only_non_private_runs(self, free: list[dict[str, Any]], tmp_path: Path) -> None:
        page = page_of(make_results(free), tmp_path)
        assert "Without privacy, non-private reached" in page
        assert 'id="accuracy-steps-0"' in page
        assert "epsilon-steps" not in page
        assert 'id="privacy"' not in page

    def test_several_data_sets_have_figures_of_their_own(self, tmp_path: Path) -> None:
        page = page_of(make_results([make_run("constant", 0, data=data) for data in ("digits", "iris")]), tmp_path)
        assert {f'id="clip-steps-{place}"' in page for place in (0, 1)} == {True}
        (lead,) = re.findall(r'<p class="lead">(.*?)</p>', page, re.DOTALL)
        (more,) = re.findall(r'<ul class="more">(.*?)</ul>', page, re.DOTALL)
        assert "on digits" in lead
        assert "on iris" in more

    def test_cells_are_made_from_the_runs_when_missing(self, results: dict[str, Any], tmp_path: Path) -> None:
        whole = page_of(results, tmp_path)
        del results["cells"]
        lead = re.compile(r'<p class="lead">.*?</p>')
        assert lead.findall(page_of(results, tmp_path)) == lead.findall(whole)

    @pytest.mark.parametrize("keep", [(), ("epsilon",), ("history",)])
    def test_sparse_runs(self, keep: tuple[str, ...], tmp_path: Path) -> None:
        run = make_run("lin-decay", 0)
        run["history"] = run["history"][:1]
        sparse = {"recipe": run["recipe"], **{name: run[name] for name in keep}}
        assert "lin-decay" in page_of({"runs": [sparse]}, tmp_path)

    def test_results_are_not_changed(self, results: dict[str, Any], tmp_path: Path) -> None:
        before = copy.deepcopy(results)
        write_report(results, tmp_path / "report.html")
        assert results == before

    def test_title_and_place(self, results: dict[str, Any], tmp_path: Path) -> None:
        path = write_report(results, tmp_path / "new" / "page.html", title="Mine")
        assert path == tmp_path / "new" / "page.html"
        assert "<title>Mine</title>" in path.read_text(encoding="utf-8")
        assert write_report(results, tmp_path) == tmp_path / "report.html"


class TestRefusals:
    @pytest.mark.parametrize("runs", [[], None, "text", [3], [{"data": "digits"}], [{"recipe": "a", "history": [1]}]])
    def test_unusable_runs(self, runs: Any, tmp_path: Path) -> None:
        with pytest.raises(InvalidArgument, match="runs"):
            write_report({"version": 1, "runs": runs}, tmp_path / "report.html")
        assert not list(tmp_path.iterdir())

    def test_unknown_version(self, results: dict[str, Any], tmp_path: Path) -> None:
        with pytest.raises(InvalidArgument, match="version is 2"):
            write_report({**results, "version": 2}, tmp_path / "report.html")

    def test_a_place_that_cannot_be_written(self, results: dict[str, Any], tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(InvalidArgument, match="cannot be written"):
            write_report(results, tmp_path / "file" / "report.html")

    def test_read_file_or_folder(self, results: dict[str, Any], tmp_path: Path) -> None:
        (tmp_path / "results.json").write_text(json.dumps(results), encoding="utf-8")
        assert read_results(tmp_path) == read_results(tmp_path / "results.json") == results

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidArgument, match="there is no such file") as caught:
            read_results(tmp_path)
        assert str(tmp_path / "results.json") in str(caught.value)
        assert "apportion compare" in str(caught.value)

    @pytest.mark.parametrize("text", ["{", "[]", "{}", '{"runs": []}', '{"runs": [{}]}', "\x00"])
    def test_malformed_file(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "results.json").write_text(text, encoding="utf-8")
        with pytest.raises(InvalidArgument) as caught:
            read_results(tmp_path)
        assert str(tmp_path / "results.json") in str(caught.value)

    def test_file_of_bytes(self, tmp_path: Path) -> None:
        (tmp_path / "results.json").write_bytes(b"\xff\xfe\xff")
        with pytest.raises(InvalidArgument, match="not valid JSON"):
            read_results(tmp_path)


CHROMIUM = shutil.which("chromium")
PROBE = """<script>
window.problems = [];
window.addEventListener("error", function (event) { problems.push(String(event.message)); });
document.addEventListener("securitypolicyviolation", function (event) { problems.push("blocked " + event.blockedURI); });
</script>"""
VERDICT = """<script>
document.querySelector('.chip[data-recipe="constant"]').click();
var light = document.getElementById("clip-steps-0").layout.font.color;
document.getElementById("theme").click();
setTimeout(function () {
  var verdict = document.createElement("pre");
  verdict.id = "verdict";
  verdict.textContent = JSON.stringify({
    problems: problems,
    fetched: performance.getEntriesByType("resource").map(function (entry) { return entry.name; }),
    drawn: Array.from(document.querySelectorAll(".plot")).map(function (plot) {
      return [plot.id, plot.querySelectorAll(".main-svg").length, plot.querySelectorAll(".scatterlayer .trace").length];
    }),
    hidden: document.getElementById("clip-steps-0").data.filter(function (trace) { return !trace.visible; }).map(
      function (trace) { return trace.meta.recipe; }),
    repainted: [light, document.getElementById("clip-steps-0").layout.font.color],
    overflow: document.documentElement.scrollWidth - window.innerWidth,
  });
  document.body.appendChild(verdict);
}, 500);
</script>"""


def dump(page: Path, folder: Path) -> str:
    """The document as Chromium has it after all scripts have run."""
    assert CHROMIUM is not None
    options = (
        "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking disable-component-update "
        "disable-sync virtual-time-budget=5000 dump-dom"
    )
    command = [CHROMIUM, *(f"--{option}" for option in options.split()), f"--user-data-dir={folder}", page.as_uri()]
    return subprocess.run(command, capture_output=True, timeout=120, check=True).stdout.decode("utf-8")


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine to open the page with")
class TestBrowser:
    def test_every_plot_is_drawn(self, results: dict[str, Any], tmp_path: Path) -> None:
        dom = dump(write_report(results, tmp_path / "report.html"), tmp_path / "profile").replace(figures_script(), "")
        drawn = re.findall(r"<figure.*?<figcaption", dom, re.DOTALL)
        assert [re.findall(r' id="([a-z-]+)-0"', one)[0] for one in drawn] == list(PANELS)
        for one in drawn:
            assert one.count('class="main-svg"') >= 2  # plotly stacks several in each plot

    def test_no_request_no_error_and_both_switches_work(self, results: dict[str, Any], tmp_path: Path) -> None:
        page = write_report(results, tmp_path / "report.html")
        text = page.read_text(encoding="utf-8").replace("<title>", f"{PROBE}<title>", 1)
        head, tail = text.rsplit("</body>", 1)
        page.write_text(f"{head}{VERDICT}</body>{tail}", encoding="utf-8")
        found = re.search(r'<pre id="verdict">(.*?)</pre>', dump(page, tmp_path / "profile"), re.DOTALL)
        assert found is not None
        verdict = json.loads(found[1])
        assert verdict["problems"] == []
        assert verdict["fetched"] == []
        assert [name for name, _, _ in verdict["drawn"]] == [f"{name}-0" for name in PANELS]
        assert all(layers >= 2 and traces >= 2 for _, layers, traces in verdict["drawn"])
        assert verdict["hidden"] == ["constant"]
        assert verdict["repainted"] == ["#1f2430", "#e7e9ee"]
        assert verdict["overflow"] <= 0

    def test_hostile_names_run_nothing(self, results: dict[str, Any], tmp_path: Path) -> None:
        bad = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"
        for one in (*results["runs"], *results["cells"]):
            one["recipe"] = one["data"] = bad
        dom = dump(write_report(results, tmp_path / "report.html"), tmp_path / "profile")
        assert "<title>Three recipes on digits</title>" in dom
