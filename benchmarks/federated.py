"""Quantile clipping of client updates, ours and Flower's, side by side: the same clients, target quantile, start, rate and noise.

    .venv-flower/bin/python benchmarks/federated.py [--rounds 60] [--json benchmarks/federated.json]

A hundred clients of a made-up classification train a linear model; about half of them are asked in a round. The threshold is to settle at
the median norm of the updates (Andrew et al. 2021), from a start far below and from one far above. Flower's strategy is used as it is
(`DifferentialPrivacyServerSideAdaptiveClipping` around `FedAvg`), over a grid in this process. `make test-flower` installs Flower.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
from pathlib import Path

import flwr
import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAvg
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

import apportion as ap
from apportion.federated.flower import PrivateFedAvg

CLIENTS, RECORDS, FEATURES, CLASSES, SPREAD = 100, 20, 32, 5, 3.0
RATE, QUANTILE, CLIP_RATE, NOISE, COUNT_NOISE = 0.5, 0.5, 0.2, 1.0, 5.0
STARTS = (0.01, 10.0)
LOCAL = ap.federated.LocalSGD(lr=0.5, batch_size=5)


def make_clients() -> tuple[list[tuple[torch.Tensor, torch.Tensor]], ap.Public]:
    """The records of each client, and public ones for testing."""
    generator = torch.Generator().manual_seed(0)
    centres = SPREAD * torch.randn(CLASSES, FEATURES, generator=generator) / FEATURES**0.5

    def records(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        classes = torch.randint(CLASSES, (count,), generator=generator)
        return centres[classes] + torch.randn(count, FEATURES, generator=generator), classes

    return [records(RECORDS) for _ in range(CLIENTS)], ap.Public(records(2000))


class Grid:
    """Clients in this process behind the interface of Flower's grid. Keeps the norms of all updates."""

    def __init__(self, clients: list[tuple[torch.Tensor, torch.Tensor]]):
        self._clients, self.norms, self._replies = clients, [[]], {}

    def get_node_ids(self) -> list[int]:
        return list(range(1, len(self._clients) + 1))

    def push_messages(self, messages: list[Message]) -> list[str]:
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            self._replies[message.metadata.message_id] = self._answer(message)
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, names: list[str]) -> list[Message]:
        return [self._replies.pop(name) for name in names]

    def send_and_receive(self, messages: list[Message], *, timeout: float | None = None) -> list[Message]:
        messages = list(messages)
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message:
        model = make_model()
        before = message.content["arrays"].to_torch_state_dict()
        model.load_state_dict(before)
        LOCAL(model, self._clients[message.metadata.dst_node_id - 1])
        after = model.state_dict()
        change = torch.cat([(after[name] - before[name]).flatten() for name in after])
        self.norms[-1].append(float(change.norm()))
        content = {"arrays": ArrayRecord(after), "metrics": MetricRecord({"num-examples": RECORDS})}
        return Message(RecordDict(content), reply_to=message)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(FEATURES, CLASSES)


def accuracy(model: nn.Module, test: ap.Public) -> float:
    inputs, classes = test.data
    with torch.no_grad():
        return float((model(inputs).argmax(1) == classes).float().mean())


def run_ours(start: float, rounds: int) -> dict[str, object]:
    clients, test = make_clients()
    grid, model = Grid(clients), make_model()
    settings = {"clip.start": start, "clip.quantile": QUANTILE, "clip.rate": CLIP_RATE, "clip.count_noise": COUNT_NOISE}
    recipe = ap.recipes.named("andrew").with_settings({**settings, "noise.multiplier": NOISE})
    budget = ap.Budget(
        epsilon=1000.0, delta=1e-3, unit=ap.User()
    )  # as much as this noise costs: Flower has no ε to compare with
    plan = ap.plan(recipe, budget=budget, population=CLIENTS, sample_rate=RATE, steps=rounds, count_usable=False)
    strategy = PrivateFedAvg(model, plan, progress=False, log=lambda entry: grid.norms.append([]), seed=1)
    strategy.start(grid)
    clips = [entry.clip[0] for entry in strategy.run.history]
    return outcome("Apportion", start, clips, grid, accuracy(model, test), strategy.run.epsilon())


def run_flowers(start: float, rounds: int) -> dict[str, object]:
    clients, test = make_clients()
    grid, model = Grid(clients), make_model()
    strategy = DifferentialPrivacyServerSideAdaptiveClipping(
        FedAvg(fraction_train=RATE, fraction_evaluate=0.0),
        noise_multiplier=NOISE,
        num_sampled_clients=round(RATE * CLIENTS),
        initial_clipping_norm=start,
        target_clipped_quantile=QUANTILE,
        clip_norm_lr=CLIP_RATE,
        clipped_count_stddev=COUNT_NOISE,
    )
    clips: list[float] = []

    def note(number: int, arrays: ArrayRecord) -> None:
        clips.append(strategy.clipping_norm)  # in force in the next round
        grid.norms.append([])
        model.load_state_dict(arrays.to_torch_state_dict())

    strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=rounds, evaluate_fn=note)
    grid.norms = grid.norms[1:]
    return outcome(f"Flower {flwr.__version__}", start, clips[:-1], grid, accuracy(model, test), None)


def outcome(
    system: str, start: float, clips: list[float], grid: Grid, score: float, epsilon: float | None
) -> dict[str, object]:
    norms = [one for one in grid.norms if one]
    unclipped = [sum(norm <= clip for norm in one) / len(one) for one, clip in zip(norms, clips, strict=True)]
    late = unclipped[-len(unclipped) // 4 :]
    return {
        "system": system,
        "start": start,
        "clip": [float(f"{clip:.4g}") for clip in clips],
        "last_clip": float(f"{clips[-1]:.3g}"),
        "median_norm": float(f"{statistics.median(norms[-1]):.3g}"),
        "unclipped_in_the_last_quarter": round(statistics.mean(late), 3),
        "accuracy": round(score, 3),
        "epsilon": None if epsilon is None else round(epsilon, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    logging.disable(logging.INFO)
    for name in ("task_id", "run_id", "node_id"):
        setattr(TaskIdentity, name, 1)
    np.random.seed(0)  # Flower's noise comes from there
    results = [run(start, options.rounds) for run in (run_ours, run_flowers) for start in STARTS]
    for one in results:
        print({key: value for key, value in one.items() if key != "clip"})
    if options.json:
        settings = {
            "clients": CLIENTS,
            "rate": RATE,
            "quantile": QUANTILE,
            "clip_rate": CLIP_RATE,
            "noise_multiplier": NOISE,
            "count_noise": COUNT_NOISE,
            "rounds": options.rounds,
        }
        options.json.write_text(json.dumps({"settings": settings, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
