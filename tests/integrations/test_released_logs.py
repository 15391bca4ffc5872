"""Logs get what a run releases, and nothing else: on neighbouring data sets with frozen noise every byte of them is the same."""

import csv
import os
import sys
import types
from dataclasses import fields
from functools import partial
from itertools import chain, repeat

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
from apportion.audit.recorder import Recorder
from apportion.curator.curator import Curator
from apportion.errors import InvalidArgument, MissingExtra
from apportion.integrations import released_logs
from apportion.integrations.released_logs import absolute_log, open_log, released_values
from apportion.training import private, train
from apportion.training.history import Entry
from apportion.training.opening import open_session
from apportion.training.session import Setup

RECORDS = 12
INPUTS = torch.randn(RECORDS + 1, 3, generator=torch.Generator().manual_seed(3))
LABELS = torch.arange(RECORDS + 1) % 2
PLAN = ap.plan(
    "andrew",
    budget=ap.Budget(epsilon=8.0, delta=1e-5, unit=ap.Record()),
    population=2_000,
    sample_rate=0.5,
    steps=6,
)
ENTRY = Entry(
    step=7,
    epoch=2,
    clip=(0.5, 0.25),
    noise_multiplier=1.5,
    learning_rate=(0.1,),
    epsilon=1.25,
    score=0.75,
    group_epsilon={"strict/old": 0.5},
    metric="auc",
)


class Backends:
    """In the place of TensorBoard and MLflow: everything that they are called with."""

    def __init__(self):
        self.calls = []

    def install(self, monkeypatch):
        board = types.ModuleType("torch.utils.tensorboard")
        board.SummaryWriter = self._recorder("SummaryWriter")
        mlflow, entities = types.ModuleType("mlflow"), types.ModuleType("mlflow.entities")
        mlflow.MlflowClient, entities.Metric = self._recorder("MlflowClient"), lambda *values: values
        for module in (board, mlflow, entities):
            monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(released_logs, "require_extra", lambda *names: None)

    def _recorder(self, kind):
        calls = self.calls

        class Recording:
            def __init__(self, *arguments, **named):
                calls.append((kind, arguments, named))

            def __getattr__(self, name):
                def call(*arguments, **named):
                    calls.append((f"{kind}.{name}", arguments, named))
                    return types.SimpleNamespace(experiment_id="0", info=types.SimpleNamespace(run_id="1"))

                return call

        return Recording


def opened(recorder):
    """As `open_session`, but watched: coins that all data sets share, and noisy sums that were kept."""

    def open_watched(setup):
        session = open_session(setup)
        recorder.watch(session)
        return session

    return open_watched


def set_up(recorder, **settings):
    frozen = {"randomness": recorder.randomness, "build_curator": partial(Curator, mechanisms=recorder)}
    return Setup(**settings | frozen)


def run_by_train(model, data, log):
    public = ap.Public((INPUTS[:4], LABELS[:4]))
    ap.train(model, cross_entropy, data, PLAN, lr=0.5, evaluate=public, evaluate_every=2, log=log)


def run_by_loop(model, data, log):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    own = ap.make_private(model, optimizer, data, PLAN, log=log, execution=ap.Execution(micro_batch=2))
    for inputs, labels in own.batches():
        own.optimizer.zero_grad()
        cross_entropy(own.model(inputs), labels).backward()
        own.optimizer.step()


def logged(way, data, recorder, folder, monkeypatch):
    """All that three logs were told of a run, on a clock that goes differently every time it is looked at after they were made."""
    backends = Backends()
    with monkeypatch.context() as patch:
        backends.install(patch)
        patch.setattr(released_logs.time, "time", chain(repeat(1000.0, 1), iter(torch.rand(99).tolist())).__next__)
        for module in (train, private):
            patch.setattr(module, "Setup", partial(set_up, recorder))
            patch.setattr(module, "open_session", opened(recorder))
        logs = [
            ap.integrations.CsvLog(folder / "steps.csv"),
            ap.integrations.TensorBoardLog("board"),
            ap.integrations.MlflowLog("sqlite:///m.db"),
        ]
        torch.manual_seed(0)
        way(nn.Linear(3, 2), data, lambda entry: [log(entry) for log in logs])
        for log in logs:
            log.close()
    return (folder / "steps.csv").read_bytes(), backends.calls


@pytest.mark.filterwarnings("ignore:By a noisy count")
@pytest.mark.parametrize("way", [run_by_train, run_by_loop])
def test_neighbours_are_logged_alike(way, tmp_path, monkeypatch):
    (tmp_path / "with").mkdir()
    recorder = Recorder(RECORDS)
    before = logged(way, (INPUTS[:RECORDS], LABELS[:RECORDS]), recorder, tmp_path, monkeypatch)
    outlier = torch.cat([INPUTS[:RECORDS], 100 * INPUTS[RECORDS:]]), LABELS
    again = Recorder(RECORDS, recorder)
    after = logged(way, outlier, again, tmp_path / "with", monkeypatch)
    assert [len(step.members) for step in again.steps] != [len(step.members) for step in recorder.steps]
    assert after == before
    rows = list(csv.DictReader(before[0].decode().splitlines()))
    assert [row["step"] for row in rows] == list("123456")
    assert float(rows[-1]["epsilon"]) > float(rows[0]["epsilon"]) > 0  # also of a loop of one's own


def test_no_log_has_the_time_of_a_step(monkeypatch, tmp_path):
    backends = Backends()
    backends.install(monkeypatch)
    for log in (ap.integrations.TensorBoardLog(tmp_path), ap.integrations.MlflowLog("uri")):
        with log:
            log(ENTRY)
    scalars = [named for name, _, named in backends.calls if name == "SummaryWriter.add_scalar"]
    assert scalars
    assert all(named == {"walltime": 7.0} for named in scalars)
    (batch,) = [named["metrics"] for name, _, named in backends.calls if name == "MlflowClient.log_batch"]
    assert all((timestamp, step) == (7, 7) for _, _, timestamp, step in batch)
    (begun,) = [named["start_time"] for name, _, named in backends.calls if name == "MlflowClient.create_run"]
    (ended,) = [named["end_time"] for name, _, named in backends.calls if name == "MlflowClient.set_terminated"]
    assert begun == ended


def test_the_numbers_of_an_entry_have_names():
    assert released_values(ENTRY) == {
        "epoch": 2.0,
        "noise_multiplier": 1.5,
        "epsilon": 1.25,
        "clip/1": 0.5,
        "clip/2": 0.25,
        "learning_rate": 0.1,
        "epsilon_of_strict_old": 0.5,
        "test_auc": 0.75,
    }


@pytest.mark.parametrize("thing", [{"loss": 0.3}, 0.3, torch.tensor(0.3), None])
def test_what_is_no_entry_is_not_logged(thing, tmp_path):
    log = ap.integrations.CsvLog(tmp_path / "steps.csv")
    with pytest.raises(InvalidArgument, match="takes the Entry of a step"):
        log(thing)
    assert not list(tmp_path.iterdir())


def test_a_file_has_the_fields_of_an_entry_and_goes_on(tmp_path):
    path = tmp_path / "new" / "steps.csv"
    for resume in (False, True):
        with ap.integrations.CsvLog(path, resume=resume) as log:
            assert path.exists() == resume  # nothing is written before the first step
            log(ENTRY)
    rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    assert rows[0] == [field.name for field in fields(Entry)]
    assert rows[1] == rows[2]
    assert rows[1][2:5] == ["0.5 0.25", "1.5", "0.1"]
    assert rows[1][-2:] == ["strict/old=0.5", "auc"]
    with pytest.raises(InvalidArgument, match="there is such a file already"):
        ap.integrations.CsvLog(path)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("csv", "does not say where to"),
        ("csv:", "does not say where to"),
        ("wandb:x", "no such kind of log"),
        ("csv:file/steps.csv", "nothing can be written there"),
        ("csv:.", "nothing can be written there"),
        ("tensorboard:file", "nothing can be written there"),
        ("mlflow:nonsense:1", "MLflow cannot use it"),
    ],
)
def test_logs_that_cannot_be_are_refused(said, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    if said.startswith("mlflow"):
        Backends().install(monkeypatch)
        monkeypatch.delattr(sys.modules["mlflow"].MlflowClient, "__getattr__")
    with pytest.raises(InvalidArgument, match=reason):
        open_log(said)


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_refused_soon(monkeypatch):
    """One retry, and for the first question only: steps of a run are worth the patience of MLflow."""
    pytest.importorskip("mlflow")
    asked = []
    name = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"

    def ask(self, *_):
        asked.append(os.environ.get(name))
        raise OSError("no server")

    monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("mlflow.MlflowClient.get_experiment_by_name", ask)
    for patience in (None, "3"):
        if patience:
            monkeypatch.setenv(name, patience)
        with pytest.raises(InvalidArgument, match="no server"):
            ap.integrations.MlflowLog("http://127.0.0.1:9")
        assert os.environ.get(name) == patience
    assert asked == ["1", "3"]


def test_logs_are_chosen_by_name(tmp_path, monkeypatch):
    Backends().install(monkeypatch)
    monkeypatch.chdir(tmp_path)
    kinds = [type(open_log(said)).__name__ for said in ("csv:a.csv", "tensorboard:a", "mlflow:sqlite:///a.db")]
    assert kinds == ["CsvLog", "TensorBoardLog", "MlflowLog"]
    assert absolute_log("csv:a.csv") == f"csv:{tmp_path / 'a.csv'}"
    assert absolute_log("mlflow:sqlite:///a.db") == "mlflow:sqlite:///a.db"


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("apportion.extras.find_spec", lambda name: None)
    for make in (partial(ap.integrations.TensorBoardLog, tmp_path), partial(ap.integrations.MlflowLog, "uri")):
        with pytest.raises(MissingExtra, match=r"apportion\[log\]"):
            make()


@pytest.mark.parametrize("call", [train.train, private.make_private])
def test_what_cannot_be_called_is_no_log(call):
    model = nn.Linear(3, 2)
    what = cross_entropy if call is train.train else torch.optim.SGD(model.parameters(), lr=0.1)
    rate = {"lr": 0.1} if call is train.train else {}
    with pytest.raises(InvalidArgument, match="log='steps.csv': it is a str"):
        call(model, what, (INPUTS, LABELS), PLAN, log="steps.csv", **rate)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_tensorboard_and_mlflow_read_what_was_logged(tmp_path):
    from mlflow import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    uri = f"sqlite:///{tmp_path / 'm.db'}"
    for log in (ap.integrations.TensorBoardLog(tmp_path / "board"), ap.integrations.MlflowLog(uri, run_name="mine")):
        with log:
            log(ENTRY)
    found = EventAccumulator(str(tmp_path / "board")).Reload()
    assert set(found.Tags()["scalars"]) == set(released_values(ENTRY))
    (logged_epsilon,) = found.Scalars("epsilon")
    assert (logged_epsilon.wall_time, logged_epsilon.step, logged_epsilon.value) == (7.0, 7, 1.25)
    client = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("apportion").experiment_id])
    assert run.data.metrics == released_values(ENTRY)
    assert (run.info.run_name, run.info.status) == ("mine", "FINISHED")
    assert [(one.timestamp, one.step) for one in client.get_metric_history(run.info.run_id, "epsilon")] == [(7, 7)]
    with pytest.raises(InvalidArgument, match="MLflow cannot use it"):
        open_log("mlflow:nonsense:1")
