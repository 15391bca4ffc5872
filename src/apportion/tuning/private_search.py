"""A search on private records (Papernot & Steinke 2021, "Hyperparameter tuning with Rényi DP"): K trials, and only the best is published.

1. The candidates' plans are made, with so much noise that the *whole search* meets the budget (`plan_search`).
2. The search is charged to the ledger of the data set, as a whole, before the first trial. A search that does not fit is refused.
3. K is drawn, once, from the operating system's cryptographic source, and with it the candidate of every trial, uniformly and
   independently of each other. Nothing that a trial shows can change either: there is no pruning.
4. Trials are trained one after the other and ranked by data declared public.
5. The winner becomes an ordinary run folder, `winner/`. Its statement quotes the price of the search.

**What is kept, and where.** The guarantee covers the winner with its settings, history and score. It does not cover K, the other trials'
settings, their weights or their scores: they are neither returned nor shown. Of a folder, `secret/search` (for whoever guards the data
alone, mode 600) holds K, the candidates of all trials, how many are done, and the number and score of the best so far, which lies
beside it. A trial that is not better than the best so far is never written to a file; one that was the best for a while is deleted when a
better one comes; K and the candidates are deleted when the winner is published.

**After a crash** the search goes on with the same K and the same candidates: they are read, never drawn again. The trial that was under
way starts again from the beginning. That is covered: of its first attempt nothing was shown or kept, so nobody can have chosen to repeat
it because of what it was, and the attempt that counts is a fresh draw from the same distribution. (Whoever guards the data could watch a
trial and end the process when they dislike it. That would be a choice the price does not cover.) A search whose K was lost cannot go on:
starting anew is another search, and charged as one.

**Copies of the folder** would each train trials and publish a winner: two searches for one charge. So every process claims the search in
the ledger before its first trial, with a random mark that it has stored before, and only the holder of the last claim can claim next. The
last claim is the digest of the winner's weights; a winner becomes visible only after it. Who crashes between the two publishes those
weights, and no others, when they go on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import secrets
import shutil
import sqlite3
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from apportion.accounting.accountant import count_events
from apportion.accounting.ledger import Ledger
from apportion.accounting.selection import WORD, NumberOfTrials, Selection, TrialOfSearch
from apportion.budget import Budget
from apportion.curator.randomness import Randomness
from apportion.curator.records import Records, as_records
from apportion.errors import InvalidArgument, TakenOver
from apportion.planning import Plan, plan_steps
from apportion.training.checkpoint import explained, first_difference, replace_file
from apportion.training.evaluation import Evaluation, require_measurable
from apportion.training.folders import tidied
from apportion.training.loop import take_steps
from apportion.training.run import Run
from apportion.training.session import Session
from apportion.training.statement import data_set
from apportion.training.storage import Storage
from apportion.tuning.space import Space
from apportion.tuning.task import Task
from apportion.tuning.tuned import Tuned

TOLERANCE = 0.005
"""A search costs between 0.995 and 1 times its budget, where the noise can be chosen freely."""
WINNER = "winner"
STATE = Path("secret") / "search"
LOCK = Path("secret") / "lock"
FORMAT = 1
_ROUNDS = 40


@dataclass(frozen=True, eq=False, repr=False)
class SearchPlan:
    """What a search on private records will do and cost, before any record is read. Made by `plan_search`.

    Args:
        space: the candidates.
        trials: the distribution of their number.
        plans: what a trial with each candidate executes. Their budget is that of the whole search.
        selection: the price of the search.
    """

    space: Space
    trials: NumberOfTrials
    plans: tuple[Plan, ...]
    selection: Selection

    @property
    def budget(self) -> Budget:
        budget: Budget = self.space.budget
        return budget

    @property
    def epsilon(self) -> float:
        """ε of the published winner, at the budget's δ."""
        return self.selection.epsilon(self.budget.delta)

    @property
    def trial_epsilon(self) -> float:
        """The largest ε of one trial by itself. It is no guarantee: the winner was chosen among several."""
        distinct = {plan.tokens: plan for plan in self.plans}
        return max(plan.epsilon for plan in distinct.values())

    def __str__(self) -> str:
        """The price of the search beside that of one run."""
        budget, trials = self.budget, self.trials
        half, most = (trials.quantile(int(share * 2**WORD)) for share in (0.5, 0.95))
        single = self.space.candidates[0].plan
        return "\n".join(
            [
                f"search: ε = {self.epsilon:.4f} of {budget.epsilon:g}, δ = {budget.delta:g}, unit: one {budget.unit.name}, for the best "
                "trial alone",
                f"{self.space.size:,} candidates; the number of trials is drawn ({trials.name}, mean {trials.mean:g}): at most {half} in "
                f"half of all searches, at most {most} in 95 % of them",
                f"{'':>20}{'ε':>9}{'first noise z':>15}",
                f"{'one trial':>20}{self.trial_epsilon:>9.4f}{self.plans[0].multipliers[0]:>15.4g}",
                f"{'one run instead':>20}{single.epsilon:>9.4f}{single.multipliers[0]:>15.4g}",
            ]
        )

    def describe(self) -> dict[str, Any]:
        """The price as data."""
        single = self.space.candidates[0].plan
        return {
            "epsilon": self.epsilon,
            "delta": self.budget.delta,
            "target_epsilon": self.budget.epsilon,
            "trial_epsilon": self.trial_epsilon,
            "trial_noise": self.plans[0].multipliers[0],
            "run_epsilon": single.epsilon,
            "run_noise": single.multipliers[0],
            "candidates": self.space.size,
            "accountant": self.selection.accountant,
            **self.selection.describe(),
        }

    def rule(self, number: int, shared: Mapping[str, Any] | None = None) -> TrialOfSearch:
        """Under which a trial with candidate `number` spends."""
        plan = self.plans[number]
        return TrialOfSearch(plan.tokens, plan.spare, self.selection, shared)


def plan_search(
    plan: Plan | Sequence[Plan],
    *,
    space: Mapping[str, Iterable[Any]],
    expected_trials: float,
    distribution: str | float = "logarithmic",
    lr: float | None = None,
    optimizer: Any = "sgd",
) -> SearchPlan:
    """Solve the noise of all candidates so that the whole search costs at most the budget. Reads no data.

    Every candidate's run gets the same ε₁, and the largest ε₁ is taken for which the selection, with the pointwise maximum of the
    candidates' Rényi curves, costs at most the budget: the price grows with ε₁.

    Args: as of `tune`.

    Examples:
        >>> import apportion as ap
        >>> from apportion.tuning import plan_search
        >>> budget = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())
        >>> plan = ap.plan("abadi", budget=budget, population=60_000, batch_size=600, steps=1000)
        >>> search = plan_search(plan, space={"lr": [0.5, 1.0, 2.0]}, expected_trials=10)
        >>> f"search {search.epsilon:.2f}, one trial {search.trial_epsilon:.2f}"
        'search 2.99, one trial 1.45'
    """
    candidates, trials = Space(plan, space, lr, optimizer), NumberOfTrials(expected_trials, distribution)
    kinds: dict[Any, list[int]] = {}
    for number, candidate in enumerate(candidates.candidates):
        one = candidate.plan
        kinds.setdefault((one.multipliers, one.spare, one.sampling, one.noise.multiplier), []).append(number)
    firsts = [candidates.candidates[numbers[0]].plan for numbers in kinds.values()]

    def priced(epsilon: float) -> tuple[list[Plan], Selection]:
        budget = replace(candidates.budget, epsilon=epsilon)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whoever made the plans was warned of a large δ
            planned = [plan_steps(one.recipe, budget, one.sampling, one.spare) for one in firsts]
        return planned, Selection([count_events(one.tokens) for one in planned], trials)

    planned, selection = _solve(priced, candidates.budget)
    multipliers = {
        number: one.multipliers for one, numbers in zip(planned, kinds.values(), strict=True) for number in numbers
    }
    # Of a trial nothing is released but its place among the others, so no count of its own may stop it.
    plans = tuple(
        replace(one.plan, multipliers=multipliers[i], usable=None) for i, one in enumerate(candidates.candidates)
    )
    return SearchPlan(candidates, trials, plans, selection)


def _solve(priced: Any, budget: Budget) -> tuple[list[Plan], Selection]:
    """The largest ε₁ whose search costs at most the budget, by a bisection that follows the ratio where it can."""
    fits, exceeds, found = 0.0, budget.epsilon, None
    guess = budget.epsilon / 2
    for _ in range(_ROUNDS):
        try:
            planned, selection = priced(guess)
            spent = selection.epsilon(budget.delta)
        except InvalidArgument:  # no noise reaches so small an ε₁, or no step fits into it
            if found is not None:
                break
            raise
        if spent <= budget.epsilon:
            fits, found = guess, (planned, selection)
            if spent >= (1 - TOLERANCE) * budget.epsilon:
                break
        else:
            exceeds = guess
        if exceeds - fits < 1e-4 * exceeds:  # a given multiplier, whose number of steps moves the price in jumps
            break
        ratio = guess * (1 - TOLERANCE / 2) * budget.epsilon / spent
        guess = ratio if fits < ratio < exceeds else (fits + exceeds) / 2
    if found is None:
        raise InvalidArgument(
            "expected_trials",
            "this search",
            f"no noise brings the whole search to epsilon={budget.epsilon:g}",
            "Use a larger budget, fewer expected trials or fewer steps",
        )
    return found


@dataclass(frozen=True)
class _State:
    """What a search must not forget. `order` is `None` until it was charged: K is never drawn for a search that was not paid for.

    The last claim in the ledger is `held`, or `wanted` if the process came so far: it is stored before it is made.
    """

    identifier: str
    order: tuple[int, ...] | None = None
    done: int = 0
    best: int | None = None
    score: float = -math.inf
    held: str | None = None
    wanted: str | None = None

    @property
    def published(self) -> bool:
        """Whether the winner is out: `order` is then its candidate alone, and no trial may follow."""
        return self.done > 0 and self.best is None


def search_privately(task: Task, plan: SearchPlan, storage: Storage) -> Tuned:
    """Charge the search, train K trials, publish the best; or go on with a search that was interrupted."""
    _require_private_storage(storage)
    records, folder = as_records(task.data), None if storage.folder is None else Path(storage.folder)
    books = Ledger.attach(Path(str(storage.ledger)))
    with contextlib.ExitStack() as stack:
        stack.callback(books.close)
        if folder is not None:
            stack.enter_context(tidied((folder / STATE).parent))
        _require_limit(books)
        if storage.resume and folder is not None:
            _load(folder, plan)  # what is wrong with it is said before the lock is made
        else:
            state = _begin(task, plan, records, books, folder)
        if folder is not None:
            stack.enter_context(_alone(folder))
            state = _load(folder, plan)  # another process may have gone on with it until now
        number = _charge(plan, books, state, folder)
        shared = data_set(books, number)
        if folder is not None and _claimed_as_winner(books, number, folder, state):
            return _published(task, plan, records, folder, state, shared)
        if state.published:
            raise InvalidArgument(
                "resume",
                str(folder / WINNER) if folder is not None else None,
                "the winner is no longer there as it was, and to train it again would be a second answer for one price",
                "Put it back; or start a new search, which is charged anew",
            )
        state = _claim(plan, books, number, state, folder)
        state, best = _run(task, plan, records, folder, state, shared)
        books.claim(number, _digest(folder, state) or secrets.token_hex(16), after=state.wanted)
        if folder is not None:
            return _published(task, plan, records, folder, state, shared)
        assert best is not None
        assert state.order is not None
        return _tuned(plan, state.order[state.best or 0], state.score, Run(best))


def _begin(task: Task, plan: SearchPlan, records: Records, books: Ledger, folder: Path | None) -> _State:
    """Everything that can be refused is refused here: nothing was charged, and no file is left."""
    if folder is not None and ((folder / STATE).exists() or (folder / WINNER).exists()):
        raise InvalidArgument(
            "folder", str(folder), "there is an earlier search already", "Choose a new folder, or go on with resume"
        )
    books.require_room(books.price(plan.selection, plan.budget))
    _rehearse(task, plan, records)
    state = _State(os.urandom(8).hex())
    if folder is not None:
        with explained(folder):
            (folder / STATE).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _save(state, plan, folder)
    return state


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Refuse a second process: two that train the trials of one search are two searches. SQLite's lock ends with its process."""
    with contextlib.closing(sqlite3.connect(folder / LOCK, timeout=0, isolation_level=None)) as lock:
        try:
            lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            raise TakenOver("resume", str(folder), "another process goes on with this search", "Wait for it") from error
        yield


def _rehearse(task: Task, plan: SearchPlan, records: Records) -> None:
    """Open a trial with every candidate that differs in more than its learning rate, so that it raises before anything is charged."""
    seen = set()
    for number, candidate in enumerate(plan.space.candidates):
        kind = repr({name: value for name, value in candidate.settings.items() if name != "lr"})
        if kind not in seen:
            seen.add(kind)
            session = task.open(candidate, plan.plans[number], records, Randomness.fresh(), rule=plan.rule(number))
            require_measurable(session.evaluated, task.evaluate)
            session.account.ledger.close()
    task.require_fresh_models(plan.space.candidates[0])


def _charge(plan: SearchPlan, books: Ledger, state: _State, folder: Path | None) -> int:
    """The number under which the ledger holds the search; charges it if it does not yet."""
    terms = plan.rule(0).terms
    number = books.find(state.identifier)
    if number is None:
        if state.order is not None:
            raise InvalidArgument(
                "ledger",
                str(books.path),
                "it does not hold this search, which has begun: it is another ledger, or an older copy",
                "Use the ledger as it was when the search stopped",
            )
        try:
            return books.admit((), books.price(plan.selection, plan.budget), state.identifier, terms)
        except BaseException:
            if folder is not None and books.find(state.identifier) is None:
                (folder / STATE).unlink(missing_ok=True)
                (folder / LOCK).unlink(missing_ok=True)
            raise
    admitted = next(run for run in books.runs() if run.number == number)
    if admitted.terms != terms:
        raise InvalidArgument(
            "resume", str(folder), "the ledger holds this search with other terms", "Use the settings that it had"
        )
    return number


def _claim(plan: SearchPlan, books: Ledger, number: int, state: _State, folder: Path | None) -> _State:
    """Make this process the only one that trains trials of the search, and draw K if nobody has. Both are stored before the claim."""
    found = books.claimed(number)
    if found in (state.held, state.wanted):  # otherwise somebody else's, and refused below
        order = _draw(plan) if state.order is None else state.order
        state = replace(state, order=order, held=found, wanted=secrets.token_hex(16))
        _save(state, plan, folder)
    books.claim(number, state.wanted or "", after=state.held)
    return state


def _claimed_as_winner(books: Ledger, number: int, folder: Path, state: _State) -> bool:
    """Whether the ledger names the weights that lie here: then they, and nothing else, may be published."""
    digest = _digest(folder, state)
    return digest is not None and digest == books.claimed(number)


def _digest(folder: Path | None, state: _State) -> str | None:
    """Of the weights of the winner, or of the best trial so far."""
    if folder is None:
        return None
    place = folder / WINNER if (folder / WINNER).exists() or state.best is None else _place(folder, state.best)
    try:
        return hashlib.sha256((place / "public" / "weights.safetensors").read_bytes()).hexdigest()
    except OSError:
        return None


def _draw(plan: SearchPlan) -> tuple[int, ...]:
    """K, and the candidate of each trial: uniform, independent, from the operating system's cryptographic source."""
    count = plan.trials.quantile(secrets.randbits(WORD))
    return tuple(secrets.randbelow(plan.space.size) for _ in range(count))


def _run(
    task: Task, plan: SearchPlan, records: Records, folder: Path | None, state: _State, shared: Mapping[str, Any] | None
) -> tuple[_State, Session | None]:
    """Train what is left of the trials; of all of them the best is kept."""
    best: Session | None = None
    order = state.order or ()
    _tidy(folder, state.best)
    for trial in range(state.done, len(order)):
        number = order[trial]
        place = None if folder is None else _place(folder, trial)
        # No checkpoint while it runs: nobody knows yet whether it will be the best.
        storage = Storage() if place is None else Storage(place, every=plan.plans[number].steps + 1)
        session = task.open(
            plan.space.candidates[number],
            plan.plans[number],
            records,
            Randomness.fresh(),
            rule=plan.rule(number, shared),
            storage=storage,
        )
        try:
            take_steps(session, task.own_loss(), Evaluation(task.evaluate))
        finally:
            session.curator.end_workers()
        score = task.rank(session)
        better = state.best is None or score > state.score
        if better:
            if place is not None:
                Run(session).save(place)
            best = session
            state = replace(state, best=trial, score=score)
        state = replace(state, done=trial + 1)
        _save(state, plan, folder)  # only now does the trial count: before this, a crash repeats it
        if place is not None:
            session.account.ledger.close()
            _tidy(folder, state.best)
    return state, best


def _published(
    task: Task, plan: SearchPlan, records: Records, folder: Path, state: _State, shared: Mapping[str, Any] | None
) -> Tuned:
    """Make the winner visible if it is not, and read it. What must not be known any longer is deleted."""
    order = state.order or ()
    if not (folder / WINNER).exists():
        os.replace(_place(folder, state.best or 0), folder / WINNER)
    if state.best is not None:
        order = (order[state.best],)
        _save(_State(state.identifier, order, done=1, score=state.score), plan, folder)
    (number,) = order
    _tidy(folder, None)
    session = task.open(
        plan.space.candidates[number],
        plan.plans[number],
        records,
        Randomness.fresh(),
        rule=plan.rule(number, shared),
        storage=Storage(folder / WINNER, every=plan.plans[number].steps + 1, resume=True),
    )
    return _tuned(plan, number, state.score, Run(session))


def _tuned(plan: SearchPlan, number: int, score: float, run: Run) -> Tuned:
    return Tuned(plan.space.candidates[number].settings, score, plan.plans[number], run=run, price=plan)


def _place(folder: Path, trial: int) -> Path:
    return folder / "secret" / f"trial-{trial}"


def _tidy(folder: Path | None, best: int | None) -> None:
    """Delete all trials but the best so far: those that lost, and one that a crash left half done."""
    if folder is not None:
        for place in (folder / "secret").glob("trial-*"):
            if best is None or place != _place(folder, best):
                shutil.rmtree(place)


def _save(state: _State, plan: SearchPlan, folder: Path | None) -> None:
    if folder is not None:
        content = {"format": FORMAT, "configuration": _configuration(plan), **vars(state)}
        replace_file(folder / STATE, (json.dumps(content) + "\n").encode(), mode=0o600)


def _load(folder: Path, plan: SearchPlan) -> _State:
    """The search in `folder`. Refuses a damaged file and other settings."""
    path = folder / STATE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}")
        before, order = content["configuration"], content["order"]
        state = _State(
            content["identifier"],
            None if order is None else tuple(map(int, order)),
            int(content["done"]),
            None if content["best"] is None else int(content["best"]),
            float(content["score"]),
            content["held"],
            content["wanted"],
        )
    except OSError as error:
        reason = f"there is no search to go on with ({error.strerror})"
        raise InvalidArgument("resume", str(folder), reason, "Start it anew, in another folder") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        fix = "Restore it from a backup; without it the search is lost, and a new one is charged anew"
        raise InvalidArgument("resume", str(path), f"it is damaged ({type(error).__name__}: {error})", fix) from error
    if found := first_difference(before, _configuration(plan)):
        name, then, now = found
        raise InvalidArgument(
            "resume",
            str(folder),
            f"the search was started with {name} = {then!r}, and now it is {now!r}",
            "Use the settings that it was started with, or start anew in another folder",
        )
    return state


def _configuration(plan: SearchPlan) -> dict[str, Any]:
    """What must be the same when a search goes on: all that its price and its draws depend on."""
    described = {
        **plan.space.describe(),
        **plan.trials.describe(),
        "multipliers": [one.multipliers[0] for one in plan.plans],
    }
    content: dict[str, Any] = json.loads(json.dumps(described))
    return content


def _require_limit(books: Ledger) -> None:
    if books.rule is None:
        raise InvalidArgument(
            "storage.ledger",
            str(books.path),
            "it is the ledger of a single run and has no limit",
            "Make one with `apportion ledger limit`",
        )


def _require_private_storage(storage: Storage) -> None:
    if storage.ledger is None:
        raise InvalidArgument(
            "storage.ledger",
            None,
            "a search on private records is charged, as a whole, to the ledger of the data set before it starts",
            "Make one with `apportion ledger limit` and pass storage=apportion.Storage(folder, ledger=...); or declare the data "
            "public, if anything about it may be published",
        )
    if storage.recovery != "fresh" or storage.every is not None:
        raise InvalidArgument(
            "storage",
            "recovery" if storage.recovery != "fresh" else "every",
            "a trial that a crash interrupts starts again from the beginning, and keeps no checkpoint",
            "Leave it out",
        )
