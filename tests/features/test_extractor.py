"""A feature map is public and fixed, and the features of a record are its own."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import apportion as ap
from apportion.features import Extractor, GroupNorm, Pretrained

STATED = "made up for a test"


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        return x


class Remembering(nn.Module):
    last = None

    def forward(self, x):
        found = x if self.last is None else x + self.last
        self.last = x.mean()
        return found


class Dropping(nn.Module):
    def forward(self, x):
        return functional.dropout(x, 0.5, training=True)


class Stuck(nn.Module):
    def train(self, mode=True):
        return super().train(True)

    def forward(self, x):
        return x


class Branching(nn.Module):
    """A value decides, so that nothing is proved about it; yet it mixes nothing."""

    def forward(self, x):
        return torch.stack([one * 2 if float(one.sum()) > 0 else one for one in x])


BATCH_STATISTICS = nn.BatchNorm2d(1, track_running_stats=False)


@pytest.mark.parametrize(
    "module", [Centred(), Counting(), Remembering(), Dropping(), Stuck(), BATCH_STATISTICS], ids=str
)
def test_a_map_that_mixes_records_or_is_not_fixed_is_refused(module):
    with pytest.raises(ap.InvalidArgument, match="features"):
        Extractor(Pretrained(module, public=STATED), (1, 4, 4), norm=None)  # which could hide it


@pytest.mark.parametrize("public", ["", "  ", None])
def test_weights_without_a_statement_are_refused(public):
    with pytest.raises(ap.InvalidArgument, match=r"features\.public"):
        Pretrained(nn.Flatten(), public=public)
    with pytest.raises(ap.InvalidArgument, match=r"features\.public"):
        Extractor(type("Own", (), {"public": public, "build": lambda self, shape: nn.Flatten()})(), (1, 4, 4))


@pytest.mark.parametrize("value", [nn.Flatten(), ap.features.Scatter, None, 3])
def test_what_is_no_feature_map_is_refused(value):
    with pytest.raises(ap.InvalidArgument, match="features"):
        Extractor(value, (1, 4, 4))


def test_a_frozen_network_is_applied_as_in_evaluation():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5))
    network(torch.rand(8, 1, 6, 6))  # statistics of public images
    extractor = Extractor(Pretrained(network, public=STATED), (1, 6, 6), norm=None)
    images = torch.rand(3, 1, 6, 6)
    assert extractor.together  # it is proved that records stay apart
    torch.testing.assert_close(extractor.train()(images), network.eval()(images).flatten(1))
    assert not any(one.requires_grad for one in extractor.parameters())
    assert not nn.Sequential(extractor, nn.Linear(extractor.width, 2)).train()[0].training


def test_a_map_of_which_nothing_is_proved_runs_record_by_record():
    assert not Extractor(Pretrained(Branching(), public=STATED), (1, 4, 4)).together
    assert Extractor(ap.features.Scatter(), (1, 4, 4)).together


def test_group_normalisation_is_of_each_record_and_group():
    features = torch.rand(3, 6, 2, 2)
    features[1] *= 100
    found = GroupNorm(groups=4).apply(features)  # 3 groups of 2 channels: 4 does not divide 6
    for record in range(3):
        for group in range(3):
            one = features[record, 2 * group : 2 * group + 2]
            expected = (one - one.mean()) / (one.var(correction=0) + 1e-5).sqrt()
            torch.testing.assert_close(found[record, 2 * group : 2 * group + 2], expected)


def test_features_without_positions_are_one_group():
    flat = torch.rand(2, 30)
    torch.testing.assert_close(GroupNorm().apply(flat), functional.layer_norm(flat, (30,)))


def test_the_digest_tells_apart_whatever_computes_something_else():
    def digest(module, **settings):
        return Extractor(Pretrained(module, public=STATED), (1, 4, 4), **settings).digest()

    class Twice(nn.Module):
        factor = 2.0

        def forward(self, x):
            return self.factor * x

    one = nn.Conv2d(1, 2, 3)
    other = nn.Conv2d(1, 2, 3)
    before = digest(Twice(), norm=None)
    Twice.factor = 3.0  # neither settings nor weights, but what the code does
    found = [before, digest(Twice(), norm=None), digest(one), digest(other), digest(one, norm=None)]
    assert len(set(found)) == len(found)
    assert digest(one) == digest(one)
