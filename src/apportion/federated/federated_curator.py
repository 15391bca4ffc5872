"""A curator whose records are clients: a request is one round, and the gradient of a record is minus the update that a client sends.

    charge → a coin for every client → those who were drawn train → clip · sum → noise once ÷ (p·M) → released

All but the middle is the curator's own. A round in which nobody is drawn, or nobody answers, is charged and noised like any other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from apportion.curator.curator import Curator, Draw
from apportion.curator.foreign_code import watch_signals
from apportion.curator.gradients.losses import LossFunction
from apportion.curator.owners import Numbers, RecordOwners
from apportion.curator.randomness import KEY_BYTES, Stream
from apportion.curator.reader import Batch, Piece
from apportion.curator.records import Records
from apportion.errors import WrongOrder
from apportion.execution import MAX_MICRO_BATCH, Execution, Mode
from apportion.federated.clients import Asked, Clients
from apportion.federated.reception import Reception
from apportion.request import Released, Request

EXECUTION = Execution(micro_batch=MAX_MICRO_BATCH)
"""Nothing is computed together: updates are clipped one by one, in float64."""
_NAME_BYTES = 16


class Roster(Records):
    """The clients as records of the curator: of each there is a number and, in every round, a secret seed.

    Args:
        clients: how many there are is asked before every round.
    """

    def __init__(self, clients: Clients):
        nothing = torch.zeros((), dtype=torch.int64)
        super().__init__(clients.enrolled(), _numbers, (nothing, nothing))
        self._clients = clients

    def enrol(self) -> int:
        """How many clients there are now."""
        self._size = self._clients.enrolled()
        return self._size

    def read(self, members: NDArray[np.int64], cuts: Sequence[slice], secret: Stream) -> Iterator[Piece]:
        # A fixed amount of `secret`, and a seed for every client, drawn or not: what a client gets does not depend on the others.
        seeds = Stream(secret.words(KEY_BYTES // 8).tobytes()).words(len(self))
        for cut in cuts:
            chosen = torch.from_numpy(members[cut])
            yield Piece((chosen, torch.from_numpy(seeds[members[cut]].view(np.int64))), chosen)


def _numbers(indices: NDArray[np.int64]) -> Batch:
    numbers = torch.from_numpy(indices)
    return numbers, numbers


class ClientOwners(RecordOwners):
    """Every client is a unit of its own.

    Args:
        roster: of all clients.
        groups: the group of each, as in the budget; `None` if all are alike.
    """

    def __init__(self, roster: Roster, groups: Numbers | None = None):
        super().__init__(len(roster), groups)
        self._roster = roster

    def enrol(self) -> None:
        """Toss a coin for everybody who is there now. With groups it stays with those who were there when the groups were declared."""
        if self.coin_groups is None:
            self.coins = self._roster.enrol()


class ServerModel:
    """An engine that computes nothing: the model of the server, whose gradients come from clients."""

    mode: Mode = "loop"

    def __init__(self, model: nn.Module):
        self.model = model

    def sync_weights(self) -> None:
        """Clients are sent the weights as they are."""

    def forward(self, inputs: Any, views: int = 1) -> Any:
        raise WrongOrder("the server of a federated run holds no records")

    def record_losses(self, loss_fn: LossFunction, outputs: Any, targets: Any) -> Tensor:
        raise WrongOrder("the server of a federated run holds no records")

    def require_own_parameters(self, loss: Tensor) -> None:
        raise WrongOrder("the server of a federated run holds no records")

    def gradients(self) -> Any:
        raise WrongOrder("the server of a federated run holds no records")


class FederatedCurator(Curator):
    """Answers requests about the updates of clients.

    Args:
        clients: who trains.
        arguments, named: as of `Curator`, with a `Roster` as records, `ClientOwners` and a `ServerModel`.

    Guarantee: adding or removing one client moves each clipped sum by at most its threshold and each statistic by its sensitivity, because
    a client is drawn by a coin of its own, and adds at most one clipped vector (`reception.py`).
    """

    def __init__(self, *arguments: Any, clients: Clients, **named: Any):
        super().__init__(*arguments, **named)
        self._clients = clients

    def open(self, request: Request) -> Draw:
        """Charge `request`, then toss a coin for every client. Nobody was asked before."""
        if isinstance(self._owners, ClientOwners):
            self._owners.enrol()
        return super().open(request)

    def answer(self, request: Request, loss_fn: LossFunction) -> Released:
        """The noisy clipped sum of the updates of one round; `loss_fn` is the clients' affair, and not used."""
        draw = self.open(request)
        with watch_signals():
            asked = self._ask(draw)
            reception = Reception(draw, asked, self._problems)
            for reply in self._clients.train(asked):
                reception.receive(reply)
            reception.close()
        return draw.release()

    def _ask(self, draw: Draw) -> Asked:
        seeds: dict[int, int] = {}
        for piece in draw.micro_batches():
            numbers, secret = piece.batch
            seeds |= zip(numbers.tolist(), secret.tolist(), strict=True)
        return Asked(os.urandom(_NAME_BYTES).hex(), seeds, self._engine.model)
