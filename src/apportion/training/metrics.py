"""Metrics by name: how good the outputs of a model are on data declared public, as one number."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from apportion import validate
from apportion.errors import InvalidArgument
from apportion.extras import require_extra
from apportion.training.named_losses import Loss, paired
from apportion.validate import Checked, check, checked, one_of

Score = Callable[[Tensor, Tensor], float]


def _as_name(argument: str, value: Any, why: str, fix: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"\w[\w.-]*", value):
        raise InvalidArgument(argument, validate.shown(value), why, fix)
    return value


def _as_function(argument: str, value: Any, why: str, fix: str) -> Score:
    if not callable(value):
        raise InvalidArgument(argument, type(value).__name__, why, fix)
    function: Score = value
    return function


@dataclass(frozen=True)
class Metric(Checked):
    """A number that says how good outputs are: `function(outputs, targets)`, for all records of a public data set at once.

    | name       | meaning                                                                                 | better |
    |------------|-----------------------------------------------------------------------------------------|--------|
    | `accuracy` | the share of records, or of their labels, that are right                                | higher |
    | `auc`      | area under the ROC curve; of several classes or labels the mean, each against the rest  | higher |
    | `f1`       | harmonic mean of precision and recall of class 1; of several classes or labels the mean | higher |
    | `mae`      | mean of abs(o − t)                                                                      | lower  |
    | `rmse`     | √(mean of (o − t)²)                                                                     | lower  |
    | `r2`       | 1 − Σ(o − t)² / Σ(t − mean of t)²                                                       | higher |

    `auc`, `f1` and `r2` are those of scikit-learn (extra `data`). The first three take outputs (N, classes) with class numbers, one logit a
    record with 0 and 1, or logits (N, L) with L labels of 0 and 1; the others as many numbers as there are outputs.

    Args:
        name: what results, tables and figures call it.
        function: of all outputs and all targets, as tensors.
        better: "higher" or "lower".

    Guarantee: none is needed. It reads the released model and public data.

    Examples:
        >>> import torch
        >>> from apportion import Metric
        >>> worst = Metric("worst", lambda outputs, targets: float((outputs - targets).abs().max()), better="lower")
        >>> worst.function(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
        2.0
    """

    prefix = "metric"
    name: str = field(metadata=check(_as_name, "results use it as a name", 'Use letters and digits, such as "auc"'))
    function: Score = field(metadata=check(_as_function, "it cannot be called", "Pass a function (outputs, targets)"))
    better: Literal["higher", "lower"] = checked("higher", one_of("higher", "lower"), "it is a direction")


def _accuracy(outputs: Tensor, targets: Tensor) -> float:
    scores, labels = _classified("accuracy", outputs, targets)
    right = scores.argmax(1) == labels if labels.dim() == 1 else (scores > 0) == (labels > 0)
    return int(right.sum()) / right.numel()


def _auc(outputs: Tensor, targets: Tensor) -> float:
    from sklearn.metrics import roc_auc_score

    scores, _, labels = _by_label("auc", outputs, targets)
    if not bool(((labels.sum(0) > 0) & (labels.sum(0) < len(labels))).all()):
        reason = "auc compares records that have a label with records that do not, and there are none of one kind"
        raise InvalidArgument("evaluate", "Public(...)", reason, "Add records, or use another metric")
    return _mean_over_labels(roc_auc_score, labels, scores)


def _f1(outputs: Tensor, targets: Tensor) -> float:
    from sklearn.metrics import f1_score

    _, chosen, labels = _by_label("f1", outputs, targets)
    return _mean_over_labels(partial(f1_score, zero_division=0), labels, chosen)


def _mean_over_labels(score: Callable[..., Any], labels: Tensor, found: Tensor) -> float:
    return fmean(float(score(*columns)) for columns in zip(labels.T.numpy(), found.T.numpy(), strict=True))


def _by_label(name: str, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, choices and labels, (N, L) each: class 1 of two classes, or each class against the rest, or each label."""
    scores, labels = _classified(name, outputs.double(), targets)
    if labels.dim() == 2:
        return scores, (scores > 0).long(), labels.long()
    if scores.shape[1] == 2:
        return (scores[:, 1] - scores[:, 0]).unsqueeze(1), scores.argmax(1, keepdim=True), labels.long().unsqueeze(1)
    chosen, right = (one_hot(classes.long(), scores.shape[1]) for classes in (scores.argmax(1), labels))
    return scores.softmax(1), chosen, right


def _classified(name: str, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (N, classes) with class numbers (N,), or logits (N, L) with labels (N, L) of 0 and 1."""
    if outputs.dim() == 2 and outputs.shape[1] > 1 and targets.shape == outputs.shape[:1]:
        classes = outputs.shape[1]
        if targets.is_floating_point() or targets.dtype == torch.bool:
            raise _refused(f"targets of {targets.dtype}", "the model has classes, whose numbers are integers", "int64")
        if bool(((targets < 0) | (targets >= classes)).any()):
            found = f"targets from {int(targets.min())} to {int(targets.max())}"
            reason = f"the model has {classes} outputs, so classes go from 0 to {classes - 1}"
            raise _refused(found, reason, "numbers from 0")
        return outputs, targets
    if outputs.numel() == targets.numel() and outputs.dim() <= 2 and len(outputs) == len(targets):
        logits, labels = paired(outputs, targets)
        if bool(((labels == 0) | (labels == 1)).all()):
            return logits, labels
    raise InvalidArgument(
        "evaluate",
        f"outputs {tuple(outputs.shape)}, targets {tuple(targets.shape)} of {targets.dtype}",
        f"{name} needs outputs (batch, classes) with class numbers, or one logit for each label with targets 0 and 1",
        'Correct them, or choose another metric, such as metric="rmse" for numbers',
    )


def _refused(found: str, reason: str, kind: str) -> InvalidArgument:
    return InvalidArgument("evaluate", found, reason, f"Encode classes as {kind}")


def _mae(outputs: Tensor, targets: Tensor) -> float:
    found, wanted = paired(outputs.double(), targets)
    return float((found - wanted).abs().mean())


def _rmse(outputs: Tensor, targets: Tensor) -> float:
    found, wanted = paired(outputs.double(), targets)
    return float((found - wanted).square().mean().sqrt())


def _r2(outputs: Tensor, targets: Tensor) -> float:
    from sklearn.metrics import r2_score

    found, wanted = paired(outputs.double(), targets)
    if len(wanted) < 2:
        raise InvalidArgument("evaluate", "one record", "r2 needs at least two", "Add records, or use another metric")
    return float(r2_score(wanted.numpy(), found.numpy()))


ACCURACY = Metric("accuracy", _accuracy)
METRICS = {
    metric.name: metric
    for metric in (
        ACCURACY,
        Metric("auc", _auc),
        Metric("f1", _f1),
        Metric("mae", _mae, better="lower"),
        Metric("rmse", _rmse, better="lower"),
        Metric("r2", _r2),
    )
}
_OF_LOGITS = ("accuracy", "f1")
_FROM_SCIKIT_LEARN = ("auc", "f1", "r2")


def as_metric(metric: str | Metric | Score | None, loss: object = None) -> Metric:
    """The metric of a name; of a function, under its own name; of nothing, what fits the loss: rmse for numbers, otherwise accuracy."""
    of_numbers = isinstance(loss, Loss) and loss.name in ("mse", "huber")
    if metric is None:
        return METRICS["rmse" if of_numbers else "accuracy"]
    if isinstance(metric, Metric):
        return metric
    if callable(metric):
        return Metric(getattr(metric, "__name__", type(metric).__name__), metric)
    name = validate.known("metric", metric, METRICS, "there is no such metric")
    if of_numbers and name in _OF_LOGITS:
        reason = (
            "it asks whether an output is above 0, as of a logit, and this loss makes outputs numbers like the targets"
        )
        raise InvalidArgument("metric", name, reason, "Use mae, rmse or r2; or the loss bce for yes and no")
    if name in _FROM_SCIKIT_LEARN:
        require_extra("data", "sklearn")
    return METRICS[name]
