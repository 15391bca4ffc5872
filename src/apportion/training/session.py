"""The state of one private run, shared by `train` and `make_private`: which request is next, what an answer changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from apportion.accounting.account import Account
from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.accounting.ledger import Ledger
from apportion.budget import Budget
from apportion.curator.curator import Charges, Curator, Draws, LossFunction
from apportion.curator.gradients.engine import Engine, EngineChoice
from apportion.curator.gradients.reference import trained_parameters
from apportion.curator.mechanisms import Mechanism
from apportion.curator.randomness import Randomness
from apportion.curator.records import Records
from apportion.errors import InvalidArgument, WrongOrder
from apportion.execution import Execution
from apportion.models.check import check, copy_of
from apportion.models.engine_choice import choose_engine
from apportion.models.memory import with_known_batch
from apportion.models.probe import probe_loss, probe_model
from apportion.models.vetting import vetted_engine
from apportion.plan import Plan, describe, make_plan
from apportion.request import Released, Request
from apportion.sampling import Sampling
from apportion.strategies.clip import Clip
from apportion.strategies.noise import NoiseSchedule
from apportion.strategies.roles import resolve_roles
from apportion.strategies.update import Plain
from apportion.training.checkpoint import CHECKPOINT, Checkpoints, restored
from apportion.training.exact import DRAWS, KEY, ExactCurator
from apportion.training.folders import missing_folders, remove_empty
from apportion.training.history import Entry, as_columns, from_columns, is_report_step
from apportion.training.optimizers import require_plain_scheduler, require_plain_step, require_same_parameters
from apportion.training.recovery import Recovery, configuration

LEDGER = Path("secret") / "ledger.sqlite"
"""Where a run folder keeps its ledger."""


class Session:
    """Couples model, optimiser, strategies, curator and account. Nothing is charged until the first request is executed."""

    def __init__(
        self,
        engine: Engine,
        optimizer: Optimizer,
        plan: Plan,
        curator: Curator | ExactCurator,
        account: Account,
        randomness: Randomness,
        *,
        own_loop: bool,
        scheduler: LRScheduler | None = None,
        update: Plain | None = None,
        checkpoints: Checkpoints | None = None,
    ):
        self.own_loop, self.checkpoints = own_loop, checkpoints
        self._scheduler = scheduler
        self.initial_learning_rates = [float(group["lr"]) for group in optimizer.param_groups]
        self.engine, self.optimizer, self.plan = engine, optimizer, plan
        self.curator, self.account, self.randomness = curator, account, randomness
        self.entries: list[Entry] = []
        self._applying = False
        optimizer.register_step_pre_hook(self._only_released_gradients)
        self._shapes = {name: tuple(parameter.shape) for name, parameter in trained_parameters(self.model).items()}
        plan.rehearse(self._shapes)
        self._clip_state = plan.clip.init(self._context(1))
        self.update = update or Plain()
        self.update.require(plan.request(self._context(1), self._clip_state))
        self._update_state = self.update.init(trained_parameters(self.model))

    @property
    def model(self) -> nn.Module:
        return self.engine.model

    @property
    def averaged(self) -> nn.Module | None:
        """A copy of the model with averaged weights; `None` if the update keeps no average, or before the first step."""
        weights = self.update.averaged(self._update_state)
        if weights is None:
            return None
        model = copy_of(self.model)
        parameters = trained_parameters(model)
        for name, value in weights.items():
            parameters[name].data.copy_(value)
        return model

    @property
    def evaluated(self) -> nn.Module:
        """The model as it is meant to be used: with averaged weights, where they are kept."""
        averaged = self.averaged
        return self.model if averaged is None else averaged

    @property
    def repeatable(self) -> bool:
        """Whether a key can still repeat the draws of this run."""
        return isinstance(self.curator, ExactCurator) and self.account.left > 0

    @property
    def step(self) -> int:
        """The step of the plan that was taken last."""
        return self.account.position

    def next_request(self) -> Request:
        """What the strategies ask for at the next step. Also defined after the last one: the account refuses it then."""
        return self.plan.request(self._context(min(self.account.next_step, self.plan.steps)), self._clip_state)

    def apply(self, released: Released) -> Entry:
        """Hand a released gradient to the optimiser, let the strategies learn from it, write it down."""
        require_same_parameters(self.model, self.optimizer)
        self.optimizer.zero_grad(set_to_none=True)  # whatever was there before was not released
        parameters = trained_parameters(self.model)
        for name, gradient in self.update.gradient(released).items():
            parameters[name].grad = gradient
        learning_rate = tuple(float(group["lr"]) for group in self.optimizer.param_groups)
        self._applying = True
        try:
            self.optimizer.step()
        finally:
            self._applying = False
        self.optimizer.zero_grad(set_to_none=True)
        if self._scheduler is not None:
            self._scheduler.step()
        self._update_state = self.update.observe(self._update_state, parameters)
        self._clip_state = self.plan.clip.observe(self._clip_state, released)
        entry = Entry(
            step=self.step,
            epoch=self._context(self.step).epoch,
            clip=self._shared("clip", tuple(release.threshold for release in released.request.sums)),
            noise_multiplier=released.request.noise_multiplier,
            learning_rate=self._shared("learning_rate", learning_rate),
        )
        self.entries.append(entry)
        return entry

    def _shared(self, field: str, values: tuple[float, ...]) -> tuple[float, ...]:
        """The last entry's tuple if it is equal: a long run with a constant schedule keeps one instead of thousands."""
        last: tuple[float, ...] | None = getattr(self.entries[-1], field) if self.entries else None
        return values if last is None or last != values else last

    def state(self) -> dict[str, Any]:
        """All that moves, except the records and the random generators."""
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self._scheduler is None else self._scheduler.state_dict(),
            "clip": self._clip_state,
            "update": self._update_state,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Put back what `state` returned."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state["scheduler"])
        self._clip_state, self._update_state = state["clip"], state["update"]
        self.entries = from_columns(state["history"])

    def write_checkpoint(self) -> None:
        """Make the state durable, with the history and what the ledger said by then."""
        if self.checkpoints is not None:
            books = {
                "identifier": self.account.identifier,
                "spent": self.account.spent,
                "head": self.account.ledger.head(),
            }
            self.checkpoints.write({**self.state(), "history": as_columns(self.entries), "account": books})

    def write_checkpoint_if_due(self) -> None:
        if self.checkpoints is not None and self.step % self.checkpoints.every == 0:
            self.write_checkpoint()

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

    def close(self) -> None:
        """What is left to do when a run has ended: a key that could repeat its draws is deleted."""
        if isinstance(self.curator, ExactCurator) and not self.account.left:
            self.curator.close()

    def _context(self, step: int) -> Any:
        return self.plan.context(step, self._shapes)


def open_session(
    model: nn.Module,
    optimizer: Optimizer,
    records: Records,
    *,
    budget: Budget,
    sampling: Sampling,
    clip: Clip | None,
    noise: NoiseSchedule | None,
    execution: Execution,
    randomness: Randomness,
    out: Path | None,
    ledger: Path | None,
    choice: EngineChoice,
    own_loop: bool,
    scheduler: LRScheduler | None = None,
    update: Plain | None = None,
    recovery: Recovery | None = None,
    resume: bool = False,
    mechanism: Mechanism | None = None,
) -> Session:
    """Plan, account and curator of a run, new or resumed. A refused run leaves no file and no folder behind."""
    if not isinstance(budget, Budget):
        raise InvalidArgument(
            "budget",
            budget,
            "it is not a Budget",
            "Pass apportion.Budget(epsilon=3.0, delta=1e-5, unit=apportion.Record())",
        )
    clip, noise = resolve_roles(clip, noise)
    update = Plain() if update is None else update
    if not isinstance(update, Plain):
        raise InvalidArgument(
            "update",
            update,
            "it is not an update strategy",
            "Pass for example update=apportion.update.Plain(average=0.99)",
        )
    require_plain_step(optimizer)
    if scheduler is not None:
        require_plain_scheduler(scheduler, optimizer)
    require_same_parameters(model, optimizer)
    recovery = recovery or Recovery()
    _require_recoverable(recovery, out, randomness, own_loop=own_loop, resume=resume)
    accountant = PrivacyLossAccountant()
    spare = 0 if out is None else recovery.spare_tokens(sampling.steps)
    plan = make_plan(budget, sampling, clip, noise, accountant, spare)
    execution = with_known_batch(execution, model, choice, records.example[0], sampling.expected_batch_size)
    engine = vetted_engine(model, choice, *records.example)
    checkpoints: Checkpoints | None = None
    earlier: dict[str, Any] | None = None
    if out is not None:
        facts = configuration(
            plan,
            model,
            optimizer,
            scheduler,
            mode=recovery.mode,
            own_loop=own_loop,
            private=randomness.private,
        )
        facts["update"] = describe(update)
        checkpoints = Checkpoints(out, recovery.interval(plan.steps), facts)
        earlier = checkpoints.read() if resume else None
    made = missing_folders(None if out is None else (out / LEDGER).parent)
    books = _open_ledger(ledger, out, randomness) if earlier is None else _continue_ledger(ledger, out, earlier)
    try:
        known = {"identifier": earlier["account"]["identifier"], "position": earlier["step"]} if earlier else {}
        account = Account(budget, plan.tokens, accountant, books, spare=plan.spare, **known)

        def curator(charges: Charges, source: Draws) -> Curator:
            return Curator(records, engine, charges, source, execution, mechanism)

        session = Session(
            engine,
            optimizer,
            plan,
            curator(account, randomness),
            account,
            randomness,
            own_loop=own_loop,
            scheduler=scheduler,
            update=update,
            checkpoints=checkpoints,
        )
        if earlier is not None and out is not None:
            restored(out / CHECKPOINT, lambda: session.restore(earlier))
        else:
            session.write_checkpoint()
    except BaseException:
        books.close()
        if earlier is None and books.path is not None and ledger is None:
            books.path.unlink()  # ours, and nothing was ever charged to it
        remove_empty(made)
        raise
    if recovery.mode == "exact" and out is not None and (account.left or (out / KEY).exists()):
        session.curator = ExactCurator(
            lambda source: curator(source, source),
            account,
            out,
            lambda: {**session.state(), "execution": {"micro_batch": execution.micro_batch, "mode": str(choice)}},
            session.next_request,
        )
        session.close()  # the run had ended, and died before it could tidy up
    model.train()
    return session


def _require_recoverable(
    recovery: Recovery, out: Path | None, randomness: Randomness, *, own_loop: bool, resume: bool
) -> None:
    if resume and out is None:
        raise InvalidArgument("resume", True, "there is no folder to go on from", "Pass out=, the folder of the run")
    if not randomness.private and (resume or recovery.mode == "exact"):
        raise InvalidArgument(
            "seed",
            "a number",
            "a run with a seed can be repeated from its beginning, and is not private",
            "Start it again, or leave the seed out",
        )
    if recovery.mode == "exact" and (out is None or own_loop):
        raise InvalidArgument(
            "recovery.mode",
            "exact",
            "a draw can only be repeated bit for bit in a run of `train` with a folder",
            'Pass out=, or use Recovery(mode="fresh")',
        )


def _open_ledger(shared: Path | None, out: Path | None, randomness: Randomness) -> Ledger:
    """The data set's ledger if one was named, otherwise a new one in the run folder or in memory."""
    own = None if out is None else out / LEDGER
    leftovers = [] if out is None else [out / part for part in (CHECKPOINT, KEY, DRAWS) if (out / part).exists()]
    if leftovers:
        raise InvalidArgument(
            "out", str(leftovers[0]), "there is an earlier run already", "Choose a new folder, or go on with resume"
        )
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


def _continue_ledger(shared: Path | None, out: Path | None, earlier: dict[str, Any]) -> Ledger:
    """The ledger that the run was charged to. It must hold all that it held when the checkpoint was written."""
    assert out is not None
    ledger = Ledger.attach(shared or out / LEDGER)
    if damage := ledger.verify(earlier["account"]["head"]):
        ledger.close()
        raise InvalidArgument(
            "ledger",
            str(ledger.path),
            f"it is not the one that this run was charged to, or an older copy of it ({damage})",
            "Use the ledger as it was when the run stopped",
        )
    return ledger


def require_trainable(
    model: nn.Module, loss_fn: LossFunction | None, records: Records, execution: Execution | None = None
) -> EngineChoice:
    """Refuse a model or loss that mixes records; say how per-record gradients will be computed. Uses synthetic values only."""
    check(model).require()
    inputs, target = records.example
    probe_model(model, inputs)
    if loss_fn is not None:
        probe_loss(model, loss_fn, inputs, target)
    return choose_engine(model, loss_fn, inputs, target, (execution or Execution()).engine)
