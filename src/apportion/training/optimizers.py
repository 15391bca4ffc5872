"""Which optimiser applies the released gradients, and what moves its learning rate. Any torch optimiser will do: it only ever sees
released values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from apportion import validate
from apportion.curator.gradients.model_walk import trained_parameters
from apportion.errors import InvalidArgument

OptimizerFactory = Callable[..., Optimizer]

GROUPS = 'torch.optim.SGD([{"params": body.parameters()}, {"params": head.parameters(), "lr": 1.0}], lr=0.1)'
"""How parts of a model get settings of their own."""
NAMED: dict[str, OptimizerFactory] = {
    "sgd": torch.optim.SGD,
    "momentum": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
}


def build_optimizer(model: nn.Module, optimizer: str | OptimizerFactory, lr: float) -> Optimizer:
    """An optimiser over the trained parameters of `model`, by name or from a factory(parameters, lr=...)."""
    validate.positive("lr", lr, "it scales every update", "Try lr=0.5 for SGD or lr=1e-3 for Adam")
    if isinstance(optimizer, Optimizer):
        raise InvalidArgument(
            "optimizer",
            type(optimizer).__name__,
            "train builds the optimiser itself",
            "Pass a name, or the class: optimizer=torch.optim.SGD; or use make_private for a loop of your own",
        )
    _require_one(optimizer)
    factory = NAMED[validate.known("optimizer", optimizer, NAMED)] if isinstance(optimizer, str) else optimizer
    built = factory(list(trained_parameters(model).values()), lr=lr)
    require_plain_step(built)
    return built


def with_momentum(optimizer: str, momentum: float) -> str | OptimizerFactory:
    """v_t = μ·v_{t−1} + g̃_t, θ_t = θ_{t−1} − η·v_t, for μ = `momentum`; with μ = 0 the optimiser as it is named."""
    require_momentum(optimizer, momentum)
    return partial(torch.optim.SGD, momentum=momentum) if momentum else optimizer


def require_momentum(optimizer: str, momentum: float) -> None:
    """Refuse a momentum that never fades, or one for an optimiser other than "sgd"."""
    if not 0 <= momentum < 1:
        raise InvalidArgument("momentum", momentum, "old gradients would never fade", "Use 0 ≤ momentum < 1")
    if momentum and optimizer != "sgd":
        raise InvalidArgument(
            "momentum", momentum, f"it belongs to the optimiser sgd, not to {optimizer}", 'Leave it out, or use "sgd"'
        )


def _require_one(optimizer: object) -> None:
    """Refuse several optimisers: a step releases one gradient, of all trained parameters at once."""
    if isinstance(optimizer, (Sequence, Mapping)) and not isinstance(optimizer, str):
        raise InvalidArgument(
            "optimizer",
            f"{type(optimizer).__name__} of {len(optimizer)}",
            "a step releases one gradient of all trained parameters, and one optimizer applies it",
            f"Use parameter groups of one optimizer: {GROUPS}",
        )


def require_plain_step(optimizer: Optimizer) -> None:
    """Refuse several optimisers, and those that evaluate the loss themselves: every evaluation would be another question to the records."""
    _require_one(optimizer)
    if not isinstance(optimizer, Optimizer) or isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidArgument(
            "optimizer",
            type(optimizer).__name__,
            "it must be a torch optimiser that steps without a closure",
            "Try torch.optim.SGD",
        )


def require_plain_scheduler(scheduler: Any, optimizer: Optimizer) -> None:
    """Refuse a scheduler that is not stepped once a step, with nothing but the number of steps to go by."""
    kind = type(scheduler).__name__
    if isinstance(scheduler, ReduceLROnPlateau):
        raise InvalidArgument(
            "scheduler",
            kind,
            "it follows a score, which would have to be released or public, and none is offered to it",
            "Use a schedule that is known beforehand, such as torch.optim.lr_scheduler.StepLR",
        )
    try:
        inspect.signature(scheduler.step).bind()
    except (AttributeError, TypeError, ValueError):
        raise InvalidArgument(
            "scheduler",
            kind,
            "it is stepped once a step, and so needs a method step() without arguments",
            "Use one of torch.optim.lr_scheduler",
        ) from None
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise InvalidArgument(
            "scheduler",
            kind,
            "it belongs to another optimizer, so that it would change nothing here",
            "Make it for the optimizer of this run",
        )


def clear_gradients(optimizer: Optimizer) -> None:
    """As `optimizer.zero_grad(set_to_none=True)`, without its hooks for compilers, which take longer than a small step."""
    for parameter in _parameters(optimizer):
        parameter.grad = None


def require_same_parameters(parameters: Mapping[str, nn.Parameter], optimizer: Optimizer) -> None:
    """Refuse an optimiser that updates something else than these trained parameters.

    A parameter that is updated but neither clipped nor noised would leak; one that is noised but not updated wastes budget.
    """
    trained = {id(parameter): name for name, parameter in parameters.items()}
    updated = {id(p) for p in _parameters(optimizer) if p.requires_grad}
    if foreign := updated - trained.keys():
        raise InvalidArgument(
            "optimizer",
            f"{type(optimizer).__name__} with {len(foreign)} parameters that are not the model's",
            "they would be updated without clipping and noise",
            "Build the optimiser from model.parameters()",
        )
    if missing := trained.keys() - updated:
        raise InvalidArgument(
            "optimizer",
            [name for key, name in trained.items() if key in missing],
            "the optimiser does not hold these trained parameters, so noise would be spent on them for nothing",
            f"Add them, as parameter groups if they need settings of their own: {GROUPS}; or freeze them with requires_grad_(False)",
        )


def _parameters(optimizer: Optimizer) -> Iterable[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def require_momentum_free(optimizer: Optimizer, scheduler: LRScheduler | None, update: str) -> None:
    """Refuse anything but plain SGD without a scheduler beside an update that sets the weights itself."""
    if not _is_plain_sgd(optimizer) or len(optimizer.param_groups) != 1 or scheduler is not None:
        raise InvalidArgument(
            "optimizer" if scheduler is None else "scheduler",
            type(optimizer).__name__ if scheduler is None else type(scheduler).__name__,
            f"{update} chooses the step sizes and sets the weights itself, which momentum, weight decay or a schedule would contradict",
            'Use optimizer="sgd", with lr as the first, or largest, step size, and no scheduler',
        )


def require_plain_sgd(optimizer: Optimizer, update: str) -> None:
    """Refuse anything but SGD without momentum and weight decay beside an update that is an optimiser itself."""
    if not _is_plain_sgd(optimizer):
        raise InvalidArgument(
            "optimizer",
            type(optimizer).__name__,
            f"{update} is an optimiser itself, and a second one, momentum or weight decay would work on its steps",
            'Use optimizer="sgd" without momentum, with the lr that you would give to Adam',
        )


def _is_plain_sgd(optimizer: Optimizer) -> bool:
    extras = ("momentum", "weight_decay", "nesterov", "maximize")
    return type(optimizer) is SGD and not any(group[key] for group in optimizer.param_groups for key in extras)
