"""Models for a table: as many inputs as its encoding has, and outputs that fit its target."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from apportion.budget import Public
from apportion.compare.resolve import is_own, own_model
from apportion.data import DataSet
from apportion.errors import InvalidArgument

if TYPE_CHECKING:
    from torch import nn

    from apportion.tables.encoding import Encoding
    from apportion.training.metrics import Metric

DEFAULT_MODEL = "additive"
"""Where no budget is known by which to choose; `table_defaults.py` has the rule."""


def build_table_model(name: str, encoding: Encoding, activation: str | None = None) -> nn.Module:
    """A model by name with as many inputs as the encoding has; one output for each class, or one for a number."""
    import torch

    from apportion.compare import networks

    if is_own(name):
        return _require_outputs(own_model(name, activation), name, encoding)
    nothing = torch.empty(0, encoding.width), torch.empty(0)
    form = DataSet(
        "the table",
        nothing,
        Public(nothing),
        encoding.outputs,
        (encoding.width,),
        None,
        "table",
        numbers=encoding.numbers,
    )
    return networks.build(name, form, activation)


def _require_outputs(model: nn.Module, name: str, encoding: Encoding) -> nn.Module:
    """Refuse a person's own model whose outputs do not fit the target, before a budget is spent on what cannot predict."""
    import torch

    from apportion.models.synthetic import prepare_model

    shape = None
    with torch.no_grad(), suppress(Exception):  # a model that fails altogether is refused later, with its reason
        shape = tuple(prepare_model(model).eval()(torch.zeros(1, encoding.width)).shape)
    if shape not in (None, (1, encoding.outputs)):
        needed = "one output for each class" if encoding.classes else "one output, a number"
        reason = f"the target {encoding.target!r} needs {needed}, or the model could not predict it"
        fix = f"Return (batch, {encoding.outputs}) for inputs (batch, {encoding.width})"
        raise InvalidArgument("model", f"{name} with outputs {shape}", reason, fix)
    return model


def in_units(metric: Metric, encoding: Encoding | None) -> Metric:
    """A metric of errors, in the unit of a number that is predicted, which is trained as a part of its range."""
    if encoding is None or encoding.classes is not None or metric.name not in ("mae", "rmse"):
        return metric
    return replace(metric, function=lambda outputs, targets: encoding.span * metric.function(outputs, targets))
