"""The processes of a pipeline: all draw the same records, and each holds the parameters of one stage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torch import Tensor, distributed

from apportion.curator.curator import StreamSource
from apportion.curator.randomness import KEY_BYTES, DrawStreams, Stream
from apportion.distributed.process_group import ProcessGroupRanks
from apportion.errors import InvalidArgument
from apportion.ranks import Ranks


class PipelineRanks(ProcessGroupRanks):
    """Rank r has stage r.

    Each adds all of the noise of its own parameters: those of two stages are different coordinates of one release.
    """

    divides_records = False

    def __init__(self) -> None:
        if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
            reason = "a pipeline has two or more processes, each with one stage"
            fix = "Start it with torchrun, and call torch.distributed.init_process_group() first; in one process use apportion.train"
            raise InvalidArgument("processes", 1, reason, fix)
        super().__init__()
        self.share, self.wide = 1.0, False

    def give_up(self) -> None:
        """The others do not wait for a word, but for activations or gradients: they notice when this process ends."""

    def copy_first(self, tensors: Iterable[Tensor]) -> None:
        """Every stage has weights of its own."""


class SharedCoins:
    """The coins of a draw from a key of the first rank, 32 bytes; all else from a source of this rank's own.

    So every stage knows who is in the batch, and in which row, without a message that grows with the batch.

    Args:
        source: of this rank.
        ranks: the stages.
    """

    def __init__(self, source: StreamSource, ranks: Ranks):
        self._source, self._ranks = source, ranks

    def next_draw(self) -> DrawStreams:
        own = self._source.next_draw()
        key = self._ranks.agree(own.coins.words(KEY_BYTES // 8).tobytes())
        return replace(own, coins=Stream(key))
