"""Clients in this process: each trains a copy of the server's model on its own data, one after the other."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from apportion.curator.foreign_code import contain_errors
from apportion.curator.gradients.model_walk import trained_parameters
from apportion.curator.reader import restore_generators, seed_generators
from apportion.devices import model_devices, seeded_generators
from apportion.errors import InvalidArgument
from apportion.federated.clients import Asked, Failed, Reply
from apportion.models.check import copy_model

Local = Callable[[nn.Module, Any], Any]
"""Trains a model in place on the data of one client. What it returns is not used."""

_ONE = "it is one set of records, and each of its parts would count as a client"
_TWICE = "it stands in the list more than once, and would add one vector for each: the noise covers one for each client"


class ClientData(Protocol):
    """The data of each client by its number, such as a list; or made when it is asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, client: int, /) -> Any: ...


class SimulatedClients:
    """Clients whose data is here.

    Args:
        data: of each client: whatever `local` takes. One with no data contributes nothing, silently.
        local: trains a copy of the server's model on it.
    """

    def __init__(self, data: ClientData, local: Local):
        self._data, self._local = require_distinct_clients(data), local

    def enrolled(self) -> int:
        return len(self._data)

    def train(self, asked: Asked) -> Iterator[Reply]:
        for client, seed in asked.seeds.items():
            yield Reply(asked.name, client, self._update(asked.model, client, seed % 2**64))

    def _update(self, server: nn.Module, client: int, seed: int) -> dict[str, Tensor] | Failed | None:
        """What the client's training changed; `None` if it has no data. Nothing of it stays here."""
        with restore_generators(), seeded_generators(seed % 2**63, model_devices(server)), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seed_generators(seed)
            with contain_errors() as attempt:
                data = self._data[client]
                if is_empty(data):
                    return None
                model = copy_model(server).train()
                self._local(model, data)
                before, after = trained_parameters(server), dict(model.named_parameters())
                return {name: after[name].detach() - value.detach() for name, value in before.items()}
        return Failed(attempt.text or str(attempt.failure))


def is_empty(data: Any) -> bool:
    """Whether a client has no records."""
    if data is None:
        return True
    if is_pair(data):
        return len(data[0]) == 0
    return hasattr(data, "__len__") and len(data) == 0


def is_pair(data: Any) -> bool:
    """Whether it is one set of records: (inputs, targets)."""
    return isinstance(data, (tuple, list)) and len(data) == 2 and isinstance(data[0], (Tensor, np.ndarray))


def require_distinct_clients(data: ClientData) -> ClientData:
    """Return `data`, one entry for each client; refuse what is no such list, and the same data under two numbers."""
    if isinstance(data, (str, bytes)) or not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        reason = f"it is a {type(data).__name__}, and clients are drawn by number"
        raise InvalidArgument("clients", type(data).__name__, reason, "Pass a list with the data of each client")
    if isinstance(data, dict):
        raise InvalidArgument("clients", "dict", "clients are drawn by number", "Pass list(clients.values())")
    if isinstance(data, (Tensor, np.ndarray)) or (isinstance(data, tuple) and is_pair(data)):
        raise InvalidArgument(
            "clients", type(data).__name__, _ONE, "Pass a list with a pair (inputs, targets) for each"
        )
    if len(data) == 0:
        raise InvalidArgument("clients", "none of them", "there is nobody to train", "Pass the data of each client")
    if isinstance(data, (list, tuple)):
        present = [id(one) for one in data if not is_empty(one)]
        if len(set(present)) != len(present):
            raise InvalidArgument("clients", "the same data twice", _TWICE, "Name every client once")
    return data
