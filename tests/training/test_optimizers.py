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


BODY_AND_HEAD = "Use parameter groups of one optimizer"


@pytest.mark.parametrize("kind", [list, tuple, lambda both: dict(zip("ab", both, strict=True))])
def test_several_optimizers_are_refused_with_what_to_do(kind):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2))
    records = torch.randn(20, 3), torch.zeros(20, dtype=torch.long)
    budget = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())
    plan = ap.plan("abadi", budget=budget, population=20, sample_rate=0.5, steps=2)
    several = kind([torch.optim.SGD(part.parameters(), lr=0.1) for part in model])
    with pytest.raises(ap.InvalidArgument, match=BODY_AND_HEAD):
        ap.make_private(model, several, records, plan)
    for given in (several, lambda parameters, lr: several):
        with pytest.raises(ap.InvalidArgument, match=BODY_AND_HEAD):
            ap.train(model, torch.nn.functional.cross_entropy, records, plan, lr=0.1, optimizer=given)
    with pytest.raises(ap.InvalidArgument, match="as parameter groups if they need settings of their own"):
        ap.make_private(model, torch.optim.SGD(model[0].parameters(), lr=0.1), records, plan)
