"""`apportion.tune`: the search for good settings."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from apportion import validate
from apportion.budget import Public
from apportion.curator.curator import LossFunction
from apportion.errors import InvalidArgument
from apportion.execution import Execution
from apportion.planning import Plan
from apportion.training.evaluation import require_public
from apportion.training.optimizers import OptimizerFactory
from apportion.training.preflight import require_one_process
from apportion.training.storage import Storage
from apportion.tuning.private_search import plan_search, search_privately
from apportion.tuning.public_search import Show, search_publicly
from apportion.tuning.space import Space
from apportion.tuning.task import Task
from apportion.tuning.tuned import Trial, Tuned


def tune(
    make_model: Callable[..., nn.Module],
    loss_fn: LossFunction,
    data: Any,
    plan: Plan | Sequence[Plan],
    *,
    space: Mapping[str, Iterable[Any]],
    evaluate: Public,
    trials: int | None = None,
    expected_trials: float | None = None,
    distribution: str | float = "logarithmic",
    lr: float | None = None,
    optimizer: str | OptimizerFactory = "sgd",
    execution: Execution | None = None,
    storage: Storage | None = None,
    processes: int = 1,
    seed: int = 0,
    progress: bool | Show | None = None,
) -> Tuned:
    """Find good settings, and pay for it: nothing on public data, the price of the whole search on private data.

    **Public data**, `data=Public(...)` and `trials=12`: free, with optuna (the extra `tune`). Every recipe gets the same number of trials
    in the same space; hopeless ones are pruned; all are shown. Each executes the plan's steps and noise, so that the settings carry over:
    train on the private data with `tuned.plan` and `tuned.settings`.

    **Private data**, `expected_trials=10` and a ledger: the number of trials is drawn at random (Papernot & Steinke 2021), the whole
    search is charged to the ledger before the first trial, and only the winner is published: `tuned.run`. The plans' budget is that of
    the *search*, so every trial has more noise than a single run would have; `apportion.tuning.plan_search` shows both beforehand. The
    recipe of each trial is drawn like every other setting.

    Guarantee, on private data: the winner, its settings and its score together are (ε, δ)-DP with the budget of the plans. Trials are
    ranked by `evaluate`, which must be declared public. An exact score on private records, also on a held-out part, is not covered at any
    price, and there is no way to pass one.

    Args:
        make_model: builds a model with fresh weights; called with the "model.…" values of the space as keywords.
        loss_fn: as of `train`.
        data: as of `train`; wrapped in `Public` if anything about it may be published.
        plan: what a single run would execute, or a list with a plan for each recipe, with the same budget.
        space: the values to choose from, by name: {"lr": [0.25, 0.5, 1.0], "batch_size": [128, 256], "clip.threshold": [0.5, 1.0],
            "model.width": [16, 32]}. Also "optimizer", "sample_rate", "epochs" or "steps", "noise.…" and "update.…". Where only the batch
            size varies, the number of steps stays; pass "epochs": [10] to keep the epochs instead.
        evaluate: data declared public, on which the accuracy of trials is compared.
        trials: on public data, how many for each recipe.
        expected_trials: on private data, the mean of their random number.
        distribution: of that number: "logarithmic" (the cheapest), "geometric", or the shape η ≥ 0 of a truncated negative binomial.
        lr, optimizer: as of `train`, unless the space varies them.
        execution: memory and speed.
        storage: folder, ledger (private data: required) and whether to resume. A search that was interrupted goes on with the trials it
            had; on private data their number is never drawn again.
        processes: on public data, how many trials are trained at one time.
        seed: on public data, of the trials' settings, weights and noise.
        progress: on public data, a line for each trial, by default only in a terminal, or a function called with the `Trial`, how many
            are done and how many there will be. On private data trials are not shown.

    Returns:
        A `Tuned`: `tuned.settings`, `tuned.score`, `tuned.plan`, `tuned.run`, `print(tuned)`, `tuned.to_json()`.

    Raises:
        InvalidArgument, UnsupportedModel: before anything is trained or charged.
        BudgetExhausted: likewise, if the limit of the data set does not cover the search.
    """
    require_one_process("tune")
    execution, storage = execution or Execution(), storage or Storage()
    for name, value, kind in (("execution", execution, Execution), ("storage", storage, Storage)):
        if not isinstance(value, kind):
            raise InvalidArgument(name, validate.shown(value), f"it is not an apportion.{kind.__name__}", "Pass one")
    if not callable(make_model) or isinstance(make_model, nn.Module):
        raise InvalidArgument(
            "make_model",
            type(make_model).__name__,
            "every trial needs fresh weights, and so a function that builds the model",
            "Pass for example lambda: nn.Linear(64, 10)",
        )
    private = not isinstance(data, Public)
    _require_trials(private, trials, expected_trials)
    _require_other_data(data if private else data.data, require_public(evaluate), private)
    task = Task(make_model, loss_fn, data if private else data.data, evaluate, execution)
    if private:
        _require_defaults(processes=(processes, 1), seed=(seed, 0))
        search = plan_search(
            plan,
            space=space,
            expected_trials=expected_trials or 0.0,
            distribution=distribution,
            lr=lr,
            optimizer=optimizer,
        )
        return search_privately(task, search, storage)
    return search_publicly(
        task,
        Space(plan, space, lr, optimizer),
        validate.whole("trials", trials, "each recipe gets so many", "Try trials=12"),
        storage,
        processes=validate.whole("processes", processes, "they train the trials", "Use 1 to have no others"),
        seed=validate.whole("seed", seed, "it names a reproducible search", "Use seed=0", least=0),
        show=progress if callable(progress) else _print_trial if _wanted(progress) else None,
    )


def _wanted(progress: bool | None) -> bool:
    return sys.stderr.isatty() if progress is None else progress


def _print_trial(trial: Trial, done: int, total: int) -> None:
    settings = ", ".join(f"{name} = {value}" for name, value in trial.settings.items())
    outcome = f"pruned at {trial.score:.1%}" if trial.pruned else f"{trial.score:.1%}"
    print(f"trial {done} of {total}  {outcome}  {settings}", file=sys.stderr, flush=True)


def _require_trials(private: bool, trials: int | None, expected_trials: float | None) -> None:
    if private and (trials is not None or expected_trials is None):
        raise InvalidArgument(
            "trials" if trials is not None else "expected_trials",
            trials,
            "on private data the number of trials must be random: a fixed number, or one that depends on what was seen, has no such price",
            "Pass expected_trials=10 and storage=apportion.Storage(folder, ledger=...); or, if anything about this data may be "
            "published, data=apportion.Public(...)",
        )
    if not private and (expected_trials is not None or trials is None):
        raise InvalidArgument(
            "expected_trials" if expected_trials is not None else "trials",
            expected_trials,
            "on public data a search is free, and its number of trials is simply said",
            "Pass trials=12",
        )


def _require_other_data(data: Any, evaluate: Public, private: bool) -> None:
    """Refuse private records that stand in `evaluate` at the same time: they cannot be both."""
    if private and any(a < d and c < b for a, b in _memory(data) for c, d in _memory(evaluate.data)):
        raise InvalidArgument(
            "evaluate",
            "the private data",
            "the same records are private in data and declared public here, and an exact score on them has no price",
            "Pass other records, which may be published",
        )


def _memory(data: Any) -> list[tuple[int, int]]:
    """Where the parts of data lie: from, to."""
    if isinstance(data, np.ndarray):
        return [np.lib.array_utils.byte_bounds(data)] if data.size else []
    if isinstance(data, Tensor):
        if data.layout is not torch.strided or not data.numel():
            return []
        last = sum((size - 1) * stride for size, stride in zip(data.shape, data.stride(), strict=True))
        return [(data.data_ptr(), data.data_ptr() + (last + 1) * data.itemsize)]  # on its own device
    if isinstance(data, Mapping):
        data = tuple(data.values())
    if isinstance(data, tuple) or (isinstance(data, list) and len(data) == 2):
        return [place for one in data for place in _memory(one)]
    return [(id(data), id(data) + 1)]


def _require_defaults(**given: tuple[int, int]) -> None:
    for name, (value, default) in given.items():
        if value != default:
            reason = "it is for public data: trials on private data are trained one after the other, and their randomness is secret"
            raise InvalidArgument(name, value, reason, "Leave it out")
