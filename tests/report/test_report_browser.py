"""The report in a real browser: every plot is drawn, every choice works, nothing is asked of the network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headless import CHROMIUM, Browser, Page
from report_samples import RECIPES, comparison, paper_table

from apportion.reporting import write_report

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
def compared(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The page of a comparison, open for all tests, which leave it as they found it."""
    return browser.open(write_report(comparison(), tmp_path_factory.mktemp("compared") / "report.html"))


@pytest.fixture(scope="module")
def table(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The page of a table, open for all tests, which leave it as they found it."""
    return browser.open(write_report(paper_table(), tmp_path_factory.mktemp("table") / "report.html"))


def quiet(page: Page) -> bool:
    """Whether there was no error and no request so far; the reasons are shown when there was one."""
    assert page.problems() == []
    assert page.requests() == []
    assert page.run("performance.getEntriesByType('resource').map(entry => entry.name)") == []
    return True


def test_every_plot_of_a_comparison_is_drawn(compared: Page) -> None:
    drawn = dict(compared.run(DRAWN))
    assert list(drawn) == [f"{name}-0" for name in PANELS]
    assert all(lines >= 3 for lines in drawn.values())
    assert quiet(compared)


def test_a_recipe_is_hidden_and_shown_again(compared: Page) -> None:
    chip = "document.querySelector('.chip[data-recipe=\"constant\"]')"
    shown = SHOWN.format("clip-steps-0", "meta.recipe")
    before = compared.run(shown)
    compared.run(f"{chip}.click()")
    assert "constant" in before
    assert "constant" not in compared.run(shown)
    assert compared.run(f"{chip}.getAttribute('aria-pressed')") == "false"
    compared.run(f"{chip}.click()")
    assert compared.run(shown) == before
    assert quiet(compared)


def test_the_cost_of_a_chosen_accuracy(compared: Page) -> None:
    compared.run(SET.format("#reach-0 input[type=number]", "80", "input"))
    assert compared.run("document.querySelector('#reach-0 input[type=range]').value") == "80"
    runs = comparison()["runs"]
    for recipe, (name, *cells) in zip(RECIPES, compared.run(REACH.format(0)), strict=True):
        histories = [run["history"] for run in runs if run["recipe"] == recipe]
        measured = [entries for entries in zip(*histories, strict=True) if entries[0]["test_accuracy"] is not None]
        means = {entries[0]["step"]: sum(entry["test_accuracy"] for entry in entries) / 2 for entries in measured}
        step = next(step for step, mean in means.items() if mean >= 0.8)
        assert name.splitlines()[0] == recipe
        assert cells[1:] == [f"{step / 10:.1f}", str(step)]
        assert (cells[0] == "no privacy") == (recipe == "non-private")
    compared.run(SET.format("#reach-0 input[type=range]", "97.1", "input"))
    assert [cells[1].startswith("not reached") for cells in compared.run(REACH.format(0))] == [False, True, True, True]
    assert quiet(compared)


def test_the_page_turns_dark_with_the_system_and_by_its_switch(compared: Page) -> None:
    colour = "document.getElementById('clip-steps-0').layout.font.color"
    light, dark, switch = "#1f2430", "#e7e9ee", "document.getElementById('theme').click()"
    seen = [compared.run(colour)]
    compared.show(dark=True)
    seen.append(compared.run(colour))
    compared.show()
    for _ in range(2):
        compared.run(switch)
        seen.append(compared.run(colour))
    assert seen == [light, dark, dark, light]
    assert quiet(compared)


def test_one_experiment_of_a_table_at_a_time(table: Page) -> None:
    titles = "Array.from(document.querySelectorAll('.experiment')).filter(one => one.offsetParent).map(one => one.id)"
    table.run(SET.format("#experiment", "2", "change"))
    assert table.run(titles) == ["experiment-2"]
    drawn = table.run(DRAWN)
    assert [name for name, _ in drawn] == [f"{name}-2" for name in (*PANELS, "clip-groups")]
    assert all(lines >= 2 for _, lines in drawn)
    table.run("document.querySelector('.choose[data-experiment=\"0\"]').click()")
    assert table.run(titles) == ["experiment-0"]
    assert table.run("document.getElementById('experiment').value") == "0"
    assert [name for name, _ in table.run(DRAWN)] == [f"{name}-0" for name in (*PANELS, "clip-groups")]
    assert quiet(table)


def test_the_thresholds_of_the_groups_of_a_chosen_recipe(table: Page) -> None:
    table.run(SET.format("#experiment", "2", "change"))
    shown, four = SHOWN.format("clip-groups-2", "name"), [f"group {group}" for group in (1, 2, 3, 4)]
    assert table.run(shown) == ["group 1", "group 2"]
    table.run(SET.format("#clip-groups-2-choice", "lin-decay", "change"))
    assert table.run(shown) == four
    key = "document.getElementById('clip-groups-2-choice').parentNode.querySelector('.depths').innerText"
    assert table.run(key).split("\n") == four
    assert len(set(table.run(SHOWN.format("clip-groups-2", "line.color")))) == 4
    table.run(SET.format("#clip-groups-2-choice", "constant", "change"))
    table.run(SET.format("#experiment", "0", "change"))
    assert quiet(table)


@pytest.mark.parametrize("name", ["compared", "table"])
def test_a_phone_shows_it_without_scrolling_sideways(name: str, request: pytest.FixtureRequest) -> None:
    page = request.getfixturevalue(name)
    page.show(width=390)
    assert page.run("[window.innerWidth, document.documentElement.scrollWidth]") == [390, 390]
    page.show()
    assert quiet(page)


def test_paper_has_all_experiments_opened_and_light(table: Page) -> None:
    table.show(dark=True)
    table.run("window.dispatchEvent(new Event('beforeprint'))")
    table.show(dark=True, media="print")
    assert table.run("Array.from(document.querySelectorAll('.experiment')).every(one => one.offsetHeight > 500)")
    assert table.run("Array.from(document.querySelectorAll('.plot')).every(plot => plot.querySelector('.main-svg'))")
    assert table.run("document.querySelectorAll('details:not([open])').length") == 0
    assert table.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    table.show()
    table.run("window.dispatchEvent(new Event('afterprint'))")
    assert table.run("document.querySelectorAll('details[open]').length") == 0
    assert quiet(table)


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


def test_what_these_tests_watch_for_is_seen(browser: Browser, tmp_path: Path) -> None:
    bad = "<script>console.error('said'); fetch('http://example.org/x'); setTimeout(() => missing(), 0);</script>"
    (tmp_path / "bad.html").write_text(bad, encoding="utf-8")
    page = browser.open(tmp_path / "bad.html")
    assert any("said" in problem for problem in page.problems())
    assert any("missing is not defined" in problem for problem in page.problems())
    assert page.requests() == ["http://example.org/x"]
