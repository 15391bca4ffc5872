"""A search on public records, with optuna: nothing is charged, so trials may be pruned, run side by side and shown.

Every recipe has a study of its own with the same number of trials in the same space, and the first ten of them have the same settings
for all recipes; the later ones are proposed by optuna's tree-structured Parzen estimator from that recipe's own results. A trial whose
score is below the median of the earlier ones at the same part of its steps is pruned.

A trial executes the candidate's own steps, thresholds and noise multipliers, so that what it finds carries over to the private run. Its
sampling rate is batch_size/N with the *counted* number N of public records, so that a batch has the same expected size there.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from apportion.budget import Budget, Record
from apportion.compare.processes import explain_broken_pool, one_thread, process_pool
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.errors import InvalidArgument
from apportion.extras import EXTRAS, require_extra
from apportion.planning import Plan
from apportion.sampling import Sampling
from apportion.training.checkpoint import explained, first_difference
from apportion.training.evaluation import require_measurable
from apportion.training.folders import tidied
from apportion.training.storage import Storage
from apportion.tuning.space import Space
from apportion.tuning.task import Task
from apportion.tuning.tuned import Trial, Tuned

if TYPE_CHECKING:
    import optuna

JOURNAL = "trials.journal"
LEVELS = 20
"""How often a trial is looked at; it may be pruned after a quarter of its steps."""
SAME = 10
"""Trials with which every recipe begins, and which have the same settings for all of them."""
UNLIMITED = Budget(epsilon=1e12, delta=1e-5, unit=Record())
"""Public data has nothing to spend."""
Show = Callable[[Trial, int, int], None]


@dataclass(frozen=True, eq=False, repr=False)
class _Worker:
    """Trains trials of the studies in a journal; it is sent to other processes."""

    task: Task
    space: Space
    journal: Path
    seed: int

    def study(self, which: int, job: int = 0) -> optuna.Study:
        """The study of a recipe, new or as it is in the journal; each job proposes with randomness of its own."""
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        seed = _seed(self.seed, which, job)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # in old versions
            return optuna.create_study(
                study_name=self.space.plans[which].recipe.name,
                storage=JournalStorage(JournalFileBackend(str(self.journal))),
                sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=SAME, constant_liar=True),
                pruner=optuna.pruners.MedianPruner(n_warmup_steps=LEVELS // 4),
                direction="maximize",
                load_if_exists=True,
            )

    def train(self, which: int, job: int) -> tuple[int, int]:
        """One trial of a recipe; which one it was."""
        numbers: list[int] = []

        def objective(trial: optuna.Trial) -> float:
            numbers.append(trial.number)
            return self._train(which, trial)

        with _quiet(), one_thread(), torch.random.fork_rng(devices=[]):
            self.study(which, job).optimize(objective, n_trials=1)
        return which, numbers[0]

    def _train(self, which: int, trial: optuna.Trial) -> float:
        import optuna

        values = self.space.values.items()
        positions = [int(trial.suggest_categorical(name, range(len(choices)))) for name, choices in values]
        candidate = self.space.candidate(self.space.number(which, positions))
        seed = _seed(self.seed, which, trial.number)
        torch.manual_seed(seed)  # of the initial weights
        records = as_records(self.task.data)
        plan = _on_public_records(candidate.plan, len(records))
        session = self.task.open(candidate, plan, records, Randomness.seeded(seed))
        loss_fn, score, reported = self.task.own_loss(), 0.0, 0
        try:
            while session.account.left:  # `take_steps` would also price every step, and nobody pays here
                session.apply(session.curator.answer(session.next_request(), loss_fn))
                level = LEVELS * session.step // plan.steps  # so that runs of different length can be compared
                if level > reported:
                    score, reported = self.task.rank(session), level
                    trial.report(score, level)
                    if trial.should_prune():
                        raise optuna.TrialPruned
        finally:
            session.curator.end_workers()
            session.account.ledger.close()
        return score

    def result(self, which: int, trial: optuna.trial.FrozenTrial) -> Trial:
        """A trial as it is shown."""
        positions = [int(trial.params[name]) for name in self.space.values]
        number = self.space.number(which, positions)
        score = trial.value if trial.value is not None else max(trial.intermediate_values.items())[1]
        return Trial(self.space.candidate(number).settings, float(score), trial.state.name == "PRUNED")


def search_publicly(
    task: Task,
    space: Space,
    trials: int,
    storage: Storage,
    *,
    processes: int = 1,
    seed: int = 0,
    show: Show | None = None,
) -> Tuned:
    """`trials` trials for every recipe, in `processes` processes; goes on with those that the folder holds already."""
    require_extra("tune", *EXTRAS["tune"])
    _require_public_storage(storage)
    with _folder(storage) as folder:
        worker = _Worker(task, space, folder / JOURNAL, seed)
        _require_picklable(worker, processes)
        _rehearse(worker)
        with _quiet():
            missing = [_prepare(worker, which, trials) for which in range(len(space.plans))]
        jobs = [which for round_ in range(max(missing)) for which, count in enumerate(missing) if round_ < count]
        done = trials * len(space.plans) - len(jobs)
        for which, number in _train_all(worker, jobs, processes):
            done += 1
            if show is not None:
                with _quiet():
                    show(worker.result(which, worker.study(which).trials[number]), done, trials * len(space.plans))
        with _quiet():
            return _collect(worker)


def _prepare(worker: _Worker, which: int, trials: int) -> int:
    """How many trials of a recipe are missing. The first ones are laid out, and those that a crash interrupted."""
    from optuna.trial import TrialState

    study, space = worker.study(which), worker.space
    _require_same_search(study, worker)
    interrupted = study.get_trials(states=(TrialState.RUNNING,))
    for trial in interrupted:
        study.tell(trial.number, state=TrialState.FAIL)
    done = study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED))
    size = space.size // len(space.plans)
    laid_out = random.Random(worker.seed).sample(range(size), min(SAME, size))[:trials]  # the same for every recipe
    first = [dict(zip(space.values, space.choices(number)[1], strict=True)) for number in laid_out]
    proposed = [trial.params for trial in interrupted if set(trial.params) == set(space.values)]
    waiting = [trial.system_attrs["fixed_params"] for trial in study.get_trials(states=(TrialState.WAITING,))]
    known = waiting + [trial.params for trial in done]
    for settings in first + [one for one in proposed if one not in first]:
        if settings not in known:
            study.enqueue_trial(settings)
    return max(0, trials - len(done))


def _require_same_search(study: optuna.Study, worker: _Worker) -> None:
    """Refuse to go on with other settings; the first time, note them."""
    described = json.loads(json.dumps({**worker.space.describe(), "seed": worker.seed}))
    before = study.user_attrs.get("configuration")
    if before is None:
        study.set_user_attr("configuration", described)
    elif found := first_difference(before, described):
        name, then, now = found
        raise InvalidArgument(
            "resume",
            str(worker.journal.parent),
            f"the search was started with {name} = {then!r}, and now it is {now!r}",
            "Use the settings that it was started with, or start anew in another folder",
        )


def _train_all(worker: _Worker, jobs: Sequence[int], processes: int) -> Iterator[tuple[int, int]]:
    if processes == 1:
        yield from map(worker.train, jobs, range(len(jobs)))
        return
    with explain_broken_pool(processes, "search"), process_pool(processes) as pool:
        try:
            yield from pool.map(worker.train, jobs, range(len(jobs)))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _rehearse(worker: _Worker) -> None:
    """Whatever is wrong with the model, the data or a recipe is found before the first trial."""
    with one_thread(), torch.random.fork_rng(devices=[]):
        for which in range(len(worker.space.plans)):
            candidate = worker.space.candidate(worker.space.number(which, [0] * len(worker.space.values)))
            records = as_records(worker.task.data)
            plan = _on_public_records(candidate.plan, len(records))
            session = worker.task.open(candidate, plan, records, Randomness.seeded(0))
            require_measurable(session.evaluated, worker.task.evaluate)
            worker.task.require_fresh_models(candidate)


def _collect(worker: _Worker) -> Tuned:
    from optuna.trial import TrialState

    found: list[Trial] = []
    best: tuple[float, int] | None = None
    for which in range(len(worker.space.plans)):
        for trial in worker.study(which).get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED)):
            found.append(one := worker.result(which, trial))
            if not one.pruned and (best is None or one.score > best[0]):
                positions = [int(trial.params[name]) for name in worker.space.values]
                best = one.score, worker.space.number(which, positions)
    assert best is not None  # the first five trials of a study are never pruned
    winner = worker.space.candidate(best[1])
    return Tuned(winner.settings, best[0], winner.plan, trials=tuple(found))


def _on_public_records(plan: Plan, count: int) -> Plan:
    """The same steps and multipliers on `count` records, with the same expected batch size as far as there are so many."""
    rate = min(1.0, plan.sampling.expected_batch_size / count)
    return replace(plan, sampling=Sampling(count, rate, plan.sampling.steps), budget=UNLIMITED)


def _seed(*parts: int) -> int:
    digest = hashlib.blake2b(" ".join(map(str, parts)).encode(), digest_size=4, person=b"tune").digest()
    return int.from_bytes(digest, "big")


@contextmanager
def _quiet() -> Iterator[None]:
    """optuna writes a line to standard error for every trial; what is shown is `show`'s business."""
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)


@contextmanager
def _folder(storage: Storage) -> Iterator[Path]:
    """The folder of the search, or one that is gone afterwards."""
    if storage.folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            yield Path(temporary)
        return
    folder = Path(storage.folder)
    if (folder / JOURNAL).exists() != storage.resume:
        reason, fix = (
            ("there is no search to go on with", "Start it without resume")
            if storage.resume
            else ("there is an earlier search already", "Choose a new folder, or go on with resume")
        )
        raise InvalidArgument("folder", str(folder), reason, fix)
    with tidied(folder):
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
        yield folder


def _require_picklable(worker: _Worker, processes: int) -> None:
    if processes > 1:
        try:
            pickle.dumps(worker)
        except Exception as error:
            raise InvalidArgument(
                "processes",
                processes,
                f"model, loss and data are sent to other processes, and one of them cannot be: {error}",
                "Define functions at the top of a module, not as lambdas; or use processes=1",
            ) from error


def _require_public_storage(storage: Storage) -> None:
    if storage.ledger is not None:
        raise InvalidArgument(
            "storage.ledger",
            str(storage.ledger),
            "a search on public data is free, and nothing is charged",
            "Leave it out; or pass the data without apportion.Public, and expected_trials, if it is private",
        )
    if storage.recovery != "fresh" or storage.every is not None:
        raise InvalidArgument(
            "storage", storage.recovery, "a trial that was interrupted is repeated from its beginning", "Leave it out"
        )
