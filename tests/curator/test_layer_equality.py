"""Layer × shape × grouping: what the one-pass engine gives is what ordinary backward passes of single records give.

The expectation is torch's own: the model itself, one record at a time, in float64, clipped by three lines of arithmetic.
"""

import copy
import math
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.curator.clipping import clip_and_sum
from apportion.curator.gradients.one_pass import OnePass
from apportion.curator.tree import call_model, map_tensors
from apportion.releases import ClippedSum

sys.path.insert(0, str(Path(__file__).resolve().parent))
from layer_cases import FAMILIES

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")  # torch's own remark
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4}
EXAMPLES = 5


def converted(tree, dtype):
    return map_tensors(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, tree)


def loss_of(output):
    """A sum over records, with other weights for every number of a record's output."""
    flat = output.flatten(1)
    return (flat.sin() * torch.linspace(0.5, 2.0, flat.shape[1], dtype=flat.dtype)).sum()


def single_records(model, inputs, size):
    """The gradients of every record by itself, (b, *shape) by name, in float64."""
    # Inputs ask for a gradient because torch 2.13 crashes in the backward pass of a GroupNorm on channels_last images that do not.
    exact = copy.deepcopy(model).double()
    inputs = map_tensors(
        lambda tensor: tensor.detach().requires_grad_(tensor.is_floating_point()), converted(inputs, torch.float64)
    )
    trained = {name: p for name, p in exact.named_parameters() if p.requires_grad}
    rows = {name: [] for name in trained}
    for i in range(size):
        exact.zero_grad(set_to_none=True)
        loss_of(call_model(exact, map_tensors(lambda tensor, i=i: tensor[i : i + 1], inputs))).backward()
        for name, p in trained.items():
            rows[name].append(torch.zeros_like(p) if p.grad is None else p.grad)
    return {name: torch.stack(found) for name, found in rows.items()}


def by_hand(rows, releases):
    """Σ_i g_i·min(1, C/‖g_i‖) for every group."""
    sums = {}
    for release in releases:
        norms = torch.stack([rows[name].flatten(1).square().sum(1) for name in release.parameters]).sum(0).sqrt()
        weights = (release.threshold / norms).clamp(max=1.0)
        sums |= {name: torch.tensordot(weights, rows[name], 1) for name in release.parameters}
    return sums


def groups_of(grouping, names):
    match grouping:
        case "flat":
            return [names]
        case "two groups":
            return [names[::2], names[1::2]] if len(names) > 1 else [names]
        case "layers":
            layers = dict.fromkeys(name.rpartition(".")[0] for name in names)
            return [[name for name in names if name.rpartition(".")[0] == layer] for layer in layers]
    return [[name] for name in names]


def releases_for(groups, rows):
    """A threshold between the records' norms, so that some are clipped and others are not."""
    releases = []
    for group in groups:
        norms = torch.stack([rows[name].flatten(1).square().sum(1) for name in group]).sum(0).sqrt()
        releases.append(ClippedSum(float(norms.mean()) * 0.95 or 1.0, tuple(group), 1 / len(groups)))
    return releases


def size_of(values):
    return math.sqrt(sum(float(value.double().square().sum()) for value in values))


def laid_out(draw, model, inputs):
    """The same numbers in another order in memory, or repeated without a copy."""
    layout = draw(st.sampled_from(["plain", "transposed", "expanded", "channels last", "channels last, model too"]))
    if layout == "channels last, model too" and any(p.dim() == 4 for p in model.parameters()):
        model = model.to(memory_format=torch.channels_last)

    def leaf(tensor):
        if "channels" in layout and tensor.dim() == 4:
            return tensor.contiguous(memory_format=torch.channels_last)
        if layout == "transposed" and tensor.dim() > 1:
            return tensor.transpose(0, -1).contiguous().transpose(0, -1)
        if layout == "expanded":
            return tensor[:1].expand_as(tensor)
        return tensor

    return model, map_tensors(leaf, inputs)


def frozen(draw, model):
    """Some parameters do not learn, but one always does."""
    learning = [p for p in model.parameters() if p.requires_grad]
    if draw(st.booleans()):
        kept = draw(st.integers(0, len(learning) - 1))
        for place, parameter in enumerate(learning):
            parameter.requires_grad_(place == kept or draw(st.booleans()))


def check(family, dtype, draw):
    torch.manual_seed(draw(st.integers(0, 2**16)))
    model, make = FAMILIES[family](draw)
    frozen(draw, model)
    size = draw(st.integers(1, 5))
    micro_batch = draw(st.integers(1, size))
    model, inputs = laid_out(draw, model.to(dtype), converted(make(size), dtype))
    rows, tolerance = single_records(model, inputs, size), TOLERANCES[dtype]
    names = list(rows)
    releases = releases_for(groups_of(draw(st.sampled_from(["flat", "two groups", "layers", "each"])), names), rows)
    engine = OnePass(model)
    assert engine.fallbacks == () or family == "parametrized"
    totals = {name: torch.zeros_like(row[0]) for name, row in rows.items()}
    for start in range(0, size, micro_batch):
        piece = slice(start, start + micro_batch)  # the last one may be ragged
        loss_of(engine.forward(map_tensors(lambda tensor, piece=piece: tensor[piece], inputs))).backward()
        gradients = engine.gradients()
        norms = gradients.squared_norms()
        assert list(norms) == names
        for i, record in enumerate(range(size)[piece]):
            whole = size_of([row[record] for row in rows.values()])
            for name, row in rows.items():
                assert abs(float(norms[name][i].sqrt()) - size_of([row[record]])) <= tolerance * whole, name
        for name, part in clip_and_sum(gradients, releases).items():
            totals[name] += part
    expected = by_hand(rows, releases)
    for name, value in expected.items():
        assert size_of([totals[name] - value]) <= tolerance * size_of(expected.values()), name


@pytest.mark.parametrize("dtype", TOLERANCES, ids=["float64", "float32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_single_records(family, dtype):
    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)
    @given(st.data())
    def run(data):
        check(family, dtype, data.draw)

    run()


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in ("parametrized", "instance norm")])
def test_no_records_at_all(family):
    """An empty draw needs no engine; if one is asked, it says zero. Neither `vmap` nor torch's instance norm run on nothing."""

    @settings(max_examples=1, deadline=None, derandomize=True, database=None)
    @given(st.data())
    def run(data):
        model, make = FAMILIES[family](data.draw)
        engine = OnePass(model)
        loss_of(engine.forward(make(0))).backward()
        gradients = engine.gradients()
        assert all(norms.shape == (0,) for norms in gradients.squared_norms().values())
        sums = clip_and_sum(gradients, [ClippedSum(1.0)])
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                assert sums[name].shape == parameter.shape
                assert not sums[name].any()

    run()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TOLERANCES, ids=["float64", "float32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_many_more_single_records(family, dtype):
    @settings(max_examples=100, deadline=None, derandomize=True, database=None)
    @given(st.data())
    def run(data):
        check(family, dtype, data.draw)

    run()
