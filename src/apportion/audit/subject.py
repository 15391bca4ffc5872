"""What a replay audits: a model, its strategies and its loop, run from the same start on any data."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from apportion.audit.neighbours import records_with
from apportion.audit.recorder import Recorder
from apportion.budget import Budget
from apportion.curator.curator import LossFunction
from apportion.curator.gradients.engine import EngineChoice
from apportion.curator.records import Batch
from apportion.errors import InvalidArgument
from apportion.execution import Execution
from apportion.models.check import copy_of
from apportion.sampling import Sampling
from apportion.strategies.clip import Clip
from apportion.strategies.noise import NoiseSchedule
from apportion.strategies.update import Plain
from apportion.training.loop import take_steps
from apportion.training.optimizers import OptimizerFactory, build_optimizer
from apportion.training.private import Private
from apportion.training.record_loss import Reduction
from apportion.training.session import open_session

Loop = Callable[[Private], object]


@dataclass(frozen=True, eq=False)
class Subject:
    """What is audited: everything but the data."""

    model: nn.Module
    loss_fn: LossFunction | None
    loop: Loop | None
    loss_reduction: Reduction
    optimizer: str | OptimizerFactory
    lr: float
    scheduler: Callable[[Optimizer], LRScheduler] | None
    clip: Clip
    noise: NoiseSchedule
    update: Plain
    budget: Budget
    sampling: Sampling
    execution: Execution
    engine: EngineChoice

    def run(self, common: Batch, last: Batch | None, recorder: Recorder, *, readable: bool = True) -> None:
        """Take all steps on `common` and `last`, from the same start every time."""
        model = copy_of(self.model)
        optimizer = build_optimizer(model, self.optimizer, self.lr)
        session = open_session(
            model,
            optimizer,
            records_with(common, last, recorder.read, readable),
            budget=self.budget,
            sampling=self.sampling,
            clip=copy.deepcopy(self.clip),
            noise=copy.deepcopy(self.noise),
            update=self.update,
            execution=self.execution,
            randomness=recorder.randomness,
            out=None,
            ledger=None,
            choice=self.engine,
            own_loop=self.loop is not None,
            scheduler=None if self.scheduler is None else self.scheduler(optimizer),
            mechanism=recorder.mechanism,
        )
        recorder.watch(session)
        if self.loop is not None:
            self.loop(Private(session, self.loss_reduction, out=None))
        else:
            assert self.loss_fn is not None
            take_steps(session, copy_of(self.loss_fn) if isinstance(self.loss_fn, nn.Module) else self.loss_fn)


def without_dropout(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """A copy whose dropout drops nothing, and the layers that were changed: masks would differ with the number of records."""
    if not isinstance(model, nn.Module):
        raise InvalidArgument("model", model, f"it is a {type(model).__name__}", "Pass a torch.nn.Module")
    subject = copy_of(model)
    silenced = []
    for name, module in subject.named_modules():
        # nn.Dropout and its kin; nn.MultiheadAttention, nn.LSTM and many layers written by hand
        attribute = "p" if isinstance(module, _DropoutNd) else "dropout"
        if isinstance(value := vars(module).get(attribute), float) and value > 0:
            setattr(module, attribute, 0.0)
            silenced.append(name or "(model)")
    return subject, silenced
