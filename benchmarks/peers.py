"""The engines that are compared: each takes whole training steps on a workload.

A step of a private engine is all that one costs: a Poisson draw, clipping to norm 1, noise of multiplier 1, the charge if it keeps
books, and the update. Plain SGD draws the same way. Everyone handles at most `workload.pieces` records at one time. Ours
chooses how many, as it would for anybody, unless the workload pins it.

Opacus runs as its documentation says, with the data loader that it makes; `ModuleValidator.fix` gives it its own LSTM. It is not run
in the layout channels_last, where the conv gradients of version 1.6.0 are wrong (`unfold2d` takes the last two strides for granted).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from workloads import POPULATION_IN_BATCHES, Workload

RATE = 1 / POPULATION_IN_BATCHES
THRESHOLD, MULTIPLIER, LEARNING_RATE = 1.0, 1.0, 0.01
STEPS = 20_000  # that our plan allows; more than a benchmark takes


class Engine(Protocol):
    """A model that is being trained."""

    model: nn.Module

    def step(self) -> int:
        """Take one step; say how many records were drawn."""
        ...


def poisson_pieces(workload: Workload) -> tuple[Tensor, ...]:
    """The indices of a Poisson draw, in pieces, none of them empty. The coins come from torch's generator: quick and not secret."""
    drawn = (torch.rand(workload.population) < RATE).nonzero().flatten()
    return drawn.split(workload.pieces) if len(drawn) else ()


def in_layout(
    model: nn.Module, inputs: Tensor, *, channels_last: bool
) -> tuple[nn.Module, Tensor, torch.memory_format]:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return (model.to(memory_format=layout), inputs.contiguous(memory_format=layout), layout)


class Sgd:
    """Not private: what everybody is compared with."""

    def __init__(self, workload: Workload, *, channels_last: bool = False):
        self._workload = workload
        inputs, self._targets = workload.records()
        self.model, self._inputs, self._layout = in_layout(workload.model(), inputs, channels_last=channels_last)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE)

    def step(self) -> int:
        pieces = poisson_pieces(self._workload)
        self._optimizer.zero_grad()
        for piece in pieces:
            inputs = self._inputs.index_select(0, piece).contiguous(memory_format=self._layout)
            outputs = self.model(inputs)
            loss = functional.cross_entropy(outputs, self._targets.index_select(0, piece), reduction="sum")
            (loss / self._workload.batch).backward()
        self._optimizer.step()
        return sum(map(len, pieces))


class Vmap:
    """By hand: per-record gradients of `torch.func`, written out, clipped and summed."""

    def __init__(self, workload: Workload):
        self._workload = workload
        self._inputs, self._targets = workload.records()
        self.model = workload.model()
        self._parameters = {name: one for name, one in self.model.named_parameters() if one.requires_grad}
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE)

        def loss(parameters: dict[str, Tensor], inputs: Tensor, target: Tensor) -> Tensor:
            outputs = torch.func.functional_call(self.model, parameters, (inputs.unsqueeze(0),))
            return functional.cross_entropy(outputs, target.unsqueeze(0))

        self._rows = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), randomness="different")

    def step(self) -> int:
        pieces = poisson_pieces(self._workload)
        sums = {name: torch.zeros_like(parameter) for name, parameter in self._parameters.items()}
        values = {name: parameter.detach() for name, parameter in self._parameters.items()}
        for piece in pieces:
            rows = self._rows(values, self._inputs.index_select(0, piece), self._targets.index_select(0, piece))
            norms = torch.stack([row.flatten(1).norm(dim=1) for row in rows.values()]).norm(dim=0)
            weights = (THRESHOLD / (norms + 1e-6)).clamp(max=1.0)
            for name, row in rows.items():
                sums[name] += torch.tensordot(weights, row, dims=1)
        for name, parameter in self._parameters.items():
            noise = torch.empty_like(parameter).normal_(std=MULTIPLIER * THRESHOLD)
            parameter.grad = (sums[name] + noise) / self._workload.batch
        self._optimizer.step()
        return sum(map(len, pieces))


class Opacus:
    """Opacus in one of its modes: "hooks", "ghost", "functorch" or "ew"."""

    def __init__(self, workload: Workload, mode: str):
        warnings.simplefilter("ignore")  # of its insecure generator, and of backward hooks on inputs without gradient
        from opacus import PrivacyEngine
        from opacus.utils.batch_memory_manager import BatchMemoryManager
        from opacus.validators import ModuleValidator
        from torch.utils.data import DataLoader, TensorDataset

        model = ModuleValidator.fix(workload.model())
        made = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
            data_loader=DataLoader(TensorDataset(*workload.records()), batch_size=workload.batch),
            criterion=nn.CrossEntropyLoss(),
            noise_multiplier=MULTIPLIER,
            max_grad_norm=THRESHOLD,
            grad_sample_mode=mode,
        )
        if mode == "ghost":
            self.model, self._optimizer, self._loss, loader = made
        else:
            self.model, self._optimizer, loader = made
            self._loss = nn.CrossEntropyLoss()
        if workload.micro_batch is not None:
            # all that its context manager does is to wrap the loader
            loader = BatchMemoryManager(
                data_loader=loader, max_physical_batch_size=workload.micro_batch, optimizer=self._optimizer
            ).__enter__()
        self._pieces = self._forever(loader)

    def step(self) -> int:
        drawn = 0
        while True:
            inputs, targets = next(self._pieces)
            drawn += len(targets)
            self._optimizer.zero_grad()
            self._loss(self.model(inputs), targets).backward()
            self._optimizer.step()
            if not self._optimizer._is_last_step_skipped:  # otherwise it only summed up a piece of the batch
                return drawn

    @staticmethod
    def _forever(loader: torch.utils.data.DataLoader) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from loader


class Apportion:
    """Ours, with what `apportion.train` is made of. By itself it would choose channels last for images; `engine` pins the layout."""

    def __init__(self, workload: Workload, *, engine: str = "one-pass"):
        import apportion
        from apportion.curator.randomness import Randomness
        from apportion.curator.records import Records, as_records
        from apportion.training.opening import open_session, require_trainable
        from apportion.training.optimizers import build_optimizer
        from apportion.training.session import Setup

        inputs, targets = workload.records()
        self.model = workload.model()
        if workload.within is not None:
            self._within = workload.within(self.model)
            self._within.__enter__()
        given = as_records((inputs, targets))
        self._drawn = 0

        def counted(indices):
            """The number drawn is secret, except to a benchmark."""
            self._drawn += len(indices)
            return given.batch(indices)

        records = Records(len(given), counted, given.example)
        self._loss = nn.CrossEntropyLoss()
        micro_batch = workload.micro_batch if workload.pinned and workload.micro_batch else "auto"
        execution = apportion.Execution(micro_batch=micro_batch, engine=engine)
        plan = apportion.plan(
            apportion.Recipe(
                clip=apportion.clip.Fixed(THRESHOLD), noise=apportion.noise.Constant(multiplier=MULTIPLIER)
            ),
            budget=apportion.Budget(epsilon=1e4, delta=1e-5, unit=apportion.Record()),
            population=workload.population,
            sample_rate=RATE,
            steps=STEPS,
        )
        setup = Setup(
            model=self.model,
            optimizer=build_optimizer(self.model, "sgd", LEARNING_RATE),
            records=records,
            plan=plan,
            choice=require_trainable(self.model, self._loss, records, execution),
            execution=execution,
            randomness=Randomness.choose(None),
        )
        self._session = open_session(setup)

    def step(self) -> int:
        self._drawn = 0
        session = self._session
        session.apply(session.curator.answer(session.next_request(), self._loss))
        return self._drawn


ENGINES: dict[str, Callable[[Workload], Engine]] = {
    "sgd": Sgd,
    "sgd-channels-last": lambda workload: Sgd(workload, channels_last=True),
    "opacus-hooks": lambda workload: Opacus(workload, "hooks"),
    "opacus-ghost": lambda workload: Opacus(workload, "ghost"),
    "opacus-functorch": lambda workload: Opacus(workload, "functorch"),
    "opacus-ew": lambda workload: Opacus(workload, "ew"),
    "vmap": Vmap,
    "apportion": Apportion,
    "apportion-channels-last": lambda workload: Apportion(workload, engine="auto"),
}
OURS = ("apportion", "apportion-channels-last")
REQUIRED = ("sgd", "sgd-channels-last", "opacus-hooks", "opacus-ghost", "vmap", *OURS)
PEERS = tuple(name for name in ENGINES if name.startswith(("opacus", "vmap")))


def engines_for(workload: Workload, *, only_required: bool) -> list[str]:
    """Who takes part: the layout channels_last is for images."""
    names = REQUIRED if only_required else tuple(ENGINES)
    return [name for name in names if workload.images or not name.endswith("channels-last")]


def require_finite(name: str, engine: Engine) -> None:
    if not all(bool(torch.isfinite(parameter).all()) for parameter in engine.model.parameters()):
        raise ArithmeticError(f"{name} trained its parameters to values that are not finite")
