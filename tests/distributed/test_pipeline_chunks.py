"""Rows of chunks: which records they hold, which count, and under which names their gradients go on. In one process."""

import numpy as np
import pytest
import torch

from apportion.curator.clipping import MaterialisedGradients
from apportion.curator.reader import Piece
from apportion.execution import Execution
from apportion.pipeline import per_device
from apportion.pipeline.chunks import read_chunks
from apportion.pipeline.pipeline_training import chunk_rows
from apportion.pipeline.stage_rows import StageRows
from apportion.pipeline.stages import Stages, skeleton_of


def piece(*members, shape=(2,)):
    numbers = torch.tensor(members)
    inputs = torch.stack([torch.full(shape, float(one)) for one in members])
    return Piece((inputs, 10 * numbers), numbers)


def test_every_record_is_in_its_row_whatever_could_be_read_of_the_others():
    """Of five in chunks of three: 4 cannot be read, 7 has another shape and comes alone."""
    members = np.array([1, 4, 6, 7, 9])
    pieces = iter([piece(1), piece(6), piece(7, shape=(3,)), piece(9)])
    first, second = read_chunks(pieces, members, [slice(0, 3), slice(3, 6)], 3, torch.full((2,), -1.0))
    assert first.members.tolist() == [1, 4, 6]
    assert first.inputs[:, 0].tolist() == [1, -1, 6]
    assert first.usable.tolist() == [True, False, True]
    assert first.lost.tolist() == [False, True, False]
    assert first.answered.tolist() == [0, 2]
    assert first.targets.tolist() == [10, 60]
    assert second.members.tolist() == [7, 9]
    assert second.inputs[:, 0].tolist() == [-1, 9, -1]
    assert second.usable.tolist() == [False, True, False]
    assert second.lost.tolist() == [True, False, False]  # the last row is nobody's
    assert second.targets.tolist() == [90]


def test_chunks_of_which_nothing_could_be_read():
    first, second = read_chunks(iter([]), np.arange(4), [slice(0, 2), slice(2, 4)], 2, torch.zeros(2))
    assert not first.usable.any()
    assert not second.usable.any()
    assert second.members.tolist() == [2, 3]
    assert second.targets is None


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [3, 1], []])
def test_gradients_of_some_rows_are_those_of_these_records_alone(rows):
    generator = torch.Generator().manual_seed(0)
    written = {"w": torch.randn(4, 2, 3, generator=generator), "b": torch.randn(4, 2, generator=generator)}
    for row in set(range(4)) - set(rows):
        written["w"][row] = torch.nan  # what the others are must not matter
    chosen = torch.tensor(rows, dtype=torch.int64)
    some = StageRows(MaterialisedGradients(written), 1, chosen)
    alone = MaterialisedGradients({name: one[chosen] for name, one in written.items()})
    assert len(some) == len(rows)
    for name, norms in alone.squared_norms().items():
        assert torch.equal(some.squared_norms()[f"1.{name}"], norms)
        assert torch.equal(some.rows(f"1.{name}", slice(0, 2)), alone.rows(name, slice(0, 2)))
    weights = torch.linspace(0.5, 2, len(rows), dtype=torch.float64)
    found = some.weighted_sums({"1.w": weights, "1.b": weights})
    for name, total in alone.weighted_sums({"w": weights, "b": weights}).items():
        assert torch.allclose(found[f"1.{name}"], total, rtol=1e-12)
    if rows:
        some.zero_records(torch.tensor([True] + [False] * (len(rows) - 1)))
        assert some.squared_norms()["1.b"][0] == 0
        assert bool((some.squared_norms()["1.b"][1:] > 0).all())


def test_other_stages_have_names_and_shapes_and_no_values():
    own, other = torch.nn.Linear(3, 2), torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.LayerNorm(4))
    other[1].bias.requires_grad_(False)
    whole = Stages(own, 1, [skeleton_of(other), skeleton_of(own)])
    found = dict(whole.named_parameters())
    assert list(found) == ["0.0.weight", "0.0.bias", "0.1.weight", "0.1.bias", "1.weight", "1.bias"]
    assert found["0.0.weight"].is_meta
    assert found["0.0.weight"].shape == (4, 2)
    assert not found["0.1.bias"].requires_grad
    assert found["1.weight"] is own.weight


def test_a_turn_has_room_for_nearly_every_batch():
    assert 8 * chunk_rows(Execution(), 100, 2) >= 140
    assert chunk_rows(Execution(micro_batch=5), 100, 2) == 5
    assert chunk_rows(Execution(micro_batch=5000), 100, 2) == 1280
    assert per_device(3) == (("0.*",), ("1.*",), ("2.*",))
