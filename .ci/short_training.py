"""A private training that takes a second and needs no extra. It prints ε."""

import torch
from torch import nn

import apportion as ap

records = torch.randn(64, 3), torch.randint(2, (64,))
budget = ap.Budget(epsilon=2.0, delta=1e-5, unit=ap.Record())
plan = ap.plan("abadi", budget=budget, population=64, sample_rate=0.25, steps=5)
model = nn.Linear(3, 2)
ap.check(model).require()
run = ap.train(model, nn.functional.cross_entropy, records, plan, lr=0.1, progress=True)
print(run.epsilon())
