"""What of the replies counts: of each client that was asked the first one, for this round, if it is an update. Everything else is nothing.

| what comes                                                  | contribution                             |
|-------------------------------------------------------------|------------------------------------------|
| an update of a client that was asked, for this round        | clipped, once                            |
| a second one of the same client                             | nothing: the first one counted           |
| from somebody who was not asked, or for another round       | nothing                                  |
| other names, shapes or types than those of the parameters   | nothing; the client has had its turn     |
| NaN or infinite anywhere, or so large that ‖Δ‖² overflows   | nothing, in every group                  |
| huge, but finite                                            | clipped like any other                   |
| nothing, or too late                                        | nothing                                  |

So a client adds at most one clipped vector to a round, whatever it sends, and no client changes what another one adds. Nothing here raises
for what was sent, and nothing is said of it but to the owner of the run (secret/problems.jsonl).
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from apportion.curator.curator import Draw, SumLost
from apportion.curator.foreign_code import contain_errors
from apportion.curator.gradients.model_walk import trained_parameters
from apportion.curator.problems import Problems
from apportion.federated.client_updates import read_update
from apportion.federated.clients import Asked, Failed

ABSENT, NOT_AN_UPDATE, IGNORED = (
    "sent nothing",
    "not an update",
    "ignored: not asked, or not for this round, or not the first",
)
"""Why a client, or a reply, contributes nothing, in secret/problems.jsonl."""


class Reception:
    """Takes the replies of one round.

    Args:
        draw: the open request, to whose sum clipped updates are added.
        asked: who was asked, for which round.
        problems: where it is counted what did not contribute. Secret.
    """

    def __init__(self, draw: Draw, asked: Asked, problems: Problems):
        self._draw, self._asked, self._problems = draw, asked, problems
        self._trained = trained_parameters(asked.model)
        self._waiting = set(asked.clients)

    def receive(self, reply: Any) -> None:
        """Add what a client sent, if it counts."""
        with warnings.catch_warnings(), contain_errors(SumLost) as attempt:
            warnings.simplefilter("ignore")  # one that is caused by a client would tell of it
            name, client, update = reply
            if (
                type(name) is not str
                or name != self._asked.name
                or type(client) is not int
                or client not in self._waiting
            ):
                self._problems.count(IGNORED, 1)
                return
            self._waiting.remove(client)  # its turn is over, whatever it sent
            if update is None or isinstance(update, Failed):
                self._problems.count(ABSENT, 1, "" if update is None else update.text)
                return
            self._draw.add(read_update(update, self._trained), torch.tensor([client]))
        if attempt.failure:
            self._problems.count(NOT_AN_UPDATE, 1, attempt.text or attempt.failure)

    def close(self) -> None:
        """The round is over: whoever has not answered contributes nothing."""
        self._problems.count(ABSENT, len(self._waiting))
        self._waiting.clear()
