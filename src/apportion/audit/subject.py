"""What a replay audits: a model, its strategies and its loop, run from the same start on any data."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from apportion.audit.neighbours import records_with
from apportion.audit.recorder import Recorder
from apportion.budget import Public
from apportion.curator.curator import Curator, LossFunction
from apportion.curator.gradients.engine import EngineChoice
from apportion.curator.records import Batch
from apportion.errors import InvalidArgument
from apportion.execution import Execution
from apportion.models.check import copy_model
from apportion.planning import Plan, find_recipe
from apportion.strategies.recipes import Recipe
from apportion.training.loop import take_steps
from apportion.training.opening import open_session
from apportion.training.optimizers import OptimizerFactory, build_optimizer
from apportion.training.private import Private
from apportion.training.record_loss import Reduction
from apportion.training.session import Setup

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
    validation: Public
    plan: Plan
    execution: Execution
    engine: EngineChoice

    def run(self, common: Batch, last: Batch | None, recorder: Recorder, *, readable: bool = True) -> None:
        """Take all steps on `common` and `last`, from the same start every time."""
        model = copy_model(self.model)
        optimizer = build_optimizer(model, self.optimizer, self.lr)
        setup = Setup(
            model=model,
            optimizer=optimizer,
            records=records_with(common, last, recorder.read, readable),
            plan=copy.deepcopy(self.plan),
            choice=self.engine,
            execution=self.execution,
            randomness=recorder.randomness,
            scheduler=None if self.scheduler is None else self.scheduler(optimizer),
            validation=self.validation,
            own_loop=self.loop is not None,
            build_curator=partial(Curator, mechanisms=recorder),
        )
        session = open_session(setup)
        recorder.watch(session)
        if self.loop is not None:
            self.loop(Private(session, self.loss_reduction))
        else:
            assert self.loss_fn is not None
            take_steps(session, copy_model(self.loss_fn) if isinstance(self.loss_fn, nn.Module) else self.loss_fn)


def audited_recipe(plan: Plan | Recipe | str) -> Recipe:
    """The recipe that is audited: of a plan, by its name, or as it is."""
    recipe = plan.recipe if isinstance(plan, Plan) else find_recipe(plan)
    if not recipe.private:
        raise InvalidArgument(
            "plan", recipe.name, "it promises nothing that could be broken", "Choose a private recipe"
        )
    return recipe
