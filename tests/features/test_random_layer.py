"""Random directions of whitened channels, rectified and averaged."""

from __future__ import annotations

import pytest
import torch

import apportion as ap
from apportion.compare.feature_choice import FeatureChoice
from apportion.features.dead_leaves import dead_leaves
from apportion.features.random_layer import _Directions

SCATTER = ap.features.Scatter(angles=2, scale=1)


@pytest.mark.parametrize("threshold", [0.0, 0.5])
def test_means_of_what_passes_the_threshold_on_either_side(threshold):
    matrix, mean = torch.tensor([[2.0, 1.0], [0.0, 1.0]]), torch.tensor([[0.5], [-0.5]])
    layer = _Directions(matrix, mean, directions=3, threshold=threshold)
    values = torch.randn(4, 2, 8, 12)
    rows = layer.get_buffer("_rows")
    assert rows.norm(dim=1).tolist() == pytest.approx([1] * 3)
    expected = torch.zeros(4, 6, 4, 4)
    for record in range(4):
        for row in range(8):
            for column in range(12):
                evened = matrix @ (values[record, :, row, column] - mean[:, 0])
                found = rows @ (evened / evened.norm() * 2**0.5)
                both = torch.cat([found, -found]) - threshold
                expected[record, :, row // 2, column // 3] += both.clamp(min=0) / 6
    assert layer(values).numpy() == pytest.approx(expected.flatten(2).numpy(), abs=1e-5)


def test_drawn_images_have_centred_features_of_variance_one():
    extractor = ap.features.Extractor(ap.features.RandomLayer(SCATTER, directions=20), (3, 16, 16), norm=None)
    found = extractor(dead_leaves(300, (3, 16, 16), seed=5)).unflatten(1, (40, 16))
    assert found.square().mean() == pytest.approx(1, abs=0.15)
    assert found.mean((0, 2)).abs().max() < 0.3


def test_features_of_a_record_are_its_own_whatever_its_contrast_is():
    layer = ap.features.RandomLayer(SCATTER, directions=5)
    extractor = ap.features.Extractor(layer, (1, 8, 8), norm=None)
    assert extractor.together
    records = torch.rand(6, 1, 8, 8)
    assert extractor(records)[3].numpy() == pytest.approx(extractor(records[3:4])[0].numpy(), abs=1e-4)
    assert torch.isfinite(extractor(torch.full((1, 1, 8, 8), 0.5))).all()  # an image without anything
    faint = (records - 0.5) / 4 + 0.5
    assert (extractor(faint) - extractor(records)).abs().mean() < 0.1  # their scale is about 1
    assert ap.features.Extractor(layer, (1, 8, 8), norm=None).digest() == extractor.digest()
    assert "5 random directions" in layer.public


@pytest.mark.parametrize("settings", [{"directions": 0}, {"threshold": -0.1}, {"power": 1.0}, {"groups": 0}])
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(ap.errors.InvalidArgument, match=next(iter(settings))):
        ap.features.RandomLayer(SCATTER, **settings)


def test_signals_and_words_are_refused():
    for features, shape in ((SCATTER, (2, 32)), (ap.features.WordCounts(), (64,))):
        with pytest.raises(ap.errors.InvalidArgument, match="RandomLayer on inputs"):
            ap.features.Extractor(ap.features.RandomLayer(features), shape, norm=None)


def test_it_can_be_said_in_words_where_features_are_whitened():
    choice = FeatureChoice.model_validate("scatter directions=7 groups=9")
    assert choice.build_map() == ap.features.RandomLayer(ap.features.Scatter(), 7, groups=9)
    with pytest.raises(ap.errors.InvalidArgument, match="norm=group"):
        FeatureChoice.model_validate("scatter directions=7 norm=group").build_map()
