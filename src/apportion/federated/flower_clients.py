"""The SuperNodes of Flower as clients: what they are sent, and how their replies are fetched.

Whose reply it is follows from the message that it is fetched for, never from what it says about itself: Flower checks neither. So every
message has a secret in it, without which nobody can answer in the place of another. And every reply is fetched for itself, since the
SuperLink hands out a reply once: of several together, one that cannot be read would take the others with it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import torch
from torch import nn

from apportion.curator.foreign_code import contain_errors
from apportion.curator.gradients.model_walk import trained_parameters
from apportion.extras import require_extra
from apportion.federated.clients import Asked, Failed, Reply

require_extra("flower", "flwr")

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402

ARRAYS, CONFIG, ROUND = "arrays", "config", "server-round"
"""As Flower's own strategies call what they send."""
POLL_SECONDS = 1.0
"""Between two looks for replies."""
PULLS, PATIENCE_SECONDS = 16, 10.0
"""Replies that are fetched, and lie in memory, at the same time; and how long a look waits if none of them comes."""
_SECRET_BYTES = 16

Update = dict[str, torch.Tensor] | Failed


class FlowerClients:
    """The SuperNodes of a grid, as clients of a run.

    A SuperNode gets a number when it is first seen, and tosses a coin in every round from then on. One that is drawn while it is not
    connected contributes nothing, like one that does not answer in time.

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
        self._rounds += 1
        waiting = self._send(asked)
        deadline = time.monotonic() + self._timeout
        replies = Replies(self._grid, asked.model)
        try:
            while waiting:
                last = time.monotonic() >= deadline  # then a last look, for what has come while we did not look
                for name, update in replies.look(set(waiting)):
                    yield Reply(asked.name, waiting.pop(name), update)
                if last:
                    return
                if waiting:
                    time.sleep(POLL_SECONDS)
        finally:
            replies.close()

    def _send(self, asked: Asked) -> dict[str, int]:
        """The client that each message went to, by the message's name. One by one: many large ones together are not taken."""
        arrays = ArrayRecord(asked.model.state_dict())
        config = ConfigRecord({**self._config, ROUND: self._rounds})
        life = self._timeout + POLL_SECONDS + PATIENCE_SECONDS  # until the last look
        present, sent = set(self._grid.get_node_ids()), {}
        for client in asked.clients:
            node = self._nodes[client]
            if node in present:
                content, secret = RecordDict({ARRAYS: arrays, CONFIG: config}), os.urandom(_SECRET_BYTES).hex()
                message = Message(content, node, MessageType.TRAIN, ttl=life, group_id=secret)
                for name in self._grid.push_messages([message]):
                    if name:
                        sent[str(name)] = client
        return sent


class Replies:
    """Fetches replies of one round, a few at a time. One that never ends holds up no other: it takes one of `PULLS` places.

    Args:
        grid: where they are.
        model: the one that was sent.
    """

    def __init__(self, grid: Grid, model: nn.Module):
        self._grid, self._model = grid, model
        self._helpers = ThreadPoolExecutor(PULLS)
        self._pulls: dict[Future[Update | None], str] = {}

    def look(self, names: set[str]) -> Iterator[tuple[str, Update]]:
        """What has come in reply to the messages of these names."""
        queue = sorted(names - set(self._pulls.values()))
        while True:
            while queue and len(self._pulls) < PULLS:
                name = queue.pop()
                self._pulls[self._helpers.submit(self._pull, name)] = name
            done, _ = wait(self._pulls, PATIENCE_SECONDS, FIRST_COMPLETED)
            for pull in done:
                name, update = self._pulls.pop(pull), pull.result()
                if update is not None:
                    yield name, update
            if not done or not (queue or self._pulls):
                return

    def _pull(self, name: str) -> Update | None:
        """The reply to this message; `None` if there is none yet. One that cannot be read is lost: it is not handed out again."""
        with contain_errors() as attempt:
            messages = list(self._grid.pull_messages([name]))
            return read_reply(messages[0], self._model) if messages else None
        return Failed(attempt.text or str(attempt.failure))

    def close(self) -> None:
        """Fetch no more."""
        self._helpers.shutdown(wait=False, cancel_futures=True)


def read_reply(message: Message, model: nn.Module) -> Update:
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
