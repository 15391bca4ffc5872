"""Federated training on randomly distorted MNIST with one client as the unit of privacy, after Du et al., Table 4.

    python examples/federated_mnist.py [ε] [recipe …]

InfiniteMNIST, the clients and the local training of the paper are not published. Here a client has ten images of MNIST, each rotated,
scaled, sheared and shifted at random: 25,000 clients have 250,000 images. About 250 clients are asked in a round.
"""

import sys

import torch
from torch import nn
from torch.nn.functional import affine_grid, grid_sample

import apportion as ap
from apportion import data

RECIPES = {"abadi": "threshold", "du-growing": "threshold", "du-sensitivity": "start", "du-dynamic": "start"}
LOCAL = ap.federated.LocalSGD(lr=0.2, batch_size=5)


class DistortedClients:
    """Client u has ten images, which follow from u: always the same, and made when they are asked for."""

    def __init__(self, images, classes, clients):
        self.images, self.classes, self.clients = images, classes, clients

    def __len__(self):
        return self.clients

    def __getitem__(self, client):
        generator = torch.Generator().manual_seed(client)
        chosen = torch.randint(len(self.images), (10,), generator=generator)
        angle, size, shear, right, down = torch.randn(5, 10, generator=generator) * 0.1
        cosine, sine = torch.cos(angle) * (1 + size), torch.sin(angle) * (1 + size)
        rows = torch.stack([cosine, shear - sine, right, sine, cosine, down], 1).view(-1, 2, 3)
        grid = affine_grid(rows, [10, *self.images.shape[1:]], align_corners=False)
        return grid_sample(self.images[chosen], grid, align_corners=False), self.classes[chosen]


def model():
    first, second = nn.Conv2d(1, 16, 8, 2, 3), nn.Conv2d(16, 32, 4, 2)
    images = [first, nn.ReLU(), nn.MaxPool2d(2, 1), second, nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten()]
    return nn.Sequential(*images, nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10))


def main(epsilon=1.0, recipes=tuple(RECIPES), clients=25_000, asked=250, rounds=60, clip=0.5, mnist=None):
    mnist = mnist or data.load("mnist")
    budget = ap.Budget(epsilon=epsilon, delta=1 / (10 * clients), unit=ap.User())
    for name in recipes:
        torch.manual_seed(0)
        recipe = ap.recipes.named(name).with_settings({f"clip.{RECIPES[name]}": clip})
        plan = ap.plan(recipe, budget=budget, population=clients, sample_rate=asked / clients, steps=rounds)
        everyone = DistortedClients(*mnist.train, clients)
        run = ap.federated.train(model(), everyone, LOCAL, plan, evaluate=mnist.test)
        print(f"{name}: ε = {run.epsilon():.3f} for a client, accuracy {run.history[-1].score:.2%}", flush=True)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]), recipes=sys.argv[2:] or tuple(RECIPES))
