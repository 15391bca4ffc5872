"""Tier 1: `train` owns the loop and every duty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from apportion.budget import Public
from apportion.curator.curator import LossFunction
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.domain import Domain
from apportion.errors import InvalidArgument, TakenOver
from apportion.execution import Execution
from apportion.models.check import copy_model
from apportion.planning import Plan, require_plan
from apportion.training.early_stopping import EarlyStopping, require_stoppable
from apportion.training.evaluation import Evaluation, choose_evaluation, require_measurable, require_public
from apportion.training.fabric import without_fabric
from apportion.training.history import Entry
from apportion.training.loop import take_steps
from apportion.training.metrics import Metric, Score, as_metric
from apportion.training.named_losses import as_loss
from apportion.training.opening import open_session, require_trainable
from apportion.training.optimizers import OptimizerFactory, build_optimizer
from apportion.training.preflight import expected_domain, require_callable, require_known_processes
from apportion.training.progress import Show, progress_bar
from apportion.training.run import Run
from apportion.training.session import Session, Setup
from apportion.training.several_ranks import facts_of_evaluation, require_same_settings
from apportion.training.sharded_runs import find_processes
from apportion.training.storage import Storage


def train(
    model: nn.Module,
    loss_fn: str | LossFunction,
    data: Any,
    plan: Plan,
    *,
    lr: float,
    optimizer: str | OptimizerFactory = "sgd",
    scheduler: Callable[[Optimizer], LRScheduler] | None = None,
    evaluate: Public | None = None,
    metric: str | Metric | Score | None = None,
    evaluate_every: int | str | None = None,
    validation: Public | None = None,
    execution: Execution | None = None,
    seed: int | None = None,
    storage: Storage | None = None,
    domain: Domain | None = None,
    progress: bool | Show | None = None,
    log: Show | None = None,
    stop: EarlyStopping | None = None,
) -> Run:
    """Train `model` on private records as planned. The model is trained in place.

    In every step each record joins the batch with probability q; its gradient g_i is clipped to C_t; the update is fed with
    (Σ_i g_i·min(1, C_t/‖g_i‖) + N(0, (z_t·C_t)²)) / (q·population).

    Args:
        model: any module that does not mix records; `apportion.check(model)` tells.
        loss_fn: the name of an `apportion.Loss` ("cross-entropy", "bce", "mse", "huber"), or loss_fn(outputs, targets): a mean or a sum
            over the batch, or one value a record. It is evaluated for each record alone; a mean over class weights is refused, because
            alone the weights would cancel (use `Loss(name, weights=...)`, or reduction="none").
        data: a pair (inputs, targets) of tensors or arrays, or a map-style Dataset of such pairs. A model is called with a
            tuple of inputs as model(*x), with a dict as model(**x).
        plan: what is executed: `apportion.plan(recipe, budget=..., population=..., batch_size=..., epochs=...)`.
        lr, optimizer: what applies the released gradients: a name ("sgd", "momentum", "adam", "adamw", "rmsprop") or a
            factory such as `torch.optim.SGD`; parts of the model with settings of their own are parameter groups of that one optimiser.
        scheduler: makes a learning-rate scheduler for the optimiser, stepped once a step, e.g.
            `lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.999)`.
        evaluate: data declared public, on which the model is measured during the run; with averaged weights, where they are kept.
        metric: by what: the name of an `apportion.Metric` ("accuracy", "auc", "f1", "mae", "rmse", "r2"), or metric(outputs, targets). By
            default rmse for the losses "mse" and "huber", otherwise accuracy.
        evaluate_every: measure after so many steps, or epochs ("1 epoch"), and at the end; by default about 25 times, and less often
            where that would take longer than training.
        validation: data declared public, by whose accuracy a recipe such as yu-validation chooses its noise. Not the data of
            `evaluate`, or that accuracy would be too good.
        execution: memory and speed, which never change the guarantee.
        seed: for tests and experiments only. The run is then reproducible and *not private*.
        storage: the run folder, the ledger of the data set and how to recover from a crash; by default the run is kept in memory.
        domain: which values records may have, such as `apportion.Domain(classes=10)`: one with others contributes nothing, and takes no
            longer. With a loss of class numbers (`cross_entropy`, `nll_loss`) the classes follow from the model's outputs.
        progress: a bar, by default only in a terminal; or a function that is called with the `Entry` of each step after it was
            taken: released values and public facts.
        log: a function that is called in the same way, beside the bar: one of `apportion.integrations`, such as `CsvLog("steps.csv")`, or
            your own.
        stop: ends the run early by the scores on `evaluate`. The price stays that of the whole plan.

    Returns:
        A `Run`: `run.epsilon()`, `run.history`, `run.statement()`, `run.report("run.html")`, `run.save(folder)`.

    Raises:
        InvalidArgument, UnsupportedModel: before anything is trained or charged.
        BudgetExhausted: likewise, if the limit of the data set does not cover the run.
        UnusableRecords: after the first few steps, if by a noisy count most records contribute nothing.
    """
    _require(model, nn.Module, "model", "a torch.nn.Module")
    model = without_fabric(model)
    require_plan(plan)
    execution, storage = execution or Execution(), storage or Storage()
    _require(execution, Execution, "execution", "apportion.Execution(micro_batch=64)")
    model, shards, ranks = find_processes(model, execution)
    with ranks.joined():
        _require(storage, Storage, "storage", 'apportion.Storage("runs/one")')
        if scheduler is not None and not callable(scheduler):
            raise InvalidArgument(
                "scheduler",
                type(scheduler).__name__,
                "train makes the optimizer itself, and so needs a function that makes the scheduler for it",
                "Pass for example lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 100)",
            )
        require_known_processes(model)
        for argument, one in (("evaluate", evaluate), ("validation", validation)):
            if one is not None:
                require_public(one, argument)
        loss_fn = as_loss(loss_fn)
        evaluation = choose_evaluation(evaluate, as_metric(metric, loss_fn), evaluate_every, plan.sampling)
        require_stoppable(stop, evaluation)
        require_callable("log", log)
        records = as_records(data)
        was_training = model.training
        choice = require_trainable(model, loss_fn, records, execution)
        expected = expected_domain(domain, model, loss_fn, records)
        if evaluation is not None:
            require_measurable(model, evaluation.data, metric=evaluation.metric, domain=domain)
        if validation is not None:
            require_measurable(model, validation, "validation", domain=domain)
        built = build_optimizer(model if shards is None else shards.model, optimizer, lr)
        setup = Setup(
            model=model,
            optimizer=built,
            records=records,
            plan=plan,
            choice=choice,
            execution=execution,
            randomness=Randomness.choose(seed, ranks.rank),
            scheduler=None if scheduler is None else scheduler(built),
            validation=validation,
            storage=storage,
            domain=expected,
            ranks=ranks,
            shards=shards,
        )
    require_same_settings(ranks, facts_of_evaluation(loss_fn, evaluation, stop))
    session = open_session(setup)
    session.metric = None if evaluation is None else evaluation.metric
    if isinstance(loss_fn, nn.Module):
        loss_fn = copy_model(loss_fn)  # a loss that remembers what it saw must not hand it out
    try:
        return run_session(session, loss_fn, evaluation, stop, progress, log or (lambda entry: None))
    finally:
        model.train(was_training)


def run_session(
    session: Session,
    loss_fn: LossFunction,
    evaluation: Evaluation | None,
    stop: EarlyStopping | None,
    progress: bool | Show | None,
    log: Show,
) -> Run:
    """Take all steps. What was charged, and what came of it, is not lost when they are interrupted."""
    run, folder = Run(session), session.storage.folder
    plan, ours = session.plan, True
    if session.ranks.rank:
        progress, log = False, lambda entry: None  # the first rank tells
    shown = None if callable(progress) else progress
    try:
        with progress_bar(plan.recipe.name, plan.steps, plan.budget.epsilon, enabled=shown) as bar:
            show = progress if callable(progress) else bar

            def tell(entry: Entry) -> None:
                show(entry)
                log(entry)

            take_steps(session, loss_fn, evaluation, tell, stop)
            session.complete()
    except TakenOver:
        ours = False
        raise
    finally:
        session.curator.end_workers()
        if folder is not None and session.entries and ours:
            run.save(folder)
            session.close()
    return run


def _require(value: object, kind: type, argument: str, example: str) -> None:
    if not isinstance(value, kind):
        raise InvalidArgument(argument, value, f"it is a {type(value).__name__}", f"Pass {example}")
