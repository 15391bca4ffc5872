"""A training process that dies at a chosen point; see test_crash.py."""

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
import runs
from apportion.curator import mechanisms
from apportion.training import checkpoint, exact
from apportion.training.packing import digest

POINTS = ("charged", "noised", "noted", "handed out", "half a checkpoint")


@dataclass(frozen=True)
class Witness:
    """Fixed clipping that writes down every value it was handed, before anything else can happen to it."""

    folder: str

    def init(self, context):
        return 0

    def propose(self, state, context):
        return ap.clip.Fixed(1.0).propose(None, context)

    def observe(self, state, released):
        if not any(bool(value.any()) for value in released.gradient.values()):
            return state  # zeros: the rehearsal, before anything is charged
        with (Path(self.folder) / "handed-out").open("a") as file:
            file.write(json.dumps({"value": digest(dict(released.gradient)), "number": state + 1}) + "\n")
            file.flush()
        _Death.passes("handed out")
        return state + 1


class _Death:
    point, countdown = None, 0

    @classmethod
    def passes(cls, point):
        if point == cls.point:
            cls.countdown -= 1
            if cls.countdown <= 0:
                os.kill(os.getpid(), signal.SIGKILL)


def life(folder, mode, resume, point, countdown, steps, spare, out_of=None):
    """Train until the end, or until `point` was passed `countdown` times."""
    torch.set_num_threads(1)
    _Death.point, _Death.countdown = point, countdown
    gaussian, replace, note = mechanisms.add_gaussian_noise, os.replace, exact.DrawBook.note

    def watched(*arguments):
        _Death.passes("charged")
        noisy = gaussian(*arguments)
        _Death.passes("noised")
        return noisy

    def half(*arguments):
        _Death.passes("half a checkpoint")
        replace(*arguments)

    def noted(self, token, **content):
        note(self, token, **content)
        _Death.passes("noted")

    mechanisms.add_gaussian_noise, exact.DrawBook.note, checkpoint.os.replace = watched, noted, half
    train(folder, mode, resume, steps, spare)


def train(folder, mode, resume, steps, spare, clip=None):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(40, 4, generator=generator)
    torch.manual_seed(0)
    return runs.train(
        nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Dropout(0.2), nn.Linear(3, 2)),
        cross_entropy,
        (inputs, (inputs.sum(1) > 0).long()),
        budget=ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record()),
        population=40,
        sample_rate=0.25,
        steps=steps,
        lr=0.5,
        optimizer="momentum",
        scheduler=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99),
        clip=clip or Witness(str(folder)),
        out=folder,
        recovery=runs.Recovery(mode=mode, spare=spare, every=3),
        resume=resume,
    )
