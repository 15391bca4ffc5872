"""`train` on clients: the plan, the account, the strategies and the loop of tier 1, with rounds in place of batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from apportion import validate
from apportion.budget import Budget, Public, Record, User
from apportion.curator.gradients.engine import EngineChoice
from apportion.curator.owners import Numbers, owners_of
from apportion.curator.randomness import Randomness
from apportion.distributed.process_group import find_ranks
from apportion.errors import InvalidArgument
from apportion.federated.clients import Clients
from apportion.federated.federated_curator import EXECUTION, ClientOwners, FederatedCurator, Roster, ServerModel
from apportion.federated.local_training import LocalSGD
from apportion.federated.simulated_clients import ClientData, Local, SimulatedClients
from apportion.models.check import check
from apportion.planning import Plan, require_plan
from apportion.strategies.people import IndividualEstimate, IndividualFilter
from apportion.strategies.roles import AskingUpdate
from apportion.training.early_stopping import EarlyStopping, require_stoppable
from apportion.training.evaluation import Evaluation, choose_evaluation, require_measurable, require_public
from apportion.training.metrics import Metric, Score, as_metric
from apportion.training.opening import open_session
from apportion.training.optimizers import OptimizerFactory, build_optimizer
from apportion.training.preflight import require_callable, require_known_processes
from apportion.training.progress import Show
from apportion.training.run import Run
from apportion.training.session import BuildCurator, Setup
from apportion.training.storage import Storage
from apportion.training.train import run_session

_UNIT = "Plan with unit=apportion.User(), without ids, k_max and coins: population and rate then count clients"


def train(
    model: nn.Module,
    clients: ClientData | Clients,
    local: Local | None,
    plan: Plan,
    *,
    lr: float = 1.0,
    optimizer: str | OptimizerFactory = "sgd",
    scheduler: Callable[[Optimizer], LRScheduler] | None = None,
    users_per_client: int = 1,
    evaluate: Public | None = None,
    metric: str | Metric | Score | None = None,
    evaluate_every: int | str | None = None,
    validation: Public | None = None,
    seed: int | None = None,
    storage: Storage | None = None,
    progress: bool | Show | None = None,
    log: Show | None = None,
    stop: EarlyStopping | None = None,
) -> Run:
    """Federated averaging with one client as the unit of privacy, with clients in this process or elsewhere. The model is trained in place.

    In every round each client is asked with probability p. Those who are asked train a copy of the model on their own records; the change
    Δ_u of its weights is clipped to C_t, and the server moves by lr·(Σ_u Δ_u·min(1, C_t/‖Δ_u‖) + N(0, (z_t·C_t)²)) / (p·M). (McMahan et al.
    2018, DP-FedAvg; thresholds and noise as the strategies of the plan say.)

    Args:
        model: the server's. Layers that keep running statistics are refused: what clients keep in them is not released.
        clients: the data of each client, by its number: a list with one entry for each, or whatever has a length and makes them when they
            are asked for. An entry is whatever `local` takes. One with no data contributes nothing, silently. Or `Clients` that are
            elsewhere.
        local: `LocalSGD(lr=...)`, or local(model, data), which trains `model` in place. What it raises makes its client contribute
            nothing; what it returns is not used. `None` for clients that are elsewhere.
        plan: `apportion.plan(recipe, budget=..., population=M, sample_rate=p, steps=rounds)` with `unit=apportion.User()`: population and
            rate count clients, a step is a round.
        lr, optimizer, scheduler: of the server, as in `apportion.train`. With the learning rate 1 and plain SGD the model moves by the
            noisy mean update.
        users_per_client: 1. A client that trains for several people protects none of them by the stated ε: without one of them its vector
            may change by 2·C. Any other number is refused.
        evaluate, metric, evaluate_every, validation: data declared public, on the server, as in `apportion.train`.
        seed: for tests and experiments only. The run is then reproducible and *not private*.
        storage, progress, log, stop: as in `apportion.train`; a step is a round.

    Returns:
        A `Run`: `run.epsilon()`, `run.history`, `run.statement()`, `run.report("run.html")`, `run.save(folder)`.

    Raises:
        InvalidArgument, UnsupportedModel: before anybody is asked or anything is charged.
        BudgetExhausted: likewise, if the limit of a shared ledger does not cover the run.
        UnusableRecords: after the first few rounds, if by a noisy count most clients contribute nothing.

    Guarantee: that of the plan, for adding or removing one client, whatever clients send (`reception.py`).
    """
    everyone = as_clients(clients, local)
    _require_trainable(model, plan, users_per_client)
    measured = as_metric(metric, local.loss if isinstance(local, LocalSGD) else None)
    evaluation = _chosen_evaluation(model, plan, evaluate, measured, evaluate_every, validation)
    require_stoppable(stop, evaluation)
    require_callable("log", log)
    built = build_optimizer(model, optimizer, lr)
    was_training = model.training
    setup = federated_setup(
        model,
        everyone,
        plan,
        built,
        randomness=Randomness.choose(seed),
        scheduler=None if scheduler is None else scheduler(built),
        validation=validation,
        storage=storage or Storage(),
        groups=client_groups(everyone, plan.budget),
    )
    session = open_session(setup)
    session.federated = True
    session.metric = None if evaluation is None else evaluation.metric
    try:
        return run_session(session, _no_loss, evaluation, stop, progress, log or (lambda entry: None))
    finally:
        model.train(was_training)


def as_clients(clients: ClientData | Clients, local: Local | None) -> Clients:
    """Whoever trains: those who are elsewhere as they are, or simulated ones with this data."""
    if isinstance(clients, Clients):
        if local is not None:
            reason = "these clients train elsewhere, in their own way"
            raise InvalidArgument("local", validate.shown(local), reason, "Pass None")
        return clients
    if local is None or not callable(local):
        reason = "it trains a client's copy of the model"
        raise InvalidArgument("local", validate.shown(local), reason, "Pass apportion.federated.LocalSGD(lr=0.1)")
    return SimulatedClients(clients, local)


def _require_trainable(model: nn.Module, plan: Plan, users_per_client: int) -> None:
    """Refuse what cannot be trained in rounds, or not by one server."""
    require_one_server()
    if not isinstance(model, nn.Module):
        raise InvalidArgument("model", validate.shown(model), "it is no torch.nn.Module", "Pass one")
    require_known_processes(model)
    require_federable(require_plan(plan))
    require_one_user(users_per_client)
    check(model).require()


def _chosen_evaluation(
    model: nn.Module,
    plan: Plan,
    evaluate: Public | None,
    metric: Metric,
    every: int | str | None,
    validation: Public | None,
) -> Evaluation | None:
    """What is measured on public data, and when. Refuses what cannot be measured."""
    for argument, one in (("evaluate", evaluate), ("validation", validation)):
        if one is not None:
            require_public(one, argument)
    evaluation = choose_evaluation(evaluate, metric, every, plan.sampling)
    if evaluation is not None:
        require_measurable(model, evaluation.data, metric=evaluation.metric)
    if validation is not None:
        require_measurable(model, validation, "validation")
    return evaluation


def federated_setup(
    model: nn.Module,
    clients: Clients,
    plan: Plan,
    optimizer: Optimizer,
    *,
    groups: Numbers | None = None,
    build_curator: BuildCurator = FederatedCurator,
    **others: Any,
) -> Setup:
    """What a federated run is opened with: the usual set-up, with a roster in place of records.

    Args:
        groups: of each client, as in the budget; `None` if all are alike.
        build_curator: makes the curator, for audits.
        others: of `Setup`.
    """
    roster = Roster(clients)
    return Setup(
        model=model,
        optimizer=optimizer,
        records=roster,
        plan=plan,
        choice=EngineChoice("loop"),
        execution=EXECUTION,
        owners=ClientOwners(roster, groups),
        engine=ServerModel(model),
        build_curator=partial(build_curator, clients=clients),
        **others,
    )


def client_groups(clients: Clients, budget: Budget) -> Numbers | None:
    """The group of each client; `None` if the budget is the same for everybody."""
    if not budget.groups:
        return None
    if callable(budget.labels) or isinstance(budget.labels, (str, int)):
        reason = "the server holds no records from which it could be read"
        raise InvalidArgument(
            "labels", type(budget.labels).__name__, reason, "Pass a list with one label for each client"
        )
    return owners_of(Roster(clients), replace(budget, unit=Record())).coin_groups


def require_federable(plan: Plan) -> None:
    """Refuse, by name, what the server of a federated run cannot do: it sees updates of clients, and no record or loss of theirs."""
    unit, recipe = plan.budget.unit, plan.recipe
    if not isinstance(unit, User) or unit.ids is not None or unit.k_max is not None or unit.coins != "user":
        reason = "in a federated run a client is the user: it tosses one coin, and all that it has is one vector"
        raise InvalidArgument("plan.budget.unit", validate.shown(unit), reason, _UNIT)
    reason = fix = ""
    if isinstance(recipe.update, AskingUpdate):
        reason = (
            f"{type(recipe.update).__name__} also asks for losses at candidate weights, and clients send updates only"
        )
        fix = "Use a recipe that asks for gradients only, such as du-dynamic, andrew or adadp"
    elif isinstance(recipe.people, (IndividualEstimate, IndividualFilter)):
        reason = f"{type(recipe.people).__name__} bounds the norms of all clients, also of those that were not drawn, who are not asked"
        fix = "Leave people out, or use people.Scale or people.Sample with a budget of groups"
    elif plan.norm is not None:
        reason = "it normalises features by a question about all records, and the server holds none"
        fix = "Plan without norm=, and normalise by group"
    if reason:
        raise InvalidArgument("plan", recipe.name, reason, fix)


def require_one_server() -> None:
    """Refuse the ranks of a process group: each would draw clients, ask them and charge for itself."""
    servers = find_ranks().count
    if servers > 1:
        reason = "a process group is initialised, and each of its processes would draw clients and ask them for itself"
        fix = "Run the server in one process; clients in other processes are reached over Flower"
        raise InvalidArgument("processes", servers, reason, fix)


def require_one_user(users: object) -> None:
    """Refuse clients behind which there are several people."""
    if type(users) is not int or users != 1:
        raise InvalidArgument(
            "users_per_client",
            validate.shown(users),
            "clipping, coins and noise are for a client; one of several people behind it can move its vector by 2·C, and has no coin",
            "Let each person be a client. Or state the guarantee for whole clients: declare 1, and say so to the people behind them",
        )


def _no_loss(outputs: Any, targets: Any) -> Tensor:
    raise AssertionError("the loss of a federated run is the clients' affair")
