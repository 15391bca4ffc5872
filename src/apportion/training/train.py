"""Tier 1: `train` owns the loop and every duty."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from apportion.budget import Budget, Public
from apportion.curator.curator import LossFunction
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.errors import InvalidArgument, TakenOver
from apportion.execution import Execution
from apportion.models.check import copy_of
from apportion.sampling import Sampling
from apportion.strategies.clip import Clip
from apportion.strategies.noise import NoiseSchedule
from apportion.strategies.update import Plain
from apportion.training.evaluation import accuracy, require_public
from apportion.training.history import Entry
from apportion.training.loop import take_steps
from apportion.training.optimizers import OptimizerFactory, build_optimizer
from apportion.training.progress import progress_bar
from apportion.training.recovery import Recovery
from apportion.training.run import Run
from apportion.training.session import open_session, require_trainable


def train(
    model: nn.Module,
    loss_fn: LossFunction,
    train_data: Any,
    *,
    budget: Budget,
    population: int | None = None,
    batch_size: int | None = None,
    epochs: float | None = None,
    sample_rate: float | None = None,
    steps: int | None = None,
    lr: float,
    optimizer: str | OptimizerFactory = "sgd",
    clip: Clip | None = None,
    noise: NoiseSchedule | None = None,
    update: Plain | None = None,
    evaluate: Public | None = None,
    execution: Execution | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    ledger: str | Path | None = None,
    scheduler: Callable[[Optimizer], LRScheduler] | None = None,
    recovery: Recovery | None = None,
    resume: bool = False,
    progress: bool | None = None,
    label: str = "training",
    on_step: Callable[[Entry], None] | None = None,
) -> Run:
    """Train `model` on private records within a budget. The model is trained in place.

    In every step each record joins the batch with probability q; its gradient g_i is clipped to C_t; the update is fed with
    (Σ_i g_i·min(1, C_t/‖g_i‖) + N(0, (z_t·C_t)²)) / (q·population).

    Args:
        model: any module that does not mix records; `apportion.check(model)` tells.
        loss_fn: loss_fn(outputs, targets): a mean or a sum over the batch, or one value a record. It is evaluated for each
            record alone; a mean over class weights is refused, because alone the weights would cancel (use reduction="none").
        train_data: a pair (inputs, targets) of tensors or arrays, or a map-style Dataset of such pairs. A model is called with a
            tuple of inputs as model(*x), with a dict as model(**x).
        budget: ε, δ and the unit of privacy.
        population: the declared number of records, a public figure.
        batch_size, sample_rate: the expected batch size, or q itself (one of the two).
        epochs, steps: the length of the run (one of the two); an epoch is round(1/q) steps.
        lr, optimizer: what applies the released gradients: a name ("sgd", "momentum", "adam", "adamw", "rmsprop") or a
            factory such as `torch.optim.SGD`.
        clip: how far one record may move the sum; `apportion.clip.Fixed(1.0)` by default.
        noise: the multipliers; by default constant, and solved from the budget.
        update: what else is done with released values: `apportion.update.Plain(average=0.99)` keeps averaged weights beside the
            model (`run.averaged`, public/averaged.safetensors), `Plain(divide_by_clip=True)` gives the optimiser g̃_t/C_t.
        evaluate: data declared public, on which accuracy is measured during the run; of the averaged weights, where they are kept.
        execution: memory knobs, which never change the guarantee.
        seed: for tests and experiments only. The run is then reproducible and *not private*.
        out: a new folder, in which the ledger is durable from the first step and the run is saved at the end (also of a run
            that was interrupted).
        ledger: the ledger of the data set, made by `apportion ledger limit`. The run is admitted with its whole plan, or refused if
            the data set's limit does not cover it together with all earlier runs. Every process that names it shares the limit.
        scheduler: makes a learning-rate scheduler for the optimiser, stepped once a step, e.g.
            `lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.999)`.
        recovery: how often a run with a folder writes a checkpoint, how many lost steps it can take again, and how.
        resume: go on with the run in `out`, which crashed or was stopped. All other arguments as when it was started.
        progress: a progress bar; by default only in a terminal.
        label: the name shown beside the bar.
        on_step: is called with the `Entry` of each step after it was taken: released values and public facts, for a log of your own.

    Returns:
        A `Run`: `run.epsilon()`, `run.history`, `run.statement()`, `run.save(folder)`.

    Raises:
        InvalidArgument, UnsupportedModel: before anything is trained or charged.
        BudgetExhausted: likewise, if the limit of the data set does not cover the run.
    """
    _require(model, nn.Module, "model", "a torch.nn.Module")
    _require(execution or Execution(), Execution, "execution", "apportion.Execution(micro_batch=64)")
    if scheduler is not None and not callable(scheduler):
        raise InvalidArgument(
            "scheduler",
            type(scheduler).__name__,
            "train makes the optimizer itself, and so needs a function that makes the scheduler for it",
            "Pass for example lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 100)",
        )
    if evaluate is not None:
        accuracy(model, require_public(evaluate))  # whatever is wrong with it is wrong before anything is charged
    sampling = Sampling.declare(
        population=population, batch_size=batch_size, epochs=epochs, sample_rate=sample_rate, steps=steps
    )
    records = as_records(train_data)
    was_training = model.training
    choice = require_trainable(model, loss_fn, records, execution)
    if isinstance(loss_fn, nn.Module):
        loss_fn = copy_of(loss_fn)  # a loss that remembers what it saw must not hand it out
    built = build_optimizer(model, optimizer, lr)
    session = open_session(
        model,
        built,
        records,
        budget=budget,
        sampling=sampling,
        clip=clip,
        noise=noise,
        execution=execution or Execution(),
        randomness=Randomness.choose(seed),
        out=None if out is None else Path(out),
        ledger=None if ledger is None else Path(ledger),
        choice=choice,
        own_loop=False,
        scheduler=None if scheduler is None else scheduler(built),
        update=update,
        recovery=recovery,
        resume=resume,
    )
    run = Run(session)
    ours = True
    try:
        with progress_bar(label, session.plan.steps, budget.epsilon, enabled=progress) as show:

            def tell(entry: Entry) -> None:
                show(entry)
                if on_step is not None:
                    on_step(entry)

            take_steps(session, loss_fn, evaluate, tell)
    except TakenOver:
        ours = False
        raise
    finally:  # also after an interruption: what was charged, and what came of it, is not lost
        session.curator.end_workers()
        model.train(was_training)
        if out is not None and session.entries and ours:
            run.save(out)
            session.close()
    return run


def _require(value: object, kind: type, argument: str, example: str) -> None:
    if not isinstance(value, kind):
        raise InvalidArgument(argument, value, f"it is a {type(value).__name__}", f"Pass {example}")
