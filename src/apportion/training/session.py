"""The state of one private run, shared by `train` and `make_private`: which request is next, what an answer changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from apportion.accounting.account import Account
from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.accounting.ledger import Ledger
from apportion.budget import Budget
from apportion.curator.compatibility import check
from apportion.curator.curator import Curator, Execution, LossFunction
from apportion.curator.gradients.reference import Mode, ReferenceGradients, trained_parameters
from apportion.curator.mechanisms import Mechanism
from apportion.curator.probe import per_record_mode, probe_loss, probe_model
from apportion.curator.randomness import Randomness
from apportion.curator.records import Records
from apportion.errors import InvalidArgument, WrongOrder
from apportion.request import Released, Request
from apportion.strategies.clip import Clip
from apportion.strategies.noise import NoiseSchedule
from apportion.training.history import Entry, is_report_step
from apportion.training.optimizers import require_plain_step, require_same_parameters
from apportion.training.plan import Plan, make_plan
from apportion.training.sampling import Sampling

LEDGER = Path("secret") / "ledger.sqlite"
"""Where a run folder keeps its ledger."""


class Session:
    """Couples model, optimiser, strategies, curator and account. Nothing is charged until the first request is executed."""

    def __init__(
        self,
        engine: ReferenceGradients,
        optimizer: Optimizer,
        plan: Plan,
        curator: Curator,
        account: Account,
        randomness: Randomness,
        *,
        own_loop: bool,
    ):
        self.own_loop = own_loop
        self.initial_learning_rates = [float(group["lr"]) for group in optimizer.param_groups]
        self.engine, self.optimizer, self.plan = engine, optimizer, plan
        self.curator, self.account, self.randomness = curator, account, randomness
        self.entries: list[Entry] = []
        self._applying = False
        optimizer.register_step_pre_hook(self._only_released_gradients)
        self._sizes = {name: parameter.numel() for name, parameter in trained_parameters(self.model).items()}
        self._clip_state = plan.clip.init(self._context(1))

    @property
    def model(self) -> nn.Module:
        return self.engine.model

    @property
    def step(self) -> int:
        """How many steps were charged."""
        return self.account.spent

    def next_request(self) -> Request:
        """What the strategies ask for at the next step. Also defined after the last one: the account refuses it then."""
        return self.plan.request(self._context(min(self.step + 1, self.plan.steps)), self._clip_state)

    def apply(self, released: Released) -> Entry:
        """Hand a released gradient to the optimiser, let the strategies learn from it, write it down."""
        require_same_parameters(self.model, self.optimizer)
        self.optimizer.zero_grad(set_to_none=True)  # whatever was there before was not released
        parameters = trained_parameters(self.model)
        for name, gradient in released.gradient.items():
            parameters[name].grad = gradient
        self._applying = True
        try:
            self.optimizer.step()
        finally:
            self._applying = False
        self.optimizer.zero_grad(set_to_none=True)
        self._clip_state = self.plan.clip.observe(self._clip_state, released)
        entry = Entry(
            step=self.step,
            epoch=self._context(self.step).epoch,
            clip=tuple(release.threshold for release in released.request.releases),
            noise_multiplier=released.request.noise_multiplier,
            learning_rate=tuple(float(group["lr"]) for group in self.optimizer.param_groups),
        )
        self.entries.append(entry)
        return entry

    def _only_released_gradients(self, *_: Any) -> None:
        """Runs before every step of the optimiser, also one that is called past this session."""
        if not self._applying:
            raise WrongOrder(
                "this optimizer belongs to a private run: call private.optimizer.step(), which adds clipping and noise"
            )

    def report(self, test_accuracy: float | None) -> Entry:
        """Add what is known of the last step: the budget spent so far and, if it was evaluated, the model's accuracy."""
        entry = replace(self.entries[-1], epsilon=self.account.epsilon(), test_accuracy=test_accuracy)
        self.entries[-1] = entry
        return entry

    @property
    def report_is_due(self) -> bool:
        return is_report_step(self.step, self.plan.steps)

    def _context(self, step: int) -> Any:
        return self.plan.context(step, self._sizes)


def open_session(
    model: nn.Module,
    optimizer: Optimizer,
    records: Records,
    *,
    budget: Budget,
    sampling: Sampling,
    clip: Clip,
    noise: NoiseSchedule,
    execution: Execution,
    randomness: Randomness,
    out: Path | None,
    ledger: Path | None,
    mode: Mode,
    own_loop: bool,
    mechanism: Mechanism | None = None,
) -> Session:
    """Plan, account and curator of a run. The ledger is opened last, so that a refused run leaves no file behind."""
    if not isinstance(budget, Budget):
        raise InvalidArgument(
            "budget",
            budget,
            "it is not a Budget",
            "Pass apportion.Budget(epsilon=3.0, delta=1e-5, unit=apportion.Record())",
        )
    require_plain_step(optimizer)
    require_same_parameters(model, optimizer)
    accountant = PrivacyLossAccountant()
    plan = make_plan(budget, sampling, clip, noise, accountant)
    account = Account(budget, plan.tokens, accountant, _open_ledger(ledger, out, randomness))
    engine = ReferenceGradients(model, mode)
    model.train()
    curator = Curator(records, engine, account, randomness, execution, mechanism)
    return Session(engine, optimizer, plan, curator, account, randomness, own_loop=own_loop)


def _open_ledger(shared: Path | None, out: Path | None, randomness: Randomness) -> Ledger:
    """The data set's ledger if one was named, otherwise a new one in the run folder or in memory."""
    own = None if out is None else out / LEDGER
    if shared is None:
        return Ledger.create(own)
    if not randomness.private:
        raise InvalidArgument(
            "ledger",
            str(shared),
            "a run with a seed is not private, and would make the promise of the whole data set untrue",
            "Leave the seed out, or experiment on public data without a ledger",
        )
    if own is not None and own.exists():  # a copy of this run's charges is to be saved there
        raise InvalidArgument("out", str(own), "there is the ledger of an earlier run already", "Choose a new folder")
    return Ledger.attach(shared)


def require_trainable(model: nn.Module, loss_fn: LossFunction | None, records: Records) -> Mode:
    """Refuse a model or loss that mixes records; say how per-record gradients will be computed. Uses synthetic values only."""
    check(model).require()
    inputs, target = records.example
    probe_model(model, inputs)
    if loss_fn is not None:
        probe_loss(model, loss_fn, inputs, target)
    return per_record_mode(model, loss_fn, inputs, target)
