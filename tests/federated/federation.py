"""Clients for tests, whose update is known: the data of a client is the update that it sends."""

import os
import signal

import torch
from torch import nn

import apportion as ap
from apportion.federated.clients import Reply

POPULATION, RATE, ROUNDS = 40, 0.3, 5


def server(features=4, dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(features, 3), nn.Tanh(), nn.Linear(3, 2)).to(dtype)


def parameters(model):
    return dict(model.named_parameters())


def random_update(model, size=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: size * torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value.dtype)
        for name, value in model.named_parameters()
    }


def updates(model, count, size=1.0):
    return [random_update(model, size, seed) for seed in range(count)]


def add_update(model, update):
    """Local training that is known in advance: the weights move by the client's data."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            value += update[name]


def plan(recipe="abadi", *, epsilon=8.0, rounds=ROUNDS, population=POPULATION, rate=RATE, count_usable=False, **others):
    budget = others.pop("budget", None) or ap.Budget(epsilon=epsilon, delta=1e-4, unit=ap.User())
    return ap.plan(
        recipe,
        budget=budget,
        population=population,
        sample_rate=rate,
        steps=rounds,
        count_usable=count_usable,
        **others,
    )


class Scripted:
    """Clients that send what a function says, and a list of who was asked."""

    def __init__(self, count, answers):
        self.count, self.answers, self.asked = count, answers, []

    def enrolled(self):
        return self.count

    def train(self, asked):
        self.asked.append(asked.clients)
        for client in asked.clients:
            yield from self.answers(asked, client)


def honest(vectors):
    """What `Scripted` clients with these updates send."""
    return lambda asked, client: [Reply(asked.name, client, vectors[client])]


def life(folder, recovery, resume, deadly):
    """A server of four clients that dies when the `deadly`-th of them trains; 0 lets it live."""
    torch.set_num_threads(1)
    calls = []

    def local(model, update):
        calls.append(1)
        if len(calls) == deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        add_update(model, update)

    model = server()
    storage = ap.Storage(folder, recovery=recovery, every=1, resume=resume)
    made = plan(rounds=5, rate=1.0, population=4, spare=3)
    ap.federated.train(model, updates(model, 4), local, made, storage=storage, progress=False)
