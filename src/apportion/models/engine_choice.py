"""Which engine computes the per-record gradients of a model: the fastest that is proved to keep records apart.

Two lines of defence. The **proof** (`proof.py`) traces the records through the engine, forward and backward; a module that it cannot
trace runs one record after the other. The **probe** (`gradient_probe.py`) compares the engine's gradients with those of single records on
synthetic batches. It would find what the proof takes for granted: a kernel that computes something else than its name says.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import replace
from typing import Literal

from torch import nn

from apportion.curator.gradients.engine import EngineChoice
from apportion.curator.gradients.losses import LossFunction
from apportion.errors import UnsupportedModel
from apportion.execution import Mode
from apportion.models.check import copy_model
from apportion.models.gradient_probe import GradientProbe, require_live_gradients
from apportion.models.proof import CannotTrace, TraceExample, trace_engine
from apportion.models.synthetic import Tree, prepare_model

_ENGINES: tuple[tuple[Mode, bool], ...] = (
    ("one-pass, channels last", False),
    ("one-pass", False),
    ("one-pass, copying inputs", False),
    ("one-pass", True),
    ("one-pass, copying inputs", True),
    ("vmap", False),
)
"""The engines that run records together, from the fastest to the slowest, and whether some of their modules may run alone."""


def choose_engine(
    model: nn.Module,
    loss_fn: LossFunction | None,
    inputs: Tree,
    target: Tree,
    wanted: Literal["auto"] | Mode = "auto",
) -> EngineChoice:
    """The first engine, from the fastest to the slowest, that passes proof and probe. One that is `wanted` must be among those that do.

    In a training loop of a person's own the loss is not known beforehand: with `loss_fn=None` the outputs stand for it.
    """
    subject, training = prepare_model(model), copy_model(model).train()
    loss = copy_model(loss_fn) if isinstance(loss_fn, nn.Module) else loss_fn
    probe = GradientProbe(subject, loss, inputs, target)
    example = TraceExample(inputs, target, loss, probe.pair[0])
    reasons: list[str] = []
    with warnings.catch_warnings():
        # Where torch can work around a missing batching rule it says so, which is not a reason to go without the others.
        warnings.simplefilter("ignore")
        for mode, in_part in _ENGINES:
            if wanted not in ("auto", mode) or (mode == "one-pass, channels last" and not _has_images(subject)):
                continue
            try:
                choice = prove_engine(training, mode, example, in_part=in_part)
            except CannotTrace as error:
                why = f"{mode} cannot be used: {error.reason}"
            else:
                why = f"{mode} cannot be used: its gradients are not those of single records"
                with suppress(RuntimeError, UnsupportedModel):
                    if probe.agrees(choice):
                        require_live_gradients(subject, choice, loss, probe.pair)
                        return replace(choice, reasons=tuple(reasons)) if mode == "vmap" else choice
            if why not in reasons:
                reasons.append(why)
    if wanted not in ("auto", "loop"):
        raise UnsupportedModel(
            f"The engine {wanted!r} does not give the gradients of single records for this model ({reasons[-1]}). "
            'Use Execution(engine="auto"), which finds one that does.'
        )
    choice = EngineChoice("loop", reasons=tuple(reasons))
    require_live_gradients(subject, choice, loss, probe.pair)
    return choice


def prove_engine(model: nn.Module, mode: Mode, example: TraceExample, *, in_part: bool) -> EngineChoice:
    """The engine of this name with the path on which records were traced through it, or `CannotTrace`.

    Args:
        in_part: whether modules that cannot be traced may run one record after the other, as few as possible.
    """
    alone: dict[str, str] = {}
    choice = EngineChoice(mode)
    while True:
        try:
            return replace(choice, path=trace_engine(model, choice, example))
        except CannotTrace as error:
            if error.in_loss and choice.losses_together and mode != "vmap":
                choice = replace(choice, losses_together=False)
            elif error.shared is not None:
                choice = replace(choice, shared=(*choice.shared, error.shared))
            elif in_part and (path := _smallest_untried(model, error.module, alone)):
                alone = {one: why for one, why in alone.items() if not one.startswith(f"{path}.")}
                alone[path] = error.reason
            else:
                raise
        reasons = [f"{path} runs one record after the other: {reason}" for path, reason in alone.items()]
        if not choice.losses_together:
            reasons.append("the loss is evaluated one record after the other")
        choice = replace(choice, alone=tuple(alone), reasons=tuple(reasons))


def _smallest_untried(model: nn.Module, module: str | None, alone: dict[str, str]) -> str | None:
    """The module itself or, where it or one around it runs alone already and that did not help, the one around that.

    Lists of modules are passed over: nobody calls them.
    """
    while module is not None and (
        any(module == one or module.startswith(f"{one}.") for one in alone)
        or isinstance(model.get_submodule(module), (nn.ModuleList, nn.ModuleDict))
    ):
        module = module.rpartition(".")[0] if module else None
    return module


def _has_images(model: nn.Module) -> bool:
    return any(isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)) for module in model.modules())


__all__ = ["choose_engine", "prove_engine"]
