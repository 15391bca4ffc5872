"""The page of a comparison: words, badges, escaping, refusals."""

from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from report_samples import RECIPES, comparison, make_results, make_run, page_of, plotly_source

from apportion.cli.report_command import report
from apportion.errors import InvalidArgument
from apportion.reporting import read_results, write_report


@pytest.fixture
def results() -> dict[str, Any]:
    return comparison()


@pytest.fixture
def free(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Nothing but runs without privacy."""
    return [run for run in results["runs"] if run["epsilon"] is None]


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
        assert parser.found == [("link", "href", "data:,"), ("a", "href", "#results-0")]
        assert "@import" not in page
        assert "@font-face" not in page
        assert "url(" not in page
        assert "default-src 'none'" in page
        assert "http://" not in page
        assert "https://" not in page

    def test_plotly_is_embedded_once(self, results: dict[str, Any], tmp_path: Path) -> None:
        text = write_report(results, tmp_path / "report.html").read_text(encoding="utf-8")
        assert text.count(plotly_source()) == 1

    def test_summary_in_words(self, results: dict[str, Any], tmp_path: Path) -> None:
        accuracies = {"lin-decay": 0.921, "constant": 0.9, "noise-falls": 0.91, "non-private": 0.971}
        for run in results["runs"]:
            run["test_accuracy"] = accuracies[run["recipe"]]
        reached, gap = (
            "At ε = 3, lin-decay reached 92.1\u00a0% on digits",
            "5.0 points below non-private training.",
        )
        assert f'<p class="lead">{reached}, the highest of 3 recipes and {gap}</p>' in page_of(results, tmp_path)
        results["runs"] = [run for run in results["runs"] if run["recipe"] in ("lin-decay", "non-private")]
        assert f'<p class="lead">{reached}, {gap}</p>' in page_of(results, tmp_path)

    def test_of_an_error_the_lowest_is_the_best(self, results: dict[str, Any], tmp_path: Path) -> None:
        errors = {"lin-decay": 2.5, "constant": 2.504, "noise-falls": 3.0, "non-private": 1.25}
        for run in results["runs"]:
            run |= {"test_accuracy": None, "metric": "rmse", "better": "lower", "test_rmse": errors[run["recipe"]]}
            run["history"] = [entry | {"test_rmse": entry.pop("test_accuracy")} for entry in run["history"]]
        page = page_of(results, tmp_path)
        said = "At ε = 3, lin-decay reached rmse 2.5 on digits, the lowest of 3 recipes (constant is close to it)"
        assert f'<p class="lead">{said} and 1.25 above non-private training.</p>' in page
        assert "Down and to the left is better: less rmse for less privacy spent." in page
        assert "rmse (lower is better)" in page
        assert "Test rmse against ε spent" in page
        assert page.count('class="badge good"') == 1
        assert "Test accuracy" not in page
        assert "What an accuracy costs" not in page

    def test_what_is_close_to_the_best_is_named(self, results: dict[str, Any], tmp_path: Path) -> None:
        accuracies = {"lin-decay": 0.921, "constant": 0.918, "noise-falls": 0.9, "non-private": 0.922}
        for run in results["runs"]:
            run["test_accuracy"] = accuracies[run["recipe"]]
        said = "the highest of 3 recipes (constant is close to it) and close to non-private training."
        assert said in page_of(results, tmp_path)
        results["runs"] = [run | {"test_accuracy": 0.9} for run in results["runs"]]
        assert "(lin-decay and noise-falls are close to it)" in page_of(results, tmp_path)

    def test_badges_and_best_row(self, results: dict[str, Any], tmp_path: Path) -> None:
        table = re.search(r"<tbody>.*?</tbody>", page_of(results, tmp_path), re.DOTALL)
        assert table is not None
        rows = dict(zip(RECIPES, re.findall(r"<tr.*?</tr>", table[0], re.DOTALL), strict=True))
        assert "no privacy" in rows["non-private"]
        assert "seeded: reproducible, not private" in rows["noise-falls"]
        assert "badge" not in rows["constant"]
        means = {name: [run["test_accuracy"] for run in results["runs"] if run["recipe"] == name] for name in RECIPES}
        best = max(list(RECIPES)[1:], key=lambda name: sum(means[name]))
        assert [name for name, row in rows.items() if "best mean at ε = 3" in row] == [best]

    def test_uncertainty_over_seeds(self, results: dict[str, Any], tmp_path: Path) -> None:
        for run in results["runs"]:
            run["test_accuracy"] = 0.9 if run["seed"] else 0.92
        page = page_of(results, tmp_path)
        assert page.count('<span class="big">91.0\u00a0%</span> <span class="spread">± 1.4</span>') == len(RECIPES)
        assert "the mean over 2 runs, ± one standard deviation" in page

    def test_epsilon_is_never_rounded_down(self, results: dict[str, Any], tmp_path: Path) -> None:
        results["runs"][2]["epsilon"] = 3.00001
        assert "3.001 <span" in page_of(results, tmp_path)

    def test_runs_that_promise_the_same_share_a_statement(self, results: dict[str, Any], tmp_path: Path) -> None:
        page = page_of(results, tmp_path)
        private, seeded = re.findall(r'<div class="statement">.*?</header>', page, re.DOTALL)
        assert ("constant" in private, "lin-decay" in private, "noise-falls" in private) == (True, True, False)
        assert "4 runs" in private
        assert "2 runs" in seeded
        assert "seeded: reproducible, not private" in seeded
        assert "add or remove one record" in page
        assert "PLD (dp-accounting)" in page

    def test_every_configuration_and_the_provenance(self, results: dict[str, Any], tmp_path: Path) -> None:
        results["runs"][0]["dropout"] = 0.25  # a key that this release does not know
        page = page_of(results, tmp_path)
        assert page.count("<details>") == len(RECIPES)
        for text in ("Decay(start = 0.5, power = 0.5)", "Geometric(start = 1.9, rate = 0.996)", "dropout", "0.25"):
            assert text in page
        assert page.count("<dt>records</dt>") == 1  # what all runs share is said once
        assert page.count("<dt>unit of privacy</dt>") == 1  # also where non-private runs have none
        assert page.count("<dd>12.3\u00a0s | 13.3\u00a0s</dd>") == len(RECIPES)  # what differs between seeds
        for text in ("2026-05-01T12:00:00Z", "3.11.9", "2.4.0"):
            assert f"<dd>{text}</dd>" in page

    def test_user_strings_are_escaped(self, results: dict[str, Any], tmp_path: Path) -> None:
        bad = "</script><script>document.title = 'owned'</script><img src=x onerror=alert(1)>\"'"
        for run in results["runs"]:
            for name in ("data", "model", "statement", "unit", "neighbours", "accountant", "optimizer", bad):
                run[name] = bad
            run["recipe"] = f"{run['recipe']}{bad}"
            run["experiment"] = f"{run['seed']}{bad}"
            run["control_of"] = run["commit"] = run["lr_schedule"] = bad
        names = ("title", "created", "apportion", "name", "source", "note")
        results |= dict.fromkeys(names, bad) | {"versions": {bad: bad}}
        page = page_of(results, tmp_path)
        parser = Resources()
        parser.feed(page)
        assert {(tag, name) for tag, name, _ in parser.found} == {("link", "href"), ("a", "href")}
        assert page.count("<script") == 3  # the data, plotly.js and the code of the page
        assert "<img" not in page
        assert "&lt;img src=x" in page

    def test_only_non_private_runs(self, free: list[dict[str, Any]], tmp_path: Path) -> None:
        page = page_of(make_results(free), tmp_path)
        assert "Without privacy, non-private reached" in page
        assert 'id="accuracy-steps-0"' in page
        assert "epsilon-steps" not in page
        assert "Privacy statement" not in page

    def test_several_data_sets_have_figures_of_their_own(self, tmp_path: Path) -> None:
        page = page_of(make_results([make_run("constant", 0, data=data) for data in ("digits", "iris")]), tmp_path)
        assert {f'id="clip-steps-{place}"' in page for place in (0, 1)} == {True}
        (lead,) = re.findall(r'<p class="lead">(.*?)</p>', page, re.DOTALL)
        (more,) = re.findall(r'<ul class="more">(.*?)</ul>', page, re.DOTALL)
        assert "on digits" in lead
        assert "on iris" in more

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


def test_the_command_names_the_page_after_its_results(results: dict[str, Any], tmp_path: Path) -> None:
    for name in ("results.json", "lin-table-2.json"):
        (tmp_path / name).write_text(json.dumps(results), encoding="utf-8")
    for place in (tmp_path, tmp_path / "lin-table-2.json"):
        report([place], None)
    assert {path.name for path in tmp_path.glob("*.html")} == {"report.html", "lin-table-2.html"}
    (tmp_path / "report.html").unlink()
    report([tmp_path / "results.json"], None)
    assert (tmp_path / "report.html").exists()


def test_the_command_lays_several_results_side_by_side(results: dict[str, Any], tmp_path: Path) -> None:
    for name, target in (("one", 1.0), ("other", 8.0)):
        runs = [make_run("constant", 0, target=target)]
        (tmp_path / f"{name}.json").write_text(json.dumps(make_results(runs)), encoding="utf-8")
    report([tmp_path / "one.json", tmp_path / "other.json"], tmp_path / "both.html")
    page = (tmp_path / "both.html").read_text(encoding="utf-8")
    assert "constant (ε = 1)" in page
    assert "constant (ε = 8)" in page


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
        assert read_results(tmp_path) == read_results(tmp_path / "results.json")
        assert read_results(tmp_path).to_json() == results

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
