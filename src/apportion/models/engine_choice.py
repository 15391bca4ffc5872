"""Which engine computes the per-record gradients of a model: the fastest that is proved to keep records apart.

Two lines of defence. The **proof** (`proof.py`) follows the records through the engine, forward and backward; what it cannot follow runs
one record after the other. The **probe** compares the engine's gradients with those of single records on synthetic batches: random,
permuted, repeated, of other sizes, with records of different lengths and with tokens of every special kind. It would find what the proof
takes for granted: a kernel that computes something else than its name says.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import nn
from torch.utils._pytree import tree_map

from apportion.curator.clipping import Gradients, Rows, as_gradients
from apportion.curator.gradients.engine import BuiltEngine, EngineChoice, build_engine
from apportion.curator.gradients.one_pass import LayerCall
from apportion.curator.gradients.reference import trained_parameters
from apportion.curator.tree import batch_size
from apportion.errors import UnsupportedModel
from apportion.execution import Mode
from apportion.models.check import copy_model
from apportion.models.live_gradients import require_live_gradients
from apportion.models.proof import CannotTrace, trace_engine
from apportion.models.record_tracer import Path
from apportion.models.synthetic import (
    Tree,
    find_runnable,
    fix_seed,
    model_device,
    named_tensors,
    other_batch_kinds,
    prepare_model,
    select_records,
    synthetic_pairs,
    tensors_agree,
)

LossFunction = Callable[[Any, Any], torch.Tensor]

_ENGINES: tuple[tuple[Mode, bool], ...] = (
    ("one-pass, channels last", False),
    ("one-pass", False),
    ("one-pass, copying inputs", False),
    ("one-pass", True),
    ("one-pass, copying inputs", True),
    ("vmap", False),
)
"""The engines that run records together, from the fastest to the slowest, and whether modules of theirs may run alone."""
_LOSS_FACTORS = tuple(
    4.0**power for power in range(1, 11)
)  # what is done to large gradients only is done to some of these
_BATCHES = ([1, 1, 0, 2, 1], [0, 1], [0])
"""Records in another order and repeated; two, because three rows of a layer may be something else than three records; one alone."""


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
    probe = _Probe(subject, loss, inputs, target)
    reasons: list[str] = []
    with warnings.catch_warnings():
        # Where torch can work around a missing batching rule it says so, which is not a reason to go without the others.
        warnings.simplefilter("ignore")
        for mode, in_part in _ENGINES:
            if wanted not in ("auto", mode) or (mode == "one-pass, channels last" and not _has_images(subject)):
                continue
            try:
                choice = prove_engine(training, mode, loss, inputs, target, probe.pair[0], in_part=in_part)
            except CannotTrace as error:
                why = f"{mode} cannot be used: {error.reason}"
            else:
                why = f"{mode} cannot be used: its gradients are not those of single records"
                with suppress(RuntimeError, UnsupportedModel):
                    if probe.agrees(choice):
                        require_live_gradients(subject, choice, loss, *probe.pair)
                        return replace(choice, reasons=tuple(reasons)) if mode == "vmap" else choice
            if why not in reasons:
                reasons.append(why)
    if wanted not in ("auto", "loop"):
        raise UnsupportedModel(
            f"The engine {wanted!r} does not give the gradients of single records for this model ({reasons[-1]}). "
            'Use Execution(engine="auto"), which finds one that does.'
        )
    choice = EngineChoice("loop", reasons=tuple(reasons))
    require_live_gradients(subject, choice, loss, *probe.pair)
    return choice


def prove_engine(
    model: nn.Module,
    mode: Mode,
    loss: LossFunction | None,
    inputs: Tree,
    target: Tree,
    records: Tree,
    *,
    in_part: bool,
) -> EngineChoice:
    """The engine of this name if records can be followed through it, or `CannotTrace`.

    Args:
        records: inputs of synthetic records, on which the model runs.
        in_part: whether modules that cannot be followed may run one record after the other, as few as possible.
    """
    alone: dict[str, str] = {}
    shared: tuple[LayerCall, ...] = ()
    losses_together = True
    while True:
        choice = EngineChoice(
            mode,
            tuple(alone),
            shared,
            losses_together,
            tuple(f"{path} runs one record after the other: {reason}" for path, reason in alone.items())
            + (() if losses_together else ("the loss is evaluated one record after the other",)),
        )
        try:
            return replace(choice, path=prove_path(model, choice, loss, inputs, target, records))
        except CannotTrace as error:
            if error.in_loss and losses_together and mode != "vmap":
                losses_together = False
                continue
            if error.shared is not None:
                shared = (*shared, error.shared)
                continue
            if not in_part:
                raise
            path = error.module
            while path is not None and any(path == one or path.startswith(f"{one}.") for one in alone):
                path = path.rpartition(".")[0] if path else None  # it cannot run alone either: the module around it
            if not path:
                raise
            alone = {one: why for one, why in alone.items() if not one.startswith(f"{path}.")} | {path: error.reason}


def prove_path(
    model: nn.Module,
    choice: EngineChoice,
    loss: LossFunction | None,
    inputs: Tree,
    target: Tree,
    records: Tree,
) -> Path:
    """The path on which records were followed through this very engine, or `CannotTrace`."""

    def build() -> BuiltEngine:
        return build_engine(copy_model(model), choice)

    def trial(engine: BuiltEngine) -> None:
        with fix_seed(0, model_device(engine.model)):
            engine.forward(tree_map(torch.clone, records))

    return trace_engine(build, inputs, target, loss if choice.losses_together else None, trial)


class _Probe:
    """Compares engines with single records on synthetic batches."""

    def __init__(self, subject: nn.Module, loss: LossFunction | None, inputs: Tree, target: Tree):
        self._subject, self._loss, self._inputs, self._target = subject, loss, inputs, target
        self._engines: dict[Mode | EngineChoice, BuiltEngine] = {}
        self.pair, self._expected = find_runnable(
            lambda pair: self._gradients("loop", pair),
            synthetic_pairs(inputs, target, subject),
            "The model or its loss",
            (inputs, target),
        )
        self._repeatable = tensors_agree(self._gradients("loop", self.pair, seed=1), self._expected)

    def agrees(self, choice: EngineChoice) -> bool:
        """Whether the engine has the gradients of single records on all batches. What draws random numbers cannot be compared."""
        if not self._repeatable:
            return choice.mode == "vmap" or self._close(choice, self.pair, self._expected)
        if not self._close(choice, self.pair, self._expected):
            return False
        return all(self._close(choice, pair, alone) for pair, alone in self._references) and self._agrees_when_loud(
            choice
        )

    @cached_property
    def _references(self) -> list[tuple[tuple[Tree, Tree], torch.Tensor]]:
        """Batches, and what their records give alone."""
        found: list[tuple[tuple[Tree, Tree], torch.Tensor]] = []
        for kind in ("plain", *other_batch_kinds(self._inputs)):
            for pair in (
                [self.pair] if kind == "plain" else synthetic_pairs(self._inputs, self._target, self._subject, kind)
            ):
                try:
                    rows = self._rows("loop", pair)
                except Exception:  # not every model takes any mask or any word
                    continue
                assert isinstance(rows, Mapping)
                found += [
                    (
                        select_records(pair, company),
                        self._summary({name: row[company] for name, row in rows.items()}, company),
                    )
                    for company in (_BATCHES if kind == "plain" else _BATCHES[:1])
                ]
                break
        return found

    def _agrees_when_loud(self, choice: EngineChoice) -> bool:
        """Of a loss that is much larger, too. Nearly always gradients grow with it; where hooks limit them, all sizes between are compared,
        because what is limited vanishes beside what is not."""
        two, alone = self._references[-1]
        return tensors_agree(self._gradients(choice, two, _LOSS_FACTORS[-1]), alone, looseness=10) or all(
            tensors_agree(self._gradients(choice, two, factor), self._gradients("loop", two, factor), looseness=10)
            for factor in (1.0, *_LOSS_FACTORS)
        )

    def _close(self, choice: EngineChoice, pair: tuple[Tree, Tree], alone: torch.Tensor) -> bool:
        return tensors_agree(self._gradients(choice, pair), alone, looseness=10)

    def _gradients(
        self, choice: Mode | EngineChoice, pair: tuple[Tree, Tree], factor: float = 1.0, seed: int = 0
    ) -> torch.Tensor:
        """Of `factor` times the loss, and divided by it again."""
        return self._summary(self._rows(choice, pair, factor, seed), range(batch_size(pair[0]))) / factor

    def _rows(
        self, choice: Mode | EngineChoice, pair: tuple[Tree, Tree], factor: float = 1.0, seed: int = 0
    ) -> Gradients | Rows:
        if choice not in self._engines:
            self._engines[choice] = build_engine(self._subject, choice)
        engine = self._engines[choice]
        records, targets = tree_map(torch.clone, pair)
        with fix_seed(seed, model_device(self._subject)):
            outputs = engine.forward(records)
            if self._loss is None:
                losses = torch.stack(
                    [tensor.abs().sum() for _, tensor in named_tensors(outputs) if tensor.requires_grad]
                )
            else:
                losses = engine.record_losses(self._loss, outputs, targets)
            engine.require_own_parameters(losses.sum())
            (factor * losses.sum()).backward()
        return engine.gradients()

    def _summary(self, gradients: Gradients | Rows, records: Sequence[int]) -> torch.Tensor:
        """What clipping uses of the records' gradients: norms, and two sums that tell records apart.

        In one vector, so that rounding is measured against the whole: the gradient of one weight may be nothing but rounding.
        """
        with torch.no_grad():
            given = as_gradients(gradients)
            norms, places = given.squared_norms(), torch.arange(len(records), dtype=torch.float64)
            sums = [
                given.weighted_sums(dict.fromkeys(norms, weights))
                for weights in (0.5**places, torch.cos(3 * places + 0.7))
            ]
            values = [norm.sqrt() for norm in norms.values()] + [value for part in sums for value in part.values()]
            found = torch.cat([value.double().flatten() for value in values])
            return found.to(next(iter(trained_parameters(self._subject).values())).dtype)


def _has_images(model: nn.Module) -> bool:
    return any(isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)) for module in model.modules())


__all__ = ["LossFunction", "choose_engine", "prove_engine", "prove_path"]
