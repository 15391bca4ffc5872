"""Federated training on MNIST with one client as the unit of privacy: 6,000 clients with ten images each.

    python examples/federated_mnist.py [ε] [recipe …]

About 300 clients are asked in a round. The same noise weighs less among more clients: reproduction/experiments/du_table_4.toml has
25,000 and more.
"""

import sys

import torch
from torch import nn

import apportion as ap
from apportion import data

RECIPES = {"abadi": "threshold", "du-growing": "threshold", "du-sensitivity": "start", "du-dynamic": "start"}
LOCAL = ap.federated.LocalSGD(lr=0.2, batch_size=5)


def model():
    first, second = nn.Conv2d(1, 16, 8, 2, 3), nn.Conv2d(16, 32, 4, 2)
    images = [first, nn.ReLU(), nn.MaxPool2d(2, 1), second, nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten()]
    return nn.Sequential(*images, nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10))


def main(epsilon=8.0, recipes=tuple(RECIPES), images=10, rate=0.05, rounds=60, clip=0.5, mnist=None):
    mnist = mnist or data.load("mnist")
    clients = list(zip(*(part.split(images) for part in mnist.train), strict=True))
    budget = ap.Budget(epsilon=epsilon, delta=1 / (10 * len(clients)), unit=ap.User())
    for name in recipes:
        torch.manual_seed(0)
        recipe = ap.recipes.named(name).with_settings({f"clip.{RECIPES[name]}": clip})
        plan = ap.plan(recipe, budget=budget, population=len(clients), sample_rate=rate, steps=rounds)
        run = ap.federated.train(model(), clients, LOCAL, plan, evaluate=mnist.test)
        print(f"{name}: ε = {run.epsilon():.3f} for a client, accuracy {run.history[-1].score:.2%}", flush=True)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]), recipes=sys.argv[2:] or tuple(RECIPES))
