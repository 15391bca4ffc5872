"""Features that are whitened by drawn images."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

import apportion as ap
from apportion.features.dead_leaves import dead_leaves
from apportion.features.whitening import _LEAST, covariance_power


def test_drawn_images_are_the_same_each_time_and_fill_their_range():
    images = dead_leaves(40, (3, 24, 16))
    assert images.shape == (40, 3, 24, 16)
    assert torch.equal(images, dead_leaves(40, (3, 24, 16)))
    assert not torch.equal(images, dead_leaves(40, (3, 24, 16), seed=1))
    assert images.min() >= 0
    assert images.max() <= 1
    assert images.var(dim=(0, 2, 3)).min() > 0.03


def test_drawn_images_change_more_over_longer_distances_as_photographs_do():
    images = dead_leaves(100, (1, 32, 32))
    steps = [float((images[..., far:] - images[..., :-far]).square().mean()) for far in (1, 2, 4, 8)]
    ratios = [later / earlier for earlier, later in pairwise(steps)]
    assert all(1.1 < ratio < 3.2 for ratio in ratios)  # noise has 1, a ramp 4


@pytest.mark.parametrize("power", [-0.25, -0.5, 0.25])
def test_variances_are_raised_to_the_power(power):
    torch.manual_seed(0)
    turned = torch.linalg.qr(torch.randn(4, 4)).Q
    rows = (turned @ torch.diag(torch.tensor([8.0, 2.0, 1.0, 0.5])) @ torch.randn(4, 20_000)).double()
    matrix = covariance_power(rows, power)
    variances = torch.linalg.eigvalsh(torch.cov(rows))
    found = torch.linalg.eigvalsh(torch.cov(matrix @ rows))
    expected = variances * (variances / variances.mean() + _LEAST) ** (2 * power)
    assert found.numpy() == pytest.approx(expected.sort().values.numpy(), rel=0.01)
    assert matrix.mT.numpy() == pytest.approx(matrix.numpy(), abs=1e-9)


def test_drawn_images_have_centred_features_of_variance_one_with_fewer_long_directions():
    plain = ap.features.Extractor(ap.features.Scatter(angles=4), (1, 16, 16))
    white = ap.features.Extractor(ap.features.Whiten(ap.features.Scatter(angles=4)), (1, 16, 16), norm=None)
    images = dead_leaves(300, (1, 16, 16), seed=5)
    found = white(images).unflatten(1, (-1, 16))
    assert found.square().mean() == pytest.approx(1, abs=0.15)
    assert found.mean((0, 2)).abs().max() < 0.3
    spread = lambda rows: float(torch.linalg.eigvalsh(torch.cov(rows))[-1] / rows.var(1).sum())  # noqa: E731
    channels = [one(images).unflatten(1, (-1, 16)).transpose(0, 1).flatten(1) for one in (white, plain)]
    assert spread(channels[0]) < 0.7 * spread(channels[1])


def test_features_of_a_record_are_its_own_and_computed_together():
    extractor = ap.features.Extractor(ap.features.Whiten(ap.features.Scatter(angles=2)), (1, 8, 8), norm=None)
    assert extractor.together
    records = torch.rand(6, 1, 8, 8)
    assert extractor(records)[3].numpy() == pytest.approx(extractor(records[3:4])[0].numpy(), abs=1e-4)
    again = ap.features.Extractor(ap.features.Whiten(ap.features.Scatter(angles=2)), (1, 8, 8), norm=None)
    assert again.digest() == extractor.digest()
    other = ap.features.Extractor(ap.features.Whiten(ap.features.Scatter(angles=2), power=0.4), (1, 8, 8), norm=None)
    assert other.digest() != extractor.digest()
    assert "drawn images" in extractor.features.public


def test_signals_are_whitened_too():
    extractor = ap.features.Extractor(ap.features.Whiten(ap.features.Scatter()), (2, 32), norm=None)
    assert extractor.together
    assert torch.isfinite(extractor(torch.rand(2, 2, 32))).all()


@pytest.mark.parametrize(
    ("features", "shape", "message"),
    [
        (ap.features.WordCounts(), (64,), "are drawn to whiten it by"),
        (ap.features.Pretrained(nn.Flatten(), public="no weights"), (1, 8, 8), "whitened over positions"),
    ],
)
def test_what_has_no_positions_is_refused(features, shape, message):
    with pytest.raises(ap.InvalidArgument, match=message):
        ap.features.Whiten(features).build(shape)
