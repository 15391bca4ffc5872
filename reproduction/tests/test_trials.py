"""Equal trials: how they are spread, which of them go on to full length, and what is written of them."""

import math

import pytest

from apportion.budget import Budget, Record
from apportion.errors import InvalidArgument
from apportion.sampling import Sampling
from apportion.strategies.recipes import named
from reproduction.judged import judged_tables, printed_figures
from reproduction.study import open_study, read_study
from reproduction.study.loose_accountants import OTHERS, plan_loosely
from reproduction.study.run_cell import run_cell
from reproduction.trials import KeptTrials, Stage, find_winner, missing_trials, read_designs, run_trials
from reproduction.trials import design as designs
from reproduction.trials.choices import read_choices
from reproduction.trials.chosen import study_file, study_texts
from reproduction.trials.design import Block, Design, Judge, Method
from reproduction.trials.kept import trials_file
from reproduction.trials.spread import spread

PAPERS = read_designs("papers")


def made_up(count=5, keep=2, **more):
    """A design on the digits, with short trials and one baseline."""
    choices = tuple({"name": "abadi", "clip": {"threshold": 1.0}, "lr": 0.1 * number} for number in range(1, count + 1))
    judge = Judge("digits", ("digits",), "digits", (Block("digits, ε = 3", 1, {"epsilon": 3.0}),), {"epsilon": 3.0})
    settings = {"model": "mlp", "delta": 1e-5, "unit": "record", "population": 1437, "sample_rate": 0.2, "epochs": 4}
    stages = (Stage(2, keep), Stage(None, count))
    texts = {"title": "Made up", "source": "nowhere", "note": ""}
    methods = (Method("fixed", "", choices, frozenset({1, count})),)
    parts = {
        "also": (),
        "settings": settings,
        "trial_seed": 7,
        "stages": stages,
        "judges": (judge,),
        "methods": methods,
    }
    return Design("made-up", "Made up", "made_up", texts, **parts | more)


def kept_with(path, scores):
    return KeptTrials(path, {key: {"key": key, "accuracy": score} for key, score in scores.items()})


def test_a_range_is_covered_evenly_and_the_same_everywhere():
    found = spread("seed", 10, {"lr": {"low": 0.01, "high": 1.0}, "momentum": [0.0, 0.9]})
    rates = sorted(one["lr"] for one in found)
    assert [math.floor(5 * math.log10(rate / 0.01)) for rate in rates] == list(range(10))
    assert sorted(one["momentum"] for one in found) == [0.0] * 5 + [0.9] * 5
    assert found == spread("seed", 10, {"lr": {"low": 0.01, "high": 1.0}, "momentum": [0.0, 0.9]})
    assert [one["lr"] for one in found] != rates
    assert found[0] == {"lr": 0.0316, "momentum": 0.9}  # kept trials would be lost if it changed


@pytest.mark.parametrize("values", [[], {"low": 0.0, "high": 1.0}, {"low": 1.0}, 3.0])
def test_what_is_no_range_is_refused(values):
    with pytest.raises(InvalidArgument, match="vary"):
        spread("seed", 3, {"lr": values})


def test_a_step_becomes_a_learning_rate():
    method = {"label": "m", "name": "abadi", "printed": [{"lr": 1.0}], "vary": {"clip.threshold": [0.5]}}
    choices, edges = read_choices(method, {"step": {"low": 1.0, "high": 16.0}, "momentum": [0.75]}, 5)
    assert choices[0] == {"name": "abadi", "lr": 1.0}
    steps = sorted(one["lr"] * one["clip"]["threshold"] / (1 - one["momentum"]) for one in choices[1:])
    assert steps == pytest.approx([2**0.5, 2**1.5, 2**2.5, 2**3.5], rel=5e-3)
    assert sorted(choices[number - 1]["lr"] for number in edges) == pytest.approx([0.707, 5.66], rel=5e-3)
    with pytest.raises(InvalidArgument, match=r"clip\.threshold"):
        read_choices({"label": "m", "name": "adaclip"}, {"step": {"low": 1.0, "high": 16.0}}, 5)


def test_thresholds_that_move_begin_where_others_stay():
    vary = {"threshold": {"low": 0.1, "high": 10.0}, "momentum": [0.0, 0.9]}
    (fixed, _), (moving, _) = (read_choices({"label": name, "name": name}, vary, 6) for name in ("abadi", "lin-decay"))
    assert [one["clip"]["threshold"] for one in fixed] == [one["clip"]["start"] for one in moving]
    assert [one["momentum"] for one in fixed] == [one["momentum"] for one in moving]


def test_the_best_of_the_short_trials_go_on(tmp_path):
    design = made_up()
    judge, method, path = design.judges[0], design.methods[0], tmp_path / "trials.json"
    short = [design.trials_of(judge, method, number)[0].key for number in range(1, 6)]
    long = [design.trials_of(judge, method, number, design.stages[1])[0].key for number in range(1, 6)]
    assert len({*short, *long}) == 10
    scores = dict.fromkeys(short, 0.5)
    assert [trial.key for trial in missing_trials(design, judge, method, kept_with(path, {}))] == short
    del scores[short[1]]
    assert [trial.number for trial in missing_trials(design, judge, method, kept_with(path, scores))] == [2]
    scores |= {short[1]: 0.9, short[3]: 0.8, short[0]: None}  # None: its weights were not numbers any more
    assert [trial.key for trial in missing_trials(design, judge, method, kept_with(path, scores))] == [long[1], long[3]]
    assert find_winner(design, judge, method, kept_with(path, scores)) is None
    scores |= {long[1]: 0.7, long[3]: 0.75, long[4]: 0.99}  # the fifth did not get so far
    winner = find_winner(design, judge, method, kept_with(path, scores))
    assert (winner.number, winner.score, winner.choice) == (4, 0.75, method.choices[3])
    assert missing_trials(design, judge, method, kept_with(path, scores)) == []


def test_a_short_trial_is_the_beginning_of_the_long_one(tmp_path):
    design = made_up()
    judge, method = design.judges[0], design.methods[0]
    [short], [long] = (design.trials_of(judge, method, 3, stage) for stage in design.stages)
    runs = [run_cell(trial.cell) for trial in (short, long)]
    assert [run.history[-1].step for run in runs] == [10, 20]
    assert runs[0].history[-1].noise_multiplier == runs[1].history[-1].noise_multiplier  # that of the full length
    kept = KeptTrials.open(tmp_path / "trials.json")
    run_trials(kept, lambda: [trial for trial in (short, long) if trial.key not in kept.found])
    assert [entry.get("stopped_after") for entry in kept.found.values()] == [2, None]
    assert kept.found[short.key]["accuracy"] == runs[0].test_accuracy
    assert all(entry["seconds"] > 0 for entry in kept.found.values())


def test_trials_in_two_processes_are_the_same(tmp_path):
    design = made_up()
    judge, method = design.judges[0], design.methods[0]
    found = []
    for processes in (1, 2):
        kept = KeptTrials.open(tmp_path / f"{processes}.json")
        run_trials(kept, lambda kept=kept: missing_trials(design, judge, method, kept), processes=processes)
        found.append({key: entry["accuracy"] for key, entry in KeptTrials.open(kept.path).found.items()})
        assert find_winner(design, judge, method, kept) is not None
    assert found[0] == found[1]
    assert len(found[0]) == 5 + 2


@pytest.mark.parametrize("design", PAPERS, ids=lambda design: design.name)
def test_designs_of_papers_tune_equally_and_not_on_what_they_judge(design):
    assert {len(method.choices) for method in design.methods} == {12}
    assert all(len({str(choice) for choice in method.choices}) == 12 for method in design.methods)
    assert [stage.keep for stage in design.stages] == [4, 12]
    printed = printed_figures(design.study)
    for judge in design.judges:
        assert judge.judged_on not in judge.chosen_on
        for method in design.methods:  # a trial of each is valid
            assert design.trials_of(judge, method, 12)[0].cell.experiment.data == judge.chosen_on[0]
        for block in judge.blocks:
            labels = set(block.methods or (method.label for method in design.methods))
            assert labels == set(printed[block.label])


def test_the_written_studies_are_what_the_trials_choose():
    kept = KeptTrials.open(trials_file("papers"))
    for study, text in study_texts("papers", kept).items():
        assert study_file(study).read_text(encoding="utf-8") == text, "run `python -m reproduction choose`"
        printed = printed_figures(study)
        for one in open_study(study).experiments:
            papers = {choice.shown: choice.paper for choice in one.recipe} | {
                late.label: late.paper for late in one.later
            }
            assert papers == printed[one.shown]


def test_a_study_is_written_with_printed_figures_and_what_is_missing(tmp_path, monkeypatch):
    other = Method("other", "", tuple(one | {"lr": 9.0} for one in made_up().methods[0].choices), frozenset())
    design = made_up(
        methods=(*made_up().methods, other),
        also=({"label": "none", "data": "digits", "recipe": [{"name": "non-private"}]},),
    )
    judge, method = design.judges[0], design.methods[0]
    trials = [
        design.trials_of(judge, method, number, stage)[0].key for stage in design.stages for number in range(1, 6)
    ]
    monkeypatch.setattr("reproduction.trials.chosen.read_designs", lambda group: (design,))
    figures = {"digits, ε = 3": {"fixed": 90.0, "other": 91.0}, "none": {"non-private": 99.0}}
    monkeypatch.setattr("reproduction.trials.chosen.printed_figures", lambda study: figures)
    [(study, text)] = study_texts("papers", kept_with(tmp_path / "t.json", dict.fromkeys(trials, 0.5))).items()
    assert study == "made_up"
    assert 'label = "fixed", name = "abadi", clip.threshold = 1.0, lr = 0.1, paper = 90.0' in text
    assert '{ label = "other", paper = 91.0, reason = ' in text
    assert '{ name = "non-private", paper = 99.0 }' in text
    assert study_texts("papers", kept_with(tmp_path / "t.json", {})) == {}


def test_a_recipe_may_have_a_length_and_a_batch_of_its_own():
    values = {"data": "digits", "batch_size": 100, "epochs": 3, "lr": 1.0, "epsilon": 3.0, "seeds": [1]}
    recipes = [{"name": "abadi"}, {"name": "abadi", "label": "longer", "epochs": 6, "batch_size": 200}]
    one, other = read_study("s", values | {"experiment": [{"label": "e", "recipe": recipes}]}).cells
    assert other.configuration()["steps"] == one.configuration()["steps"]
    assert other.configuration()["sample_rate"] == pytest.approx(2 * one.configuration()["sample_rate"])
    assert one.key != other.key


@pytest.mark.parametrize("calibrated_by", OTHERS)
def test_a_loose_bound_needs_more_noise_and_spends_less(calibrated_by):
    values = {"data": "digits", "sample_rate": 0.1, "steps": 5, "lr": 1.0, "epsilon": 1.0, "seeds": [1]}
    recipes = [{"name": "zhang", "calibrated_by": calibrated_by}, {"name": "zhang", "label": "ours"}]
    loose, ours = map(run_cell, read_study("s", values | {"experiment": [{"label": "e", "recipe": recipes}]}).cells)
    assert loose.epsilon < 0.9 * ours.epsilon
    assert loose.target_epsilon == 1.0


def test_tcdp_covers_no_less_noise_than_its_theorem_does():
    sampling = Sampling.declare(population=25_000, batch_size=1024, epochs=2)
    one, other = (
        plan_loosely("tcdp", named("zhang"), Budget(epsilon=epsilon, delta=1e-6, unit=Record()), sampling)
        for epsilon in (50.0, 90.0)
    )
    assert one.multipliers == pytest.approx(other.multipliers)
    assert min(one.multipliers) == pytest.approx(5**0.5)
    assert one.budget.epsilon == 50.0
    with pytest.raises(InvalidArgument, match="sampling rate"):
        plan_loosely("tcdp", named("zhang"), one.budget, Sampling.declare(population=1000, batch_size=500, epochs=2))


def test_judged_cells_are_listed_once_and_reasons_name_them():
    for table in judged_tables():
        assert len({cell[:2] for cell in table.cells}) == len(table.cells)
        assert all(0 < printed < 100 for *_, printed in table.cells)
        for place in table.reasons:
            experiment, _, recipe = place.partition(": ")
            assert place in table.printed or recipe in table.printed[experiment]
    studies = [(table.study, label) for table in judged_tables() for label in table.printed]
    assert len(set(studies)) == len(studies)


def test_every_design_has_a_group():
    assert set(designs.GROUPS) == {"referee", "papers"}
    with pytest.raises(InvalidArgument, match="du_table_2"):
        read_designs("du_table2")
