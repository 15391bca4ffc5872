"""Watches the ranks of a run, each by a recorder of its own, and puts together what they did (`joined_steps.py`).

Ranks that hold the whole model take turns in this process. Those that hold a part of it are processes: each of them audits the same run,
is watched where it is, and sends what was written down to all others, so that all come to the same verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from apportion.audit.joined_steps import Division, added_up
from apportion.audit.recorder import Recorder
from apportion.audit.recording import Recording, Step
from apportion.audit.replay_report import Finding
from apportion.audit.state import differences
from apportion.curator.owners import Numbers, Owners
from apportion.curator.shard import ShardOwners
from apportion.distributed.in_turn import Link, Turns
from apportion.distributed.process_group import NoiseFrom, ProcessGroupRanks
from apportion.errors import RankLost
from apportion.ranks import ALONE, Ranks


class SeveralRecorders(Recorder):
    """Watches a run of several ranks as one run.

    Args:
        common, kept, secret: as of `Recorder`.
        division: how the ranks divide the run.
    """

    def __init__(self, common: int, kept: Recorder | None, secret: int, division: Division):
        super().__init__(common, kept, secret)
        self.division = division

    def join(self, parts: Sequence[Recording]) -> None:
        """Put together what the ranks did."""
        self.parts, self.charged = parts, parts[0].charged
        together = zip(*(part.steps for part in parts), strict=False)
        self.steps = [self._joined(steps) for steps in together]
        self.after = self.division.state([part.after for part in parts])
        failures = [part.failure for part in parts if part.failure is not None]
        told = [text for text in failures if not text.startswith(RankLost.__name__)]  # the others hear of it
        self.failure = next(iter([*told, *failures]), None)

    def _joined(self, steps: Sequence[Step]) -> Step:
        step = self.division.join(steps)
        step.before = self.division.state([one.before for one in steps])
        return step


class RecordedTurns(SeveralRecorders):
    """Ranks that take turns in this process, each with the whole model.

    Args:
        count: how many ranks.
        noise_from: who adds the noise.
    """

    def __init__(self, common: int, kept: Recorder | None, secret: int, count: int, noise_from: NoiseFrom):
        join = partial(added_up, wide=noise_from == "first rank")
        super().__init__(common, kept, secret, Division(join, frozenset({"generator"})))  # which all ranks share here
        before: Sequence[Recorder | None] = kept.ranks if isinstance(kept, RecordedTurns) else [None] * count
        self.noise_from: NoiseFrom = noise_from
        self.ranks: list[Recorder] = [Recorder(common, one, secret, rank) for rank, one in enumerate(before)]

    def finish(self) -> None:
        for one in self.ranks:
            one.failure = one.failure or self.failure
        self.join([one.recording for one in self.ranks])


class RecordedProcesses(SeveralRecorders):
    """The processes of a group, of which this is one.

    Args:
        ranks: the processes.
        division: what each of them has.
    """

    def __init__(self, common: int, kept: Recorder | None, secret: int, ranks: Ranks, division: Division):
        super().__init__(common, kept, secret, division)
        before = kept.own if isinstance(kept, RecordedProcesses) else None
        self.ranks = ranks
        self.own: Recorder = Recorder(common, before, secret, ranks.rank)

    def finish(self) -> None:
        """All processes come here after each run, however it ended."""
        self.own.finish()
        self.own.failure = self.own.failure or self.failure
        self.join(self.ranks.gather(self.own.recording))


def run_watched(recorder: Recorder, owners: Owners, run: Callable[[Recorder, Ranks], None]) -> None:
    """Call `run` for each rank of what `recorder` watches in this process, with its own recorder."""
    if isinstance(recorder, RecordedProcesses):
        _assign_units(recorder.own, owners, recorder.common, recorder.ranks.rank, recorder.ranks.count)
        run(recorder.own, recorder.ranks)
        return
    if not isinstance(recorder, RecordedTurns):
        recorder.records_of = owners.records_of
        run(recorder, ALONE)
        return
    turns, noise_from = Turns(len(recorder.ranks)), recorder.noise_from
    for rank, part in enumerate(recorder.ranks):
        _assign_units(part, owners, recorder.common, rank, turns.count)

    def work(link: Link) -> None:
        part = recorder.ranks[link.get_rank()]
        try:
            run(part, ProcessGroupRanks(noise_from, link=link))
        finally:
            part.finish()  # here: its ledger belongs to this thread

    turns.run(work)


def _assign_units(part: Recorder, owners: Owners, common: int, rank: int, count: int) -> None:
    """Tell the recorder of a rank whose coins that one is to toss."""
    part.common = int(np.count_nonzero(owners.coin_units[:common] % count == rank))
    part.records_of = _records_of(owners, rank, count)


def _records_of(owners: Owners, rank: int, count: int) -> Callable[[Numbers], Numbers]:
    """Of those whose coins the rank is to toss; if it tosses more, that is a finding of its own."""
    shard = ShardOwners(owners, rank, count)
    return lambda drawn: shard.records_of(drawn[drawn < shard.coins])


def inspect_ranks(run: Recording, neighbour: str) -> Iterator[Finding]:
    """Whether all ranks had the same charges, answers and public state at every step, as far as they share it."""
    if not isinstance(run, SeveralRecorders):
        return
    first, *others = run.parts
    for rank, part in enumerate(others, start=1):
        if found := _difference(run.division, first, part):
            number, text = found
            yield Finding(neighbour, "state", f"rank {rank} is not in the state of rank 0: {text} differs", number)


def _difference(division: Division, first: Recording, part: Recording) -> tuple[int, str] | None:
    """The step before which, and in what, two ranks differ."""
    for number, (one, other) in enumerate(zip(first.states(), part.states(), strict=False)):
        if odd := differences(division.shared(one), division.shared(other)):
            return number, odd[0]
    for number, (step, its) in enumerate(zip(first.steps, part.steps, strict=False), start=1):
        if step.charged != its.charged:
            return number, "what was charged"
        if step.released and its.released and step.released.statistics != its.released.statistics:
            return number, "an answer to a statistic"
    return None
