"""Chunks go through one stage of a pipeline, forward and back; on the way back the stage's gradients are clipped and added up.

The schedule, and all that is sent, is the library's (`torch.distributed.pipelining`, GPipe). What it is given as a stage is a module
without parameters, which runs the one-pass engine on a chunk. The engine's hooks note inputs and output gradients of every layer, row by
row: the loss is a sum over records, so that row i of what comes back is the gradient of record i alone.

Whatever fails, fails for one record: a chunk that cannot be run as a whole is run row by row, and a row that fails alone takes no part in
this stage, and is NaN in what is sent on. Nothing is raised for it, because the other stages wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from apportion.curator.curator import Draw, SumLost
from apportion.curator.foreign_code import contain_errors
from apportion.curator.gradients.losses import LossFunction
from apportion.curator.gradients.one_pass import OnePass
from apportion.curator.problems import FAILED, NOT_FINITE, Problems
from apportion.curator.tree import map_tensors
from apportion.errors import RankLost
from apportion.pipeline.chunks import Chunk
from apportion.pipeline.pipeline_ranks import PipelineRanks
from apportion.pipeline.stage_rows import StageRows
from apportion.pipeline.stages import Boundary


class StageRunner:
    """Runs the chunks of a draw through the stage of this process, together with the other processes.

    Args:
        engine: per-record gradients of the stage.
        ranks: the stages; this one's number is its rank.
        rows: of every chunk.
        inside, outside: what a record is where it enters and leaves the stage; `inside` is `None` for the first one, which reads records.
    """

    def __init__(self, engine: OnePass, ranks: PipelineRanks, rows: int, inside: Boundary | None, outside: Boundary):
        self.engine, self.rows = engine, rows
        self._ranks, self._inside, self._outside = ranks, inside, outside
        self._first, self._last = ranks.rank == 0, ranks.rank == ranks.count - 1
        self.device = next(engine.model.parameters()).device
        self._schedule: ScheduleGPipe | None = None
        self._count = 0
        self._turn: Sequence[Chunk] = ()
        self._forwarded = 0
        self._failure: BaseException | None = None

    def run(self, turn: Sequence[Chunk], draw: Draw, loss_fn: LossFunction, problems: Problems) -> None:
        """One turn: all these chunks forward, all back, and their clipped gradients into `draw`.

        Every process calls it with as many chunks. Between two stages go, for each chunk, `rows` activations and as many gradients.
        """
        self._turn, self._forwarded, self._failure = turn, 0, None
        self._draw, self._loss_fn, self._problems = draw, loss_fn, problems
        schedule = self._schedule_of(len(turn))
        numbers = torch.arange(len(turn))  # chunks are looked up by their number: the library cuts nothing
        try:
            with self._ranks.sending():
                schedule.step(
                    *([numbers] if self._first else []), target=numbers if self._last else None, return_outputs=False
                )
        except RankLost:
            if self._failure is not None:  # the library tells of it in its own words
                raise self._failure from None
            raise
        finally:
            self._turn = ()

    def _schedule_of(self, chunks: int) -> ScheduleGPipe:
        """The library's schedule for so many chunks. Shapes are fixed: it sends nothing to find them out."""
        if self._schedule is None or self._count != chunks:
            number = torch.zeros(1, dtype=torch.int64, device="meta")
            stage = PipelineStage(
                _Submodule(self._enter),
                self._ranks.rank,
                self._ranks.count,
                self.device,
                input_args=(number if self._inside is None else self._inside.rows(self.rows),),
                output_args=(self._outside.rows(self.rows),),
            )
            self._schedule = ScheduleGPipe(stage, chunks, loss_fn=self._loss, scale_grads=False)
            self._count = chunks
        return self._schedule

    def _enter(self, given: Tensor) -> Tensor:
        chunk = self._turn[self._forwarded]
        self._forwarded += 1
        try:
            passed: Tensor = _Pass.apply(given, torch.zeros((), requires_grad=True), chunk, self)
            return passed
        except BaseException as error:
            self._failure = error
            raise

    def forward(self, chunk: Chunk, given: Tensor) -> Tensor:
        """What the stage makes of a chunk, (rows, …); NaN where a record takes no part."""
        if not self._first:
            chunk.inputs = given.detach().requires_grad_()
            self._lose_non_finite(chunk, given)
        with torch.enable_grad(), contain_errors():
            chunk.running = self.engine.forward(chunk.inputs), self.engine.set_aside()
        outputs = self._row_by_row(chunk) if chunk.running is None else _sendable(chunk.running[0])
        outputs[chunk.lost] = torch.nan
        return outputs

    def _row_by_row(self, chunk: Chunk) -> Tensor:
        outputs = torch.zeros_like(self._outside.rows(self.rows), device=self.device, requires_grad=False)
        for row in _places(chunk.usable):
            with torch.no_grad(), contain_errors() as attempt:
                outputs[row] = self.engine.forward(_row(chunk.inputs, row))[0].detach()
            if attempt.failure:
                self._lose_row(chunk, row, attempt)
        return outputs

    def _loss(self, outputs: Tensor, number: Tensor) -> Tensor:
        """A number whose gradient is that of the sum of the records' losses, with the gradient of each record found before."""
        chunk = self._turn[int(number)]
        gradient = torch.zeros_like(outputs)
        known = chunk.usable[chunk.answered]
        rows = chunk.answered[known]
        if len(rows):
            targets = map_tensors(lambda leaf: leaf[known.to(leaf.device)], chunk.targets)
            with torch.enable_grad(), contain_errors() as together:
                gradient[rows] = self._output_gradients(outputs[rows], targets)
            if together.failure:
                for place, row in enumerate(rows.tolist()):
                    with torch.enable_grad(), contain_errors() as attempt:
                        gradient[row] = self._output_gradients(outputs[row : row + 1], _row(targets, place))[0]
                    if attempt.failure:
                        self._lose_row(chunk, row, attempt)
        return (outputs * gradient).sum()

    def _output_gradients(self, outputs: Tensor, targets: Any) -> Tensor:
        leaf = outputs.detach().requires_grad_()
        losses = self.engine.record_losses(self._loss_fn, leaf, targets)
        (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        return gradient

    def backward(self, chunk: Chunk, gradient: Tensor) -> Tensor | None:
        """Add the clipped gradients of a chunk to the draw. Returns the gradient of what entered; of records that take no part NaN."""
        self._lose_non_finite(chunk, gradient)
        gradient = torch.where(_along(chunk.usable, gradient), gradient, 0.0)
        entered = None if self._first else torch.zeros_like(chunk.inputs)
        counted = self._problems.counted()
        added = False
        if chunk.running is not None:
            outputs, noted = chunk.running
            with torch.enable_grad(), contain_errors(SumLost):
                self.engine.take_up(noted)
                torch.autograd.backward(outputs, gradient)
                self._add(chunk, _places(chunk.usable))
                added = True
        if added and entered is not None and chunk.inputs.grad is not None:
            entered = chunk.inputs.grad
        if not added:
            self._problems.count_again(counted)
            self._add_row_by_row(chunk, gradient, entered)
        chunk.running = None
        if entered is not None:
            entered = _sendable(torch.where(_along(chunk.lost, entered), torch.nan, entered))
        return entered

    def _add_row_by_row(self, chunk: Chunk, gradient: Tensor, entered: Tensor | None) -> None:
        for row in _places(chunk.usable):
            with torch.enable_grad(), contain_errors(SumLost) as attempt:
                inputs = _row(chunk.inputs, row)
                if entered is not None:
                    inputs = inputs.detach().requires_grad_()
                torch.autograd.backward(self.engine.forward(inputs), gradient[row : row + 1])
                self._add(chunk, [row], alone=True)
                if entered is not None:
                    entered[row] = inputs.grad[0]
            if attempt.failure:
                self._lose_row(chunk, row, attempt)

    def _add(self, chunk: Chunk, rows: list[int], *, alone: bool = False) -> None:
        chosen = torch.tensor(rows, dtype=torch.int64)
        found = StageRows(
            self.engine.gradients(), self._ranks.rank, torch.zeros(1, dtype=torch.int64) if alone else chosen
        )
        self._draw.add(found, chunk.members[chosen])

    def _lose_non_finite(self, chunk: Chunk, rows: Tensor) -> None:
        """A record that another stage lost, or whose numbers left their range, takes no part in this one."""
        broken = ~rows.detach().reshape(len(rows), -1).isfinite().all(1)
        self._problems.count(NOT_FINITE, chunk.lose(broken.cpu()))

    def _lose_row(self, chunk: Chunk, row: int, attempt: contain_errors) -> None:
        lost = torch.zeros_like(chunk.usable)
        lost[row] = True
        self._problems.count(FAILED, chunk.lose(lost), attempt.text or attempt.failure or "")


class _Submodule(nn.Module):
    """What the library runs as a stage. It has no parameters: no gradient that is not clipped is ever left anywhere."""

    def __init__(self, enter: Callable[[Tensor], Tensor]):
        super().__init__()
        self._enter = enter

    def forward(self, given: Tensor) -> Tensor:
        return self._enter(given)


class _Pass(torch.autograd.Function):
    """A chunk's way through a stage as one operation of autograd: what runs inside, and what fails, is the stage's own affair."""

    @staticmethod
    def forward(context: Any, given: Tensor, anchor: Tensor, chunk: Chunk, runner: StageRunner) -> Tensor:
        context.chunk, context.runner = chunk, runner
        return runner.forward(chunk, given)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
        return context.runner.backward(context.chunk, gradient), None, None, None


def _sendable(tensor: Tensor) -> Tensor:
    """A copy in the order in which the library sends numbers: that of engines may differ, as with channels last."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _row(tree: Any, row: int) -> Any:
    return map_tensors(lambda leaf: leaf[row : row + 1], tree)


def _places(mask: Tensor) -> list[int]:
    places: list[int] = mask.nonzero().flatten().tolist()
    return places


def _along(mask: Tensor, like: Tensor) -> Tensor:
    """A mask of rows in the shape of what has these rows."""
    return mask.to(like.device).reshape(-1, *[1] * (like.dim() - 1))
