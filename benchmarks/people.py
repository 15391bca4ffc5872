"""What groups with budgets of their own add to a step: `people.Sample` and `people.Scale` against one budget for all.

    python benchmarks/people.py                 # JSON lines: milliseconds a record and ratios
    python benchmarks/people.py --rounds 31 --target 1.03

A step of the MNIST network of 26,010 parameters with 60,000 made-up records in three groups and 512 expected in a batch, everything
included: charge, coins, gradients, clipping, noise, optimiser. Kinds take turns, so that a slow moment hits all of them; batches differ in
size, so CPU time is taken for each record that was drawn. Exit code 1 if a median ratio exceeds the target.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap

RECORDS, SIZE = 60_000, 512
GROUPS = {"high": (1.0, 0.34), "medium": (2.0, 0.43), "low": (3.0, 0.23)}
STEPS = 2_000
KINDS = {"one budget": None, "sample": ap.people.Sample(), "scale": ap.people.Scale()}


def network() -> nn.Module:
    """The network of Papernot et al. 2021 for MNIST."""
    torch.manual_seed(0)
    first = [nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.Tanh(), nn.MaxPool2d(2, stride=1)]
    second = [nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, stride=1), nn.Flatten()]
    return nn.Sequential(*first, *second, nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10))


def steps(people: ap.People | None, data: tuple[torch.Tensor, torch.Tensor], labels: list[int]) -> Iterator[int]:
    """Takes a step each time it is asked, and says how many records were drawn."""
    budget = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())
    if people is not None:
        budget = ap.Budget.of_groups(GROUPS, delta=1e-5, unit=ap.Record(), labels=labels)
    recipe = ap.Recipe(clip=ap.clip.Fixed(0.2), people=people)
    plan = ap.plan(recipe, budget=budget, population=RECORDS, batch_size=SIZE, steps=STEPS)
    model = network()
    private = ap.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), data, plan)
    while True:
        drawn = 0
        for inputs, targets in private.batches(steps=1):
            drawn += len(targets)
            private.optimizer.zero_grad()
            cross_entropy(private.model(inputs), targets).backward()
            private.optimizer.step()
        yield drawn


def measure(rounds: int) -> dict[str, list[float]]:
    """CPU seconds for each record drawn, by kind and round."""
    data = torch.randn(RECORDS, 1, 28, 28), torch.randint(10, (RECORDS,))
    ends = torch.tensor([0.34, 0.77, 1.0]) * RECORDS
    labels = torch.bucketize(torch.arange(RECORDS), ends, right=True).tolist()
    running = {name: steps(people, data, labels) for name, people in KINDS.items()}
    taken: dict[str, list[float]] = {name: [] for name in KINDS}
    for turn in range(-2, rounds):
        for name, one in running.items():
            start = time.process_time()
            drawn = sum(next(one) for _ in range(4))
            if turn >= 0:
                taken[name].append((time.process_time() - start) / drawn)
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--target", type=float, default=1.03)
    options = parser.parse_args()
    torch.set_num_threads(2)
    taken, missed = measure(options.rounds), False
    for name, times in taken.items():
        ratio = statistics.median(a / b for a, b in zip(times, taken["one budget"], strict=True))
        missed |= ratio > options.target
        print(json.dumps({"kind": name, "milliseconds_a_record": 1e3 * statistics.median(times), "ratio": ratio}))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
