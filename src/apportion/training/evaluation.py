"""How good a model is on data declared public, and when it is asked. Free: it reads nothing private but the released model."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from apportion import validate
from apportion.budget import Public
from apportion.curator.records import Records, as_records
from apportion.curator.tree import call_model, map_tensors, tensor_leaves
from apportion.domain import Domain
from apportion.errors import InvalidArgument
from apportion.models.synthetic import model_device
from apportion.sampling import Sampling
from apportion.strategies.context import epoch_length
from apportion.training.history import REPORTS
from apportion.training.metrics import ACCURACY, Metric

_BATCH = 1024
TRAINED_LIKE = 3
"""A record that is trained on costs about as much time as so many that are evaluated: forward, backward, clipped sum."""


@dataclass(frozen=True)
class Evaluation:
    """What a run is measured by: public data, a metric, and how often.

    Args:
        every: measure after so many steps, and after the last one. By default after the first, the last and about 25 in between, but no
            more often than every k steps, where k steps of training read as many records as one evaluation, at the costs of each.
    """

    data: Public
    metric: Metric = ACCURACY
    every: int | None = None

    @cached_property
    def records(self) -> Records:
        return as_records(self.data.data)

    def is_due(self, step: int, sampling: Sampling) -> bool:
        """Whether the model is measured after `step`. It follows from public facts: the plan, and the size of the public data."""
        if step == sampling.steps:
            return True
        if self.every is not None:
            return step % self.every == 0
        as_long = math.ceil(len(self.records) / (TRAINED_LIKE * max(1.0, sampling.expected_batch_size)))
        return step == 1 or step % max(1, sampling.steps // REPORTS, as_long) == 0

    def measure(self, model: nn.Module) -> float | None:
        """The score of `model`; `None` if its outputs are not numbers any more."""
        return measure(model, self.records, self.metric)


def choose_evaluation(
    data: Public | None, metric: Metric, every: int | str | None, sampling: Sampling
) -> Evaluation | None:
    """What was asked for; `None` without public data."""
    steps = None if every is None else _in_steps(every, sampling.sample_rate)
    return None if data is None else Evaluation(data, metric, steps)


def _in_steps(every: int | str, sample_rate: float) -> int:
    """`evaluate_every` in steps: 20, "20" or "2 epochs", where an epoch is round(1/q) steps."""
    found = re.fullmatch(r"(\d{1,9})( epochs?)?", every.strip()) if isinstance(every, str) else None
    if isinstance(every, str) and found is None:
        fix = 'Pass a number of steps, or of epochs such as "1 epoch"'
        raise InvalidArgument("evaluate_every", every, "it is neither", fix)
    count = validate.whole(
        "evaluate_every", int(found[1]) if found else every, "it is a number of steps", 'Use 20, or "1 epoch"'
    )
    return count * epoch_length(sample_rate) if found and found[2] else count


def require_public(data: object, argument: str = "evaluate") -> Public:
    """Refuse data for evaluation or validation that nobody declared public."""
    if not isinstance(data, Public):
        raise InvalidArgument(
            argument,
            type(data).__name__,
            "a score on private records is an un-noised read of them",
            f"If anything about this data may be published, say so: {argument}=apportion.Public(data)",
        )
    return data


def require_measurable(
    model: nn.Module,
    data: object,
    argument: str = "evaluate",
    metric: Metric = ACCURACY,
    domain: Domain | None = None,
) -> None:
    """Refuse, under the name of its argument, data that is not public, has values that were not declared, or on which the model cannot be
    measured."""
    public = require_public(data, argument)
    try:
        records = as_records(public.data)
        _require_values(records, domain or Domain())
        score = measure(model, records, metric)
    except InvalidArgument as error:
        if error.argument == "metric":
            raise
        raise InvalidArgument(argument, error.value, error.reason, error.fix) from error
    except Exception as error:
        reason = f"the model fails on this data ({type(error).__name__}: {error})"
        raise InvalidArgument(
            argument, "Public(...)", reason, "Pass records like those that it is trained on"
        ) from error
    if score is None:
        reason = f"the model's outputs or their {metric.name} are not finite numbers"
        raise InvalidArgument(argument, "Public(...)", reason, "Look at what the model makes of it")


def _require_values(records: Records, domain: Domain) -> None:
    """Refuse public data with values that are not numbers, or not of the domain. Only of public data may anything be said about values."""
    for start in range(0, len(records), _BATCH):
        inputs, targets = records.batch(np.arange(start, min(start + _BATCH, len(records))))
        for what, tree in (("inputs", inputs), ("targets", targets)):
            if any(bool(leaf.isnan().any()) for leaf in tensor_leaves(tree) if leaf.is_floating_point()):
                fix = "Leave out or fill in what is missing"
                raise InvalidArgument("evaluate", f"Public(...) with NaN in its {what}", "NaN is not a number", fix)
        if domain.inputs is not None:
            low, high = domain.inputs
            _require_between(inputs, low, high, "an input", f"domain.inputs declares {low:g} to {high:g}")
        if domain.classes is not None:
            learnt = map_tensors(lambda leaf: leaf[leaf != domain.ignored], targets)
            _require_between(learnt, 0, domain.classes - 1, "a target", f"domain.classes declares {domain.classes}")


def _require_between(tree: Any, low: float, high: float, what: str, reason: str) -> None:
    for leaf in tensor_leaves(tree):
        if len(outside := leaf[(leaf < low) | (leaf > high)]):
            fix = "Encode and scale it as the records that are trained on, or declare what they are"
            raise InvalidArgument("evaluate", f"Public(...) with {what} {outside[0].item():g}", reason, fix)


def accuracy(model: nn.Module, public: Public) -> float:
    """The fraction of records that are classified right: by the largest output, or by the sign of a single one (a logit)."""
    score = measure(model, as_records(public.data), ACCURACY)
    assert score is not None  # NaN is just a wrong class
    return score


def measure(model: nn.Module, records: Records, metric: Metric) -> float | None:
    """The metric of the model's outputs for all of these public records.

    `None` if the outputs, or the score, are not finite numbers any more, as those of a model that diverged: a run does not end by that.
    """
    outputs, targets = _answers(model, records)
    if metric is not ACCURACY and not bool(outputs.isfinite().all()):
        return None
    try:
        score = float(metric.function(outputs, targets))
    except InvalidArgument:
        raise
    except Exception as error:
        reason = f"it failed with {type(error).__name__}: {error}"
        fix = "It is called with all outputs and all targets, as tensors, and returns a number"
        raise InvalidArgument("metric", metric.name, reason, fix) from error
    return score if math.isfinite(score) else None


def _answers(model: nn.Module, records: Records) -> tuple[Tensor, Tensor]:
    """All outputs and all targets."""
    was_training, device = model.training, model_device(model)
    model.eval()
    found: list[tuple[Tensor, Tensor]] = []
    try:
        with torch.no_grad():
            for start in range(0, len(records), _BATCH):
                inputs, targets = records.batch(np.arange(start, min(start + _BATCH, len(records))))
                outputs = call_model(model, map_tensors(lambda tensor: tensor.to(device), inputs))
                outputs = getattr(outputs, "logits", outputs)  # of a model of transformers
                if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
                    kinds = f"outputs of {type(outputs).__name__}, targets of {type(targets).__name__}"
                    reason = "a metric is about one tensor of outputs and one of targets"
                    raise InvalidArgument("evaluate", kinds, reason, "Leave it out and measure it yourself")
                if not outputs.dim() or len(outputs) != len(targets):
                    shapes = f"outputs {tuple(outputs.shape)}, targets {tuple(targets.shape)}"
                    raise InvalidArgument("evaluate", shapes, "not one output a record", "Return a batch of outputs")
                found.append((outputs.cpu(), targets.cpu()))
    finally:
        model.train(was_training)
    outputs, targets = (torch.cat(parts) for parts in zip(*found, strict=True))
    return outputs, targets
