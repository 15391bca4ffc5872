import pytest
import torch

import apportion as ap
from apportion.accounting.ledger import Ledger
from apportion.accounting.run_filter import SumOfRuns
from tuning.small_models import STEPS


@pytest.fixture
def evaluate():
    inputs = torch.randn(50, 4, generator=torch.Generator().manual_seed(2))
    return ap.Public((inputs, (inputs.sum(1) > 0).long()))


@pytest.fixture
def plan(budget):
    return ap.plan("abadi", budget=budget, population=40, sample_rate=1.0, steps=STEPS)


@pytest.fixture
def plans(plan, budget):
    return [plan, ap.plan("lin-decay", budget=budget, population=40, sample_rate=1.0, steps=STEPS)]


@pytest.fixture
def ledger(tmp_path):
    """Room for two searches of ε = 3."""
    path = tmp_path / "ledger.sqlite"
    limit = ap.Budget(epsilon=6.0, delta=1e-4, unit=ap.Record())
    Ledger.create(path, name="patients", rule=SumOfRuns(limit)).close()
    return path
