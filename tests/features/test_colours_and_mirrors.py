"""Opponent colours, and the mean of an image and its mirror image."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import apportion as ap
from apportion.compare.feature_choice import FeatureChoice

AS_THEY_ARE = ap.features.Pretrained(nn.Identity(), public="no weights")
SCATTER = ap.features.Scatter(angles=2, scale=1)


def test_brightness_and_the_two_differences_are_a_rotation_of_the_colours():
    found = ap.features.Extractor(ap.features.Opponent(AS_THEY_ARE), (3, 1, 1), norm=None)
    colours = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.2, 0.5, 0.9]])
    expected = [
        [math.sqrt(3), 0, 0],
        [1 / math.sqrt(3), 1 / math.sqrt(2), 1 / math.sqrt(6)],
        [1.6 / math.sqrt(3), -0.7 / math.sqrt(2), 0.1 / math.sqrt(6)],
    ]
    answers = found(colours[:, :, None, None])
    assert answers.numpy() == pytest.approx(torch.tensor(expected).numpy(), abs=1e-6)
    assert answers.norm(dim=1).numpy() == pytest.approx(colours.norm(dim=1).numpy(), rel=1e-6)


def test_each_pixel_is_turned_by_itself():
    images = torch.rand(5, 3, 4, 6)
    found = ap.features.Opponent(AS_THEY_ARE).build((3, 4, 6))(images)
    assert found.shape == images.shape
    for row, column in ((0, 0), (3, 5), (2, 1)):
        pixel = ap.features.Opponent(AS_THEY_ARE).build((3, 1, 1))(images[..., row : row + 1, column : column + 1])
        assert found[..., row, column].numpy() == pytest.approx(pixel[..., 0, 0].numpy(), abs=1e-6)


def test_an_image_and_its_mirror_image_have_the_same_features_and_those_are_the_mean():
    both = ap.features.Mirror(AS_THEY_ARE).build((1, 1, 3))
    assert both(torch.tensor([[[[1.0, 2.0, 5.0]]]])).flatten().tolist() == [3, 2, 3]
    extractor = ap.features.Extractor(ap.features.Mirror(ap.features.Whiten(SCATTER)), (3, 8, 8), norm=None)
    images = torch.rand(4, 3, 8, 8)
    found = extractor(images)
    assert found.numpy() == pytest.approx(extractor(images.flip(-1)).numpy(), abs=1e-4)
    assert not torch.allclose(found, extractor(images.flip(-2)), atol=1e-2)


def test_records_stay_apart_and_the_statement_says_what_was_done():
    features = ap.features.Mirror(ap.features.Whiten(ap.features.Opponent(SCATTER)))
    extractor = ap.features.Extractor(features, (3, 8, 8), norm=None)
    assert extractor.together
    records = torch.rand(3, 3, 8, 8)
    assert extractor(records)[1].numpy() == pytest.approx(extractor(records[1:2])[0].numpy(), abs=1e-4)
    assert features.public.endswith("of opponent colours; whitened by drawn images; the mean with the mirror image")


@pytest.mark.parametrize(
    ("features", "shape", "message"),
    [
        (ap.features.Opponent(SCATTER), (1, 8, 8), "red, green and blue"),
        (ap.features.Opponent(SCATTER), (3, 8), "red, green and blue"),
        (ap.features.Mirror(SCATTER), (3, 8), "left and right"),
        (ap.features.Mirror(ap.features.WordCounts()), (8,), "left and right"),
    ],
)
def test_other_inputs_are_refused(features, shape, message):
    with pytest.raises(ap.errors.InvalidArgument, match=message):
        ap.features.Extractor(features, shape)


def test_they_can_be_said_in_words_and_are_kept_only_where_they_were():
    choice = FeatureChoice.model_validate("scatter colours=opponent mirror=true scale=1 norm=whiten")
    assert choice.build_map() == ap.features.Mirror(
        ap.features.Whiten(ap.features.Opponent(ap.features.Scatter(scale=1)))
    )
    assert FeatureChoice(**choice.model_dump()) == choice
    plain = FeatureChoice.model_validate("scatter")
    assert plain.build_map() == ap.features.Whiten(ap.features.Scatter())
    assert not {"colours", "mirror"} & set(plain.model_dump())
    with pytest.raises(ap.errors.InvalidArgument, match="features.colours"):
        FeatureChoice.model_validate("scatter colours=grey").build_map()
