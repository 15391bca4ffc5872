"""Clients behind Flower: in this process with a grid that hands on what a test says, and as real SuperNodes in processes of their own.

Runs in an environment with Flower (`make test-flower`), whose versions of typer and rich are not those of the command line.
"""

import contextlib
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="Flower has an environment of its own: make test-flower")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

import apportion as ap
from apportion.accounting.ledger import Ledger
from apportion.federated import flower
from apportion.federated.flower import FlowerClients, PrivateFedAvg

HERE = Path(__file__).parent
NODES = [901, 77, 300, 12]
ROUNDS = 3


@pytest.fixture(autouse=True)
def in_a_server_app(monkeypatch):
    """A process as Flower starts it for a ServerApp, but quicker."""
    monkeypatch.setattr(flower, "POLL_SECONDS", 0.001)
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()


def plan(recipe="abadi", rate=1.0, **others):
    budget = ap.Budget(epsilon=20.0, delta=1e-4, unit=ap.User())
    return ap.plan(
        recipe, budget=budget, population=len(NODES), sample_rate=rate, steps=ROUNDS, count_usable=False, **others
    )


class Grid:
    """Hands messages to a function, and its replies back.

    Args:
        answer: answer(message, node) gives the messages that come back.
        nodes: who is connected.
    """

    def __init__(self, answer, nodes=NODES):
        self.answer, self.nodes, self.sent, self._replies = answer, list(nodes), [], {}

    def get_node_ids(self):
        return self.nodes

    def push_messages(self, messages):
        names = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            message.metadata.__dict__["_src_node_id"] = 1
            self.sent.append(message)
            names.append(message.metadata.message_id)
            self._replies[names[-1]] = self.answer(message, message.metadata.dst_node_id)
        return names

    def pull_messages(self, names):
        if any(None in self._replies.get(name, []) for name in names):
            raise ValueError("a message that cannot be read")
        return [message for name in names for message in self._replies.pop(name, [])]


def reply(message, state, node=None):
    made = Message(
        RecordDict({"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": 10**9})}), reply_to=message
    )
    if node is not None:
        made.metadata.__dict__["_src_node_id"] = node
    return made


def moved(message, by=0.01):
    return {name: value + by for name, value in message.content["arrays"].to_torch_state_dict().items()}


def honest(message, node):
    return [reply(message, moved(message))]


def updates_of(model, answer, nodes=NODES, asked=None):
    """What the server makes of the replies: (client, update)."""
    clients = FlowerClients(Grid(answer, nodes), 0.2)
    numbers = range(clients.enrolled()) if asked is None else asked
    question = ap.federated.Asked("round", dict.fromkeys(numbers, 0), model)
    return [(one.client, one.update) for one in clients.train(question)]


def test_a_run_over_a_grid_is_charged_noised_and_stated(model, tmp_path):
    grid, made = Grid(honest), plan(ap.recipes.named("andrew").with_settings({"clip.share": 0.1}))
    strategy = PrivateFedAvg(model, made, storage=ap.Storage(tmp_path / "run"), progress=False)
    measured = []
    result = strategy.start(
        grid,
        num_rounds=ROUNDS,
        timeout=5,
        evaluate_fn=lambda number, arrays: measured.append(number) or MetricRecord({"a": 1}),
    )
    assert strategy.run.steps == ROUNDS
    assert strategy.run.epsilon() == pytest.approx(made.epsilon)
    assert measured == [1, 2, 3]
    assert list(result.evaluate_metrics_serverapp) == [1, 2, 3]
    assert not result.train_metrics_clientapp
    assert len(grid.sent) == ROUNDS * len(NODES)
    assert len({message.metadata.group_id for message in grid.sent}) == ROUNDS
    torch.testing.assert_close(result.arrays.to_torch_state_dict(), dict(model.state_dict()))
    ledger = Ledger.open(tmp_path / "run" / "secret" / "ledger.sqlite")
    assert len(list(ledger.charges())) == ROUNDS
    assert json.loads((tmp_path / "run" / "public" / "privacy.json").read_text())["federated"] is True


def test_the_update_is_what_was_sent_back_less_what_was_sent(model):
    found = dict(updates_of(model, honest))
    assert sorted(found) == [0, 1, 2, 3]
    for update in found.values():
        assert list(update) == [name for name, _ in model.named_parameters()]
        assert all(torch.allclose(value, torch.full_like(value, 0.01)) for value in update.values())


ODD = {
    "an error": lambda message: [Message(Error(1, "patient 4711"), reply_to=message)],
    "no arrays": lambda message: [Message(RecordDict({}), reply_to=message)],
    "two records of arrays": lambda message: [
        Message(RecordDict({"a": ArrayRecord(moved(message)), "b": ArrayRecord(moved(message))}), reply_to=message)
    ],
    "other names": lambda message: [reply(message, {f"x{name}": value for name, value in moved(message).items()})],
    "other shapes": lambda message: [reply(message, {name: value.flatten() for name, value in moved(message).items()})],
    "one number, to be spread": lambda message: [
        reply(message, {name: value.sum() for name, value in moved(message).items()})
    ],
    "whole numbers": lambda message: [reply(message, {name: value.long() for name, value in moved(message).items()})],
    "bytes that are no array": lambda message: [
        Message(
            RecordDict(
                {
                    "arrays": ArrayRecord(
                        {name: Array("float64", (3,), "numpy.ndarray", b"nonsense") for name in moved(message)}
                    )
                }
            ),
            reply_to=message,
        )
    ],
    "a message that cannot be read": lambda message: [None],
    "nothing": lambda message: [],
    "the name of another node": lambda message: [reply(message, moved(message), node=5)],
}


@pytest.mark.parametrize("kind", ODD)
def test_one_odd_client_contributes_nothing_and_the_others_stay(model, kind):
    """The first node by number is odd. What it is said to have sent is nothing, whatever that is."""

    def answer(message, node):
        return ODD[kind](message) if node == min(NODES) else honest(message, node)

    found = dict(updates_of(model, answer))
    assert found.keys() >= {1, 2, 3}
    assert all(isinstance(found[client], dict) for client in (1, 2, 3))
    assert not isinstance(found.get(0), dict)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    PrivateFedAvg(model, plan(), progress=False).start(Grid(answer), timeout=0.2)
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())
    assert any(not torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_reply_to_the_round_before_is_never_read(model):
    """The late node answers every message one round too late: the names of messages are those of their round."""
    kept = []

    def answer(message, node):
        if node != 12:
            return honest(message, node)
        late = list(kept)
        kept[:] = [reply(message, moved(message, 1e9))]
        return late

    before = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    PrivateFedAvg(model, plan(), progress=False).start(Grid(answer), timeout=0.2)
    after = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    assert float((after - before).norm()) < 1e3


def test_nodes_that_come_and_go_keep_their_numbers(model):
    grid = Grid(honest, [5, 3])
    clients = FlowerClients(grid, 0.2)
    assert clients.enrolled() == 2
    grid.nodes = [9, 5]
    assert clients.enrolled() == 3
    asked = ap.federated.Asked("round", dict.fromkeys(range(3), 0), model)
    assert sorted(one.client for one in clients.train(asked)) == [1, 2]  # number 0 is node 3, which is gone
    assert sorted(message.metadata.dst_node_id for message in grid.sent) == [5, 9]


def test_only_those_whose_coin_fell_true_are_asked(model):
    grid = Grid(honest, range(1, 201))
    made = ap.plan(
        "abadi",
        budget=ap.Budget(epsilon=20.0, delta=1e-4, unit=ap.User()),
        population=200,
        sample_rate=0.25,
        steps=3,
        count_usable=False,
    )
    PrivateFedAvg(model, made, progress=False).start(grid, timeout=5)
    asked = {}
    for message in grid.sent:
        asked.setdefault(message.metadata.group_id, []).append(message.metadata.dst_node_id)
    sizes = [len(nodes) for nodes in asked.values()]
    assert len(sizes) == 3
    assert all(abs(size - 50) < 6 * math.sqrt(200 * 0.25 * 0.75) for size in sizes)
    assert all(len(set(nodes)) == len(nodes) for nodes in asked.values())
    assert len({tuple(nodes) for nodes in asked.values()}) == 3


def test_what_would_break_the_guarantee_is_refused(model, tmp_path):
    grid = Grid(honest)
    strategy = PrivateFedAvg(model, plan(), progress=False)
    for arguments, reason in (
        ({"num_rounds": 7}, "the plan has 3"),
        ({"evaluate_config": ConfigRecord({})}, "not covered"),
        ({"timeout": 0}, "timeout"),
    ):
        with pytest.raises(ap.InvalidArgument, match=reason):
            strategy.start(grid, **arguments)
    with pytest.raises(ap.InvalidArgument, match="bit for bit"):
        PrivateFedAvg(model, plan(), storage=ap.Storage(tmp_path / "run", recovery="exact"))
    with pytest.raises(ap.InvalidArgument, match=r"2·C"):
        PrivateFedAvg(model, plan(), users_per_client=2, progress=False).start(grid)
    groups = ap.Budget.of_groups({"a": (1.0, 0.5), "b": (2.0, 0.5)}, delta=1e-4, unit=ap.User())
    with pytest.raises(ap.InvalidArgument, match="come and go"):
        PrivateFedAvg(model, ap.plan("abadi", budget=groups, population=40, sample_rate=0.5, steps=3))
    wrapped = DifferentialPrivacyServerSideFixedClipping(strategy, 1.0, 1.0, 4)
    with pytest.raises(ap.WrongOrder, match="wrap it in no other"):
        wrapped.configure_train(1, ArrayRecord({}), ConfigRecord({}), grid)
    with pytest.raises(ap.WrongOrder, match="wrap it in no other"):
        strategy.aggregate_train(1, [])
    assert strategy.configure_evaluate(1, ArrayRecord({}), ConfigRecord({}), grid) == []
    assert strategy.aggregate_evaluate(1, []) is None
    assert grid.sent == []


def test_a_server_that_lost_its_grid_goes_on_from_its_checkpoint(model, tmp_path):
    class Breaks(Grid):
        def push_messages(self, messages):
            if len(self.sent) == 5:  # in the second round
                raise ConnectionError("the SuperLink is gone")
            return super().push_messages(messages)

    made = plan(spare=2)
    storage = {"folder": tmp_path / "run", "every": 1}
    with pytest.raises(ConnectionError):
        PrivateFedAvg(model, made, storage=ap.Storage(**storage), progress=False).start(Breaks(honest), timeout=5)
    again = PrivateFedAvg(model, made, storage=ap.Storage(**storage, resume=True), progress=False)
    again.start(Grid(honest), timeout=5)
    ledger = Ledger.open(tmp_path / "run" / "secret" / "ledger.sqlite")
    assert len(list(ledger.charges())) == ROUNDS  # the second round was charged and lost
    assert [entry.step for entry in again.run.history] == [1, 3]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(port, process, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert process.poll() is None, "the SuperLink ended"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError("the SuperLink does not answer")


@pytest.mark.slow
def test_superlink_and_supernodes_in_processes_of_their_own(tmp_path):
    """An honest client and one with a huge update, as real ClientApps in processes of their own, over HTTP on the loopback."""
    shutil.copytree(HERE / "app", tmp_path / "app")
    home, out, port = tmp_path / "home", tmp_path / "out", free_port()
    home.mkdir()
    out.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    programs, source = Path(sys.executable).parent, Path(ap.__file__).parents[1]
    environment = os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(source),
        "OMP_NUM_THREADS": "1",
    }
    started = []

    def start(name, *words):
        with (tmp_path / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                [*map(str, words)], env=environment, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True
            )
        started.append(process)
        return process

    try:
        link = start(
            "link",
            programs / "flower-superlink",
            "--insecure",
            "--port",
            port,
            "--disable-runtime-dependency-installation",
        )
        wait_for(port, link)
        for number, manner in enumerate(("honest", "huge")):
            settings = f'partition-id={number} manner="{manner}"'
            words = ("--insecure", "--superlink", f"127.0.0.1:{port}", "--port", free_port(), "--node-config", settings)
            start(f"node{number}", programs / "flower-supernode", *words)
        command = [programs / "flwr", "run", "app", "here", "--stream", "-c", f'folder="{out}"']
        done = subprocess.run(
            [*map(str, command)],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        logs = "\n".join(path.read_text()[-1500:] for path in tmp_path.glob("*.log"))
        assert (out / "facts.json").exists(), f"{done.stdout[-3000:]}\n{done.stderr[-1000:]}\n{logs}"
        facts = json.loads((out / "facts.json").read_text())
        assert facts["steps"] == 2
        assert facts["epsilon"] == pytest.approx(facts["planned"])
        ledger = Ledger.open(out / "run" / "secret" / "ledger.sqlite")
        assert len(list(ledger.charges())) == 2
        for move, (clip,), noise in zip(facts["moves"], facts["clip"], facts["noise"], strict=True):
            # two clipped vectors and noise of 23 numbers, over 1.8 clients expected; the huge update itself is longer than 10⁶
            assert 0 < move < (2 * clip + 10 * math.sqrt(23) * noise * clip) / 1.8
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with the processes that it has started itself
            process.wait(30)
