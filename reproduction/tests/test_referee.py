"""The referee: equal trials, settings that follow from them, and verdicts that follow from paired seeds."""

import pytest
from scipy.stats import ttest_rel

from apportion.errors import InvalidArgument
from reproduction.figures import Results
from reproduction.figures.intervals import Interval, Intervals, interval_chart
from reproduction.figures.referee_rows import judged, questions, referee_part
from reproduction.folders import RESULTS
from reproduction.referee.paired import Difference, holm, paired_difference, verdicts
from reproduction.study import open_study
from reproduction.trials import KeptTrials, find_winner, read_designs
from reproduction.trials.choices import merged, nested
from reproduction.trials.chosen import study_file, study_texts
from reproduction.trials.kept import trials_file

OURS = {1: 0.91, 2: 0.93, 3: 0.92, 4: 0.95}
BASELINE = {1: 0.90, 2: 0.91, 3: 0.92, 4: 0.92, 9: 0.10}


@pytest.fixture(scope="module")
def results():
    return Results.read(RESULTS)


@pytest.fixture(scope="module")
def kept():
    return KeptTrials.open(trials_file("referee"))


def test_a_paired_difference_is_students():
    found = paired_difference(OURS, BASELINE)
    expected = ttest_rel([OURS[seed] for seed in (1, 2, 3, 4)], [BASELINE[seed] for seed in (1, 2, 3, 4)])
    interval = expected.confidence_interval(0.95)
    assert found.mean == pytest.approx(0.015)
    assert found.seeds == 4  # the ninth has no partner
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p_value == pytest.approx(expected.pvalue)


def test_what_is_common_to_both_cancels():
    shifts = {1: 0.2, 2: -0.1, 3: 0.0, 4: 0.3}
    moved = paired_difference(
        {seed: value + shifts[seed] for seed, value in OURS.items()},
        {seed: BASELINE[seed] + shift for seed, shift in shifts.items()},
    )
    assert moved.half_width == pytest.approx(paired_difference(OURS, BASELINE).half_width)


def test_equal_differences_have_no_width_and_one_seed_has_no_interval():
    assert paired_difference({1: 0.5, 2: 0.5}, {1: 0.5, 2: 0.5}) == Difference(0.0, 0.0, 1.0, 2)
    with pytest.raises(InvalidArgument, match="two seeds"):
        paired_difference({1: 0.5, 2: 0.5}, {2: 0.5, 3: 0.5})


def test_holms_adjusted_values():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_a_verdict_has_to_survive_the_number_of_comparisons():
    clear, near = Difference(-0.01, 0.001, 1e-4, 5), Difference(0.01, 0.009, 0.03, 5)
    assert verdicts([near]) == ["better"]
    assert verdicts([clear, near]) == ["worse", "better"]
    assert verdicts([clear, near, near]) == ["worse", "no difference shown", "no difference shown"]


def test_every_method_of_a_task_has_as_many_trials_and_they_differ():
    for design in read_designs():
        assert {len(method.choices) for method in design.methods} == {12}
        for method in design.methods:
            assert len({str(choice) for choice in method.choices}) == 12
        assert design.methods[0].label == "fixed clip"


def test_settings_are_not_chosen_on_what_they_are_judged_on():
    for _, judge in questions().values():
        assert judge.judged_on not in judge.chosen_on


def test_every_judged_method_got_the_same_trials_and_the_same_seeds(results, kept):
    counted = 0
    for name, (design, judge) in questions().items():
        rows = judged(results, name)
        if not rows:
            continue
        assert {row.trials for row in rows} == {12}
        assert design.methods[0].label == rows[0].method
        runs = results.studies["referee"].runs_of(judge.label)
        seeds = {label: sorted(run.seed for run in found) for label, found in runs.items()}
        assert set(map(tuple, seeds.values())) == {tuple(seeds["fixed clip"])}
        assert len(seeds["fixed clip"]) >= 3
        tried = [trial for trial in design.trials() if trial.data in judge.chosen_on and trial.method in seeds]
        assert {kept.found[trial.key]["seed"] for trial in tried} == {design.trial_seed}
        counted += len(rows)
    assert counted > 20


def test_the_committed_study_is_what_the_trials_choose(kept):
    text = study_file("referee").read_text(encoding="utf-8")
    assert {"referee": text} == study_texts("referee", kept), "run `python -m reproduction choose`"
    found = open_study("referee")
    for one in found.experiments:
        assert one.recipe[0].shown == "fixed clip"


def test_the_winner_is_the_first_of_the_best(kept):
    design = read_designs()[0]
    judge, method = design.judges[0], design.methods[0]
    keys = [design.trials_of(judge, method, number)[0].key for number in range(1, 13)]
    made_up = {key: {"key": key, "accuracy": 0.9} for key in keys}
    made_up[keys[3]]["accuracy"] = made_up[keys[4]]["accuracy"] = 0.95
    made_up[keys[7]]["accuracy"] = None  # its weights were not numbers any more
    winner = find_winner(design, judge, method, KeptTrials(kept.path, made_up))
    assert (winner.number, winner.score, winner.edge) == (4, 0.95, False)
    assert winner.choice == method.choices[3]
    made_up[keys[5]]["accuracy"] = 0.96
    assert find_winner(design, judge, method, KeptTrials(kept.path, made_up)).edge
    del made_up[keys[0]]
    assert find_winner(design, judge, method, KeptTrials(kept.path, made_up)) is None


def test_settings_said_in_two_places_are_one_table():
    assert merged({"clip": {"start": 1.0}}, nested("clip.power", 0.5)) == {"clip": {"start": 1.0, "power": 0.5}}


def test_trials_are_kept_one_by_one(tmp_path):
    kept = KeptTrials.open(tmp_path / "trials.json")
    kept.add({"key": "one", "accuracy": 0.5})
    kept.add({"key": "two", "accuracy": None})
    assert KeptTrials.open(kept.path).found == kept.found


def test_a_page_without_results_says_what_makes_them():
    assert "python -m reproduction" in referee_part(Results(), "fashion-mnist")
    assert "python -m reproduction" in referee_part(Results(), "summary")


def test_an_interval_far_below_is_drawn_at_the_edge():
    rows = (
        Interval("near", 0.1, -0.2, 0.4, "#000000", "+0.10"),
        Interval("far", -30.0, -31.0, -29.0, "#000000", "−30"),
    )
    assert Intervals("group", rows).scale().low > -2
    picture = interval_chart("title", "subtitle", "points", [Intervals("group", rows)], [("#000000", "black")])
    assert picture.count("◂") == 1
    assert "far: −30" not in picture  # no dot where it is not
