"""What a stage must fulfil before anything is charged: a proof for it alone that records stay apart, forward and back.

A stage that is not the last knows nothing of the loss, but gets a gradient for every number that it hands on. So it is proved, and compared
with single records, for the loss ⟨output, target⟩ with arbitrary targets: its output gradient is the target, whatever that is. A stage that
is not the first also hands gradients back. That their rows belong to single records is proved with a layer in front, whose output gradient
they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from apportion.curator.gradients.engine import EngineChoice
from apportion.curator.gradients.losses import LossFunction
from apportion.curator.gradients.module_state import ModuleState
from apportion.curator.tree import map_tensors
from apportion.errors import UnsupportedModel, WrongOrder
from apportion.execution import Execution
from apportion.models.check import check
from apportion.models.engine_choice import choose_engine
from apportion.models.probe import probe_loss, probe_model
from apportion.models.proof import CannotTrace, TraceExample, require_same_control_flow, trace_engine
from apportion.models.synthetic import find_runnable_batch, prepare_model
from apportion.pipeline.stages import Boundary


@dataclass(frozen=True)
class VettedStage:
    """How a stage runs.

    Args:
        choice: its engine.
        outside: what it hands on.
        filler: inputs of a synthetic record on which it runs.
    """

    choice: EngineChoice
    outside: Boundary
    filler: Any


def vet_stage(
    stage: nn.Module,
    number: int,
    inputs: Any,
    target: Any,
    loss_fn: LossFunction | None,
    rows: int,
    execution: Execution,
) -> VettedStage:
    """Refuse a stage that mixes records, or that cannot run them together. Uses synthetic values only.

    Args:
        number: of the stage.
        inputs: one record as it enters.
        target, loss_fn: of one record; the loss is `None` for stages that are not the last.
        rows: of the chunks that it will run.
    """
    check(stage).require()
    probe_model(stage, inputs)
    batch, outputs, _ = find_runnable_batch("inputs", prepare_model(stage), inputs)
    outside = _boundary_of(outputs, number)
    if loss_fn is None:
        loss_fn, target = projection, outside.example()
    else:
        probe_loss(stage, loss_fn, inputs, target)
    choice = choose_engine(stage, loss_fn, inputs, target, execution.engine)
    if not choice.mode.startswith("one-pass") or choice.alone or choice.path is None:
        why = "; ".join(choice.reasons) or f"it was asked for the engine {choice.mode!r}"
        raise UnsupportedModel(
            f"Stage {number} would run one record after the other ({why}), and a pipeline runs chunks of records together. "
            "Rewrite that part, or train in one process with apportion.train."
        )
    example = TraceExample(inputs, target, loss_fn)
    try:
        if number:
            trace_engine(_with_a_layer_in_front(stage, inputs), _behind_it(choice), example)
        if choice.path.looks_at_count:
            for count in {1, rows}:
                require_same_control_flow(stage, choice, example, count, choice.path)
    except CannotTrace as error:
        raise UnsupportedModel(
            f"It cannot be proved that stage {number} keeps records apart in what it hands to the stages beside it: {error.reason}."
        ) from None
    return VettedStage(choice, outside, map_tensors(lambda leaf: leaf[0].detach().clone(), batch))


class ProvedState:
    """The attributes, buffers and training flags of a stage, for which its proof holds. Weights may move."""

    def __init__(self, stage: nn.Module):
        self._stage = stage
        self._state, self._writes = ModuleState(stage), _writes_to_buffers(stage)

    def require_same(self) -> None:
        """Refuse a stage that was changed since, before anything is charged for it."""
        change = self._state.find_change()
        what = (
            "a buffer"
            if self._writes != _writes_to_buffers(self._stage)
            else None
            if change is None
            else f"the {change[1]}"
        )
        if not all(module.training for module in self._stage.modules()):
            what = "train() mode"
        if what is not None:
            raise WrongOrder(
                f"{what} of the stage was changed during the run, and it was proved as it was that records stay apart in it. "
                "Leave the stage alone until train() has returned"
            )


def _writes_to_buffers(stage: nn.Module) -> list[tuple[int, int]]:
    return [(id(buffer), buffer._version) for buffer in stage.buffers()]


def projection(outputs: Tensor, target: Tensor) -> Tensor:
    """⟨output, target⟩: its gradient is the target."""
    return (outputs * target).sum()


def _boundary_of(outputs: Any, number: int) -> Boundary:
    if not isinstance(outputs, Tensor) or not outputs.is_floating_point() or outputs.dim() < 2:
        raise UnsupportedModel(
            f"Stage {number} returns {type(outputs).__name__}, and a stage hands on one tensor of floats with a row of numbers for each "
            "record. Let it return a single tensor."
        )
    return Boundary(tuple(outputs.shape[1:]), outputs.dtype)


def _with_a_layer_in_front(stage: nn.Module, inputs: Tensor) -> nn.Module:
    layer = nn.LayerNorm(inputs.shape[-1], dtype=inputs.dtype, device=next(stage.parameters()).device)
    return nn.Sequential(layer, stage).train()


def _behind_it(choice: EngineChoice) -> EngineChoice:
    return replace(choice, shared=tuple((f"1.{path}", call) for path, call in choice.shared))
