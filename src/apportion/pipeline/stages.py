"""The model of a pipeline as one process knows it: the values of its own stage, names and shapes of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from apportion import validate
from apportion.curator.gradients.model_walk import trained_parameters
from apportion.errors import InvalidArgument, WrongOrder

Skeleton = dict[str, tuple[tuple[int, ...], torch.dtype, bool]]
"""Shape, type and whether it learns, of each parameter by name."""


def per_device(stages: int) -> tuple[tuple[str, ...], ...]:
    """The parameters of each stage as one group of a clip.

    Examples:
        >>> from apportion.pipeline import per_device
        >>> from apportion.strategies import clip
        >>> per_device(2)
        (('0.*',), ('1.*',))
        >>> clip.Quantile(start=1.0, share=0.01, groups=per_device(2)).allocation
        'equal'
    """
    count = validate.whole("stages", stages, "it is a number of processes", "Use the size of the process group")
    return tuple((f"{stage}.*",) for stage in range(count))


@dataclass(frozen=True)
class Boundary:
    """Shape and type of what one record is where it enters or leaves a stage."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def rows(self, count: int, device: torch.device | str = "meta") -> Tensor:
        """Room for so many records, as autograd sees it: a gradient comes back for it."""
        return torch.empty(count, *self.shape, dtype=self.dtype, device=device, requires_grad=True)

    def example(self) -> Tensor:
        """One record, of zeros."""
        return torch.zeros(self.shape, dtype=self.dtype)


def skeleton_of(stage: nn.Module) -> Skeleton:
    """What the other processes need to know of a stage."""
    return {name: (tuple(one.shape), one.dtype, one.requires_grad) for name, one in stage.named_parameters()}


class Stages(nn.Module):
    """All stages under their numbers: parameter w of stage 1 is called 1.w. Those of the others have no values and take no room.

    Args:
        own: the stage of this process.
        rank: its number.
        skeletons: of all stages, in order.
    """

    def __init__(self, own: nn.Module, rank: int, skeletons: list[Skeleton]):
        super().__init__()
        for number, skeleton in enumerate(skeletons):
            self.add_module(str(number), own if number == rank else _hollow(skeleton))

    def forward(self, *inputs: Any) -> Any:
        raise WrongOrder("one process of a pipeline holds one stage of the model, and runs it together with the others")


def _hollow(skeleton: Skeleton) -> nn.Module:
    """Modules of the same names, whose parameters have a shape alone."""
    root = nn.Module()
    for name, (shape, dtype, learns) in skeleton.items():
        *path, last = name.split(".")
        module = root
        for part in path:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        empty = torch.empty(shape, dtype=dtype, device="meta")
        module.register_parameter(last, nn.Parameter(empty, requires_grad=learns))
    return root


def require_stage(stage: object) -> nn.Module:
    """Refuse what cannot be a stage."""
    if not isinstance(stage, nn.Module):
        fix = "Pass the torch.nn.Module of this rank, such as stages[torch.distributed.get_rank()]"
        raise InvalidArgument("stage", validate.shown(stage), f"it is a {type(stage).__name__}", fix)
    if not trained_parameters(stage):
        reason = "it has no parameter that learns, so that there is nothing to clip in it"
        raise InvalidArgument("stage", type(stage).__name__, reason, "Make it a part of the stage before or behind it")
    return stage
