"""The replay audit of models that are divided between processes: what holds is found to hold, on all ranks, and broken pieces are found."""

import pytest
from audited_processes import pipeline_replay, refused, sharded_replay

import apportion as ap


def check_held(found):
    """All ranks say the same, and have their model back."""
    reports = [report for report, _ in found]
    assert all(report == reports[0] for report in reports)
    assert reports[0]["ok"], reports[0]["findings"]
    assert reports[0]["sharp"], reports[0]["largest_ratio"]
    assert all(same for _, same in found)
    return reports[0]


# --- what holds -----------------------------------------------------------------------------------------------------------


def test_a_sharded_model_holds(two):
    """With counts of its own for each rank, rows that two ranks cannot share equally, and momentum."""
    report = check_held(two.run(sharded_replay, "andrew", "odd", None, None, 3))
    assert len(report["neighbours"]) == 10
    assert report["noise_calls"] == 10 * 3 * 8 + 10 * 3  # seven parameters and a count; usable records in all steps


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("abadi", "columns"),
        ("he-equal",),
        ("adamw-bc",),
        ("doppler",),
        ("dc-sgd-e",),
        ("lin-decay", "odd", "own"),
        (ap.Recipe(name="scaled", clip=ap.clip.Fixed(0.1), noise=ap.noise.Constant(), people=ap.people.Scale()),),
    ],
    ids=lambda arguments: getattr(arguments[0], "name", arguments[0]),
)
def test_other_sharded_models_hold(two, arguments):
    """By columns and with dropout, groups of parameters, updates with a state, histograms, a loop of one's own, groups of people."""
    check_held(two.run(sharded_replay, *arguments))


def test_a_pipeline_holds(two):
    """With a threshold and a count for each stage, and several chunks a batch."""
    report = check_held(two.run(pipeline_replay, "two", None, None, 3))
    assert report["noise_calls"] == 13 * 3 * (8 + 2)  # eight parameters and two counts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "plan"),
    [
        ("texts", {}),
        ("images", {"clip": ap.clip.Fixed(0.1, groups="layer")}),
        ("wide", {}),
        ("two", {"groups": True}),
    ],
    ids=["texts", "images by layers", "numbers without a square", "groups of people"],
)
def test_other_pipelines_hold(two, model, plan):
    check_held(two.run(pipeline_replay, model, plan))


@pytest.mark.slow
def test_four_processes_hold(four):
    """Stages in the middle read nothing, and of some parameters there are fewer rows than ranks."""
    check_held(four.run(pipeline_replay, "four"))
    check_held(four.run(sharded_replay, "andrew"))


# --- broken pieces --------------------------------------------------------------------------------------------------------


def kinds(found):
    reports = [report for report, _ in found]
    assert reports[0] == reports[1]
    return {finding["kind"] for finding in reports[0]["findings"]}


BROKEN_SHARDS = {
    "less_noise_on_the_second_rank": "multiplier",
    "own_sums_twice": "sensitivity",
    "one_stream_for_both": "noise",
    "stale_weights": "state",
}
BROKEN_STAGES = {
    "less_noise_on_the_second_rank": "multiplier",
    "one_stream_for_both": "noise",
}


@pytest.mark.slow
@pytest.mark.parametrize("broken", BROKEN_SHARDS)
def test_broken_shards_are_found(two, broken):
    assert BROKEN_SHARDS[broken] in kinds(two.run(sharded_replay, "andrew", "odd", None, broken))


@pytest.mark.slow
@pytest.mark.parametrize("broken", BROKEN_STAGES)
def test_broken_stages_are_found(two, broken):
    assert BROKEN_STAGES[broken] in kinds(two.run(pipeline_replay, "two", None, broken))


# --- what is refused ------------------------------------------------------------------------------------------------------


def test_ranks_that_take_turns_have_no_parts_of_a_model(two):
    for text in two.run(refused, {"ranks": 2}):
        assert "2 processes" in text


def test_what_a_sharded_run_cannot_do_its_audit_cannot_either(two):
    for text in two.run(refused, {"plan": "adaclip"}):
        assert "looks at the released gradient" in text
