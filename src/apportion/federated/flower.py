"""Clients behind Flower: a strategy for a `ServerApp`, for `ClientApp`s as they are written for Flower's own federated averaging.

    strategy = PrivateFedAvg(model, plan)
    strategy.start(grid)                    # in the function that ServerApp.main() decorates

A SuperNode is a client. It is sent the model's arrays and replies with the arrays after its training; the server takes the difference.
Nothing else of a reply is read: metrics and numbers of records are raw facts about a client, which the stated ε does not cover, and an
average that is weighted by them would let one client move it by more than its threshold.

Needs `pip install "apportion[flower]"`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from apportion import validate
from apportion.errors import InvalidArgument, WrongOrder
from apportion.extras import require_extra
from apportion.federated.federated_training import train
from apportion.federated.flower_clients import FlowerClients
from apportion.planning import Plan, require_plan
from apportion.training.history import Entry
from apportion.training.optimizers import OptimizerFactory
from apportion.training.progress import Show
from apportion.training.run import Run

require_extra("flower", "flwr")

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from flwr.serverapp.strategy import Result, Strategy  # noqa: E402


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

        self.run = train(self.model, clients, None, self.plan, log=after_round, **self._options)
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
