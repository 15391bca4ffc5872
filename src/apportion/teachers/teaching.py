"""Any teacher and any student: a torch model or a scikit-learn estimator, fitted to records and asked for classes.

A teacher sees its own part and a seed of its own, nothing else; so a record changes the votes of its own teachers only. A part that is
empty, a training that fails, or an answer that is no class makes the teacher vote for class 0: whether that happened is never said.
"""

from __future__ import annotations

import pickle
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from apportion.compare.processes import process_pool
from apportion.curator.foreign_code import contain_errors
from apportion.curator.tree import batch_size, call_model, map_tensors, tensor_leaves
from apportion.models.synthetic import model_device
from apportion.training.optimizers import NAMED, build_optimizer
from apportion.validate import Checked, checked, one_of, positive, whole

Factory = Callable[[], Any]
Classes = NDArray[np.int64]
Part = tuple[Any, Tensor]
FALLBACK = 0
"""The class that a teacher votes for that could not be trained, or gives no answer."""
_ASKED = 4096


@dataclass(frozen=True)
class Fit(Checked):
    """How a torch model is trained, without noise: a teacher's records are its own. scikit-learn estimators train themselves.

    Args:
        epochs: passes over the part.
        lr, optimizer: "sgd", "momentum", "adam", "adamw" or "rmsprop".
        batch_size: of the shuffled batches.

    Examples:
        >>> import apportion as ap
        >>> ap.teachers.Fit(epochs=20)
        Fit(epochs=20, lr=0.001, optimizer='adam', batch_size=32)
    """

    prefix = "fit"
    epochs: int = checked(50, whole, "it is a number of passes")
    lr: float = checked(1e-3, positive, "it scales every update")
    optimizer: str = checked("adam", one_of(*NAMED), "there is no such optimiser")
    batch_size: int = checked(32, whole, "it is a number of records")


def fit_model(factory: Factory, part: Part, how: Fit) -> Any:
    """A new model, fitted to (inputs, classes)."""
    model = factory()
    if isinstance(model, nn.Module):
        return _fit_torch(model, part, how)
    return model.fit(as_table(part[0]), part[1].numpy())


def _fit_torch(model: nn.Module, part: Part, how: Fit) -> nn.Module:
    (inputs, classes), device = part, model_device(model)
    optimizer = build_optimizer(model, how.optimizer, how.lr)
    model.train()
    for _ in range(how.epochs):
        for chosen in torch.randperm(len(classes)).split(how.batch_size):
            optimizer.zero_grad()
            outputs = call_model(model, map_tensors(lambda leaf, rows=chosen: leaf[rows].to(device), inputs))
            nn.functional.cross_entropy(outputs, classes[chosen].to(device)).backward()
            optimizer.step()
    return model.eval()


def ask_model(model: Any, inputs: Any) -> Classes:
    """The class that a fitted model gives to each of `inputs`."""
    if not isinstance(model, nn.Module):
        return np.asarray(model.predict(as_table(inputs)))
    device = model_device(model)
    with torch.no_grad():
        pieces = [
            call_model(model, map_tensors(lambda leaf, at=start: leaf[at : at + _ASKED].to(device), inputs)).argmax(1)
            for start in range(0, batch_size(inputs), _ASKED)
        ]
    return torch.cat(pieces).cpu().numpy()


def as_table(inputs: Any) -> NDArray[Any]:
    """One row for each record, for scikit-learn."""
    return np.concatenate([leaf.reshape(len(leaf), -1).numpy() for leaf in tensor_leaves(inputs)], axis=1)


@dataclass(frozen=True)
class Lesson:
    """Trains one teacher and asks it all queries. It is sent to other processes; only votes come back.

    Args:
        factory: makes an untrained teacher.
        queries: the public inputs.
        classes: their number.
        how: torch models are trained.
    """

    factory: Factory
    queries: Any
    classes: int
    how: Fit

    def __call__(self, part: Part | None, seed: int) -> Classes:
        votes = np.full(batch_size(self.queries), FALLBACK, dtype=np.int64)
        if part is None or not len(part[1]):
            return votes
        with own_randomness(seed), contain_errors():
            found = ask_model(fit_model(self.factory, part, self.how), self.queries)
            valid = (
                np.isin(found, np.arange(self.classes)) if found.shape == votes.shape else np.zeros_like(votes, bool)
            )
            votes[valid] = found[valid].astype(np.int64)
        return votes


@contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """A seed for everything that a training may toss; the generators of the person are as before afterwards. Warnings are not shown."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


def collect_votes(
    lesson: Lesson, parts: Sequence[Callable[[], Part]], seeds: Sequence[int], processes: int, show: Callable[[], None]
) -> Classes:
    """The vote of each teacher for each query: an array (teachers, queries).

    Args:
        parts: make the records of a teacher when its turn comes.
        processes: how many teachers are trained at a time; with 1, or a lesson that cannot be sent, they are trained here.
        show: is called after each teacher.
    """
    if processes > 1 and _can_be_sent(lesson):
        with process_pool(processes, _begin_worker, lesson) as pool:
            if _is_ready(pool):
                return _collect(pool, lesson, parts, seeds, 2 * processes, show)
    votes = []
    for part, seed in zip(parts, seeds, strict=True):
        votes.append(lesson(_read(part), seed))
        show()
    return np.stack(votes)


def _collect(
    pool: ProcessPoolExecutor,
    lesson: Lesson,
    parts: Sequence[Callable[[], Part]],
    seeds: Sequence[int],
    ahead: int,
    show: Callable[[], None],
) -> Classes:
    """The same from other processes; `ahead` parts are sent before they are needed, not all of them."""
    votes: list[Classes] = []
    waiting: list[Future[Classes] | None] = []
    for number in range(len(parts)):
        waiting += _sent(pool, parts, seeds, range(len(waiting), min(number + ahead, len(parts))))
        votes.append(_received(waiting[number], lesson, parts[number], seeds[number]))
        waiting[number] = None
        show()
    return np.stack(votes)


def _is_ready(pool: ProcessPoolExecutor) -> bool:
    """Whether its processes know the lesson. If they cannot import it, which says nothing about a record, teachers are trained here."""
    try:
        return pool.submit(_knows_lesson).result()
    except BrokenProcessPool:
        return False


def _knows_lesson() -> bool:
    return _lesson is not None


def _sent(
    pool: ProcessPoolExecutor, parts: Sequence[Callable[[], Part]], seeds: Sequence[int], numbers: range
) -> list[Future[Classes] | None]:
    """The next teachers, under way; `None` where the pool is broken."""
    found: list[Future[Classes] | None] = []
    for number in numbers:
        try:
            found.append(pool.submit(_teach, _read(parts[number]), seeds[number]))
        except BrokenProcessPool:
            found.append(None)
    return found


def _received(future: Future[Classes] | None, lesson: Lesson, part: Callable[[], Part], seed: int) -> Classes:
    """The votes of one teacher. A process that a teacher has ended takes others with it: each of them is trained again, alone."""
    try:
        if future is not None:
            return future.result()
    except BrokenProcessPool:
        pass
    try:
        with process_pool(1, _begin_worker, lesson) as alone:
            return alone.submit(_teach, _read(part), seed).result()
    except BrokenProcessPool:
        return lesson(None, seed)


def _read(part: Callable[[], Part]) -> Part | None:
    """The records of one teacher; `None` if they cannot be read together."""
    with contain_errors():
        return part()
    return None


def _can_be_sent(lesson: Lesson) -> bool:
    try:
        pickle.dumps(partial(lesson.factory))
    except Exception:
        return False
    return True


_lesson: Lesson | None = None


def _begin_worker(lesson: Lesson) -> None:
    global _lesson
    _lesson = lesson
    torch.set_num_threads(1)


def _teach(part: Part | None, seed: int) -> Classes:
    assert _lesson is not None
    return _lesson(part, seed)
