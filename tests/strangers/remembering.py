"""Modules that keep something of the records they saw: in buffers, attributes, lists, dicts, closures and outside."""

from __future__ import annotations

import collections

import torch
from torch import nn

from strangers.stranger import SAFE, Stranger, floats

KEEPS = "state|running|remember|keeps|buffer|attribute|list|dict|changes"


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)


class RunningBuffer(Body):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        h = self.a(x)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * h.mean(0))
        return self.b(torch.tanh(h - self.mean))


class RunningBufferUnused(RunningBuffer):
    """Only looked at when the model is evaluated, as that of BatchNorm: but it would be released."""

    def forward(self, x):
        h = self.a(x)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
            return self.b(torch.tanh(h))
        return self.b(torch.tanh(h - self.mean))


class RunningAttribute(Body):
    mean = None

    def forward(self, x):
        h = self.a(x)
        seen = h.detach().mean(0)
        self.mean = seen if self.mean is None else 0.9 * self.mean + 0.1 * seen
        return self.b(torch.tanh(h + 0.5 * self.mean))


class RunningList(Body):
    def __init__(self):
        super().__init__()
        self.history = []

    def forward(self, x):
        h = self.a(x)
        out = h + sum(self.history) / len(self.history) if self.history else h
        self.history.append(h.detach().mean(0))
        return self.b(torch.tanh(out))


class LateList(RunningList):
    """Looked at only after the fortieth batch."""

    def forward(self, x):
        h = self.a(x)
        self.history.append(h.detach().mean(0))
        return self.b(torch.tanh(h + 5 * self.history[-2] if len(self.history) > 40 else h))


class RunningDict(Body):
    def __init__(self):
        super().__init__()
        self.stats = {"n": 0, "mean": 0.0}

    def forward(self, x):
        h = self.a(x)
        self.stats["n"] += len(x)
        self.stats["mean"] = self.stats["mean"] + (h.detach().mean(0) - self.stats["mean"]) * len(x) / self.stats["n"]
        return self.b(torch.tanh(h - self.stats["mean"]))


class LastHidden(nn.Module):
    """A stateful RNN that goes on from the state of the batch before."""

    def __init__(self):
        super().__init__()
        self.cell, self.out, self.hidden = nn.GRUCell(4, 4), nn.Linear(4, 3), None

    def forward(self, x):
        if self.hidden is None or self.hidden.size(0) != x.size(0):
            self.hidden = torch.zeros_like(x)
        self.hidden = self.cell(x, self.hidden)
        out = self.out(self.hidden)
        self.hidden = self.hidden.detach()
        return out


class Queue(Body):
    """MoCo: a queue of keys, filled by each batch, in a deque."""

    def __init__(self):
        super().__init__()
        self.queue = collections.deque([torch.zeros(4)], maxlen=16)

    def forward(self, x):
        h = torch.tanh(self.a(x))
        keys = torch.stack(list(self.queue)).to(h)
        self.queue.extend(h.detach())
        return self.b(h + (h @ keys.t()).softmax(-1) @ keys)


class Cache(Body):
    """Memoises by the first value of the record, rounded."""

    def __init__(self):
        super().__init__()
        self.cache = {}

    def forward(self, x):
        rows = []
        for row in x.detach():
            key = round(float(row[0]))
            if key not in self.cache:
                self.cache[key] = row.clone()
            rows.append(self.cache[key])
        return self.b(torch.tanh(self.a(x) + torch.stack(rows)))


class Momentum:
    """Not a module: torch does not know of it."""

    def __init__(self):
        self.value = 0.0

    def update(self, h):
        self.value = 0.5 * self.value + h.detach().mean(0)
        return self.value


class HelperObject(Body):
    def __init__(self):
        super().__init__()
        self.helper = Momentum()

    def forward(self, x):
        h = self.a(x)
        return self.b(torch.tanh(h + self.helper.update(h)))


class ForwardHook(Body):
    """A hook that records the activations of a layer in a dict of a closure, and another that adds what is there."""

    def __init__(self):
        super().__init__()
        seen = {}

        def note(module, inputs, output):
            before = seen.get("a")
            seen["a"] = output.detach().mean(0)
            return output if before is None else output + before

        self.a.register_forward_hook(note)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


class ClassAttribute(Body):
    """Keeps its mean with the class, where no copy of the module has its own."""

    mean = 0.0

    def forward(self, x):
        h = self.a(x)
        out = torch.tanh(h + type(self).mean)
        type(self).mean = 0.5 * float(h.detach().mean())
        return self.b(out)


STATISTICS = {"mean": 0.0}


class GlobalDict(Body):
    """Keeps its mean in a dict of the file."""

    def forward(self, x):
        h = self.a(x)
        out = torch.tanh(h + STATISTICS["mean"])
        STATISTICS["mean"] = h.detach().mean(0)
        return self.b(out)


class CounterBuffer(Body):
    """Counts its calls in a buffer, and sharpens with them."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x):
        self.steps += 1
        return self.b(torch.tanh(self.a(x) * (1 + 0.5 * self.steps)))


class Teacher(Body):
    """A mean teacher: a second network that follows the first at every forward pass, without gradient."""

    def __init__(self):
        super().__init__()
        self.teacher = nn.Linear(4, 4)
        for p in self.teacher.parameters():
            p.requires_grad = False

    @torch.no_grad()
    def momentum_update(self):
        for slow, fast in zip(self.teacher.parameters(), self.a.parameters(), strict=True):
            slow.data = slow.data * 0.9 + fast.data * 0.1

    def forward(self, x):
        self.momentum_update()
        return self.b(torch.tanh(self.a(x)) * self.teacher(x))


class Normalises(Body):
    """Rescales its own trained weight in place before use, as some implementations of ArcFace do."""

    def forward(self, x):
        with torch.no_grad():
            self.b.weight.div_(self.b.weight.norm(dim=1, keepdim=True))
        return self.b(torch.tanh(self.a(x)))


class WritesOnInput(Body):
    def forward(self, x):
        x.mul_(0.5)
        return self.b(torch.relu_(self.a(x)))


def fresh_class():
    ClassAttribute.mean = 0.0
    return ClassAttribute()


def fresh_dict():
    STATISTICS["mean"] = 0.0
    return GlobalDict()


ENTRIES = {
    "running mean in a buffer": Stranger(RunningBuffer, floats(4), SAFE, KEEPS),
    "running mean in a buffer for evaluation": Stranger(RunningBufferUnused, floats(4), SAFE, KEEPS),
    "running mean in an attribute": Stranger(RunningAttribute, floats(4), SAFE, KEEPS),
    "running mean in a list": Stranger(RunningList, floats(4), SAFE, KEEPS + "|mixes"),
    "list that is looked at late": Stranger(LateList, floats(4), SAFE, KEEPS, crowd=12),
    "running mean in a dict": Stranger(RunningDict, floats(4), SAFE, KEEPS + "|mixes"),
    "hidden state of the last batch": Stranger(LastHidden, floats(4), SAFE, KEEPS),
    "queue of keys": Stranger(Queue, floats(4), SAFE, KEEPS),
    "cache by value": Stranger(Cache, floats(4), SAFE, KEEPS),
    "helper object that is no module": Stranger(HelperObject, floats(4), SAFE, KEEPS),
    "forward hook that remembers": Stranger(ForwardHook, floats(4), SAFE, KEEPS + "|hook"),
    "running mean with the class": Stranger(fresh_class, floats(4), SAFE, KEEPS),
    "running mean in a dict of the file": Stranger(fresh_dict, floats(4), SAFE, KEEPS),
    "counter in a buffer": Stranger(CounterBuffer, floats(4), SAFE, KEEPS),
    "mean teacher": Stranger(Teacher, floats(4), SAFE, KEEPS),
    "weight rescaled in place": Stranger(Normalises, floats(4), SAFE, KEEPS + "|in place|weight"),
    "input overwritten": Stranger(WritesOnInput, floats(4), SAFE, "overwrites the records"),
}
