"""What is looked at before anything is charged, from public facts only: processes, the declared domain, the model's outputs."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from apportion import validate
from apportion.curator.gradients.losses import LossFunction
from apportion.curator.records import Records
from apportion.distributed.process_group import find_ranks
from apportion.domain import IGNORED, Domain
from apportion.errors import InvalidArgument
from apportion.models.synthetic import find_runnable, prepare_model, run_model, synthetic_batches
from apportion.training.named_losses import Loss

_CLASS_LOSSES = (functional.cross_entropy, functional.nll_loss)
_CLASS_MODULES = (nn.CrossEntropyLoss, nn.NLLLoss)


def require_known_processes(model: nn.Module) -> None:
    """Refuse processes that know nothing of each other, each of which would claim the whole budget for draws of its own; and a model that
    combines the gradients of several devices by itself."""
    if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        reason = "it averages the gradients of several devices before they are clipped"
        fix = "Pass model.module: the ranks of an initialised process group are used without it"
        raise InvalidArgument("model", type(model).__name__, reason, fix)
    started = _started_processes()
    if find_ranks().count < started:
        reason = "torchrun has started several processes, and each would claim the whole budget for draws of its own"
        fix = "Call torch.distributed.init_process_group() first, or run it in one process"
        raise InvalidArgument("processes", started, reason, fix)


def require_one_process(what: str) -> None:
    """Refuse several processes for what one of them does: each would ask the records, and claim the whole budget, for itself."""
    processes = max(find_ranks().count, _started_processes())
    if processes > 1:
        reason = f"each of them would do `{what}` for itself, and claim the whole budget"
        raise InvalidArgument("processes", processes, reason, "Run it in one process, without a process group")


def _started_processes() -> int:
    """How many torchrun has started."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def require_callable(argument: str, value: object) -> None:
    """Refuse what is told of each step and cannot be."""
    if value is not None and not callable(value):
        fix = "Pass a function of an Entry, such as apportion.integrations.CsvLog(path)"
        raise InvalidArgument(argument, validate.shown(value), f"it is a {type(value).__name__}", fix)


def expected_domain(
    declared: Domain | None, model: nn.Module, loss_fn: LossFunction | None, records: Records
) -> Domain:
    """The domain as declared; where no classes were, those that a loss of class numbers can take from the model's outputs.

    Refuses classes for which the model has no output.
    """
    if declared is not None and type(declared) is not Domain:
        reason = f"it is a {type(declared).__name__}"
        raise InvalidArgument("domain", validate.shown(declared), reason, "Pass apportion.Domain(classes=10)")
    domain = declared or Domain()
    if isinstance(loss_fn, Loss) and loss_fn.name == "bce" and domain.classes is None:
        return replace(domain, classes=2)
    ignored = _ignored_class(loss_fn)
    if domain.classes is None and ignored is None:
        return domain
    inputs, target = records.example
    subject = prepare_model(model)
    candidates = synthetic_batches("example", inputs, subject)
    _, made = find_runnable(lambda batch: run_model(subject, batch, seed=0), candidates, "The model", inputs)
    outputs = _class_outputs(made, target)
    if outputs is None:
        return domain
    if domain.classes is None and ignored is not None:
        return replace(domain, classes=outputs, ignored=ignored)
    if ignored is not None and domain.classes is not None and domain.classes > outputs:
        reason = f"the model has {outputs} outputs, and the loss of a higher class number cannot be computed"
        raise InvalidArgument("domain.classes", domain.classes, reason, "Give the last layer one output for each class")
    return domain


def _ignored_class(loss_fn: LossFunction | None) -> int | None:
    """The class number that a loss of classes leaves out; `None` if it is not known to be such a loss."""
    settings: dict[str, Any] = {}
    while isinstance(loss_fn, partial):
        settings = loss_fn.keywords | settings
        loss_fn = loss_fn.func
    if isinstance(loss_fn, Loss):
        return IGNORED if loss_fn.name == "cross-entropy" else None
    if type(loss_fn) in _CLASS_MODULES:
        return int(loss_fn.ignore_index)  # type: ignore[union-attr]
    return int(settings.get("ignore_index", IGNORED)) if loss_fn in _CLASS_LOSSES else None


def _class_outputs(outputs: Any, target: Any) -> int | None:
    """How many classes the outputs are for, if the targets are class numbers."""
    numbers = isinstance(target, Tensor) and not target.is_floating_point() and isinstance(outputs, Tensor)
    return outputs.shape[1] if numbers and outputs.dim() == target.dim() + 2 else None
