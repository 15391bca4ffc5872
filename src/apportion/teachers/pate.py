"""`apportion.pate`: private teachers, noisy votes, a student that may be published."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from apportion import validate
from apportion.budget import Budget, Public, require_budget
from apportion.curator.randomness import Randomness
from apportion.curator.records import Records, as_records
from apportion.curator.tree import map_tensors, tensor_leaves
from apportion.errors import BudgetExhausted, InvalidArgument
from apportion.teachers.aggregation import Aggregation, ConfidentGNMax, GNMax, Mechanism
from apportion.teachers.ballot_box import BallotBox
from apportion.teachers.ensemble import Ensemble, groups_of
from apportion.teachers.group_filter import GroupFilter, query_of
from apportion.teachers.keeping import Books, opened_books
from apportion.teachers.partition import People, divide_records
from apportion.teachers.showing import show_progress
from apportion.teachers.taught import Taught, spending, state
from apportion.teachers.teaching import (
    Classes,
    Factory,
    Fit,
    Lesson,
    ask_model,
    collect_votes,
    fit_model,
    own_randomness,
)
from apportion.teachers.variants import Upsampling, Vanishing, Variant, Weighting
from apportion.training.evaluation import require_public
from apportion.training.preflight import require_one_process
from apportion.training.storage import Storage

PROBED = 4
"""Public inputs for each class on which a teacher and a student are tried before anything is charged."""


@dataclass(frozen=True, eq=False)
class _Task:
    """All that was decided before a record was read."""

    people: People
    budget: Budget
    ensemble: Ensemble
    variant: Variant
    mechanism: Mechanism
    lesson: Lesson
    asked: int
    processes: int
    progress: bool | None


def pate(
    data: Any,
    budget: Budget,
    *,
    queries: Public,
    classes: int,
    teacher: Factory,
    student: Factory | None = None,
    teachers: int = 50,
    variant: Upsampling | Weighting | Vanishing | None = None,
    aggregation: Aggregation | None = None,
    ids: Sequence[Any] | None = None,
    evaluate: Public | None = None,
    fit: Fit | None = None,
    processes: int = 1,
    seed: int | None = None,
    storage: Storage | None = None,
    progress: bool | None = None,
) -> Taught:
    """Train teachers on disjoint parts of private records, and a student on their noisy votes for public inputs. (Papernot et al. 2018.)

    Each record has the teachers that a keyed hash of itself chooses. For query i the votes n_j of all teachers for class j are counted
    and argmax_j (n_j + N(0, σ²)) is released. A record that moves s votes pays μ = √2·s/σ for an answer and s/σ₁ for the check of
    `ConfidentGNMax`, charged before the noise is drawn; Σμ² stays below the μ_p² of every group, and the run stops before a query that
    would exceed one.

    Args:
        data: a pair (inputs, classes) of tensors or arrays, or a map-style Dataset of such pairs.
        budget: (ε, δ), or with groups `apportion.Budget.of_groups({"strict": (5.0, 0.4), "loose": (12.0, 0.6)}, labels=..., ...)`,
            where labels give for each record the name of its group, or its number. With the unit `User` all records of a user have the
            same teachers.
        queries: `Public(inputs)`: unlabelled public inputs, asked in their order.
        classes: declared number of classes.
        teacher, student: make an untrained torch model or scikit-learn estimator; the student is by default made as a teacher is.
        teachers: how many. `Upsampling` multiplies it by the mean number of copies.
        variant: how larger budgets are used: `apportion.teachers.Weighting()` (default), `Upsampling()` or `Vanishing()`.
        aggregation: `apportion.teachers.GNMax()` (default) or `ConfidentGNMax()`.
        ids: for each record an id of its own, by which its teachers are chosen; by default its content.
        evaluate: `Public((inputs, classes))`, on which the student's accuracy is measured.
        fit: how torch models are trained.
        processes: teachers trained at a time. More than one need a `teacher` that can be sent to other processes (a function at the top of
            a module) and a program that may be imported by them (`if __name__ == "__main__":`); otherwise they are trained here.
        seed: for tests and experiments only. The run is then reproducible and *not private*.
        storage: the run folder, the ledger of the data set (with the rule sum), and whether to go on with a run that crashed.
        progress: shown by default only in a terminal.

    Returns:
        A `Taught`: `taught.student`, `taught.student_accuracy`, `taught.queries_answered`, `taught.groups`, `taught.statement()`.

    Raises:
        InvalidArgument: before anything is trained or charged.
        BudgetExhausted: likewise, if the limit of the data set does not cover the run.

    Examples:
        >>> import apportion as ap, torch
        >>> from sklearn.linear_model import LogisticRegression
        >>> x = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
        >>> budget = ap.Budget(epsilon=5.0, delta=1e-5, unit=ap.Record())
        >>> taught = ap.pate((x[:300], (x[:300, 0] > 0).long()), budget, queries=ap.Public(x[300:]), classes=2,
        ...                  teacher=LogisticRegression, teachers=20)
        >>> taught.queries_answered, taught.groups[0].epsilon <= 5.0
        (100, True)
    """
    require_one_process("pate")
    storage, fit, randomness = storage or Storage(), fit or Fit(), Randomness.choose(seed)
    _require_kind("storage", storage, (Storage,), 'apportion.Storage("runs/one")')
    task = _prepare(
        data, budget, queries, classes, teacher, teachers, variant, aggregation, ids, fit, processes, progress
    )
    student = student or teacher
    _probe("student", student, task.lesson)
    test = None if evaluate is None else _read_test(evaluate, task.people.records)
    rule = GroupFilter(budget, task.ensemble, task.mechanism, task.asked)
    _require_one_query(rule)
    configuration = {"terms": rule.terms, "classes": classes, "queries": _digest(task.lesson.queries)}
    with opened_books(storage, budget, rule, configuration, private=randomness.private) as books:
        votes = books.votes() if storage.resume else None
        if votes is None:
            votes = _train_teachers(task, randomness)
            books.keep_votes(votes, configuration)
        box = BallotBox(votes, classes, task.ensemble, task.mechanism, books.account, randomness)
        _ask_all(task, books, box)
        taught = _finish(task, books, student, test, private=randomness.private)
        books.save(taught, box.secret_cost.describe(budget.delta, [one.epsilon for one in taught.groups]))
    return taught


def _prepare(
    data: Any,
    budget: Budget,
    queries: Public,
    classes: int,
    teacher: Factory,
    teachers: int,
    variant: Variant | None,
    aggregation: Aggregation | None,
    ids: Sequence[Any] | None,
    fit: Fit,
    processes: int,
    progress: bool | None,
) -> _Task:
    """Refuse whatever is invalid, and fix all that prices a query."""
    require_budget("budget", budget)
    inputs = _read_queries(queries)
    count = validate.whole("classes", classes, "it is the declared number of classes", "Use at least 2", least=2)
    asked = validate.whole("teachers", teachers, "it is a number of teachers", "Try teachers=50")
    variant, aggregation = variant or Weighting(), aggregation or GNMax()
    _require_kind("variant", variant, (Upsampling, Weighting, Vanishing), "apportion.teachers.Weighting()")
    _require_kind("aggregation", aggregation, (GNMax, ConfidentGNMax), "apportion.teachers.GNMax()")
    _require_kind("fit", fit, (Fit,), "apportion.teachers.Fit()")
    known = groups_of(budget)
    if len(known) > asked:
        reason = f"there are {len(known)} groups, and each needs a teacher"
        raise InvalidArgument("teachers", asked, reason, "Use at least one teacher for each group")
    records = as_records(data)
    _require_classes(records)
    _require_shape("queries", inputs, records)
    ensemble = variant.arrange(known, budget.delta, asked)
    number = len(tensor_leaves(inputs)[0])
    lesson = Lesson(teacher, inputs, count, fit)
    _probe("teacher", teacher, lesson)
    return _Task(
        people=People.of(records, budget, ids),
        budget=budget,
        ensemble=ensemble,
        variant=variant,
        mechanism=aggregation.mechanism(ensemble, budget.delta, number, asked),
        lesson=lesson,
        asked=number,
        processes=validate.whole("processes", processes, "it is a number of processes", "Try processes=1"),
        progress=progress,
    )


def _read_queries(queries: object) -> Any:
    """The public inputs as tensors."""
    public = require_public(queries, "queries")
    try:
        inputs = map_tensors(_as_tensor, public.data)
        sizes = {len(leaf) for leaf in tensor_leaves(inputs)}
    except (TypeError, ValueError, RuntimeError):
        sizes = set()
    if len(sizes) != 1 or 0 in sizes:
        reason = "it holds no inputs: tensors or arrays with one row for each query"
        raise InvalidArgument("queries", type(public.data).__name__, reason, "Pass queries=apportion.Public(inputs)")
    return inputs


def _as_tensor(value: Any) -> torch.Tensor:
    tensor = torch.as_tensor(value)
    return tensor.float() if tensor.dtype == torch.float64 else tensor  # as records are


def _require_shape(argument: str, inputs: Any, records: Records) -> None:
    given = [tuple(leaf.shape[1:]) for leaf in tensor_leaves(inputs)]
    expected = [tuple(leaf.shape) for leaf in tensor_leaves(records.example[0])]
    if given != expected:
        reason = f"its rows have the shapes {given}, and the inputs of the records {expected}"
        raise InvalidArgument(argument, "Public", reason, "Pass inputs like those of the records, without classes")


def _require_classes(records: Records) -> None:
    """Every record has the type and shape of the first; its value plays no part."""
    target = records.example[1]
    if not isinstance(target, torch.Tensor) or target.dim() or target.is_floating_point() or target.is_complex():
        kind = (
            f"{target.dtype} of shape {tuple(target.shape)}"
            if isinstance(target, torch.Tensor)
            else type(target).__name__
        )
        raise InvalidArgument("data", kind, "teachers vote for classes", "Use class numbers from 0 (int64) as targets")


def _require_one_query(rule: GroupFilter) -> None:
    """Refuse noise with which not even one query fits."""
    first = rule.find_token(1, rule.event(2)) or 1
    try:
        rule.require(first, 1, rule.event(first))
    except BudgetExhausted:
        reason = "not even one query fits the budgets with so little noise"
        raise InvalidArgument("aggregation", "sigma", reason, "Use more noise, or leave sigma out") from None


def _read_test(evaluate: object, records: Records) -> tuple[Any, torch.Tensor]:
    public = as_records(require_public(evaluate).data)
    pair: tuple[Any, torch.Tensor] = public.batch(np.arange(len(public)))
    _require_shape("evaluate", pair[0], records)
    return pair


def _require_kind(argument: str, value: object, kinds: tuple[type, ...], example: str) -> None:
    if not isinstance(value, kinds):
        raise InvalidArgument(argument, type(value).__name__, "it is of another kind", f"Pass {example}")


def _probe(argument: str, factory: Factory, lesson: Lesson) -> None:
    """Fit one to public inputs with made-up classes: whatever is wrong with it in general is wrong before anything is charged."""
    rows = PROBED * lesson.classes
    inputs = map_tensors(lambda leaf: leaf[torch.arange(rows) % len(leaf)], lesson.queries)
    try:
        with own_randomness(0):
            model = fit_model(factory, (inputs, torch.arange(rows) % lesson.classes), Fit(epochs=1))
            valid = ask_model(model, inputs).shape == (rows,)
    except Exception as error:
        reason = f"one that was tried on public inputs failed: {type(error).__name__}: {error}"
        fix = (
            "Pass a function without arguments that makes a torch model with one output for each class, or an estimator"
        )
        raise InvalidArgument(argument, getattr(factory, "__name__", type(factory).__name__), reason, fix) from error
    if not valid:
        raise InvalidArgument(argument, type(model).__name__, "it gives no class to each input", "Use a classifier")


def _digest(inputs: Any) -> str:
    content = b"".join(leaf.contiguous().numpy().tobytes() for leaf in tensor_leaves(inputs))
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _train_teachers(task: _Task, randomness: Randomness) -> Classes:
    """All votes for all queries. They stay inside."""
    key = randomness.next_draw().model.words(4).tobytes()
    parts = divide_records(task.people, task.ensemble, key)
    seeds = [_seed(key, teacher) for teacher in range(len(parts))]
    with show_progress("teachers", len(parts), task.progress) as show:
        readers: list[Callable[[], Any]] = [partial(task.people.records.batch, part) for part in parts]
        return collect_votes(task.lesson, readers, seeds, task.processes, lambda: show(""))


def _seed(key: bytes, teacher: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"teacher {teacher}".encode(), key=key, digest_size=7).digest(), "big")


def _ask_all(task: _Task, books: Books, box: BallotBox) -> None:
    """Ask until all was asked, or a budget is used up."""
    rule = books.account.rule
    assert isinstance(rule, GroupFilter)
    box.recall(range(1, rule.last + 1))
    with show_progress("queries", task.asked, task.progress) as show:
        for query in range(query_of(rule.last) + 1 if rule.last else 0, task.asked):
            try:
                label = box.ask(query)
            except BudgetExhausted:
                if not books.account.spent:
                    raise  # another run took what was left of the data set's limit meanwhile
                break
            if label is not None:
                books.keep_answer(query, label)
            paid = "  ".join(
                f"{one.name} {one.epsilon:.2f}/{one.budget:g}" for one in spending(books.account, task.ensemble)
            )
            show(f"answered {len(books.answers)}  ε {paid}")


def _finish(
    task: _Task, books: Books, student: Factory, test: tuple[Any, torch.Tensor] | None, *, private: bool
) -> Taught:
    """Fit the student to what was released."""
    account, answers = books.account, dict(sorted(books.answers.items()))
    rule = account.rule
    assert isinstance(rule, GroupFilter)
    facts = state(task.budget, task.ensemble, task.mechanism, task.variant, account, private)
    model = _fit_student(task, student, answers)
    accuracy = None
    if model is not None and test is not None:
        accuracy = float(np.mean(ask_model(model, test[0]) == test[1].numpy()))
    asked = query_of(rule.last) + 1 if rule.last else 0
    facts |= {"queries_asked": asked, "queries_answered": len(answers), "student_accuracy": accuracy}
    return Taught(model, accuracy, answers, asked, spending(account, task.ensemble), private, facts)


def _fit_student(task: _Task, student: Factory, answers: dict[int, int]) -> Any:
    """`None` if it cannot be fitted to so few labels. It sees public inputs and released labels only, so a message may say why."""
    chosen, labels = torch.tensor(list(answers), dtype=torch.long), torch.tensor(list(answers.values()))
    try:
        with own_randomness(0):
            return fit_model(
                student, (map_tensors(lambda leaf: leaf[chosen], task.lesson.queries), labels), task.lesson.how
            )
    except Exception as error:
        warnings.warn(f"no student: it cannot be fitted to {len(answers)} labels ({error})", UserWarning, stacklevel=4)
        return None
