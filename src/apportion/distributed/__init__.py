"""Several processes that make one run: data parallel over the ranks of torch.distributed."""

from apportion.curator.shard import LocalShard
from apportion.distributed.in_turn import Turns
from apportion.distributed.process_group import ProcessGroupRanks, find_ranks, torchrun_ranks

__all__ = ["LocalShard", "ProcessGroupRanks", "Turns", "find_ranks", "torchrun_ranks"]
