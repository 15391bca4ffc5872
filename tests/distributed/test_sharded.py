"""Models that `fully_shard` has divided: two gloo processes answer and train as one process does with the whole model."""

import numpy as np
import pytest
import torch
from parallel_runs import Silent, drawn_together, plan_of, some_records
from sharded_work import (
    NAMES,
    WIDE,
    answer,
    columns,
    frozen_train,
    in_pieces,
    layout,
    noise_alone,
    odd_model,
    own_loop,
    refused,
    releases,
    state_sizes,
    stopped_train,
    train,
    written_to,
)
from spawning import Failed, Team
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
from apportion.accounting.ledger import Ledger
from apportion.curator.curator import Curator
from apportion.curator.gradients.engine import build_engine
from apportion.curator.owners import RecordOwners
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.execution import Execution
from apportion.request import Request

CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def close(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.allclose(found[name], value, **CLOSE), name


def same_weights(one, other):
    return all(np.array_equal(one["weights"][name], value) for name, value in other["weights"].items())


# --- parts ----------------------------------------------------------------------------------------------------------------


def test_parts_are_the_rows_that_fully_shard_gives_and_the_whole_copy_is_the_model(two):
    first, second = two.run(layout)
    assert first == [(3, 4), (3,), (1,), (2, 5), (2,), (1, 3), (1,)]
    assert second == [(2, 4), (2,), (0,), (1, 5), (1,), (1, 3), (1,)]


def test_a_parameter_that_is_divided_along_its_second_dimension(two):
    assert two.run(columns) == [(True, True), (True, True)]


def test_each_rank_keeps_its_part_of_weights_optimiser_and_released_gradient(two):
    whole = sum(parameter.numel() for parameter in odd_model().parameters())
    found = two.run(state_sizes)
    for kept, moments, given in found:
        assert kept == moments
        assert set(given) == {kept}
    assert sum(kept for kept, _, _ in found) == whole
    assert max(kept for kept, _, _ in found) < 0.7 * whole


# --- one answer -----------------------------------------------------------------------------------------------------------


def answer_alone(kind, records):
    inputs, targets = some_records()
    curator = Curator(
        as_records((inputs[records], targets[records])),
        build_engine(odd_model(), "vmap"),
        type("Books", (), {"charge": lambda self, event: None})(),
        Randomness.seeded(1, 0),
        Execution(7),
        Silent(),
    )
    return curator.answer(Request(1.0, 1.0, 10.0, releases(kind)), cross_entropy)


@pytest.mark.parametrize("kind", ["flat", "groups"])
@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_a_sharded_model_answers_what_the_whole_one_answers(two, kind, rate):
    """Flat and with a group for each parameter; with micro-batches, also of different numbers on the two ranks."""
    found = two.run(answer, kind, rate)
    drawn = np.concatenate(drawn_together(RecordOwners(40), rate, 3, 2)) if rate < 1 else np.arange(40)
    expected = answer_alone(kind, drawn)
    for gradient, statistics, _ in found:
        close(gradient, {name: value.numpy() for name, value in expected.gradient.items()})
        assert np.allclose(statistics, expected.statistics, rtol=1e-9)
    assert [found[rank][2]["2.factor"] for rank in range(2)] == [(1,), (0,)]


def test_an_empty_draw_of_a_rank_and_of_both(two):
    for seed in range(20):
        parts = drawn_together(RecordOwners(40), 0.04, seed, 2)
        if not len(parts[1]) and len(parts[0]):
            break
    found = two.run(answer_with_seed, seed)
    expected = answer_alone("flat", np.concatenate(parts))
    close(found[0][0], {name: value.numpy() for name, value in expected.gradient.items()})
    nothing, _, _ = two.run(answer, "flat", 1e-18)[0]
    assert not any(value.any() for value in nothing.values())


def answer_with_seed(rank, seed):
    return answer(rank, "flat", 0.04, seed=seed)


def test_parts_travel_in_several_buckets(two):
    whole, pieces = two.run(answer, "groups", 1.0), two.run(in_pieces, "groups", 1.0)
    for rank in range(2):
        assert all(np.array_equal(whole[0][0][name], pieces[rank][0][name]) for name in NAMES)


def test_every_coordinate_has_the_noise_of_the_request_once(two):
    """Fails if it were 5 % smaller, if both ranks added all of it (√2) or a share of it, or if a row had none or that of another."""
    first, second = two.run(noise_alone, 2.0)
    assert np.array_equal(first, second)
    scaled = first / (0.5 * 2.0 * (1 + 1e-4))
    assert scaled.shape == WIDE[::-1]
    rows = np.sqrt((scaled**2).mean(1))  # of 401 values each: a standard deviation of 0.035
    assert abs(np.sqrt((scaled**2).mean()) - 1) < 0.014  # of 100,651 values: six deviations
    assert rows.min() > 0.8
    assert rows.max() < 1.2
    for half in (scaled[:126], scaled[126:]):
        assert abs(np.sqrt((half**2).mean()) - 1) < 0.02
    assert abs((scaled[:125] * scaled[126:]).mean()) < 0.03  # the ranks have streams of their own
    assert len(np.unique(first)) > 0.999 * first.size


# --- one run --------------------------------------------------------------------------------------------------------------


def check_run(two, recipe, optimizer, lr):
    found = two.run(frozen_train, recipe, True, optimizer, None, 1.0, lr)
    alone = frozen_train(0, recipe, False, optimizer, None, 1.0, lr)
    for one in found:
        close(one["weights"], alone["weights"])
        assert np.allclose(np.array(one["clip"]), np.array(alone["clip"]), rtol=1e-6)
        assert one["epsilon"] == alone["epsilon"]
        assert one["scores"] == pytest.approx(alone["scores"])
    moved = odd_model().state_dict()
    assert not np.allclose(found[0]["weights"]["0.weight"], moved["0.weight"].numpy(), atol=1e-3)


@pytest.mark.parametrize(("recipe", "optimizer", "lr"), [("default", "adam", 0.1), ("he-equal", "momentum", 0.5)])
def test_a_run_moves_the_weights_as_the_whole_model_would(two, recipe, optimizer, lr):
    """With the noise left out; adaptive thresholds for each parameter, and averages, are among them."""
    check_run(two, recipe, optimizer, lr)


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "optimizer", "lr"), [("abadi", "sgd", 0.5), ("adamw-bc", "sgd", 0.005)])
def test_other_runs_move_the_weights_as_the_whole_model_would(two, recipe, optimizer, lr):
    """An update with a state of its own is among them."""
    check_run(two, recipe, optimizer, lr)


@pytest.mark.slow
def test_noise_moves_all_ranks_alike(two):
    first, second = two.run(train, "andrew")
    assert same_weights(first, second)
    assert first["clip"] == second["clip"]


def test_a_loop_of_ones_own(two):
    """With draws that are often empty on a rank, and sometimes on both."""
    (first, alike, steps), (second, _, _) = two.run(own_loop, 0.05)
    assert same_weights(first, second)
    assert alike
    assert steps == 6


def test_weights_that_somebody_moves_between_two_steps_are_found_before_the_charge(two):
    for text, steps in two.run(written_to):
        assert "between two steps" in text
        assert steps == 1


class WritesToItself(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        with torch.no_grad():
            self.layer.weight.mul_(0.5)
        return self.layer(x)


def test_an_engine_that_uses_the_weights_of_its_model_does_not_go_on_after_a_write():
    engine = build_engine(model := WritesToItself(), "one-pass", lent=True)
    assert engine.scratch.layer.weight.data_ptr() == model.layer.weight.data_ptr()
    engine.sync_weights()
    engine.forward(torch.ones(3, 4))
    with pytest.raises(ap.UnsupportedModel, match="writes to its own weights"):
        engine.forward(torch.ones(3, 4))


# --- checkpoints ----------------------------------------------------------------------------------------------------------


def test_a_run_goes_on_from_its_parts_also_with_another_number_of_ranks(two, tmp_path):
    """Two ranks, then one, then two again; the weights, Adam's state, the averages and the charges are those of a run in one go."""
    folder = tmp_path / "run"
    expected = two.run(stopped_train, str(tmp_path / "whole"), 0)[0]
    with pytest.raises(Failed) as stopped:
        two.run(stopped_train, str(folder), 2)
    assert [error[0] for error in stopped.value.errors] == ["KeyboardInterrupt", "KeyboardInterrupt"]
    assert len(list((folder / "secret").glob("checkpoint.*.*"))) == 2
    one = Team(1)
    try:
        with pytest.raises(Failed):
            one.run(stopped_train, str(folder), 4, True)
    finally:
        one.close()
    assert len(list((folder / "secret").glob("checkpoint.*.*"))) == 1
    found = two.run(stopped_train, str(folder), 0, True)
    close(found[0]["weights"], expected["weights"])
    ledger = Ledger.open(folder / "secret" / "ledger.sqlite")
    # a checkpoint follows each step, and a run is stopped after that of the step
    assert len(list(ledger.charges(1))) == 5
    ledger.close()
    for name in ("weights", "averaged"):
        saved, other = (torch_load(root / "public" / f"{name}.safetensors") for root in (folder, tmp_path / "whole"))
        close(saved, other)
    assert not np.allclose(saved["0.weight"], expected["weights"]["0.weight"], atol=1e-4)


def torch_load(path):
    from safetensors.numpy import load_file

    return load_file(path)


def test_damaged_parts_are_not_taken_up_and_none_by_a_whole_model(two, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Failed):
        two.run(stopped_train, str(folder), 1)
    storage = {"folder": str(folder), "every": 1, "resume": True}
    with pytest.raises(ap.InvalidArgument, match="sharded"):
        frozen_train(0, "default", False, "adam", plan={"spare": 3}, storage=storage)
    part = next((folder / "secret").glob("checkpoint.*.1"))
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(bytes(content))
    with pytest.raises(Failed) as failed:
        two.run(stopped_train, str(folder), 0, True)
    assert "does not match its hash" in failed.value.errors[0][1]
    part.unlink()
    with pytest.raises(Failed, match="cannot be read"):
        two.run(stopped_train, str(folder), 0, True)


# --- what is refused ------------------------------------------------------------------------------------------------------


REFUSED = {
    "mixed precision": ("mp_policy", "in the type of the parameters"),
    "offload": ("offload_policy", "where they are"),
    "two dimensions": ("model", "a mesh of 2 dimensions"),
    "in part": ("2.factor", "this one is not"),
    "one rank": ("model", "sharded on rank 0, and not on rank 1"),
    "adaclip": ("AdaClip", "looks at the released gradient"),
    "fay-adaptive": ("plan", "looks at the released gradient"),
    "adadp": ("AdaDP", "each coordinate by itself"),
    "dp-agd": ("dp-agd", "each coordinate by itself"),
    "noise_from": ("noise_from", "the rank that keeps the part"),
    "exact": ("recovery", "bit for bit"),
    "optimizer": ("Adafactor", "each coordinate by itself"),
    "folder": ("folder", "rank 1 has"),
}
SLOW = ("fay-adaptive", "dp-agd")
"""Their plans take seconds."""


def check_refusal(two, folder, case):
    for found in two.run(refused, case, str(folder)):
        assert found is not None
        assert all(word.lower() in found[1].lower() for word in REFUSED[case]), found
    assert not folder.exists()


@pytest.mark.parametrize("case", [case for case in REFUSED if case not in SLOW])
def test_what_a_sharded_model_cannot_do_is_refused_by_name(two, tmp_path, case):
    check_refusal(two, tmp_path / "run", case)


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW)
def test_what_else_is_refused_by_name(two, tmp_path, case):
    check_refusal(two, tmp_path / "run", case)


def test_the_plan_of_the_tests_is_not_trivial():
    assert plan_of().steps == 6
    assert torch.cat([one.flatten() for one in odd_model().parameters()]).numel() == 25 + 1 + 18 + 8
