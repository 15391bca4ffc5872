"""Records of a private table that are held out of training, and the one noisy score that is asked about them.

**What it costs: the sum.** Training is (ε₁, δ)-DP for all records of the table, and the score is ε₂-DP for all of them, whatever model it
is asked about; so together they are (ε₁ + ε₂, δ)-DP, and the ledger is charged with both. Which part a record is in depends on the
record and on a key that is drawn without looking at the data, so that for every key one record is in one part only, and the larger of
the two would do (parallel composition, McSherry 2009); that is not claimed.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from apportion.accounting.accountant import count_events
from apportion.accounting.ledger import Ledger
from apportion.budget import Budget, Unit, User
from apportion.compare.resolve import Subject
from apportion.compare.table_subject import training_part
from apportion.errors import BudgetExhausted, InvalidArgument
from apportion.planning import Plan
from apportion.reporting.held_out_score import LARGEST_ERROR, HeldOutScore
from apportion.reporting.measures import Measure
from apportion.reporting.result import RunResult
from apportion.reporting.write import with_held_out
from apportion.statistics import mean
from apportion.statistics.charging import price_statistic
from apportion.tables.encoding import EncodedTable
from apportion.tables.splitting import hold_out
from apportion.training.checkpoint import replace_file
from apportion.training.statement import as_markdown, data_set, in_words

KEY = Path("secret") / "holdout.key"
ASKED = Path("secret") / "holdout.asked"
LEDGER = Path("secret") / "holdout.sqlite"
SCORE = Path("public") / "holdout.json"
ACCURACY, ERROR = Measure("accuracy"), Measure("mae", "lower")
"""What is asked about classes, and about numbers."""
_KEY_BYTES = 32
_UNUSED_DELTA = 1e-15
"""A budget has a δ; the score uses none of it."""


class HoldoutChoice(BaseModel):
    """Which part is held out, and the ε of its score."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fraction: float
    epsilon: float

    def budget(self, unit: Unit) -> Budget:
        return Budget(epsilon=self.epsilon, delta=_UNUSED_DELTA, unit=unit)

    def require_room(self, ledger: Path | None, plan: Plan) -> None:
        """Refuse a run whose score would not fit into the limit of the data set beside it, before anything is charged."""
        if ledger is None:
            return
        books = Ledger.open(ledger)
        try:
            declared = count_events(plan.rule().declared) or plan.budget
            score = price_statistic(books, self.epsilon, self.budget(plan.budget.unit))
            books.require_room(books.price(declared, plan.budget) + score)
        finally:
            books.close()


def make_key(folder: Path) -> None:
    """Draw the key that splits the records of a new run."""
    (folder / KEY).parent.mkdir(parents=True, exist_ok=True)
    replace_file(folder / KEY, os.urandom(_KEY_BYTES), mode=0o600)
    (folder / KEY).parent.chmod(0o700)


def forget_key(folder: Path) -> None:
    """Remove the key of a run that was refused, and the folder if it holds nothing else."""
    (folder / KEY).unlink(missing_ok=True)
    if (folder / KEY).parent.is_dir() and not any((folder / KEY).parent.iterdir()):
        (folder / KEY).parent.rmdir()


def split_subject(subject: Subject, choice: HoldoutChoice, folder: Path, unit: Unit) -> tuple[Subject, EncodedTable]:
    """The subject with the records that are trained on, and those that are held out; those of a user together."""
    table = subject.table
    if table is None:
        fix = "Pass --data patients.csv with --schema and --target"
        raise InvalidArgument("holdout", choice.fraction, "only records of a table are held out", fix)
    try:
        key = (folder / KEY).read_bytes()
    except OSError:
        reason = "the key by which its records were split is gone"
        raise InvalidArgument("resume", str(folder), reason, "Restore secret/ from a backup, or start anew") from None
    held = hold_out(_units(table, unit), choice.fraction, key)
    return replace(subject, **training_part(table.part(~held).or_unusable())), table.part(held)


def _units(table: EncodedTable, unit: Unit) -> tuple[str | None, ...]:
    if not isinstance(unit, User):
        return table.names
    if table.owners is None:
        reason = "users are held out as a whole, and the schema does not say whose each record is"
        raise InvalidArgument("holdout", "of users", reason, 'Write unit = "patient" into the schema, with its column')
    return table.owners


def ask_score(
    held: EncodedTable, choice: HoldoutChoice, folder: Path, unit: Unit, ledger: Path | None, seed: int | None
) -> dict[str, Any] | None:
    """The noisy score of the model in `folder` on the held-out records, asked at most once for a run; charged before it is drawn.

    Accuracy of classes, mean absolute error of a number, in its own unit. It is low + (high − low)·A/(A + B) of two noisy sums
    (`apportion.statistics.mean`); of a user the mean over their records counts as one value.

    Returns:
        `None` if it was asked by an earlier process that did not live to tell it, or if the limit of the data set has no room for it.
    """
    if (folder / SCORE).is_file():
        found: dict[str, Any] = json.loads((folder / SCORE).read_text(encoding="utf-8"))
        return found
    if (folder / ASKED).exists():
        return None
    from apportion.compare.prediction import load

    predictor = load(folder)
    values = _values(predictor.answer(held.inputs), held, predictor.encoding.classes is not None)
    if isinstance(unit, User):
        values = _pooled(values, held)
    replace_file(folder / ASKED, b"")  # before the charge: whoever goes on after a crash must not ask again
    if ledger is None and seed is None:
        ledger = folder / LEDGER
        Ledger.create(ledger).close()
    terms: dict[str, Any] = {"budget": choice.budget(unit), "storage": ledger, "seed": seed, "pooled": True}
    try:
        asked = mean(values, bounds=(0.0, 1.0), **terms)
    except BudgetExhausted:
        return None
    span = predictor.encoding.span
    assert isinstance(asked.value, float | int)
    error = 0.5 if asked.standard_error is None else asked.standard_error
    score = {
        **(ACCURACY if predictor.encoding.classes is not None else ERROR).to_json(),
        "value": asked.value * span,
        "standard_error": error * span,
        "useful": error < LARGEST_ERROR,
        "fraction": choice.fraction,
        "epsilon": asked.epsilon,
    }
    replace_file(folder / SCORE, (json.dumps(score, indent=1) + "\n").encode())
    return score


def _values(outputs: NDArray[np.float64], held: EncodedTable, classes: bool) -> NDArray[np.float64]:
    """One number in [0, 1] for each record: whether it is right, or how far it is off. NaN, nobody's value, without a usable target. A
    record on which the model fails is wrong, or as far off as can be."""
    assert held.targets is not None
    answered = np.isfinite(outputs).all(axis=1)
    if classes:
        right = answered & (np.nan_to_num(outputs).argmax(axis=1) == held.targets)
        return np.where(held.usable, right.astype(np.float64), np.nan)
    off = np.abs(np.clip(np.nan_to_num(outputs[:, 0]), 0, 1) - held.targets[:, 0].astype(np.float64))
    return np.where(answered | ~held.usable, off, 1.0)


def _pooled(values: NDArray[np.float64], held: EncodedTable) -> NDArray[np.float64]:
    """The mean over the records of each user; one value for each."""
    of_user: dict[str, list[float]] = {}
    for owner, value in zip(held.owners or (), values.tolist(), strict=True):
        if owner is not None and not math.isnan(value):
            of_user.setdefault(owner, []).append(value)
    return np.array([math.fsum(found) / len(found) for found in of_user.values()])


def with_score(
    run: RunResult, choice: HoldoutChoice, score: dict[str, Any] | None, folder: Path, ledger: Path | None
) -> RunResult:
    """The result of a run with its score: ε is that of training and of the score together. Also in the statement of the folder.

    Without a score it says what the run is going to have charged, so that no statement is ever too low.
    """
    sums: dict[str, Any] = {
        name: None if getattr(run, name) is None else getattr(run, name) + choice.epsilon
        for name in ("epsilon", "epsilon_spent", "target_epsilon")
    }
    more: dict[str, Any] = {
        "parts": {"training": run.epsilon, "score of held-out records": choice.epsilon},
        "holdout": {"fraction": choice.fraction, "epsilon": choice.epsilon} | (score or {}),
    }
    statement = folder / "public" / "privacy.json"
    facts = json.loads(statement.read_text(encoding="utf-8")) | sums | more
    if ledger is not None:
        facts["data_set"] = more["data_set"] = _read_ledger(ledger, facts["data_set"]["run"])
    replace_file(statement, (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode())
    replace_file(statement.with_suffix(".md"), as_markdown(facts).encode())
    found = replace(run, **sums, statement=in_words(facts), details={**run.details, **more})
    held = HeldOutScore.of(facts)
    assert held is not None
    return with_held_out(found, held)


def _read_ledger(path: Path, run: int) -> dict[str, Any] | None:
    """What the ledger of the data set says now, after the score was charged to it as well."""
    books = Ledger.open(path)
    try:
        return data_set(books, run)
    finally:
        books.close()
