"""`python -m reproduction figures`, with invented results."""

import json
import shutil

import pytest
from made_up_results import invented_search, invented_study

from reproduction.figures import FIGURES, fill_pages
from reproduction.folders import PAGES


@pytest.fixture
def draw(reproduction, tmp_path):
    """Draw the results in `results` into `pictures`, both in an empty folder."""
    (tmp_path / "results").mkdir()
    return lambda *options: reproduction("figures", "--results", "results", "--out", "pictures", *options)


@pytest.fixture
def pages(tmp_path, monkeypatch):
    """Copies of the pages that are filled."""
    copies = [tmp_path / page.name for page in PAGES]
    for page, copy in zip(PAGES, copies, strict=True):
        shutil.copy(page, copy)
    monkeypatch.setattr("reproduction.figures_command.fill_pages", lambda results: fill_pages(results, copies))
    monkeypatch.setattr("reproduction.figures_command.TABLE", tmp_path / "kept_table.json")
    return copies


def test_draws_what_exists_and_says_what_makes_the_rest(draw, tmp_path):
    invented_study("du_bounds", tmp_path / "results")
    code, out, err = draw()
    assert code == 0
    assert out.splitlines() == ["pictures/du_bounds.svg"]
    assert (tmp_path / "pictures" / "du_bounds.svg").read_text().startswith("<svg")
    assert "ramp_up left out, it needs python -m reproduction run ramp_up" in err
    assert "du_bounds left out" not in err


def test_without_results_everything_is_left_out(draw):
    code, out, _ = draw("--json")
    assert code == 0
    content = json.loads(out)
    assert content["drawn"] == content["pages"] == []
    assert content["left_out"]["headline"] == "python -m reproduction run lin_table_2"
    assert set(content["left_out"]) == set(FIGURES)


def test_fills_the_pages(draw, tmp_path, pages):
    invented_study("lin_table_2", tmp_path / "results")
    code, out, _ = draw("--pages", "--json")
    assert code == 0
    assert json.loads(out)["pages"] == [page.name for page in pages] + ["kept_table.json"]
    readme, results, choosing, *_ = (page.read_text(encoding="utf-8") for page in pages)
    assert "pictures/headline.svg)" in readme
    assert "pictures/lin_table_2.svg)" in results
    assert "| lin-decay | " in results
    assert "| mnist, papernot-cnn | 2.93 | " in choosing


def test_pages_are_not_emptied_by_a_wrong_folder(reproduction, pages):
    before = pages[0].read_bytes()
    code, _, err = reproduction("figures", "--pages", "--results", "resluts", "--out", "pictures")
    assert code == 2
    assert "it is not a folder" in err
    assert pages[0].read_bytes() == before


def test_a_damaged_file_is_one_line_and_nothing_is_written(draw, tmp_path):
    invented_study("du_bounds", tmp_path / "results")
    (tmp_path / "results" / "ramp_up.json").write_text('{"runs": [')
    code, out, err = draw()
    assert code == 2
    assert not out
    assert len(err.splitlines()) == 1
    assert "results/ramp_up.json" in err
    assert not (tmp_path / "pictures").exists()


def test_an_unknown_file_is_one_line_and_no_obstacle(draw, tmp_path):
    (tmp_path / "results" / "notes.json").write_text("{}")
    invented_search(tmp_path / "results", "mnist", "greedy", [0.5, 0.4])
    invented_search(tmp_path / "results", "mnist", "fast", [0.5, 0.3])
    code, out, err = draw()
    assert code == 0
    assert out.splitlines() == ["pictures/search.svg"]
    assert [line for line in err.splitlines() if "notes.json" in line] == [
        "results/notes.json: neither a study nor a search, so it is not looked at"
    ]


def test_a_missing_page_is_named_and_nothing_is_written(draw, tmp_path, pages):
    before = pages[0].read_bytes()
    pages[-1].unlink()
    code, _, err = draw("--pages")
    assert code == 2
    assert pages[-1].name in err
    assert len(err.splitlines()) == 1
    assert pages[0].read_bytes() == before
