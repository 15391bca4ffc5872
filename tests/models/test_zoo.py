"""Every model of the zoo trains in one pass, layer by layer by a rule, and exactly.

Against the reference engine, which runs every record alone (`tests/curator/test_reference_gradients.py` holds that one against
ordinary backward passes).
"""

import functools
import itertools
import math
import sys
from pathlib import Path

import pytest
import torch

from apportion.curator.clipping import as_gradients, clip_and_sum
from apportion.curator.gradients.engine import build_engine
from apportion.curator.gradients.model_walk import trained_parameters
from apportion.curator.tree import map_tensors
from apportion.models.engine_choice import choose_engine
from apportion.models.probe import probe_loss, probe_model
from apportion.releases import ClippedSum

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from suites import thinned
from zoo import ZOO

TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4}
ONE_PASS = ("one-pass", "one-pass, channels last", "one-pass, copying inputs")


def built(name, size=5, dtype=torch.float64):
    torch.manual_seed(7)
    specimen = ZOO[name]
    model = specimen.model().to(dtype)
    records = map_tensors(
        lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, specimen.records(size)
    )
    return model, *records, specimen.loss


@functools.cache
def mode_of(name):
    model, inputs, targets, loss = built(name, size=1)
    example = map_tensors(lambda tensor: tensor[0], (inputs, targets))
    return choose_engine(model, loss, *example).mode


def gradients_of(engine, inputs, targets, loss_fn):
    loss = engine.record_losses(loss_fn, engine.forward(map_tensors(torch.clone, inputs)), targets).sum()
    engine.require_own_parameters(loss)
    loss.backward()
    return as_gradients(engine.gradients())


def groupings(names, squares):
    """Thresholds in the middle of the records' norms, so that some are clipped and others are not."""

    def release(group, share):
        norms = torch.stack([squares[name] for name in group]).sum(0).sqrt()
        return ClippedSum(0.9 * float(norms.max()) or 1.0, tuple(group), share)

    layers = {name.rpartition(".")[0]: [] for name in names}
    for name in names:
        layers[name.rpartition(".")[0]].append(name)
    half = max(1, len(names) // 2)
    halves = [names[:half], names[half:]] if len(names) > 1 else [names]
    return {
        "flat": [release(names, 1.0)],
        "layers": [release(group, 1 / len(layers)) for group in layers.values()],
        "two groups": [release(group, 1 / len(halves)) for group in halves],
    }


def close(found, expected, tolerance):
    """Relative to the whole vector: single entries may be nothing but rounding."""
    whole = math.sqrt(sum(float(value.double().square().sum()) for value in expected.values()))
    for name, value in expected.items():
        assert float((found[name].double() - value.double()).norm()) <= tolerance * whole, name


def test_there_are_enough_of_them():
    assert len(ZOO) >= 25


@pytest.mark.parametrize("name", ZOO)
def test_a_model_runs_in_one_pass_without_a_fallback(name):
    model, inputs, targets, loss = built(name, size=1)
    example = map_tensors(lambda tensor: tensor[0], (inputs, targets))
    probe_model(model, example[0])
    probe_loss(model, loss, *example)
    mode = choose_engine(model, loss, *example).mode
    assert mode in ONE_PASS
    assert build_engine(model, mode).fallbacks == ()


def in_core(name, size, dtype):
    """Five records in float64, or one in float32: what is right in both is right in the other two, which the long suite has."""
    return (size == 5) == (dtype == torch.float64)


@pytest.mark.parametrize(
    ("name", "size", "dtype"), thinned(itertools.product(ZOO, [1, 5], TOLERANCES), in_core), ids=str
)
def test_norms_and_clipped_sums_are_those_of_single_records(name, size, dtype):
    model, inputs, targets, loss = built(name, size, dtype)
    names = list(trained_parameters(model))
    engine, reference = build_engine(model, mode_of(name)), build_engine(model, "loop")
    expected = gradients_of(reference, inputs, targets, loss)
    found = gradients_of(engine, inputs, targets, loss)
    squares, tolerance = expected.squared_norms(), TOLERANCES[dtype]
    norms = {key: value.sqrt() for key, value in found.squared_norms().items()}
    assert list(norms) == names
    for record in range(size):  # a record's own size is the measure of its own norms
        close(
            {key: value[record] for key, value in norms.items()},
            {key: value[record].sqrt() for key, value in squares.items()},
            tolerance,
        )
    clipped = 0
    for releases in groupings(names, squares).values():
        sums = clip_and_sum(expected, releases)
        close(clip_and_sum(found, releases), sums, tolerance)
        clipped += sum(
            int((torch.stack([squares[key] for key in release.parameters]).sum(0).sqrt() > release.threshold).sum())
            for release in releases
        )
    assert clipped >= 3, "the case would not notice missing clipping"


def spoilt(inputs):
    """NaN in the first record, where it has numbers that can be NaN."""

    def leaf(tensor):
        if tensor.is_floating_point():
            tensor = tensor.clone()
            tensor[0] = math.nan
        return tensor

    return map_tensors(leaf, inputs)


@pytest.mark.parametrize("name", ZOO)
def test_a_record_of_nan_contributes_nothing(name):
    model, inputs, targets, loss = built(name)
    releases = [ClippedSum(0.1, (key,), 1.0) for key in trained_parameters(model)]
    engine = build_engine(model, mode_of(name))

    def sums(data):
        return clip_and_sum(gradients_of(engine, *data, loss), releases)

    others = map_tensors(lambda tensor: tensor[1:], (inputs, targets))
    expected = sums(others)
    bad = (spoilt(inputs), targets)
    if all(not tensor.is_floating_point() for tensor in torch.utils._pytree.tree_leaves(inputs)):
        real = loss

        def loss(outputs, wanted):  # tokens cannot be NaN, but their loss can
            return real(outputs, wanted[0]) * wanted[1].mean()

        factors = torch.ones(5).double()
        expected = sums((others[0], (others[1], factors[1:])))
        factors[0] = math.nan
        bad = (inputs, (targets, factors))
    close(sums(bad), expected, 1e-9)
