import pytest
import torch
from torch import nn

import apportion as ap

torch.set_num_threads(1)  # the suite runs one process for each core


@pytest.fixture
def budget():
    return ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())


@pytest.fixture
def records():
    """Forty records of four features and two classes."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(40, 4, generator=generator)
    return inputs, (inputs.sum(1) > 0).long()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


class Books:
    """Keeps charges in a list and refuses nothing."""

    def __init__(self):
        self.events = []

    def charge(self, event):
        self.events.append(event)


@pytest.fixture
def books():
    return Books()
