"""The search itself: for every epoch the best threshold, and from its model on to the next epoch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, partial

from apportion.errors import InvalidArgument
from apportion.search.candidates import Candidate, Candidates, Outcome, Trainer
from apportion.search.search_rules import Trial, best_of
from apportion.search.trace import Trace

Show = Callable[[Trial], None]
State = Callable[[], bytes]
"""Works out a state when it is needed: a search that ended, or goes on, repeats only the epochs that lead to where it stands."""


def search(
    trace: Trace,
    make_trainer: Callable[[], Trainer],
    *,
    processes: int = 1,
    show: Show = lambda trial: None,
) -> Trace:
    """Try candidates until every epoch of `trace.settings` has its threshold; returns the trace.

        θ_0 = initial;  for t = 1..E:  C_t, θ_t = the best of { train_epoch(θ_{t−1}, C) : C as the rule says }

    What `trace` holds already is not tried again. Of candidates that were trained ahead, in parallel, those after the end of an epoch's
    search are dropped: they are no part of the trace, and the result does not depend on `processes`.

    Args:
        make_trainer: makes what trains one epoch; picklable if there are several processes.
        show: is told of every new trial.
    """
    settings = trace.settings
    with Candidates(make_trainer, processes) as candidates:
        for run in range(1, settings.runs + 1):
            state: State = cache(partial(candidates.initial, settings.seed_of(run)))
            for epoch in range(1, (settings.epochs if run == 1 else 1) + 1):
                state = _search_epoch(trace, candidates, run, epoch, state, show)
    trace.end()
    return trace


def _search_epoch(trace: Trace, candidates: Candidates, run: int, epoch: int, before: State, show: Show) -> State:
    """Try candidates from the state `before` until the rule ends; the state after the best of them."""
    settings, rule = trace.settings, trace.settings.rule
    tried = trace.tried(run, epoch)
    _require_own_candidates(trace, tried)
    kept: tuple[Trial, Outcome] | None = None

    def candidate(number: int, threshold: float) -> Candidate:
        return Candidate(before(), threshold, settings.seed_of(run, epoch, number))

    while ahead := rule.upcoming(tried):
        batch = [candidate(len(tried) + i, threshold) for i, threshold in enumerate(ahead[: candidates.processes])]
        for one, outcome in zip(batch, candidates.train(batch), strict=True):
            if not rule.upcoming(tried):
                break
            trial = Trial(run, epoch, one.threshold, outcome.accuracy)
            tried.append(trial)
            trace.add(trial)
            show(trial)
            if best_of(tried) is trial:
                kept = trial, outcome
    if doubt := rule.doubt(tried):
        warnings.warn(
            f"run {run}, epoch {epoch}: the search ended at maximum={rule.maximum:g}, and {doubt}. A larger maximum may find a better "
            "threshold.",
            UserWarning,
            stacklevel=3,
        )
    best = best_of(tried)
    if best is None:
        return before
    if kept is not None and kept[0] is best:
        state = kept[1].state
        return lambda: state

    def repeat() -> bytes:
        """The trial is from an earlier session, which kept its accuracy and not its model."""
        (outcome,) = candidates.train([candidate(tried.index(best), best.threshold)])
        if outcome.accuracy != best.accuracy:
            raise InvalidArgument(
                "out",
                str(trace.path),
                f"the candidate {best.threshold:g} of epoch {epoch} scored {best.accuracy:.4%} and, repeated here, "
                f"{outcome.accuracy:.4%}: data, machine or versions are not the same",
                "Go on where the search was begun, or start anew in another file",
            )
        return outcome.state

    return cache(repeat)


def _require_own_candidates(trace: Trace, tried: list[Trial]) -> None:
    """What is in the file must be what the rule would have tried."""
    for number, trial in enumerate(tried):
        if trial.threshold not in trace.settings.rule.upcoming(tried[:number])[:1]:
            raise InvalidArgument(
                "out",
                str(trace.path),
                f"its trial of {trial.threshold!r} in epoch {trial.epoch} is not what this search tries there",
                "Restore the file, or start anew in another one",
            )
