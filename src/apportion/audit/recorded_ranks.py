"""What several ranks did together, put together: the run that the ledger has charged.

Each rank is watched by a recorder of its own, adds its own noise to its own sums, and is handed its own kept answers. What one record can
move, and what hides it, is the sum over all of them: exact sums add up, noise adds up in variance, and coins are those of all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from apportion.audit.recorder import NoiseCall, Recorder, Step
from apportion.audit.replay_report import Finding
from apportion.audit.state import differences
from apportion.curator.owners import Numbers, Owners
from apportion.curator.shard import ShardOwners
from apportion.distributed.in_turn import Link, Turns
from apportion.distributed.process_group import NoiseFrom, ProcessGroupRanks
from apportion.ranks import ALONE, Ranks
from apportion.request import Released

_PER_PROCESS = frozenset({"generator"})
"""Which all ranks of an audit share, because they take turns in one process."""


class RecordedRanks(Recorder):
    """Watches a run of several ranks as one run.

    Args:
        common, kept, secret: as of `Recorder`.
        count: how many ranks.
    """

    def __init__(self, common: int, kept: Recorder | None = None, secret: int = 0, count: int = 2):
        super().__init__(common, kept, secret)
        before: Sequence[Recorder | None] = kept.parts if isinstance(kept, RecordedRanks) else [None] * count
        self.wide = False
        """Whether sums travelled in float64, because all noise came from the first rank."""
        self.parts: list[Recorder] = [Recorder(common, one, secret, rank) for rank, one in enumerate(before)]

    def finish(self) -> None:
        """Put the parts together."""
        first = self.parts[0]
        self.session, self.after, self.charged = first.session, first.after, first.charged
        steps = min(len(part.steps) for part in self.parts)
        self.steps = [_together([part.steps[number] for part in self.parts], self.wide) for number in range(steps)]


def run_watched(
    recorder: Recorder, owners: Owners, noise_from: NoiseFrom, run: Callable[[Recorder, Ranks], None]
) -> None:
    """Call `run` for each rank of what `recorder` watches, with its own recorder."""
    if not isinstance(recorder, RecordedRanks):
        recorder.records_of = owners.records_of
        run(recorder, ALONE)
        return
    turns, recorder.wide = Turns(len(recorder.parts)), noise_from == "first rank"
    for rank, part in enumerate(recorder.parts):
        part.common = int(np.count_nonzero(owners.coin_units[: recorder.common] % turns.count == rank))
        part.records_of = _records_of(owners, rank, turns.count)

    def work(link: Link) -> None:
        part = recorder.parts[link.get_rank()]
        try:
            run(part, ProcessGroupRanks(noise_from, link=link))
        finally:
            part.finish()  # here: its ledger belongs to this thread

    turns.run(work)


def _records_of(owners: Owners, rank: int, count: int) -> Callable[[Numbers], Numbers]:
    """Of those whose coins the rank is to toss; if it tosses more, that is a finding of its own."""
    shard = ShardOwners(owners, rank, count)
    return lambda drawn: shard.records_of(drawn[drawn < shard.coins])


def inspect_ranks(run: Recorder, neighbour: str) -> Iterator[Finding]:
    """Whether all ranks were in the same public state at every step."""
    if not isinstance(run, RecordedRanks):
        return
    first, *others = run.parts
    for rank, part in enumerate(others, start=1):
        for number, (one, other) in enumerate(zip(first.states(), part.states(), strict=False)):
            if odd := [path for path in differences(one, other) if path not in _PER_PROCESS]:
                yield Finding(
                    neighbour, "state", f"rank {rank} is not in the state of rank 0: {odd[0]} differs", number
                )
                return


def _together(steps: Sequence[Step], wide: bool) -> Step:
    first = steps[0]
    whole = len({len(step.calls) for step in steps}) == 1
    calls = list(zip(*(step.calls for step in steps), strict=True)) if whole else []
    tossed = {rates for step in steps for _, rates in step.coins}
    travelled = ([] if first.released is None or wide else _types(first.released)) + [torch.float64] * len(calls)
    return Step(
        before=first.before,
        charged=first.charged,
        noise=first.noise,
        coins=[(sum(count for step in steps for count, _ in step.coins), rates) for rates in sorted(tossed)],
        members=set().union(*(step.members for step in steps)),
        read=set().union(*(step.read for step in steps)),
        calls=[_sum_of(parts, kind) for parts, kind in zip(calls, travelled, strict=False)],
        choices=first.choices,  # made from the sums of all ranks
        released=first.released,
        forms=first.forms,
    )


def _types(released: Released) -> list[torch.dtype]:
    """In which types the parts of each parameter travelled to the other ranks; those of statistics, after them, did so in float64."""
    sums = released.request.sums
    framed = {name for one in sums for name in one.parameters or released.gradient if one.frame is not None}
    return [
        torch.float64 if name in framed else torch.promote_types(answer.dtype, torch.float32)
        for name, answer in released.gradient.items()
    ]


def _sum_of(parts: Sequence[NoiseCall], travelled: torch.dtype) -> NoiseCall:
    answer = torch.zeros_like(parts[0].answer, dtype=travelled)
    for part in parts:
        answer = answer + part.answer.to(travelled)
    return NoiseCall(
        exact_sum=sum((part.exact_sum for part in parts[1:]), parts[0].exact_sum),
        standard_deviation=math.hypot(*(part.standard_deviation for part in parts)),
        divisor=parts[0].divisor if len({part.divisor for part in parts}) == 1 else math.nan,
        answer=answer.double(),
        own_stream=all(part.own_stream for part in parts),
        dtype=travelled,
    )
