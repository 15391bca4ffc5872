"""The scattering transform, against vectors of a published implementation and against what it must do."""

from pathlib import Path

import numpy as np
import pytest
import torch

import apportion as ap
from apportion.features.morlet_filters import image_bank

VECTORS = np.load(Path(__file__).with_name("scattering_vectors.npz"))
NAMES = sorted({name.partition(":")[0] for name in VECTORS.files})


def build(name):
    depth, angles, scale = VECTORS[f"{name}: settings"].tolist()
    return ap.features.Scatter(depth, angles, scale).build(VECTORS[f"{name}: inputs"].shape[1:])


@pytest.mark.parametrize("name", NAMES)
def test_it_computes_what_the_published_implementation_does(name):
    """That one writes 3.1415 for π in each of up to three filters. Of signals it takes means where filters are thinned out, and not sums,
    which divides features by 2^(sum of levels)."""
    inputs, expected = (torch.from_numpy(VECTORS[f"{name}: {what}"]) for what in ("inputs", "features"))
    if f"{name}: levels" in VECTORS.files:
        factors = torch.from_numpy(2 ** VECTORS[f"{name}: levels"].sum(1)).float()
        expected = expected * factors.repeat(inputs.shape[1])[:, None]
    torch.testing.assert_close(build(name)(inputs), expected, rtol=1e-4, atol=1e-6)


def test_an_image_of_mnist_has_81_channels_of_7_by_7():
    assert ap.features.Scatter().build((1, 28, 28))(torch.rand(2, 1, 28, 28)).shape == (2, 81, 7, 7)


def test_a_channel_is_transformed_by_itself():
    images = torch.rand(2, 3, 8, 9)
    whole = ap.features.Scatter().build((3, 8, 9))(images)
    parts = [ap.features.Scatter().build((1, 8, 9))(images[:, i : i + 1]) for i in range(3)]
    torch.testing.assert_close(whole, torch.cat(parts, 1))


@pytest.mark.parametrize("shape", [(1, 28, 28), (2, 9, 8), (2, 40)])
def test_a_record_has_the_same_features_to_the_bit_alone_and_among_others(shape):
    transform, records = ap.features.Scatter().build(shape), torch.rand(7, *shape)
    together = transform(records)
    for place in range(7):
        assert torch.equal(transform(records[place : place + 1])[0], together[place])


def test_wavelets_have_no_mean():
    assert all(abs(one[0, 0]) < 1e-12 for band in image_bank((12, 9), 2, 8).bands for one in band.filters)


def test_a_constant_image_has_its_value_and_nothing_else():
    found = ap.features.Scatter().build((1, 12, 12))(torch.full((1, 1, 12, 12), 0.7))
    torch.testing.assert_close(found[:, 0], torch.full((1, 3, 3), 0.7), rtol=1e-3, atol=0)
    assert found[:, 1:].abs().max() < 1e-5


@pytest.mark.parametrize("settings", [{"depth": 3}, {"depth": 0}, {"scale": 0}, {"angles": 0}, {"angles": 2.5}])
def test_settings_that_mean_nothing_are_refused(settings):
    with pytest.raises(ap.InvalidArgument, match=f"features.{next(iter(settings))}"):
        ap.features.Scatter(**settings)


@pytest.mark.parametrize("shape", [(1, 3, 28), (28,), (1, 2, 3, 4), (1, 3)])
def test_inputs_that_do_not_fit_are_refused(shape):
    with pytest.raises(ap.InvalidArgument, match="images"):
        ap.features.Scatter().build(shape)
