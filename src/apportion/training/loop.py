"""The loop of tier 1: ask, apply, write down, until the plan is spent. The audit replays this same function."""

from __future__ import annotations

from collections.abc import Callable

from apportion.budget import Public
from apportion.curator.curator import LossFunction
from apportion.training.evaluation import accuracy
from apportion.training.history import Entry
from apportion.training.session import Session


def take_steps(
    session: Session,
    loss_fn: LossFunction,
    evaluate: Public | None = None,
    show: Callable[[Entry], None] = lambda entry: None,
) -> None:
    """Spend every token that is left. `show` is told of each step."""
    while session.account.left and session.affords(request := session.next_request()):
        entry = session.apply(session.curator.answer(request, loss_fn))
        if session.report_is_due:
            entry = session.report(None if evaluate is None else accuracy(session.evaluated, evaluate))
        session.write_checkpoint_if_due()
        show(entry)
        session.require_usable()
    if session.entries and session.entries[-1].epsilon is None:  # a filter ended the run before its last step
        session.report(None if evaluate is None else accuracy(session.evaluated, evaluate))
