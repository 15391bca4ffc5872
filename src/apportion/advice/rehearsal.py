"""Trying candidates on public data: what each budget would let this model learn, with the noise of the real run.

The real run has N records, batches of q·N and noise of z/(q·N) thresholds on the mean gradient of a batch. A dry run on n public records
has batches of the same expected size, q′ = q·N/n, and the same multipliers, so the same noise on the mean gradient. Fewer different
records are seen than in the real run, so that its result is rather pessimistic. Its own ε is no promise to anybody: the records are
public.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from apportion import validate
from apportion.accounting.accountant import PrivacyLossAccountant, count_events
from apportion.budget import Budget, Public, Record
from apportion.errors import InvalidArgument
from apportion.event import Event
from apportion.planning import Plan
from apportion.sampling import Sampling

if TYPE_CHECKING:
    from torch import nn

    from apportion.data import DataSet

SYNTHETIC = "synthetic"
_CLASSES, _INPUTS, _SPREAD = 10, 20, 0.35
_DELTA = 1e-9
"""Nobody is protected here, but a plan has a δ."""


def dry_run(
    plans: Sequence[Plan],
    make_model: Callable[[], nn.Module],
    loss_fn: Any,
    data: Public,
    *,
    evaluate: Public,
    lr: float,
    optimizer: Any = "sgd",
    metric: Any = None,
) -> list[float | None]:
    """The score on `evaluate` after each plan, executed on public records with the noise of the real run; `None` if it diverged.

    Args:
        plans: of `Advice.plans`.
        make_model: builds a fresh model.
        loss_fn, lr, optimizer, metric: as of `train`.
        data: records that anybody may see.
        evaluate: others, to measure on.

    Source:
        the noise of a step on the mean gradient, z·C/(q·N), of Abadi et al. 2016.

    Guarantee:
        none is needed: no private record is read, and nothing is charged.

    Examples:
        >>> import torch, apportion as ap
        >>> from apportion.advice import dry_run
        >>> advice = ap.advise(population=4000, batch_size=16, steps=2, epsilons=[1.0])
        >>> points = torch.randn(40, 3), torch.zeros(40, dtype=torch.long)
        >>> (score,) = dry_run(advice.plans, lambda: torch.nn.Linear(3, 2), torch.nn.functional.cross_entropy,
        ...                   ap.Public(points), evaluate=ap.Public(points), lr=0.5)
        >>> 0 <= score <= 1
        True
    """
    from apportion.curator.records import as_records
    from apportion.training.evaluation import measure, require_public
    from apportion.training.metrics import as_metric
    from apportion.training.named_losses import as_loss
    from apportion.training.train import train

    records = require_public(data, "data").data
    moved = [move_plan(plan, len(as_records(records))) for plan in plans]  # their number is as public as they are
    measured_on, by = as_records(require_public(evaluate).data), as_metric(metric, as_loss(loss_fn))
    reached = []
    for plan in moved:
        run = train(make_model(), loss_fn, records, plan, lr=lr, optimizer=optimizer)
        reached.append(measure(run.averaged or run.model, measured_on, by))
    return reached


def move_plan(plan: Plan, size: int) -> Plan:
    """The same multipliers and expected batch size on `size` records; its budget is what that costs.

    Args:
        plan: of the real run.
        size: n.
    """
    n = validate.whole("size", size, "it is a number of public records", "Try 1000")
    rate = plan.expected_batch_size / n
    if rate > 1:
        reason = f"the real run has batches of {plan.expected_batch_size:g}, and there are {n:,} public records"
        raise InvalidArgument("size", n, reason, "Use more public data, or smaller batches")
    if plan.filtered or plan.factors:
        reason = "its noise follows from a budget of its own, and cannot be kept as it is"
        raise InvalidArgument("plans", plan.recipe.name, reason, "Use a recipe whose noise is declared in advance")
    events = count_events(Event(rate, multiplier) for multiplier in plan.multipliers)
    price = PrivacyLossAccountant().epsilon(events, _DELTA)
    if price == math.inf:
        reason = (
            f"with batches of {plan.expected_batch_size:g} of {n:,} records, its noise is too small to be planned with"
        )
        raise InvalidArgument("size", n, reason, "Use more public data, or a smaller ε")
    budget = Budget(epsilon=price * (1 + 1e-6), delta=_DELTA, unit=Record())
    return Plan(plan.recipe, budget, Sampling(n, rate, plan.steps), plan.multipliers)


def make_synthetic(size: int) -> DataSet:
    """Made-up records for whoever has no public ones: ten classes of twenty numbers in [0, 1], around ten random centres.

    Args:
        size: how many to train on; a fifth as many are for the test. Every call makes the same ones.
    """
    import torch

    from apportion.data import DataSet

    generator = torch.Generator().manual_seed(0)  # nothing here is anybody's
    total = size + max(size // 5, 1)
    centres = torch.rand(_CLASSES, _INPUTS, generator=generator)
    targets = torch.randint(0, _CLASSES, (total,), generator=generator)
    inputs = (centres[targets] + _SPREAD * torch.randn(total, _INPUTS, generator=generator)).clamp(0, 1)
    test = Public((inputs[size:], targets[size:]))
    return DataSet(SYNTHETIC, (inputs[:size], targets[:size]), test, _CLASSES, (_INPUTS,), size, "table")
