"""The loop of tier 1: ask, apply, write down, until the plan is spent. The audit replays this same function."""

from __future__ import annotations

from collections.abc import Callable

from apportion.curator.curator import LossFunction
from apportion.training.evaluation import Evaluation
from apportion.training.history import Entry
from apportion.training.session import Session


def take_steps(
    session: Session,
    loss_fn: LossFunction,
    evaluation: Evaluation | None = None,
    show: Callable[[Entry], None] = lambda entry: None,
) -> None:
    """Spend every token that is left. `show` is told of each step."""
    while session.account.left and session.affords(request := session.next_request()):
        entry = session.apply(session.curator.answer(request, loss_fn))
        measured = (
            evaluation if evaluation is not None and evaluation.is_due(session.step, session.plan.sampling) else None
        )
        if measured is not None or session.report_is_due:
            entry = session.report(measured)
        session.write_checkpoint_if_due()
        show(entry)
        session.require_usable()
    if session.entries and _is_unfinished(
        session.entries[-1], evaluation
    ):  # a filter ended the run before its last step
        session.report(evaluation)


def _is_unfinished(last: Entry, evaluation: Evaluation | None) -> bool:
    return last.epsilon is None or (evaluation is not None and last.metric != evaluation.metric.name)
