"""The runs of a replay audit: one subject on pairs of neighbouring data sets, each judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
from torch import nn

from apportion.audit.audited_owners import AuditedOwners
from apportion.audit.neighbours import Neighbour
from apportion.audit.recorded_ranks import inspect_ranks
from apportion.audit.recorder import Recorder
from apportion.audit.replay_comparison import Declared, compare, distances, inspect_noise, inspect_run
from apportion.audit.replay_report import Finding, Measured, ReplayReport
from apportion.audit.state import differences
from apportion.curator.records import Batch
from apportion.errors import InvalidArgument, RankLost
from apportion.planning import Plan
from apportion.strategies.people import IndividualFilter

RECORDS = 12
"""How many records the data sets share."""

NewRecorder = Callable[[Recorder | None, int], Recorder]
"""Makes what watches a run, given the run whose answers are handed out, and which secret stream dropout would have."""


class Subject(Protocol):
    """What is audited: everything but the data."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def plan(self) -> Plan: ...

    @property
    def foreign(self) -> str:
        """The argument that may draw random numbers of its own."""
        ...

    def run(
        self, common: Batch, last: Batch | None, recorder: Recorder, *, readable: bool = True, group: int = 0
    ) -> None:
        """Take all steps on `common` and `last`, whose owner is in `group`, from the same start every time."""
        ...


def one_recorder(kept: Recorder | None, secret: int) -> Recorder:
    """Watches a run of this process."""
    return Recorder(RECORDS, kept, secret)


class NeighbourAudit:
    """Runs one subject on pairs of neighbours.

    Args:
        subject: what is audited.
        common, record: the records that all data sets share, and the last one of D.
        new_recorder: makes what watches a run.
    """

    def __init__(self, subject: Subject, common: Batch, record: Batch, new_recorder: NewRecorder = one_recorder):
        self._subject, self._common, self._record, self._new_recorder = subject, common, record, new_recorder
        plan = subject.plan
        leaves_out = isinstance(plan.recipe.people, IndividualFilter)
        self._declared = Declared(subject.model, plan.expected_batch_size, plan.budget.unit.coins_per_unit, leaves_out)
        self._findings: list[Finding] = []
        self._measured: list[Measured] = []
        self._runs: list[Recorder] = []

    def report(self, pairs: tuple[Neighbour, ...]) -> ReplayReport:
        """Record on D with and without the last record, then replay on every neighbour; its owner in every group."""
        for group in range(len(self._subject.plan.budget.groups) or 1):
            self._report_group(pairs, group)
        runs = self._runs
        return ReplayReport(
            findings=tuple(self._findings),
            neighbours=tuple(self._measured),
            steps=sum(len(run.steps) for run in runs),
            noise_calls=sum(len(step.calls) for run in runs for step in run.steps),
            state_entries=sum(len(state) for run in runs for state in run.states()),
        )

    def _report_group(self, pairs: tuple[Neighbour, ...], group: int) -> None:
        groups = self._subject.plan.budget.groups
        suffix = f", group {groups[group].name}" if groups else ""
        present = self._new_recorder(None, 0)
        self._watched(present, self._record, group, forgiving=False)
        if group == 0:
            self._require_comparable(present)
        absent = self._new_recorder(None, 0)
        self._watched(absent, None, group)
        for name, last, run in (("D", False, absent), ("D with a record more", True, present)):
            size = self._coins(last, group)
            self._findings += inspect_run(run, name + suffix, self._declared, size)
            self._findings += inspect_noise(run, name + suffix)
            self._findings += inspect_ranks(run, name + suffix)
        for pair in pairs:
            before = absent if pair.before is None else present
            after = self._new_recorder(before, 0)
            self._watched(after, pair.after, group, readable=pair.readable)
            found, ratio = self._judge(replace(pair, name=pair.name + suffix), before, after, group)
            self._findings += found
            self._measured.append(Measured(pair.name + suffix, ratio, len(found)))
            self._runs.append(after)

    def _coins(self, last: bool, group: int) -> int:
        return AuditedOwners.of(self._subject.plan.budget, RECORDS, last=last, group=group).owners.coins

    def _judge(self, pair: Neighbour, before: Recorder, after: Recorder, group: int) -> tuple[list[Finding], float]:
        size = self._coins(pair.after is not None, group)
        found = [*inspect_run(after, pair.name, self._declared, size), *compare(before, after, pair.name)]
        measured = list(distances(before, after, pair.multiple, self._declared, group))
        found += [distance.finding(pair.name) for distance in measured if not distance.within]
        found += inspect_ranks(after, pair.name)
        return found, max((distance.ratio for distance in measured if distance.tells), default=0.0)

    def _watched(
        self,
        recorder: Recorder,
        last: Batch | None,
        group: int = 0,
        *,
        readable: bool = True,
        forgiving: bool = True,
        seed: int = 0,
    ) -> None:
        """Run, and keep an exception as what it is here: an observation."""
        torch.manual_seed(seed)
        raised: Exception | None = None
        try:
            self._subject.run(self._common, last, recorder, readable=readable, group=group)
        except Exception as error:
            raised = error
            recorder.failure = recorder.failure or f"{type(error).__name__}: {error}"
        recorder.finish()  # also where it ended early: other processes wait for what happened here
        if raised is not None and not forgiving:
            raise raised
        if recorder.failure is not None and not forgiving:
            raise RankLost(f"another rank cannot take part in the audit. It says: {recorder.failure}")

    def _require_comparable(self, first: Recorder) -> None:
        """The same data with other secret random bits must give the same sums, or a difference would mean nothing."""
        again = self._new_recorder(first, 1)
        self._watched(again, self._record, seed=1)
        moved = [distance.measured for distance in distances(first, again, 1.0, self._declared)]
        states = zip(first.states(), again.states(), strict=False)
        public = {path for one, other in states for path in differences(one, other) if not path.startswith("generator")}
        if again.failure is not None or public or any(distance > 1e-5 for distance in moved):
            raise InvalidArgument(
                self._subject.foreign,
                type(self._subject.model).__name__,
                "it draws random numbers of its own besides dropout, or remembers earlier runs, so that two runs cannot be compared",
                "Audit it with that switched off",
            )
