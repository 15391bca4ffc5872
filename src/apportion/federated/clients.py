"""What a server asks of clients and what it gets back, whether they are in this process or behind a network.

Nothing that comes back is trusted: `reception.py` decides what of it counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import nn


@dataclass(frozen=True, eq=False)
class Asked:
    """One round, as clients hear of it.

    Args:
        name: of this round and no other, also after a crash.
        seeds: for each client that is asked, by its number, a secret seed for its local training. Every client has its own, which does
            not depend on who else was asked.
        model: the server's, with the weights to begin with. Public: all of it was released before. Not to be changed.
    """

    name: str
    seeds: Mapping[int, int]
    model: nn.Module

    @property
    def clients(self) -> tuple[int, ...]:
        """The numbers of the clients that were drawn. Secret."""
        return tuple(self.seeds)


class Failed(NamedTuple):
    """In place of an update: the client could not train, for this reason. Secret."""

    text: str


class Reply(NamedTuple):
    """What came back, as somebody says.

    Args:
        name: of the round that it belongs to.
        client: the number of the client.
        update: Δ = weights after local training − weights before, by the name of each trained parameter; `None` or a
            `Failed` for nothing.
    """

    name: Any
    client: Any
    update: Any


@runtime_checkable
class Clients(Protocol):
    """Whoever trains, wherever they are: in this process, behind Flower, or behind a transport of your own.

    What these methods raise ends the run, and a round that was begun stays paid for. So they must not raise because of a client.
    """

    def enrolled(self) -> int:
        """How many there are now, numbered from 0. Each of them tosses a coin in the next round; a number stays that client's own."""
        ...

    def train(self, asked: Asked) -> Iterable[Reply]:
        """Let these clients train, and hand on what comes back until the round is over. Whoever does not answer is left out.

        The number of a reply must be that of who sent it: nobody may be able to answer under the number of another.
        """
        ...
