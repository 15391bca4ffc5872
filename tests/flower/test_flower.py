"""Clients behind Flower: in this process with a grid that hands on what a test says, and as real SuperNodes in processes of their own.

Runs in an environment with Flower (`make test-flower`), whose versions of typer and rich are not those of the command line.
"""

import contextlib
import io
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower has an environment of its own: make test-flower")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

import apportion as ap
from apportion.accounting.ledger import Ledger
from apportion.federated import flower_clients
from apportion.federated.flower import PrivateFedAvg
from apportion.federated.flower_clients import FlowerClients

HERE = Path(__file__).parent
NODES = [901, 77, 300, 12]
ROUNDS = 3


@pytest.fixture(autouse=True)
def in_a_server_app(monkeypatch):
    """A process as Flower starts it for a ServerApp, but quicker."""
    monkeypatch.setattr(flower_clients, "POLL_SECONDS", 0.001)
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
        """As the SuperLink, a reply is handed out once: with one that cannot be read all that were asked for are gone."""
        found = [message for name in names for message in self._replies.pop(name, [])]
        for message in found:
            if message is None:
                raise ValueError("a message that cannot be read")
            if callable(message):
                message()
        return found


def reply(message, state):
    content = {"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": 10**9})}
    return Message(RecordDict(content), reply_to=message)


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
    assert len({message.metadata.group_id for message in grid.sent}) == ROUNDS * len(NODES)  # a secret in each
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


class Runs:
    """What a pickle can do to whoever reads it."""

    def __reduce__(self):
        return pytest.exit, ("a client ran a program on the server",)


def saved(save, array, **options):
    buffer = io.BytesIO()
    save(buffer, array, **options)
    return buffer.getvalue()


def of_bytes(message, content):
    """A reply whose arrays are these bytes."""
    arrays = {name: Array("float64", (3,), "numpy.ndarray", content) for name in moved(message)}
    return Message(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=message)


PICKLE = saved(np.save, np.array([Runs()], dtype=object), allow_pickle=True)
MANY = {"descr": "<f8", "fortran_order": False, "shape": (10**12,)}

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
    "bytes that are no array": lambda message: [of_bytes(message, b"nonsense")],
    "a pickle that runs a program": lambda message: [of_bytes(message, PICKLE)],
    "an archive": lambda message: [of_bytes(message, saved(np.savez, np.ones(3)))],
    "a header of many numbers": lambda message: [of_bytes(message, saved(np.lib.format.write_array_header_1_0, MANY))],
    "numbers wider than torch's": lambda message: [
        reply(message, {name: Array(value.numpy().astype(np.longdouble)) for name, value in moved(message).items()})
    ],
    "a message that cannot be read": lambda message: [None],
    "nothing": lambda message: [],
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


def test_nobody_answers_in_the_place_of_another(model):
    """Whose a reply is follows from the message that it was fetched for. The first node says that it is the last one, and answers it."""
    made = {}

    def answer(message, node):
        made[node] = reply(message, moved(message, by=-7.0 if node == min(NODES) else 0.01))
        if node == max(NODES):
            made[min(NODES)].metadata.__dict__["_src_node_id"] = node
            made[min(NODES)].metadata.__dict__["_reply_to_message_id"] = message.metadata.message_id
        return [made[node]]

    grid = Grid(answer)
    clients = FlowerClients(grid, 0.2)
    clients.enrolled()
    found = list(clients.train(ap.federated.Asked("round", dict.fromkeys(range(4), 0), model)))
    assert sorted(one.client for one in found) == [0, 1, 2, 3]
    for one in found:
        expected = -7.0 if one.client == 0 else 0.01
        assert all(torch.allclose(value, torch.full_like(value, expected)) for value in one.update.values())
    assert len({message.metadata.group_id for message in grid.sent}) == len(NODES)


def test_a_reply_that_never_ends_holds_up_no_other(model, monkeypatch):
    """Its arrays were announced and do not come: Flower waits for them for minutes."""
    monkeypatch.setattr(flower_clients, "PATIENCE_SECONDS", 0.05)
    released = threading.Event()

    def answer(message, node):
        return [lambda: released.wait(30)] if node == min(NODES) else honest(message, node)

    try:
        begun = time.monotonic()
        found = updates_of(model, answer)
        assert sorted(client for client, _ in found) == [1, 2, 3]
        assert time.monotonic() - begun < 10
    finally:
        released.set()


def test_few_replies_lie_in_memory_at_the_same_time(model, monkeypatch):
    monkeypatch.setattr(flower_clients, "PULLS", 2)
    held, most, lock = [], [], threading.Lock()

    class Counting(Grid):
        def pull_messages(self, names):
            with lock:
                held.append(names)
                most.append(len(held))
            return super().pull_messages(names)

    clients = FlowerClients(Counting(honest, range(1, 21)), 5)
    clients.enrolled()
    for reply in clients.train(ap.federated.Asked("round", dict.fromkeys(range(20), 0), model)):
        assert isinstance(reply.update, dict)
        with lock:
            held.pop()
    assert len(most) == 20
    assert max(most) <= 3  # those on their way, and the one that is read


def test_what_has_come_by_the_deadline_counts(model, monkeypatch):
    """Also if the server did not look meanwhile, because it waited for somebody else."""
    monkeypatch.setattr(flower_clients, "POLL_SECONDS", 0.4)
    begun = time.monotonic()

    class Slow(Grid):
        def pull_messages(self, names):
            return [] if time.monotonic() - begun < 0.1 else super().pull_messages(names)

    clients = FlowerClients(Slow(honest), 0.2)
    clients.enrolled()
    assert len(list(clients.train(ap.federated.Asked("round", dict.fromkeys(range(4), 0), model)))) == 4


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
        asked.setdefault(message.content["config"]["server-round"], []).append(message.metadata.dst_node_id)
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
    with pytest.raises(ap.InvalidArgument, match="connected"):
        strategy.start(Grid(honest, []))
    half = PrivateFedAvg(nn.Linear(4, 2, dtype=torch.bfloat16), plan(), storage=ap.Storage(tmp_path / "half"))
    with pytest.raises(ap.InvalidArgument, match="bfloat16"):
        half.start(grid)
    assert not (tmp_path / "half").exists()
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
