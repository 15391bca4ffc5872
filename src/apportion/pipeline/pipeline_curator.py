"""The curator of a pipeline: each process answers for the parameters of its stage, and all of them for one request.

    the first rank charges → a key for the coins → the same batch on all ranks → activations and gradients from stage to stage
    → every stage clips, sums and noises its own groups → the few noisy statistics go to all

**Price.** Group k, of one stage, has the threshold C_k and noise of standard deviation s_k = z·C_k/√w_k, where the shares w_k of all groups
and statistics of all stages add up to 1. One record moves the concatenation of all answers, in units of its noise, by at most
√(Σ_k w_k)/z = 1/z: the multiplier of the request, which is charged once. The bound needs nothing but ‖contribution to group k‖ ≤ C_k for
each group by itself. So a record whose gradient is not finite in one stage may contribute zero there and its clipped gradient in another,
where `curator.py`, which sees all groups, would leave it out everywhere: both have the same sensitivity.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from torch import Tensor, nn

from apportion.curator.curator import Curator, Draw, nothing_counted
from apportion.curator.foreign_code import watch_signals
from apportion.curator.gradients.losses import LossFunction
from apportion.curator.owners import Numbers
from apportion.curator.problems import Problems
from apportion.curator.randomness import Stream
from apportion.curator.reader import Piece
from apportion.curator.sieve import sieve
from apportion.curator.state_digest import state_digest
from apportion.errors import InvalidArgument, WrongOrder
from apportion.execution import Mode
from apportion.pipeline.chunks import Chunk, empty_chunk, read_chunks
from apportion.pipeline.pipeline_ranks import SharedCoins
from apportion.pipeline.stage_runner import StageRunner
from apportion.pipeline.stage_vetting import ProvedState
from apportion.pipeline.stages import Stages
from apportion.releases import ClippedSum, Noised, Statistic, UsableCount
from apportion.request import Request

CHUNKS_PER_STAGE = 4
"""Chunks that are on their way together, for each stage. While a pipeline fills and empties, stages wait: with four for each, a fifth of
the time. Their activations are what a stage holds at its peak."""


class StageModel:
    """An engine of the whole model, as far as this process has it: it runs as a pipeline, and not by calls."""

    def __init__(self, model: Stages, runner: StageRunner, proved: ProvedState):
        self.model: nn.Module = model
        self._runner, self._proved = runner, proved

    @property
    def mode(self) -> Mode:
        return self._runner.engine.mode

    def sync_weights(self) -> None:
        self._proved.require_same()
        self._runner.engine.sync_weights()

    def forward(self, inputs: Any, views: int = 1) -> Any:
        raise WrongOrder(_NOT_BY_CALLS)

    def record_losses(self, loss_fn: LossFunction, outputs: Any, targets: Any) -> Tensor:
        raise WrongOrder(_NOT_BY_CALLS)

    def require_own_parameters(self, loss: Tensor) -> None:
        raise WrongOrder(_NOT_BY_CALLS)

    def gradients(self) -> Any:
        raise WrongOrder(_NOT_BY_CALLS)


_NOT_BY_CALLS = "a stage of a pipeline runs together with the others"


class PipelineDraw(Draw):
    """A draw of which this process answers what is about its own stage."""

    @property
    def noised(self) -> tuple[Noised, ...]:
        """The releases of this stage. Usable records are counted by the first one, which hears of those that any other lost on the way."""
        return tuple(one for one in self.request.noised if stage_of(one) == self._ranks.rank)

    def _of_all_ranks(self, parts: Iterable[Tensor]) -> Iterator[Tensor]:
        return iter(parts)

    def _count(self, one: Statistic) -> Tensor:
        """Zero for a statistic of another stage: it brings count and noise, and the sum over all stages is what it released."""
        return super()._count(one) if stage_of(one) == self._ranks.rank else nothing_counted(one)


class PipelineCurator(Curator):
    """Answers requests about a model that is divided into stages.

    Args:
        arguments, named: as of `Curator`, with a `StageModel` as engine and `PipelineRanks`.
        runner: the stage of this process.
        filler: inputs of a synthetic record; `None` where no records are read: between the first and the last stage.

    Guarantee: adding or removing one record moves the sum of each group by at most its threshold and each statistic by its sensitivity,
    whatever the record does in the other stages.
    """

    draw_kind = PipelineDraw

    def __init__(self, *arguments: Any, runner: StageRunner, filler: Any, **named: Any):
        super().__init__(*arguments, **named)
        self._runner, self._filler = runner, filler
        self._randomness = SharedCoins(self._randomness, self._ranks)

    def open(self, request: Request) -> Draw:
        """Charge `request`, then toss its coins, the same ones on all ranks."""
        require_divisible(request)
        return super().open(request)

    def _digest(self, request: Request) -> bytes:
        """What is asked next, with its thresholds and multipliers: what all stages made of what was released so far."""
        return state_digest(request, {})

    def _read(self, members: Numbers, cuts: Sequence[slice], secret: Stream, problems: Problems) -> Iterator[Piece]:
        """For each cut a chunk, in place of inputs; stages in the middle read nothing."""
        rows = self._runner.rows
        if self._filler is None:
            chunks: Iterator[Chunk] = (empty_chunk(members[cut], rows) for cut in cuts)
        else:
            pieces = self._records.read(members, cuts, secret)
            known = sieve(pieces, self._domain, self._runner.device, len(members), problems, self._records.failures)
            chunks = read_chunks(known, members, cuts, rows, self._filler)
        return (Piece((chunk, None), chunk.members) for chunk in chunks)

    def _add_batch(self, draw: Draw, loss_fn: LossFunction) -> None:
        """In turns of a fixed number of chunks, so that memory does not grow with the batch. All ranks have the same number of them."""
        chunks = (piece.batch[0] for piece in draw.micro_batches())
        with watch_signals():
            while turn := list(islice(chunks, CHUNKS_PER_STAGE * self._ranks.count)):
                with draw.secret_dropout(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # a warning may be caused by one record, and is output
                    self._runner.run(turn, draw, loss_fn, self._problems)


def stage_of(release: Noised) -> int:
    """Whose parameters a release is about."""
    return 0 if isinstance(release, UsableCount) else min(_stages_of(release))


def _stages_of(release: Noised) -> set[int]:
    return {int(name.partition(".")[0]) for name in release.parameters or ()}


def require_divisible(request: Request) -> None:
    """Refuse a request that one stage cannot answer without the others."""
    for release in request.releases:
        if not isinstance(release, Noised):
            reason = "it compares losses at other weights, for which the whole model would have to run again"
            raise InvalidArgument("plan", type(release).__name__, reason, _DIVISIBLE)
        if isinstance(release, ClippedSum) and release.frame is not None:
            reason = "coordinates that follow the whole released gradient are known to no single stage"
            raise InvalidArgument("plan.clip", "a frame", reason, _DIVISIBLE)
        if not isinstance(release, UsableCount) and len(_stages_of(release)) != 1:
            named = "all parameters" if release.parameters is None else f"{len(release.parameters)} parameters"
            reason = "the norm of a group that lies in several stages would have to be sent from one to the other, for every record"
            raise InvalidArgument("plan.clip.groups", named, reason, _DIVISIBLE)


_DIVISIBLE = "Clip by stages or layers: clip.Quantile(..., groups=apportion.pipeline.per_device(stages)), or a recipe such as he-equal"
