"""`python -m reproduction run` and `list`."""

import json

import pytest

from apportion.compare.processes import time_left
from reproduction.study import study_names

STUDY = """
title = "Made up"
source = "nowhere"
data = "digits"
sample_rate = 0.2
steps = 3
lr = {lr}
epsilon = 3.0
seeds = [1]

[[experiment]]
label = "digits"
recipe = [{{ name = "abadi", paper = 99.0 }}, {{ name = "non-private", lr = 0.2, momentum = 0.9 }}]
later = [{{ label = "scaling", paper = 97.0, reason = "needs budgets of single people" }}]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "made_up.toml"
    path.write_text(STUDY.format(lr=2.0))
    return path


def test_a_study_is_kept_and_not_run_again(reproduction, tmp_path, file):
    first = reproduction("run", str(file), "--results", str(tmp_path), "--processes", "1", "--json")
    found = json.loads(first[1])
    assert first[0] == 0
    assert "0 of 2 cells are kept" in first[2]
    assert [cell["recipe"] for cell in found["cells"]] == ["abadi", "non-private"]
    assert found["cells"][0]["met"] is False
    assert found["not_run"][0]["reason"] == "needs budgets of single people"
    assert json.loads((tmp_path / "made_up.json").read_text())["cells"] == found["cells"]
    again = reproduction("run", str(file), "--results", str(tmp_path))
    assert "2 of 2 cells are kept" in again[2]
    assert "99.00 %" in again[1]
    assert "apportion report" in again[1]


def test_what_cannot_be_run_yet_is_said_and_not_shown_as_an_empty_table(reproduction, tmp_path):
    code, shown, said = reproduction("run", "monir_table_10", "--results", str(tmp_path))
    assert code == 0
    assert not shown
    assert "without a result: 6, not run yet" in said


def test_changed_settings_are_said(reproduction, tmp_path, file):
    reproduction("run", str(file), "--results", str(tmp_path), "--processes", "1")
    file.write_text(STUDY.format(lr=1.0))
    again = reproduction("run", str(file), "--results", str(tmp_path), "--processes", "1")
    assert "abadi, seed 1: its settings have changed, so it is computed again" in " ".join(again[2].split())
    assert "1 of 2 cells are kept" in again[2]


def test_a_log_says_how_far_it_is(reproduction, tmp_path, file):
    said = reproduction("run", str(file), "--results", str(tmp_path), "--processes", "1")[2]
    assert "(1 of 2, about " in said
    assert "(2 of 2)" in said


@pytest.mark.parametrize(
    ("done", "to_come", "seconds", "words"),
    [
        (1, 2, 10.0, ", about 20 s left"),
        (2, 2, 600.0, ", about 10 min left"),
        (1, 10, 3600.0, ", about 10.0 h left"),
        (3, 0, 5.0, ""),
    ],
)
def test_the_time_left_in_words(done, to_come, seconds, words):
    assert time_left(done, to_come, seconds) == words


def test_a_refused_cell_is_said_and_the_others_are_run(reproduction, tmp_path, file):
    file.write_text(file.read_text().replace('name = "abadi", ', 'name = "abadi", activation = "deaf", '))
    code, shown, said = reproduction("run", str(file), "--results", str(tmp_path), "--processes", "1")
    assert code == 0
    assert "digits: abadi, seed 1: refused: activation='deaf'" in " ".join(said.split())
    assert "non-private" in shown


def test_a_recheck_answers_with_its_exit_code(reproduction, tmp_path, file):
    reproduction("run", str(file), "--results", str(tmp_path), "--processes", "1")
    same = reproduction("run", str(file), "--results", str(tmp_path), "--recheck", "1", "--json")
    assert same[0] == 0
    assert json.loads(same[1])["recheck"][0]["same"] is True
    results = tmp_path / "made_up.json"
    results.write_text(results.read_text().replace('"test_accuracy": 0.', '"test_accuracy": 0.0'))
    different = reproduction("run", str(file), "--results", str(tmp_path), "--recheck", "2", "--processes", "1")
    assert different[0] == 1
    assert "DIFFERENT" in different[1]


def test_some_cells_alone(reproduction, tmp_path, file):
    reproduction("run", str(file), "--results", str(tmp_path), "--only", "digits: abadi, seed 1")
    found = json.loads((tmp_path / "made_up.json").read_text())
    assert [run["recipe"] for run in found["runs"]] == ["abadi"]
    assert {one["reason"] for one in found["not_run"]} == {"not run yet", "needs budgets of single people"}
    reproduction("run", str(file), "--results", str(tmp_path), "--only", "non-private", "--processes", "1")
    found = json.loads((tmp_path / "made_up.json").read_text())
    assert [run["recipe"] for run in found["runs"]] == ["abadi", "non-private"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "abbadi"), "no cell is called so"),
        (("--epsilon", "1"), "No such option"),
        (("--recheck", "0"), "recheck=0"),
        (("--recheck", "3"), "no such cell of this study has been run"),
        (("--processes", "0"), "processes=0"),
    ],
)
def test_bad_input(reproduction, tmp_path, file, arguments, message):
    answer = reproduction("run", str(file), "--results", str(tmp_path), *arguments)
    assert answer[0] == 2
    assert message in answer[2]
    assert not (tmp_path / "made_up.json").exists()


def test_a_file_of_a_comparison_is_no_study(reproduction, tmp_path):
    (tmp_path / "demo.toml").write_text('data = "digits"\n')
    answer = reproduction("run", "demo.toml", "--results", str(tmp_path))
    assert answer[0] == 2
    assert "Write [[experiment]]" in answer[2]


def test_an_unknown_study_is_told_the_closest_name(reproduction):
    answer = reproduction("run", "lin_table2")
    assert answer[0] == 2
    assert "lin_table_2" in answer[2]


@pytest.mark.slow
def test_all_studies_are_listed_with_what_is_kept(reproduction, tmp_path):
    code, out, _ = reproduction("list", "--json")
    assert code == 0
    found = {row["name"]: row for row in json.loads(out)}
    assert set(found) == set(study_names())
    assert (found["lin_table_2"]["kept"], found["lin_table_2"]["missing"]) == (
        66,
        6,
    )  # those of CIFAR-10 wait for its data
    assert (found["monir_table_10"]["kept"], found["monir_table_10"]["waiting"]) == (0, 6)
    empty = json.loads(reproduction("list", "--json", "--results", str(tmp_path))[1])
    assert all(row["kept"] == 0 for row in empty)
    assert "lin_table_2" in reproduction("list", "--results", str(tmp_path))[1]
