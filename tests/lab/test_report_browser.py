"""The report in a real browser: every plot is drawn, every choice works, nothing is asked of the network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headless import CHROMIUM, Browser, Page
from report_samples import RECIPES, comparison, paper_table

from apportion.lab.report import write_report

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine to open the page with")

PANELS = ["accuracy-epsilon", "accuracy-steps", "epsilon-steps", "clip-steps", "noise-steps"]
DRAWN = """Array.from(document.querySelectorAll(".plot")).filter(plot => plot.offsetParent).map(
  plot => [plot.id, plot.querySelectorAll(".scatterlayer .trace path.js-line").length])"""
SHOWN = "document.getElementById('{}').data.filter(trace => trace.visible).map(trace => trace.{})"
SET = "(() => {{ const it = document.querySelector('{}'); it.value = '{}'; it.dispatchEvent(new Event('{}')); }})()"
REACH = "Array.from(document.querySelectorAll('#reach-{} tbody tr')).map(row => Array.from(row.cells).map(cell => cell.innerText))"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    return {
        "comparison": write_report(comparison(), folder / "comparison.html"),
        "table": write_report(paper_table(), folder / "table.html"),
    }


def quiet(page: Page) -> bool:
    """Whether there was no error and no request; the reasons are shown when there was one."""
    assert page.problems() == []
    assert page.requests() == []
    assert page.run("performance.getEntriesByType('resource').map(entry => entry.name)") == []
    return True


def test_every_plot_of_a_comparison_is_drawn(browser: Browser, files: dict[str, Path]) -> None:
    page = browser.open(files["comparison"])
    drawn = dict(page.run(DRAWN))
    assert list(drawn) == [f"{name}-0" for name in PANELS]
    assert all(lines >= 3 for lines in drawn.values())
    assert quiet(page)


def test_a_recipe_is_hidden_and_shown_again(browser: Browser, files: dict[str, Path]) -> None:
    page = browser.open(files["comparison"])
    chip = "document.querySelector('.chip[data-recipe=\"constant\"]')"
    shown = SHOWN.format("clip-steps-0", "meta.recipe")
    before = page.run(shown)
    page.run(f"{chip}.click()")
    assert "constant" in before
    assert "constant" not in page.run(shown)
    assert page.run(f"{chip}.getAttribute('aria-pressed')") == "false"
    page.run(f"{chip}.click()")
    assert page.run(shown) == before
    assert quiet(page)


def test_the_cost_of_a_chosen_accuracy(browser: Browser, files: dict[str, Path]) -> None:
    page = browser.open(files["comparison"])
    page.run(SET.format("#reach-0 input[type=number]", "80", "input"))
    assert page.run("document.querySelector('#reach-0 input[type=range]').value") == "80"
    runs = comparison()["runs"]
    for recipe, (name, *cells) in zip(RECIPES, page.run(REACH.format(0)), strict=True):
        histories = [run["history"] for run in runs if run["recipe"] == recipe]
        measured = [entries for entries in zip(*histories, strict=True) if entries[0]["test_accuracy"] is not None]
        means = {entries[0]["step"]: sum(entry["test_accuracy"] for entry in entries) / 2 for entries in measured}
        step = next(step for step, mean in means.items() if mean >= 0.8)
        assert name.splitlines()[0] == recipe
        assert cells[1:] == [f"{step / 10:.1f}", str(step)]
        assert (cells[0] == "no privacy") == (recipe == "non-private")
    page.run(SET.format("#reach-0 input[type=range]", "97.1", "input"))
    assert [cells[1].startswith("not reached") for cells in page.run(REACH.format(0))] == [False, True, True, True]
    assert quiet(page)


def test_the_page_turns_dark_by_itself_and_by_its_switch(browser: Browser, files: dict[str, Path]) -> None:
    colour = "document.getElementById('clip-steps-0').layout.font.color"
    light, dark = browser.open(files["comparison"]), "#e7e9ee"
    assert light.run(colour) == "#1f2430"
    light.run("document.getElementById('theme').click()")
    assert light.run(colour) == dark
    assert browser.open(files["comparison"], dark=True).run(colour) == dark


def test_one_experiment_of_a_table_at_a_time(browser: Browser, files: dict[str, Path]) -> None:
    page = browser.open(files["table"])
    titles = "Array.from(document.querySelectorAll('.experiment')).filter(one => one.offsetParent).map(one => one.id)"
    assert page.run(titles) == ["experiment-0"]
    assert [name for name, _ in page.run(DRAWN)] == [f"{name}-0" for name in (*PANELS, "clip-groups")]
    page.run(SET.format("#experiment", "2", "change"))
    assert page.run(titles) == ["experiment-2"]
    drawn = page.run(DRAWN)
    assert [name for name, _ in drawn] == [f"{name}-2" for name in (*PANELS, "clip-groups")]
    assert all(lines >= 2 for _, lines in drawn)
    page.run("document.querySelector('.choose[data-experiment=\"1\"]').click()")
    assert page.run(titles) == ["experiment-1"]
    assert page.run("document.getElementById('experiment').value") == "1"
    assert quiet(page)


def test_the_thresholds_of_the_groups_of_a_chosen_recipe(browser: Browser, tmp_path: Path) -> None:
    results = comparison()
    for run in results["runs"]:
        if run["recipe"] in ("constant", "lin-decay"):
            for entry in run["history"]:
                entry["clip"] = [entry["clip"] * factor for factor in (1, 2, 3)][
                    : 2 if run["recipe"] == "constant" else 3
                ]
    page = browser.open(write_report(results, tmp_path / "report.html"))
    shown = SHOWN.format("clip-groups-0", "name")
    assert page.run(shown) == ["group 1", "group 2"]
    page.run(SET.format("#clip-groups-0-choice", "lin-decay", "change"))
    assert page.run(shown) == ["group 1", "group 2", "group 3"]
    assert page.run("document.querySelector('.depths').innerText").split("\n") == ["group 1", "group 2", "group 3"]
    assert len(set(page.run(SHOWN.format("clip-groups-0", "line.color")))) == 3
    assert quiet(page)


@pytest.mark.parametrize("name", ["comparison", "table"])
def test_a_phone_shows_it_without_scrolling_sideways(browser: Browser, files: dict[str, Path], name: str) -> None:
    page = browser.open(files[name], width=390, height=844)
    assert page.run("window.innerWidth") == 390
    assert page.run("document.documentElement.scrollWidth") <= 390
    assert quiet(page)


def test_paper_has_all_experiments_opened_and_light(browser: Browser, files: dict[str, Path]) -> None:
    page = browser.open(files["table"], dark=True)
    page.run("window.dispatchEvent(new Event('beforeprint'))")
    browser.call("Emulation.setEmulatedMedia", page.session, media="print")
    assert page.run("Array.from(document.querySelectorAll('.experiment')).every(one => one.offsetHeight > 500)")
    assert page.run("document.querySelectorAll('.plot .main-svg').length") >= 17
    assert page.run("document.querySelectorAll('details:not([open])').length") == 0
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.run("window.dispatchEvent(new Event('afterprint'))")
    assert page.run("document.querySelectorAll('details[open]').length") == 0
    assert quiet(page)


def hostile(results: dict[str, Any]) -> dict[str, Any]:
    bad = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"
    for run in results["runs"]:
        run["experiment"] += bad
        run["recipe"] += bad
    return results | {"source": bad, "note": bad}


def test_hostile_names_run_nothing(browser: Browser, tmp_path: Path) -> None:
    page = browser.open(write_report(hostile(paper_table()), tmp_path / "report.html"))
    page.run(SET.format("#experiment", "2", "change"))
    assert page.run("document.title") == "Made-up figures in the shape of a table"
    assert page.run("document.images.length") == 0
    assert quiet(page)
