"""`apportion figures`, with results that nobody computed."""

import json
import shutil
from pathlib import Path

from made_up_results import invented_search, invented_study

DOCS = Path(__file__).parents[2] / "docs"


def test_draws_what_is_there_and_says_what_makes_the_rest(apportion, tmp_path):
    (tmp_path / "results").mkdir()
    invented_study("du_bounds", tmp_path / "results")
    code, out, err = apportion("figures")
    assert code == 0
    assert out.splitlines() == ["docs/figures/du_bounds.svg"]
    assert (tmp_path / "docs" / "figures" / "du_bounds.svg").read_text().startswith("<svg")
    assert "ramp_up left out, it needs apportion compare ramp_up" in err
    assert "du_bounds left out" not in err


def test_without_results_everything_is_left_out(apportion):
    code, out, _ = apportion("figures", "--json")
    assert code == 0
    content = json.loads(out)
    assert content["drawn"] == content["pages"] == []
    assert content["left_out"]["headline"] == "apportion compare lin_table_2"
    assert len(content["left_out"]) == 11


def test_fills_the_pages(apportion, tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "pages").mkdir()
    invented_study("lin_table_2", tmp_path / "results")
    for name in ("results.md", "choosing.md"):
        shutil.copy(DOCS / name, tmp_path / "pages")
    code, out, _ = apportion("figures", "--pages", "pages", "--out", "pages/figures", "--json")
    assert code == 0
    assert json.loads(out)["pages"] == ["pages/results.md", "pages/choosing.md"]
    page = (tmp_path / "pages" / "results.md").read_text(encoding="utf-8")
    assert "](figures/lin_table_2.svg)" in page
    assert "| lin-decay | " in page
    assert "| mnist, papernot-cnn | 2.93 | " in (tmp_path / "pages" / "choosing.md").read_text(encoding="utf-8")


def test_pages_are_not_emptied_by_a_wrong_folder(apportion, tmp_path):
    shutil.copytree(DOCS, tmp_path / "docs", ignore=shutil.ignore_patterns("examples", "images", "figures"))
    before = (tmp_path / "docs" / "results.md").read_bytes()
    code, _, err = apportion("figures", "--pages", "docs", "--results", "resluts")
    assert code == 2
    assert "there is no such folder" in err
    assert (tmp_path / "docs" / "results.md").read_bytes() == before


def test_a_damaged_file_is_one_line_and_nothing_is_written(apportion, tmp_path):
    (tmp_path / "results").mkdir()
    invented_study("du_bounds", tmp_path / "results")
    (tmp_path / "results" / "ramp_up.json").write_text('{"runs": [')
    code, out, err = apportion("figures")
    assert code == 2
    assert not out
    assert len(err.splitlines()) == 1
    assert "results/ramp_up.json" in err
    assert not (tmp_path / "docs").exists()


def test_an_unknown_file_is_one_line_and_no_obstacle(apportion, tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "notes.json").write_text("{}")
    invented_search(tmp_path / "results", "mnist", "greedy", [0.5, 0.4])
    invented_search(tmp_path / "results", "mnist", "fast", [0.5, 0.3])
    code, out, err = apportion("figures", "--out", "pictures")
    assert code == 0
    assert out.splitlines() == ["pictures/search.svg"]
    assert [line for line in err.splitlines() if "notes.json" in line] == [
        "results/notes.json: neither a study nor a search, so it is not looked at"
    ]


def test_pages_that_are_not_there(apportion, tmp_path):
    (tmp_path / "results").mkdir()
    code, _, err = apportion("figures", "--pages", ".")
    assert code == 2
    assert "results.md, choosing.md" in err
    assert len(err.splitlines()) == 1
