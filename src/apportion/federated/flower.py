"""Clients behind Flower: a strategy for a `ServerApp`, for `ClientApp`s as they are written for Flower's own federated averaging.

    strategy = PrivateFedAvg(model, plan)
    strategy.start(grid)                    # in the function that ServerApp.main() decorates

A SuperNode is a client. It is sent the model's arrays and replies with the arrays after its training; the server takes the difference.
Nothing else of a reply is read: metrics and numbers of records are raw facts about a client, which the stated ε does not cover, and an
average that is weighted by them would let one client move it by more than its threshold.

Needs `pip install "apportion[flower]"`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch
from torch import nn

from apportion import validate
from apportion.curator.foreign_code import contain_errors
from apportion.curator.gradients.reference import trained_parameters
from apportion.errors import InvalidArgument, WrongOrder
from apportion.extras import require_extra
from apportion.federated.clients import Asked, Failed, Reply
from apportion.federated.federated_training import train_clients
from apportion.planning import Plan, require_plan
from apportion.training.history import Entry
from apportion.training.optimizers import OptimizerFactory
from apportion.training.progress import Show
from apportion.training.run import Run

require_extra("flower", "flwr")

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from flwr.serverapp.strategy import Result, Strategy  # noqa: E402

ARRAYS, CONFIG, ROUND = "arrays", "config", "server-round"
"""As Flower's own strategies call what they send."""
POLL_SECONDS = 1.0
"""Between two looks for replies."""
PULLS, PATIENCE_SECONDS = 16, 10.0
"""Replies that are fetched at the same time, and for how long those that are on their way keep the next look waiting."""
_SECRET_BYTES = 16


class FlowerClients:
    """The SuperNodes of a grid, as clients of a run.

    A SuperNode gets a number when it is first seen, and tosses a coin in every round from then on. One that is drawn while it is not
    connected contributes nothing, like one that does not answer in time.

    Whose reply it is follows from the message that it is fetched for, never from what it says about itself: Flower checks neither. So
    every message has a secret in it, without which nobody can answer in the place of another. Replies are fetched each for itself: the
    SuperLink hands out a reply once, and of several together one that cannot be read would take the others with it.

    Args:
        grid: of the ServerApp.
        timeout: seconds after which a round ends without those who have not answered.
        config: what is sent to clients beside the arrays and the number of the round, which counts from the start of the server.
    """

    def __init__(self, grid: Grid, timeout: float, config: ConfigRecord | None = None):
        self._grid, self._timeout, self._config = grid, timeout, dict(config or {})
        self._nodes: list[int] = []
        self._rounds = 0

    def enrolled(self) -> int:
        self._nodes += sorted(set(self._grid.get_node_ids()) - set(self._nodes))
        return len(self._nodes)

    def train(self, asked: Asked) -> Iterator[Reply]:
        deadline = time.monotonic() + self._timeout
        self._rounds += 1
        waiting = self._send(asked)
        for name, update in self._updates(set(waiting), deadline, asked.model):
            yield Reply(asked.name, waiting[name], update)

    def _send(self, asked: Asked) -> dict[str, int]:
        """The client that each message went to, by the message's name. One by one: many large ones together are not taken."""
        arrays = ArrayRecord(asked.model.state_dict())
        config = ConfigRecord({**self._config, ROUND: self._rounds})
        present, sent = set(self._grid.get_node_ids()), {}
        for client in asked.clients:
            node = self._nodes[client]
            if node in present:
                content, secret = RecordDict({ARRAYS: arrays, CONFIG: config}), os.urandom(_SECRET_BYTES).hex()
                message = Message(content, node, MessageType.TRAIN, ttl=self._timeout, group_id=secret)
                for name in self._grid.push_messages([message]):
                    if name:
                        sent[str(name)] = client
        return sent

    def _updates(self, waiting: set[str], deadline: float, model: nn.Module) -> Iterator[tuple[str, Any]]:
        """What comes in reply to these messages until the deadline, and once more then. One that never ends holds up no other."""
        helpers = ThreadPoolExecutor(PULLS)
        pulls: dict[str, Future[Any]] = {}
        try:
            while waiting:
                last = time.monotonic() >= deadline
                pulls |= {name: helpers.submit(self._pull, name, model) for name in waiting - set(pulls)}
                wait(pulls.values(), PATIENCE_SECONDS)
                for name in [name for name, pull in pulls.items() if pull.done()]:
                    update = pulls.pop(name).result()
                    if update is not NOT_YET:
                        waiting.remove(name)
                        yield name, update
                if last:
                    return
                if waiting:
                    time.sleep(POLL_SECONDS)
        finally:
            helpers.shutdown(wait=False, cancel_futures=True)

    def _pull(self, name: str, model: nn.Module) -> object:
        """The update in reply to this message. One that cannot be read is lost: it is not handed out again."""
        with contain_errors() as attempt:
            messages = list(self._grid.pull_messages([name]))
            return _read(messages[0], model) if messages else NOT_YET
        return Failed(attempt.text or str(attempt.failure))


NOT_YET = object()
"""In place of an update: no reply is there."""


def _read(message: Message, model: nn.Module) -> dict[str, torch.Tensor] | Failed:
    """Δ = what a client sent − what it was sent, for each trained parameter. NumPy reads the arrays, and refuses pickles."""
    if message.has_error():
        return Failed(f"error {message.error.code}")
    records = list(message.content.array_records.values())
    if len(records) != 1:
        return Failed(f"{len(records)} records of arrays")
    update = {}
    for name, value in trained_parameters(model).items():
        array = records[0][name].numpy()
        if array.shape != tuple(value.shape) or array.dtype.kind != "f":
            return Failed("arrays of other shapes or types")
        update[name] = torch.tensor(array, dtype=torch.float64) - value.detach().cpu().double()
    return update


def _require_sendable(model: nn.Module) -> None:
    """Refuse weights that cannot be sent."""
    for name, value in model.state_dict().items():
        if value.dtype is torch.bfloat16:
            reason = f"{name} is bfloat16, which NumPy does not have, and Flower sends arrays of NumPy"
            raise InvalidArgument("model", type(model).__name__, reason, "Pass model.float()")


def _require_somebody(clients: FlowerClients) -> None:
    """Refuse to begin before any SuperNode is there: every round would be paid for, and noise alone."""
    if not clients.enrolled():
        reason = "no SuperNode is connected yet, and every round would be noise alone"
        fix = "Start the SuperNodes first, or let the ServerApp wait until grid.get_node_ids() has some"
        raise InvalidArgument("grid", "nobody", reason, fix)


class PrivateFedAvg(Strategy):  # type: ignore[misc]
    """User-level DP-FedAvg as a strategy of Flower. (McMahan et al. 2018; `apportion.federated.train` has the formula.)

    Args:
        model: the server's, which is trained in place. Clients are sent its `state_dict`, and reply with theirs.
        plan: as of `apportion.federated.train`: population and rate count SuperNodes, a step is a round.
        lr, optimizer, users_per_client: as there.
        others: of `apportion.federated.train`: scheduler, evaluate, metric, validation, storage, progress, log, stop.

    Guarantee: that of the plan, for adding or removing one SuperNode, whatever it sends; towards whoever sees the model after every round,
    but neither the network nor the SuperLink's own log and database, in which stands who was asked.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        *,
        lr: float = 1.0,
        optimizer: str | OptimizerFactory = "sgd",
        users_per_client: int = 1,
        **others: Any,
    ):
        if require_plan(plan).budget.groups:
            reason = "SuperNodes come and go, so that nobody can say in advance which of them is in which group"
            raise InvalidArgument("plan.budget.groups", "groups", reason, "Use one budget for all clients")
        self.model, self.plan = model, plan
        self.run: Run | None = None
        """What came of `start`: `run.epsilon()`, `run.statement()`, `run.save(folder)`."""
        self._log: Show | None = others.pop("log", None)
        self._options = {"lr": lr, "optimizer": optimizer, "users_per_client": users_per_client, **others}
        if self._options.get("storage") is not None and self._options["storage"].recovery == "exact":
            reason = (
                "clients elsewhere need not train twice in the same way, so that no round can be repeated bit for bit"
            )
            raise InvalidArgument("recovery", "exact", reason, 'Use recovery="fresh"')

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Take all rounds of the plan. Every round is charged before anybody is asked.

        Args:
            grid: of the ServerApp.
            initial_arrays: weights to begin with, instead of the model's own.
            num_rounds: as in the plan; it may be left out.
            timeout: seconds after which a round ends without those who have not answered.
            train_config: what clients are sent beside the arrays. Public.
            evaluate_config: refused: what clients measure on their records is not covered by the stated ε.
            evaluate_fn: evaluate_fn(round, arrays) on data that is public, called after every round.

        Raises:
            InvalidArgument, UnsupportedModel, BudgetExhausted: before anybody is asked.
        """
        validate.positive("timeout", timeout, "a round must end", "Use 3600")
        if num_rounds is not None and num_rounds != self.plan.steps:
            reason = f"the plan has {self.plan.steps}, and its noise is for as many"
            raise InvalidArgument("num_rounds", num_rounds, reason, "Leave it out, or plan other rounds")
        if evaluate_config is not None:
            reason = "what clients measure on their own records is not covered by the stated epsilon"
            raise InvalidArgument("evaluate_config", "a record", reason, "Use evaluate_fn, on public data")
        if initial_arrays is not None:
            self.model.load_state_dict(initial_arrays.to_torch_state_dict())
        clients = FlowerClients(grid, timeout, train_config)
        _require_sendable(self.model)
        _require_somebody(clients)
        result = Result()

        def after_round(entry: Entry) -> None:
            if evaluate_fn is not None:
                measured = evaluate_fn(entry.step, ArrayRecord(self.model.state_dict()))
                if measured is not None:
                    result.evaluate_metrics_serverapp[entry.step] = measured
            if self._log is not None:
                self._log(entry)

        self.run = train_clients(self.model, clients, self.plan, log=after_round, **self._options)
        result.arrays = ArrayRecord(self.model.state_dict())
        return result

    def summary(self) -> None:
        """Print the plan."""
        print(self.plan)

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Any:
        """Refused: a wrapper around this strategy would stand between the charge and the noise."""
        raise WrongOrder(
            "PrivateFedAvg takes its rounds itself: call strategy.start(grid), and wrap it in no other strategy"
        )

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """Refused, likewise."""
        raise WrongOrder(
            "PrivateFedAvg takes its rounds itself: call strategy.start(grid), and wrap it in no other strategy"
        )

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Any:
        """Nobody is asked: what clients measure is not covered."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Any) -> None:
        """Nothing is read."""
        return
