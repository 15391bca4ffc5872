"""What a run does about crashes: how often it writes a checkpoint, and how a step whose result was lost is taken again."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from apportion.errors import InvalidArgument
from apportion.plan import Plan, describe
from apportion.sampling import MOST_STEPS
from apportion.validate import Checked, checked, one_of, whole

CHECKPOINTS = 100
"""A checkpoint after each hundredth of a run, and so many spare steps, unless somebody says otherwise."""


@dataclass(frozen=True)
class Recovery(Checked):
    """How a run with a folder survives a crash.

    Args:
        mode: "fresh": nothing random is stored. A run that goes on from its checkpoint draws new batches and new noise, and the steps
            that it takes again are paid for again. "exact": a key in secret/ makes every draw repeatable, so that a step whose result
            was lost is repeated bit for bit and not paid for twice; whoever reads that key knows the noise of the whole run. The
            key is deleted when the run ends. Only for `train`.
        spare: how many steps can be taken again, over the whole run, without losing any of the plan's. They are part of the plan,
            and cost like any other (100 spare ones beside 5,000 raise ε from 1.181 to 1.193). By default a hundredth of the run, which
            is enough for one crash. When they are used up, a crash loses steps instead.
        every: steps between two checkpoints; by default a hundredth of the run, rounded up.
    """

    prefix = "recovery"
    mode: Literal["fresh", "exact"] = checked("fresh", one_of("fresh", "exact"), "there is no such mode")
    spare: int | None = checked(None, whole, "it is a number of steps", "Use 0 to have none", least=0)
    every: int | None = checked(None, whole, "it is a number of steps", "Use 1 for a checkpoint a step")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.spare is not None and self.spare > MOST_STEPS:
            raise InvalidArgument("recovery.spare", self.spare, f"{MOST_STEPS:,} are the most", "Use a few hundred")

    def interval(self, steps: int) -> int:
        """Steps between two checkpoints."""
        return self.every or math.ceil(steps / CHECKPOINTS)

    def spare_tokens(self, steps: int) -> int:
        """Spare tokens of a run of `steps` that has a folder."""
        return steps // CHECKPOINTS if self.spare is None else self.spare


def configuration(
    plan: Plan,
    model: nn.Module,
    optimizer: Optimizer,
    scheduler: LRScheduler | None,
    *,
    mode: str,
    own_loop: bool,
    private: bool,
) -> dict[str, Any]:
    """What must be the same when a run goes on: otherwise the tokens would pay for another run than the one that was declared."""
    budget, sampling = plan.budget, plan.sampling
    return {
        "budget": {"epsilon": budget.epsilon, "delta": budget.delta, "unit": budget.unit.name},
        "population": sampling.population,
        "sample_rate": sampling.sample_rate,
        "steps": plan.steps,
        "spare": plan.spare,
        "clip": describe(plan.clip),
        "noise": describe(plan.noise),
        "optimizer": {"kind": type(optimizer).__name__, **json.loads(json.dumps(optimizer.defaults, default=str))},
        "scheduler": type(scheduler).__name__,
        "recovery": mode,
        "own_loop": own_loop,
        "private": private,
        "model": {
            name: {"shape": list(value.shape), "dtype": str(value.dtype), "trained": value.requires_grad}
            for name, value in model.named_parameters()
        },
    }
