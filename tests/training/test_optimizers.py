import pytest
import torch

import apportion as ap
from apportion.search import SearchSettings
from apportion.training.optimizers import build_optimizer, with_momentum


def test_sgd_takes_any_momentum():
    built = build_optimizer(torch.nn.Linear(2, 1), with_momentum("sgd", 0.8), 0.5)
    assert isinstance(built, torch.optim.SGD)
    assert (built.param_groups[0]["momentum"], built.param_groups[0]["lr"]) == (0.8, 0.5)


@pytest.mark.parametrize("name", ["sgd", "adam", "momentum"])
def test_without_one_the_optimiser_stays_as_it_is_named(name):
    assert with_momentum(name, 0.0) == name


@pytest.mark.parametrize(("name", "value"), [("adam", 0.5), ("momentum", 0.5), ("sgd", 1.0), ("sgd", -0.1)])
def test_a_momentum_that_means_nothing_is_refused(name, value):
    with pytest.raises(ap.InvalidArgument, match="momentum="):
        with_momentum(name, value)
    with pytest.raises(ap.InvalidArgument, match="momentum="):
        SearchSettings(data="digits", noise_multiplier=1.0, optimizer=name, momentum=value)
