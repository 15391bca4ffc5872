"""The loop of tier 1: ask, apply, write down, until the plan is spent. The audit replays this same function."""

from __future__ import annotations

from collections.abc import Callable

from apportion.curator.curator import LossFunction
from apportion.training.early_stopping import EarlyStopping
from apportion.training.evaluation import Evaluation
from apportion.training.history import Entry
from apportion.training.session import Session


def take_steps(
    session: Session,
    loss_fn: LossFunction,
    evaluation: Evaluation | None = None,
    show: Callable[[Entry], None] = lambda entry: None,
    stop: EarlyStopping | None = None,
) -> None:
    """Spend every token that is left, unless `stop` ends the run before. `show` is told of each step."""
    session.normalise()
    while session.account.left and not _is_over(session, stop) and session.affords(request := session.next_request()):
        entry = session.apply(session.curator.answer(request, loss_fn))
        measured = (
            evaluation if evaluation is not None and evaluation.is_due(session.step, session.plan.sampling) else None
        )
        if measured is not None or session.report_is_due:
            entry = session.report(measured)
        session.write_checkpoint_if_due()
        show(entry)
        session.require_usable()
    session.gather_problems()
    if session.entries and _is_unfinished(
        session.entries[-1], evaluation
    ):  # a filter ended the run before its last step
        session.report(evaluation)


def _is_over(session: Session, stop: EarlyStopping | None) -> bool:
    """Whether the scores so far end the run: a question that arises where the last step was measured."""
    if stop is None or session.metric is None or not session.entries or session.entries[-1].metric is None:
        return False
    scores = [entry.score for entry in session.entries if entry.metric is not None]
    return stop.is_reached(scores, session.metric.better)


def _is_unfinished(last: Entry, evaluation: Evaluation | None) -> bool:
    return last.epsilon is None or (evaluation is not None and last.metric != evaluation.metric.name)
