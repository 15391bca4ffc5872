"""The replay audit of a federated run: the same rounds on two neighbouring sets of clients, with the same noisy answers.

As `audit/replay.py`, which has the argument: on D every noisy sum is kept, on D′, which has one client more or fewer, the kept ones are
handed out. Whatever still differs in public has come past the noise; the exact sums may lie no further apart than the declared sensitivity;
every round is charged once before its coins, and noised once, as charged. The client that comes or goes is as bad as a client can be.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from apportion import validate
from apportion.audit.neighbour_audit import RECORDS, NeighbourAudit
from apportion.audit.neighbours import Neighbour
from apportion.audit.recorder import LONE_STEP, Recorder
from apportion.audit.replay import audited_budget, audited_plan, audited_recipe, replayed_optimizer
from apportion.audit.replay_comparison import distances
from apportion.audit.replay_report import SHARP, ReplayReport
from apportion.budget import Public, User
from apportion.errors import InvalidArgument
from apportion.federated.clients import Asked, Clients, Failed, Reply
from apportion.federated.federated_curator import FederatedCurator
from apportion.federated.federated_training import federated_setup, require_federable
from apportion.federated.simulated_clients import ClientData, Local, SimulatedClients
from apportion.models.check import check, copy_model
from apportion.planning import Plan
from apportion.strategies.recipes import Recipe
from apportion.strategies.roles import FeedbackNoise, SteeringUpdate
from apportion.training.loop import take_steps
from apportion.training.opening import open_session
from apportion.training.optimizers import OptimizerFactory, build_optimizer

Answers = Callable[[Reply], Iterable[Any]]
"""What the last client sends instead of its honest reply."""
BuildServer = Callable[..., FederatedCurator]

HUGE, OVERFLOWING = 1e6, 1e200
_NOBODY = 10**6  # the number of no client


def _honest(reply: Reply) -> Iterator[Reply]:
    yield reply


def _changed(change: Callable[[Tensor], Any]) -> Answers:
    """A client whose update is changed, number by number."""
    return lambda reply: [reply._replace(update={name: change(value) for name, value in reply.update.items()})]


def _in_one_place(value: float) -> Answers:
    """An update with this value in the last place of its last parameter."""

    def answers(reply: Reply) -> Iterator[Reply]:
        update = {name: one.clone() for name, one in reply.update.items()}
        list(update.values())[-1].view(-1)[-1] = value
        yield reply._replace(update=update)

    return answers


def _without_last(update: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return dict(list(update.items())[:-1])


LAST: Mapping[str, Answers] = {
    "client": _honest,
    "client with a huge update": _changed(lambda value: value.double().mul(HUGE).add(HUGE)),
    "client whose update overflows": _changed(lambda value: torch.full_like(value, OVERFLOWING, dtype=torch.float64)),
    "client with NaN": _in_one_place(torch.nan),
    "client with infinity": _in_one_place(torch.inf),
    "client with other shapes": _changed(lambda value: value.flatten()[:-1]),
    "client with one number more in a row": _changed(lambda value: value.unsqueeze(0)),
    "client with other types": _changed(lambda value: "text"),
    "client with whole numbers": _changed(lambda value: value.long()),
    "client without a parameter": lambda reply: [reply._replace(update=_without_last(reply.update))],
    "client with a parameter more": lambda reply: [reply._replace(update={**reply.update, "more": torch.ones(3)})],
    "client without data": lambda reply: [reply._replace(update=None)],
    "client that fails": lambda reply: [reply._replace(update=Failed("an error"))],
    "client that does not answer": lambda reply: [],
    "client that answers twice": lambda reply: [reply, reply, reply],
    "client that answers first with nothing": lambda reply: [reply._replace(update=None), reply],
    "client that answers for another round": lambda reply: [reply._replace(name="yesterday")],
    "client that answers for nobody": lambda reply: [reply._replace(client=_NOBODY), reply._replace(client=-1), reply],
    "client that answers nonsense": lambda reply: [None, 7, "text", (1, 2), reply._replace(client=[]), reply],
}
"""The clients that come or go, by what they send."""


class AuditedClients:
    """The clients of D or D′: those that both share, which are honest, and perhaps a last one.

    Args:
        shared: the data of those that both share.
        last: the data of the last one, and what it sends; `None` if it is not there.
        local: trains.
        recorder: is told who was asked.
    """

    def __init__(self, shared: Sequence[Any], last: tuple[Any, Answers] | None, local: Local, recorder: Recorder):
        self._last, self._recorder = last, recorder
        self._clients = SimulatedClients([*shared, *([] if last is None else [last[0]])], local)

    def enrolled(self) -> int:
        return self._clients.enrolled()

    def train(self, asked: Asked) -> Iterator[Any]:
        self._recorder.read(np.array(asked.clients, dtype=np.int64))
        for reply in self._clients.train(asked):
            yield from [reply] if reply.client < RECORDS or self._last is None else self._last[1](reply)


@dataclass(frozen=True, eq=False)
class FederatedSubject:
    """What is audited: everything but the clients."""

    model: nn.Module
    local: Local
    plan: Plan
    lr: float
    optimizer: str | OptimizerFactory
    validation: Public | None
    server: BuildServer

    def run(
        self, shared: Sequence[Any], last: Any, recorder: Recorder, *, readable: bool = True, group: int = 0
    ) -> None:
        """Take all rounds on the shared clients and `last`, which is in `group`, from the same start every time."""
        model = copy_model(self.model)
        clients: Clients = AuditedClients(shared, last, self.local, recorder)
        recorder.common, recorder.records_of = RECORDS, lambda drawn: drawn
        groups = len(self.plan.budget.groups)
        labels = np.array([*(np.arange(RECORDS) % max(1, groups)), *[group] * (last is not None)])
        setup = federated_setup(
            model,
            clients,
            copy.deepcopy(self.plan),
            build_optimizer(model, self.optimizer, self.lr),
            groups=labels if groups else None,
            build_curator=partial(self.server, mechanisms=recorder),
            randomness=recorder.randomness,
            validation=self.validation,
        )
        session = open_session(setup)
        recorder.watch(session)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "By a noisy count", UserWarning)  # of far fewer clients than are declared
            take_steps(session, lambda outputs, targets: outputs)


class ClientAudit(NeighbourAudit):
    """Runs one subject on pairs of neighbouring sets of clients."""

    def _coins(self, last: bool, group: int) -> int:
        return RECORDS + last

    def _require_comparable(self, first: Recorder) -> None:
        """The same clients with the same secret random bits must send the same, or a difference would mean nothing."""
        again = Recorder(RECORDS, first)
        self._watched(again, self._record, seed=1)
        moved = [distance.measured for distance in distances(first, again, 1.0, self._declared)]
        if again.failure is not None or any(distance > 0 for distance in moved):
            reason = "it draws random numbers from elsewhere than torch, NumPy and random, or remembers earlier rounds"
            raise InvalidArgument("local", "local training", reason, "Audit it with that switched off")


def replay(
    model: nn.Module,
    clients: ClientData,
    local: Local,
    plan: Plan | Recipe | str = "default",
    *,
    steps: int | None = None,
    lr: float = 1.0,
    optimizer: str | OptimizerFactory | None = None,
    validation: Public | None = None,
    server: BuildServer = FederatedCurator,
) -> ReplayReport:
    """Replay a few rounds on neighbouring sets of clients and report whatever tells them apart.

    Args:
        model, clients, local, lr, optimizer, validation: as in `train`; by default momentum, where the update allows it. Twelve clients and
            one more are used; the model passed in is not changed.
        plan: a plan, of which the recipe is audited with the groups of its budget, or a recipe, also by its name. ε and sampling are the
            audit's own.
        steps: at least two rounds, by default 4, or 12 where multipliers follow released values. In the second one of the two
            has nobody.
        server: what answers requests, for tests that break it on purpose.

    Returns:
        A `ReplayReport`: `report.ok`, `report.findings`, `report.require()`.

    Raises:
        InvalidArgument: as `train` would, or because the runs cannot be compared.
    """
    if steps is not None:
        validate.whole("steps", steps, "in one of the rounds nobody is asked", "Use steps=4", least=LONE_STEP)
    recipe = audited_recipe(plan)
    check(model).require()
    follows = isinstance(recipe.noise, FeedbackNoise) or isinstance(recipe.update, SteeringUpdate)
    budget = replace(audited_budget(plan, recipe), unit=User())
    counted = not isinstance(plan, Plan) or plan.usable is not None
    audited = audited_plan(recipe, budget, steps or (12 if follows else 4), counted=counted, norm=None)
    require_federable(audited)
    everyone = [copy.copy(clients[number % len(clients)]) for number in range(RECORDS + 1)]
    shared, last = everyone[:RECORDS], everyone[RECORDS]
    subject = FederatedSubject(model, local, audited, lr, optimizer or replayed_optimizer(recipe), validation, server)
    honest = last, _honest
    pairs = [Neighbour(f"{name} added", None, (last, answers)) for name, answers in LAST.items()]
    pairs.append(Neighbour("client removed", honest, None))
    outlier = last, LAST["client with a huge update"]
    pairs.append(Neighbour("replaced by a huge one", honest, outlier, multiple=2.0))
    with torch.random.fork_rng(devices=[]):
        report = ClientAudit(subject, shared, honest).report(tuple(pairs))  # type: ignore[arg-type]
    if report.largest_ratio >= SHARP:
        return report
    note = f"no client moved a release by more than {report.largest_ratio:.2g} of what is allowed: a loose clip would not have been seen"
    return replace(report, notes=(note,))
