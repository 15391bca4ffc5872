"""What tests about groups and users share: three groups, a curator without noise, and users in a plain double loop."""

import copy

import numpy as np
import torch

import apportion as ap
from apportion.curator.clipping import RAMP_WIDTH
from apportion.curator.curator import Curator
from apportion.curator.gradients.engine import build_engine
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.execution import Execution
from apportion.releases import ClippedSum, NormHistogram, UnclippedCount
from runs import Gaussian

GROUPS = {"strict": (1.0, 0.34), "medium": (2.0, 0.43), "loose": (3.0, 0.23)}
CUT = 64.0
"""Thresholds, at which the gradient of a single record is cut before pooling."""


class Books:
    """Keeps charges and refuses nothing."""

    def __init__(self):
        self.events = []

    def charge(self, event):
        self.events.append(event)


def without_noise(exact_sum, standard_deviation, noise, divisor):
    return exact_sum.double() / divisor


def group_budget(groups=None, unit=None, labels=None):
    return ap.Budget.of_groups(groups or GROUPS, delta=1e-5, unit=unit or ap.Record(), labels=labels)


def curator(model, data, owners, *, mode="one-pass", micro_batch=256, mechanism=without_noise, seed=0, books=None):
    return Curator(
        as_records(data),
        build_engine(copy.deepcopy(model), mode),
        books or Books(),
        Randomness.seeded(seed),
        Execution(micro_batch=micro_batch),
        owners=owners,
        mechanisms=Gaussian(mechanism),
    )


def flat(gradient):
    return torch.cat([gradient[name].double().flatten() for name in sorted(gradient)])


def record_gradients(model, loss_fn, data):
    """The gradient of each record alone, in float64."""
    model = copy.deepcopy(model).double()
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = []
    for number in range(len(data[1])):
        inputs, target = data[0][number : number + 1], data[1][number : number + 1]
        outputs = model(inputs.double() if inputs.is_floating_point() else inputs)
        found.append(dict(zip(names, torch.autograd.grad(loss_fn(outputs, target), parameters), strict=True)))
    return found


def norm(vector, names):
    return float(torch.cat([vector[name].flatten() for name in names]).norm())


def pooled(gradients, releases, pooling):
    """The vector of one user; `None` if no record can be evaluated."""
    names = list(gradients[0])
    usable = [one for one in gradients if all(bool(value.isfinite().all()) for value in one.values())]
    total = {name: torch.zeros_like(gradients[0][name]) for name in names}
    for one in usable:
        factor = min(
            min(1.0, CUT * release.threshold / max(norm(one, release.parameters or names), 1e-30))
            for release in releases
            if isinstance(release, ClippedSum)
        )
        for name in names:
            total[name] += factor * one[name] / (len(gradients) if pooling == "mean" else 1)
    return total if usable else None


def double_loop(model, loss_fn, data, ids, releases, pooling="mean", scale=None):
    """Sums and statistics over users, with nothing but loops. `scale`: s of each user."""
    gradients = record_gradients(model, loss_fn, data)
    names = list(gradients[0])
    sums = {name: torch.zeros_like(gradients[0][name]) for name in names}
    statistics = [
        0.0
        for release in releases
        if not isinstance(release, ClippedSum)
        for _ in (release.points if isinstance(release, NormHistogram) else (0,))
    ]
    for user in dict.fromkeys(ids):
        own = [gradient for gradient, owner in zip(gradients, ids, strict=True) if owner == user]
        vector = pooled(own, releases, pooling)
        if vector is None:
            continue
        s, place = 1.0 if scale is None else scale[user], 0
        for release in releases:
            length = norm(vector, release.parameters or names)
            if isinstance(release, ClippedSum):
                for name in release.parameters or names:
                    sums[name] += vector[name] * min(1.0, s * release.threshold / max(length, 1e-30))
                continue
            if isinstance(release, NormHistogram):
                for tent in np.eye(len(release.points)):
                    statistics[place] += s * float(np.interp(length / s, release.points, tent))
                    place += 1
                continue
            if isinstance(release, UnclippedCount):
                ramp = (s * release.threshold - length) / (RAMP_WIDTH * s * release.threshold)
                statistics[place] += s * min(0.5, max(-0.5, ramp))
            else:
                statistics[place] += s * min(length, release.bound)
            place += 1
    return sums, statistics
