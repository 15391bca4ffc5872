"""A pipeline answers as one process with the same groups: one draw, one charge, noise once for each coordinate, no norm sent.

Two gloo processes unless it says four.
"""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from pipelined_runs import (
    LEAVING,
    MODELS,
    WIDE,
    answer,
    answer_alone,
    bytes_sent,
    charged_before_coins,
    drifting,
    names_of,
    noise_alone,
    noise_of_counts,
    own_loss,
    refused_charge,
    releases_of,
    saved,
    some_records,
    some_texts,
    some_wide_records,
    train,
    train_alone,
    two_stages,
)

import apportion as ap
from apportion.request import Request


def merged(found):
    """The gradients of all stages, of which each has its own; the statistics are the same on all."""
    for _, statistics in found:
        assert statistics == found[0][1]
    every = [name for gradient, _ in found for name in gradient]
    assert len(every) == len(set(every))
    return {name: value for gradient, _ in found for name, value in gradient.items()}, found[0][1]


def check_same(found, alone, tolerance=1e-6):
    gradient, statistics = merged(found)
    assert gradient.keys() == alone.gradient.keys()
    for name, value in alone.gradient.items():
        assert np.allclose(gradient[name], value.numpy(), rtol=tolerance, atol=1e-8)
    assert np.allclose(statistics, alone.statistics, rtol=1e-5)


def asked(model, rate=1.0):
    return Request(rate, 1.0, 10.0, releases_of(MODELS[model][0]()))


# --- equal to one process -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_stages_answer_what_one_process_answers_with_the_same_groups(two, rate):
    """With chunks of three rows, the last of them filled up, and more of them than one turn has."""
    stages, records = MODELS["two"]
    for rows in (3, 64):
        found = two.run(answer, "two", rate, 3, None, rows)
        check_same(found, answer_alone(stages(), records(), asked("two", rate)))
        assert len(found[0][1]) == 3


def test_the_second_draw_is_another_one_and_equal_too(two):
    first, second = (merged(two.run(answer, "two", 0.5, 3, None, 3, times))[0] for times in (1, 2))
    assert not np.array_equal(first["1.1.weight"], second["1.1.weight"])


def test_images_with_channels_last_in_memory(two):
    stages, records = MODELS["images"]
    check_same(two.run(answer, "images", 1.0), answer_alone(stages(), records(), asked("images")), 1e-5)


@pytest.mark.slow
def test_people_with_budgets_of_their_own(two):
    found = two.run(train, "two", {"steps": 6, "groups": True}, "all", True)
    weights, history, run = train_alone(plan={"steps": 6, "groups": True})
    check_history(found, history)
    every = {name: value for one in found for name, value in one["weights"].items()}
    for name, value in weights.items():
        assert np.allclose(every[name], value, rtol=1e-6, atol=1e-8)
    assert found[0]["statement"]["groups"] == run.statement()["groups"]


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_four_stages(four, rate):
    stages, records = MODELS["four"]
    check_same(four.run(answer, "four", rate), answer_alone(stages(), records(), asked("four", rate)), 1e-5)


def check_history(found, history):
    """Thresholds, multipliers and rates: on all ranks to the last bit the same, and those of one process."""
    assert found[0]["history"] == found[1]["history"]
    assert [entry[1:] for entry in found[0]["history"]] == [entry[1:] for entry in history]
    assert np.allclose([entry[0] for entry in found[0]["history"]], [entry[0] for entry in history], rtol=1e-7)


def test_a_run_has_the_weights_and_adaptive_thresholds_of_one_process(two):
    found = two.run(train, "two", {"steps": 6}, "all", True)
    weights, history, run = train_alone(plan={"steps": 6})
    check_history(found, history)
    for one in found:
        assert one["epsilon"] == run.epsilon()
        assert one["statement"]["processes"] == 2
    thresholds = [clip for clip, _, _ in history]
    assert len(set(thresholds)) == 6
    assert len({clip[0] / clip[1] for clip in thresholds}) > 1  # each device has its own
    every = {name: value for one in found for name, value in one["weights"].items()}
    assert every.keys() == weights.keys()
    for name, value in weights.items():
        assert np.allclose(every[name], value, rtol=1e-6, atol=1e-8)


# --- what is sent ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "rows"), [(0.5, 3), (1.0, 3)])
def test_nothing_but_activations_and_their_gradients_has_the_size_of_a_batch(two, rate, rows):
    found = two.run(bytes_sent, rate, rows)
    assert found[0][1] == found[1][1]  # all know the batch
    records = found[0][1][-1]
    chunks, turns = math.ceil(records / rows), math.ceil(records / rows / 8)
    activations = chunks * rows * LEAVING * 4
    for messages, _ in found:
        sizes = {kind: [size for one, size in messages if one == kind] for kind, _ in messages}
        for kind in ("send", "recv_"):
            large = [
                size for size in sizes[kind] if size != 4
            ]  # one number that says that shapes are known, where a turn is longer
            assert large == [rows * LEAVING * 4] * chunks
            assert sum(large) == activations
            assert len(sizes[kind]) - len(large) <= turns
        del sizes["send"], sizes["recv_"]
        # The same state, the charge, whether all arrived; the key of the coins; three noisy counts.
        assert sizes.pop("allgather_") == [24, 24, 24]
        assert sizes.pop("allreduce_") == [24]
        assert sum(sizes.pop("broadcast_")) < 64
        assert not sizes


# --- noise and charges ----------------------------------------------------------------------------------------------------


def deviation(values):
    return float(np.sqrt(np.mean(values**2)))


def test_every_stage_adds_the_noise_of_its_groups_once(two):
    """Fails if it were 5 % smaller, √2 or √½ of it."""
    found = dict(two.run(noise_alone, 2.0))
    assert set(found) == {"0.weight", "1.weight"}
    assert len(found["1.weight"]) == WIDE[0] * WIDE[1]
    assert abs(deviation(found["1.weight"]) - 1) < 0.015  # of 100,000 values: six deviations
    assert abs(deviation(found["0.weight"]) - 1) < 0.02  # of 50,000: six
    shared = np.corrcoef(found["0.weight"], found["1.weight"][: len(found["0.weight"])])[0, 1]
    assert abs(shared) < 0.03  # the stages have streams of their own


def test_counts_have_noise_once_and_an_empty_batch_is_charged(two):
    (first, charged), (second, charged_too) = two.run(noise_of_counts, 120)
    assert np.array_equal(first, second)
    assert charged == charged_too == 120
    assert abs(deviation(first) - 1) < 0.2  # of 360: five deviations; noise of both stages would be 1.41
    assert np.abs(np.corrcoef(first.T) - np.eye(3)).max() < 0.5


def test_one_charge_a_step_that_is_durable_before_any_rank_tosses(two, tmp_path):
    for written, charged in two.run(charged_before_coins, tmp_path):
        assert written == [True, True, True]
        assert charged == 3


def test_a_charge_that_is_refused_ends_the_step_before_the_coins(two):
    assert two.run(refused_charge) == [("BudgetExhausted", []), ("RankLost", [])]


def test_stages_that_ask_for_different_things_are_found_before_the_next_charge(two):
    for text, charged in two.run(drifting):
        assert "not in the same state" in text
        assert charged == 1


# --- records that fail ----------------------------------------------------------------------------------------------------


def spoiled(data, last):
    return tuple(torch.cat([one[:20], other.unsqueeze(0), one[20:]]) for one, other in zip(data, last, strict=True))


FAILING = {
    "not a number": ("two", some_records, (torch.full((6,), torch.nan), torch.tensor(1))),
    "infinite": ("two", some_records, (torch.full((6,), torch.inf), torch.tensor(1))),
    "outside of the domain": ("two", some_records, (torch.zeros(6), torch.tensor(7))),
    "an index that fails": ("texts", some_texts, (torch.full((7,), 99), torch.tensor(1))),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_record_that_fails_anywhere_counts_nowhere_and_leaves_the_others_alone(two, case):
    model, records, bad = FAILING[case]
    check_lost(
        two.run(answer, model, 1.0, 3, spoiled(records(), bad)),
        answer_alone(MODELS[model][0](), records(), asked(model)),
    )


def check_lost(found, alone, lost=1):
    """As if they were not there, but that they count −½ among the usable ones."""
    gradient, statistics = merged(found)
    for name, value in alone.gradient.items():
        assert np.allclose(gradient[name], value.numpy(), rtol=1e-5, atol=1e-8)
    *counts, usable = alone.statistics
    assert np.allclose(statistics, [*counts, usable - lost * 0.5 / 10.0], rtol=1e-5)


def test_a_loss_that_fails_for_a_record_loses_it_in_every_stage(two):
    """Only the last stage can know of it: the others hear of it by what comes back."""
    data = spoiled(some_records(), (torch.ones(6), torch.tensor(5)))
    found = two.run(answer, "two", 1.0, 3, data, 3, 1, own_loss)
    check_lost(found, answer_alone(two_stages(), some_records(), asked("two")))


def test_a_chunk_of_which_no_record_can_be_used(two):
    inputs, targets = some_records()
    targets[3:9] = 5
    kept = torch.cat([torch.arange(3), torch.arange(9, 40)])
    found = two.run(answer, "two", 1.0, 3, (inputs, targets))
    check_lost(found, answer_alone(two_stages(), (inputs[kept], targets[kept]), asked("two")), lost=6)


def test_a_gradient_that_is_not_finite_in_one_stage_counts_zero_there_and_is_clipped_in_the_other(two):
    """One process, which sees both, leaves such a record out of both groups. The bound of each group is the same."""
    inputs, targets = some_wide_records()
    usual = inputs * 1e-200
    bad = usual.clone()
    bad[4] = 1e200 * torch.tensor([1.0, -2, 1, 1, 0.5, 1])
    without = torch.arange(20) != 4
    alone = answer_alone(MODELS["wide"][0](), (usual[without], targets[without]), asked("wide"))
    first, second = (gradient for gradient, _ in two.run(answer, "wide", 1.0, 3, (bad, targets)))
    for name, value in first.items():
        assert np.allclose(value, alone.gradient[name].numpy(), rtol=1e-9)
    moved = math.sqrt(
        sum(float(np.square(10 * (value - alone.gradient[name].numpy())).sum()) for name, value in second.items())
    )
    bound = asked("wide").sums[1].threshold
    assert 0 < moved <= bound * (1 + 1e-6)
    assert names_of(MODELS["wide"][0]())[1] == list(second)


# --- a run ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_four_stages_of_which_those_between_are_given_no_records(four):
    found = four.run(train, "four", {"population": 30, "clip": ap.clip.Quantile(start=1.0, share=0.05, groups="layer")})
    assert all(one["history"] == found[0]["history"] for one in found)
    assert found[0]["statement"]["private"]
    assert found[0]["epsilon"] <= 20


def test_a_run_is_saved_with_the_weights_of_each_stage(two, tmp_path):
    assert two.run(saved, tmp_path) == [True, True]
    written = {path.name for path in (tmp_path / "public").iterdir()}
    assert written >= {"stage-0.safetensors", "stage-1.safetensors", "history.json", "privacy.json", "plan.json"}
    assert "weights.safetensors" not in written  # no process has them
    facts = json.loads((tmp_path / "public" / "privacy.json").read_text(encoding="utf-8"))
    assert facts["private"]
    assert "weights_sha256" not in facts
    assert (tmp_path / "run.html").exists()
    assert (tmp_path / "secret" / "ledger.sqlite").exists()


@pytest.mark.slow
def test_the_code_of_the_page_runs(two):
    page = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```py\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    first, second = two.run(run_code, code.replace("distributed.init_process_group", "# "))
    assert first == second
    assert first[0] <= 4
    assert first[1] == 20


def run_code(rank, code):
    names = {}
    exec(code, names)
    return names["run"].epsilon(), len(names["run"].history)
