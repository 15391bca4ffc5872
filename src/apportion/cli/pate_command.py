"""`apportion pate`: teachers on private records, a student that may be published."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apportion.budget import UNITS, Budget, Group, Public, Record, Selector, Unit, User
from apportion.cli import options
from apportion.cli.options import option
from apportion.cli.output import print_lines, screen, working_in
from apportion.data import KNOWN
from apportion.errors import InvalidArgument
from apportion.validate import known

if TYPE_CHECKING:
    from apportion.teachers import Taught

BENCHMARK_GROUPS = ("strict:5:0.34", "medium:8:0.43", "loose:12:0.23")
"""Of published benchmarks, whose people nobody can ask."""
BENCHMARK_DELTA = 1e-5
_SIZES = {"digits": (50, 250), "mnist": (250, 1000)}
_OTHERWISE = (50, 250)


class Options(options.Owners):
    """What is said about a run."""

    data: options.NoTable
    group: list[str] = option(
        "A group: its ε and its share of the people. Repeatable; one with share 1 for everybody.",
        "for benchmarks " + ", ".join(BENCHMARK_GROUPS),
        metavar="[NAME:]EPSILON:SHARE",
    )
    delta: float = option("δ, below 1/population.", f"for benchmarks {BENCHMARK_DELTA:g}")
    unit: str = option(
        "Whom the guarantee protects: record, or user (with --user-ids or --user-column).", "for benchmarks record"
    )
    classes: int = option("Number of classes, for your own data.", "known for built-in data")
    teachers: int = option("How many.", "50; of mnist 250")
    queries: int = option(
        "How many public inputs are asked, from the test part; the rest tests the student.", "250; of mnist 1000"
    )
    variant: str = option("How larger budgets are used: weighting, upsampling or vanishing.", "weighting")
    by: str = option("Influence proportional to epsilon, or to mu (all budgets are reached together).", "epsilon")
    most_copies: int = option("Upsampling: the most copies of a record.", "5")
    size_weighted: bool = option("Weighting: the paper's rule, large groups count more.", name="--size-weighted")
    aggregation: str = option("gnmax, or confident: unanswered where teachers disagree.", "gnmax")
    sigma: float = option("Noise of an answer, in votes.", "as little as the budgets allow")
    check_sigma: float = option("Confident: noise of a check.", "twice sigma")
    threshold: float = option("Confident: votes that the winner needs.", "0.6 of the teachers")
    answers: int = option("Confident: answers that are planned for.", "one for each query")
    teacher: str = option("logistic, svm, linear, mlp, cnn, or your own module:function.", "logistic")
    student: str = option("The same.", "svm")
    epochs: int = option("Torch teachers and students: passes over their records.", "50")
    seed: int = option("Makes the run reproducible and NOT private: for tests.")
    ledger: Path = option("The shared ledger of the data set, with the rule sum (`apportion ledger limit`).")
    out: Path = option("A new folder for the run.", "runs/pate-DATA")
    processes: int = option("Teachers trained at a time.", "one for each core")


@options.declared_in(Options)
def pate(
    data_dir: options.DataDir = None,
    resume: Annotated[
        bool, option("Go on with the run in --out. All other options as before.", name="--resume")
    ] = False,
    as_json: options.Json = False,
    **said: Any,
) -> None:
    """Train teachers on disjoint parts of private records, and a student on their noisy votes (PATE).

    Only the noisy winner of each vote leaves: a label for a public input. What a vote costs a group follows from how many votes one of its
    records can move, and is charged before the noise is drawn. The run stops before a query that would exceed the budget of any group, so
    each group's ε is within its own budget. Teachers, votes and data-dependent costs stay in secret/. Groups and budgets must be public.

    Example: apportion pate --data digits --group strict:5:0.34 --group medium:8:0.43 --group loose:12:0.23 --delta 1e-5 --unit record

    Example: apportion pate --data mnist --teachers 250 --queries 1000 --variant upsampling --aggregation confident --json

    After a crash: the same command with --out runs/pate-digits --resume
    """
    if "data" not in said:
        raise InvalidArgument("data", None, "there is nothing to learn from", "Pass --data digits, or your own")
    if resume and "out" not in said:
        raise InvalidArgument("resume", True, "it must say where the run is", "Pass --out, the folder of the run")
    budget = _budget(said)
    from apportion.compare.comparison import new_folder
    from apportion.teachers.pate import pate as run_pate
    from apportion.training.storage import Storage

    folder = said.get("out") or new_folder(Path("runs"), f"pate-{said['data'].replace(':', '-')}")
    settings = _settings(said, budget, data_dir)
    storage = Storage(folder, ledger=said.get("ledger"), resume=resume)
    with working_in(folder, lambda: f"go on with the same command and --out {folder} --resume"):
        taught = run_pate(storage=storage, progress=True, **settings)
    _show(taught, folder, as_json=as_json)


def _budget(said: dict[str, Any]) -> Budget:
    """Budgets are decisions about people: only published benchmarks, which have none to protect, have defaults."""
    listed, benchmark = said.get("group"), said["data"] in KNOWN
    if not benchmark:
        for name, example in (("group", "5:1"), ("delta", "1e-6"), ("unit", "record")):
            if name not in said:
                reason = "it is a decision about people and has no default"
                raise InvalidArgument(name, None, reason, f"Pass for example --{name} {example}")
    groups = [_read_group(text) for text in listed or BENCHMARK_GROUPS]
    known("unit", said.get("unit", Record.name), UNITS)
    return Budget.of_groups(groups, delta=said.get("delta", BENCHMARK_DELTA), unit=Record())


def _read_group(text: str) -> Group:
    from pydantic import ValidationError

    from apportion.compare.people import GroupChoice

    try:
        return GroupChoice.model_validate(text).group()
    except ValidationError as error:
        raise error.errors()[0]["ctx"]["error"] from None  # ours, which pydantic has wrapped


def _settings(said: dict[str, Any], budget: Budget, data_dir: Path | None) -> dict[str, Any]:
    """The arguments of `apportion.pate` from what was said."""
    from apportion.teachers.estimators import by_name
    from apportion.teachers.teaching import Fit

    train, test, shapes = _load(said["data"], data_dir)
    teachers, queries = _SIZES.get(said["data"], _OTHERWISE)
    asked, rest = _split(test, said.get("queries", queries))
    classes = said.get("classes", None if shapes is None else shapes.classes)
    return {
        "data": train,
        "budget": replace(budget, unit=_unit(said, shapes), labels=_labels(said, budget, train, shapes)),
        "queries": asked,
        "evaluate": rest,
        "classes": classes,
        "teachers": said.get("teachers", teachers),
        "teacher": by_name("teacher", said.get("teacher", "logistic"), shapes),
        "student": by_name("student", said.get("student", "svm"), shapes),
        "variant": _variant(said),
        "aggregation": _aggregation(said),
        "fit": Fit(**_given(said, "epochs")),
        "processes": said.get("processes", os.cpu_count() or 1),
        "seed": said.get("seed"),
    }


def _load(name: str, data_dir: Path | None) -> tuple[Any, Public, Any]:
    """Private records, the public test part, and what a built-in network must know of them."""
    from apportion import data as data_room
    from apportion.compare.resolve import is_own, own_data

    if is_own(name):
        train, test = own_data(name)
        if test is None:
            raise InvalidArgument("data", name, "it has no public part to ask about", "Return (train, Public(test))")
        return train, test, None
    found = data_room.load(name, data_dir)
    inputs, targets = found.train
    return found.train, found.test, replace(found, train=(inputs[:0], targets[:0]), test=Public(None))


def _split(test: Public, queries: int) -> tuple[Public, Public]:
    """The inputs that are asked, without their classes, and the records that the student is tested on."""
    import numpy as np

    from apportion.curator.records import as_records

    records = as_records(test.data)
    if not 0 < queries < len(records):
        reason = f"the public part has {len(records)} records, and some of them must be left to test the student"
        raise InvalidArgument("queries", queries, reason, f"Use fewer than {len(records)}")
    asked, _ = records.batch(np.arange(queries))
    return Public(asked), Public(records.batch(np.arange(queries, len(records))))


def _selector(said: dict[str, Any], file: str, column: str, data: Any) -> Selector | None:
    """What tells something of every record: a file, or a column, which may be that of a benchmark's writers."""
    from apportion.compare.people import read_entries

    if file in said:
        return read_entries(file, said[file])
    if said.get(column) == "writers" and getattr(data, "writers", None) is not None:
        writers: list[int] = data.writers.tolist()
        return writers
    name: str | None = said.get(column)
    return int(name) if name is not None and name.isdecimal() else name


def _unit(said: dict[str, Any], data: Any) -> Unit:
    ids = _selector(said, "user_ids", "user_column", data)
    return User(ids=ids) if said.get("unit", Record.name) == User.name else Record()


def _labels(said: dict[str, Any], budget: Budget, train: Any, data: Any) -> Selector | None:
    """As they were given; for one group, and for a benchmark whose people nobody asked, they follow."""
    from apportion.curator.records import as_records
    from apportion.teachers.partition import People, spread_groups

    given = _selector(said, "group_labels", "group_column", data)
    if given is not None or (len(budget.groups) > 1 and said["data"] not in KNOWN):
        return given
    people = People.of(as_records(train), Budget(epsilon=1.0, delta=budget.delta, unit=_unit(said, data)))
    return spread_groups(map(people.content, range(len(people.groups))), budget.groups)


def _variant(said: dict[str, Any]) -> Any:
    from apportion.teachers.variants import Upsampling, Vanishing, Weighting

    name = known("variant", said.get("variant", "weighting"), ("weighting", "upsampling", "vanishing"))
    if name == "upsampling":
        return Upsampling(**_given(said, "most_copies", "by"))
    return Weighting(**_given(said, "size_weighted", "by")) if name == "weighting" else Vanishing(**_given(said, "by"))


def _aggregation(said: dict[str, Any]) -> Any:
    from apportion.teachers.aggregation import ConfidentGNMax, GNMax

    if known("aggregation", said.get("aggregation", "gnmax"), ("gnmax", "confident")) == "gnmax":
        return GNMax(**_given(said, "sigma"))
    return ConfidentGNMax(**_given(said, "sigma", "check_sigma", "threshold", "answers"))


def _given(said: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: said[name] for name in names if name in said}


def _show(taught: Taught, folder: Path, *, as_json: bool) -> None:
    console = screen(as_json)
    accuracy = "no student" if taught.student_accuracy is None else f"student accuracy {taught.student_accuracy:.1%}"
    lines = [f"{accuracy}   {taught.queries_answered} of {taught.queries_asked} queries answered"]
    lines += [f"  {one.name:>10}  ε = {one.epsilon:.4f} of {one.budget:g}" for one in taught.groups]
    if not taught.private:
        lines.append("A seed was given: this run is reproducible and NOT private.")
    lines.append(
        f"Privacy statement: {folder / 'public' / 'privacy.md'}   labels: {folder / 'public' / 'answers.jsonl'}"
    )
    print_lines(console, *lines)
    if as_json:
        typer.echo(json.dumps(taught.to_json()))
