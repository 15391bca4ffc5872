"""Three groups of people who ask for different ε: everybody gets their own, and the ledger of the data set keeps it.

    python examples/budgets_of_people.py

Handwritten digits stand for the records. A third of the people asked for ε = 1, most for 2, some for 4. Under one budget for all, the
strictest would decide for everybody.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import apportion as ap
from apportion import data

GROUPS = [ap.Group("strict", 1.0, share=0.34), ap.Group("usual", 2.0, share=0.43), ap.Group("open", 4.0, share=0.23)]


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 10))


def main(steps: int = 200) -> None:
    digits = data.load("digits")
    asked = np.random.default_rng(0).choice([group.name for group in GROUPS], 1437, p=[0.34, 0.43, 0.23])
    own = ap.Budget.of_groups(GROUPS, delta=1e-5, unit=ap.Record(), labels=asked)
    strictest = ap.Budget(epsilon=1.0, delta=1e-5, unit=ap.Record())
    for name, budget in (("one budget for all", strictest), ("a budget for each group", own)):
        plan = ap.plan("default", budget=budget, population=1437, sample_rate=0.2, steps=steps)
        with tempfile.TemporaryDirectory() as folder:
            storage = ap.Storage(Path(folder) / "run")
            run = ap.train(model(), "cross-entropy", digits.train, plan, lr=2.0, evaluate=digits.test, storage=storage)
            print(f"{name}: accuracy {run.history[-1].test_accuracy:.1%}, usable records about {run.usable or 0:.0%}")
            for group in plan.budget.groups:
                print(f"  {group.name}: ε = {run.epsilon(group=group.name):.2f} of {group.epsilon:g}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
