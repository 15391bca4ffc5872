"""A private training that takes a second and needs no extra. It prints ε."""

import torch
from torch import nn

import apportion as ap

torch.manual_seed(0)
records = torch.randn(64, 3), torch.randint(2, (64,))
run = ap.train(
    nn.Linear(3, 2),
    nn.functional.cross_entropy,
    records,
    budget=ap.Budget(epsilon=2.0, delta=1e-5, unit=ap.Record()),
    population=64,
    sample_rate=0.25,
    steps=5,
    lr=0.1,
    progress=True,
)
ap.check(nn.Linear(3, 2)).require()
print(run.epsilon())
