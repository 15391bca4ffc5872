"""One epoch of private training on public data: the library's own step, its real mechanism, seeded randomness."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from apportion.budget import Budget, Public, Record
from apportion.compare.processes import one_thread
from apportion.compare.resolve import resolve
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.data import KNOWN
from apportion.errors import InvalidArgument
from apportion.execution import Execution
from apportion.planning import Plan, plan_steps
from apportion.sampling import Sampling
from apportion.search.candidates import Outcome
from apportion.search.search_settings import SearchSettings
from apportion.strategies.clip import Fixed
from apportion.strategies.noise import Constant
from apportion.strategies.recipes import Recipe
from apportion.training.evaluation import accuracy, require_public
from apportion.training.opening import open_session, require_trainable
from apportion.training.optimizers import build_optimizer, with_momentum
from apportion.training.packing import pack, unpack
from apportion.training.session import Setup

UNLIMITED = 1e6
"""ε of the budget: public data has nothing to spend, and the multiplier alone decides how much noise there is."""


class PublicTrainer:
    """Trains one epoch of DP-SGD at a fixed (q, z, η), from a given state.

    Args:
        train, test: data declared public. The number of records is counted, which only public data allows; q = batch_size/N.
        build: makes a model; its weights come from torch's generator.
    """

    def __init__(self, train: Public, test: Public, build: Callable[[], nn.Module], settings: SearchSettings):
        self._records, self._test = as_records(require_searchable(settings.data, train).data), require_public(test)
        self._build, self._settings = build, settings
        population = len(self._records)
        self._sampling = Sampling.declare(population=population, batch_size=settings.batch_size, epochs=1)
        self._budget = Budget(epsilon=UNLIMITED, delta=0.1 / population, unit=Record())
        self._noise = Constant(multiplier=settings.noise_multiplier)
        if self._plan(1.0).steps < self._sampling.steps:
            raise InvalidArgument(
                "noise_multiplier",
                settings.noise_multiplier,
                f"an epoch would cost more than ε = {UNLIMITED:g}, which is no privacy at all",
                "Use the multiplier of the private run",
            )
        with one_thread(), torch.random.fork_rng(devices=[]):
            model = build()
            self._choice = require_trainable(model, cross_entropy, self._records)
            accuracy(model, test)  # whatever is wrong with it is wrong before the first epoch

    def initial(self, seed: int) -> bytes:
        with one_thread(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self._build()
        return _packed(model, self._optimizer(model))

    def train_epoch(self, state: bytes, threshold: float, seed: int) -> Outcome:
        with one_thread(), torch.random.fork_rng(devices=[]):
            model = self._build()
            optimizer = self._optimizer(model)
            before = unpack(state)
            model.load_state_dict(before["model"])
            optimizer.load_state_dict(before["optimizer"])
            setup = Setup(
                model=model,
                optimizer=optimizer,
                records=self._records,
                plan=self._plan(threshold),
                choice=self._choice,
                execution=Execution(),
                randomness=Randomness.seeded(seed),
            )
            session = open_session(setup)
            while session.account.left:  # `take_steps` would also price every step, and nobody pays here
                session.apply(session.curator.answer(session.next_request(), cross_entropy))
            return Outcome(_packed(model, optimizer), accuracy(model, self._test))

    def _plan(self, threshold: float) -> Plan:
        return plan_steps(Recipe(clip=Fixed(threshold), noise=self._noise), self._budget, self._sampling)

    def _optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        factory = with_momentum(self._settings.optimizer, self._settings.momentum)
        return build_optimizer(model, factory, self._settings.lr)


def open_trainer(settings: SearchSettings, data_dir: Path | None = None) -> PublicTrainer:
    """The trainer for data and model by name."""
    subject = resolve(settings.data, settings.model, data_dir)
    train = subject.train
    if (settings.public or settings.data in KNOWN) and not isinstance(train, Public):
        train = Public(train)
    if subject.test is None:
        raise InvalidArgument("data", settings.data, "it has no test part to compare candidates on", "Add one")
    return PublicTrainer(
        require_searchable(settings.data, train), subject.test, partial(subject.build, settings.activation), settings
    )


def require_searchable(name: str, data: object) -> Public:
    """Refuse training data that nobody declared public. `name` is what a person called it."""
    if not isinstance(data, Public):
        raise InvalidArgument(
            "data",
            name,
            "a search on private records is not covered by any budget: every candidate is an epoch of queries to them, kept or not, "
            "and what they score decides the thresholds",
            "Search on other data of the same kind that is public. If anything about this data may be published, say so: --public, "
            "or apportion.Public(train_data) in your own function",
        )
    return data


def _packed(model: nn.Module, optimizer: torch.optim.Optimizer) -> bytes:
    return pack({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
