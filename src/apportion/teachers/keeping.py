"""The folder of a PATE run: what is durable, and how it goes on after a crash.

    public/answers.jsonl        one line for each released label: the number of the query and the class
    public/privacy.json, .md    the statement; public/student.safetensors or .pickle, the student
    secret/ledger.sqlite        the charges (or a copy of them, if the data set has a ledger)
    secret/votes.npy            the teachers' votes, so that nobody is trained twice
    secret/pate.json            the name of the run in the ledger, and what must be the same when it goes on
    secret/data-dependent.json  what the votes would make of the price: not publishable

After a crash the ledger says which query comes next. One that was charged and whose label was lost stays unanswered: it is neither
refunded nor asked again. A ledger that lacks the charge of a label that was released is an older copy, and refused.
"""

from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save
from torch import nn

from apportion.accounting.account import Account
from apportion.accounting.ledger import Ledger
from apportion.accounting.rules import Rule
from apportion.budget import Budget
from apportion.errors import InvalidArgument
from apportion.teachers.taught import Taught, as_page
from apportion.teachers.teaching import Classes
from apportion.training.checkpoint import explained, first_difference, replace_file
from apportion.training.folders import tidied
from apportion.training.storage import LEDGER, Storage

STATE, VOTES = Path("secret") / "pate.json", Path("secret") / "votes.npy"
COST, ANSWERS = Path("secret") / "data-dependent.json", Path("public") / "answers.jsonl"
_SECRET = 0o600


class Books:
    """The account of a run and its folder."""

    def __init__(self, storage: Storage, account: Account, answers: dict[int, int]):
        self._storage, self.account, self.answers = storage, account, answers

    def path(self, part: Path) -> Path | None:
        return self._storage.path(part)

    def votes(self) -> Classes | None:
        """Those of a run that goes on; `None` if the teachers are still to be trained."""
        path = self.path(VOTES)
        if path is None or not path.exists():
            return None
        try:
            votes: Classes = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            raise _damaged(path) from None
        return votes

    def keep_votes(self, votes: Classes, configuration: Mapping[str, Any]) -> None:
        """Before the first charge."""
        state, stored = self.path(STATE), self.path(VOTES)
        if state is None or stored is None:
            return
        with explained(stored):
            stored.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = io.BytesIO()
        np.save(content, votes)
        replace_file(stored, content.getvalue(), mode=_SECRET)
        known = {"identifier": self.account.identifier, "configuration": configuration}
        replace_file(state, json.dumps(known).encode(), mode=_SECRET)

    def keep_answer(self, query: int, label: int) -> None:
        """After it was released: what a crash loses between the charge and this line is not asked again."""
        self.answers[query] = label
        path = self.path(ANSWERS)
        if path is not None:
            with explained(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"query": query, "class": label}) + "\n")
                    file.flush()
                    os.fsync(file.fileno())

    def save(self, taught: Taught, secret_cost: Mapping[str, Any]) -> None:
        """What is left of the run."""
        folder, own = self._storage.folder, self.path(LEDGER)
        if folder is None or own is None:
            return
        public = Path(folder) / "public"
        with explained(public):
            public.mkdir(parents=True, exist_ok=True)
        replace_file(Path(folder) / COST, (json.dumps(secret_cost, indent=1) + "\n").encode(), mode=_SECRET)
        replace_file(public / "privacy.json", (json.dumps(taught.statement(), indent=1) + "\n").encode())
        replace_file(public / "privacy.md", as_page(taught.facts).encode())
        replace_file(public / "results.json", (json.dumps(taught.to_json(), indent=1) + "\n").encode())
        if isinstance(taught.student, nn.Module):
            replace_file(public / "student.safetensors", save(dict(taught.student.state_dict())))
        elif taught.student is not None:
            replace_file(public / "student.pickle", pickle.dumps(taught.student))
        if self._storage.ledger is not None:
            own.unlink(missing_ok=True)  # an older copy of this same run
            self.account.ledger.copy_to(own, self.account.run)


@contextmanager
def opened_books(
    storage: Storage, budget: Budget, rule: Rule, configuration: Mapping[str, Any], *, private: bool
) -> Iterator[Books]:
    """The account of a run, new or resumed. A run that is refused, or ends before it was charged, leaves no file behind."""
    if storage.recovery == "exact":
        reason = "queries are not repeated bit for bit: one that was lost stays unanswered"
        raise InvalidArgument("recovery", "exact", reason, 'Use recovery="fresh"')
    if not private and (storage.ledger is not None or storage.resume):
        reason = (
            "a run with a seed is not private: it is charged to no data set, and can be repeated from its beginning"
        )
        raise InvalidArgument("seed", "a number", reason, "Leave the seed out, or the ledger and resume")
    known = _known(storage, configuration)
    with tidied(Path(storage.folder or ".") / "secret"):
        ledger = _open_ledger(storage, resumed=known is not None)
        account: Account | None = None
        try:
            account = Account(budget, rule, ledger, identifier=known)
            yield Books(storage, account, _read_answers(storage, account) if known else {})
        except BaseException:
            if account is None or account.run is None:
                _forget(storage, ledger)
            raise
        finally:
            ledger.close()


def _known(storage: Storage, configuration: Mapping[str, Any]) -> str | None:
    """The name in the ledger of the run that goes on. Refuses another configuration, and a new run where there is one already."""
    path = storage.path(STATE)
    if not storage.resume:
        found = next((one for one in (storage.path(part) for part in (STATE, ANSWERS)) if one and one.exists()), None)
        if found is not None:
            fix = "Choose a new folder, or go on with resume"
            raise InvalidArgument("folder", str(found), "there is an earlier run already", fix)
        return None
    assert path is not None
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        identifier, before = str(state["identifier"]), state["configuration"]
    except FileNotFoundError:
        reason = "there is no run that could go on: it never began, and charged nothing"
        raise InvalidArgument("resume", str(path.parents[1]), reason, "Start it anew, in another folder") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise _damaged(path) from None
    if difference := first_difference(before, json.loads(json.dumps(configuration))):
        name, then, now = difference
        reason = f"the run was started with {name} = {then!r}, and now it is {now!r}"
        raise InvalidArgument("resume", str(storage.folder), reason, "Use the settings that it was started with")
    return identifier


def _open_ledger(storage: Storage, *, resumed: bool) -> Ledger:
    own = storage.path(LEDGER)
    if storage.ledger is not None:
        if own is not None and own.exists() and not resumed:
            raise InvalidArgument("folder", str(own), "there is the ledger of an earlier run", "Choose a new folder")
        return Ledger.attach(Path(storage.ledger))
    return Ledger.attach(own) if resumed and own is not None else Ledger.create(own)


def _read_answers(storage: Storage, account: Account) -> dict[int, int]:
    """The released labels. Each must have been charged: otherwise the ledger is an older copy."""
    path = storage.path(ANSWERS)
    if path is None or not path.exists():
        return {}
    answers: dict[int, int] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            one = json.loads(line)
            answers[int(one["query"])] = int(one["class"])
        except (ValueError, KeyError, TypeError):
            continue  # the line that a crash cut off; its label is lost
    if not all(account.is_spent(2 * query + 2) for query in answers):
        reason = "it lacks the charges of labels that were released: it is an older copy, or another ledger"
        raise InvalidArgument(
            "ledger", str(account.ledger.path), reason, "Use the ledger as it was when the run stopped"
        )
    return answers


def _forget(storage: Storage, ledger: Ledger) -> None:
    """Nothing was charged: remove what was made for the run."""
    if storage.resume:
        return
    for part in (STATE, VOTES):
        if (path := storage.path(part)) is not None:
            path.unlink(missing_ok=True)
    if storage.ledger is None and ledger.path is not None:
        ledger.path.unlink(missing_ok=True)


def _damaged(path: Path) -> InvalidArgument:
    return InvalidArgument("resume", str(path), "it is damaged", "Restore it from a backup")
