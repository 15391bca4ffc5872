"""Models for a table: as many inputs as its encoding has, and outputs that fit its target."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from apportion.budget import Public
from apportion.compare.resolve import is_own, own_model
from apportion.data import DataSet

if TYPE_CHECKING:
    from torch import nn

    from apportion.tables.encoding import Encoding
    from apportion.training.metrics import Metric

DEFAULT_MODEL = "mlp"
"""One hidden layer: on made-up patients as good as a linear model where that is enough, and it learns more than sums."""


def build_table_model(name: str, encoding: Encoding, activation: str | None = None) -> nn.Module:
    """A model by name with as many inputs as the encoding has; one output for each class, or one for a number."""
    import torch

    from apportion.compare import networks

    if is_own(name):
        return own_model(name, activation)
    nothing = torch.empty(0, encoding.width), torch.empty(0)
    form = DataSet("the table", nothing, Public(nothing), encoding.outputs, (encoding.width,), None, "table")
    return networks.build(name, form, activation)


def in_units(metric: Metric, encoding: Encoding | None) -> Metric:
    """A metric of errors, in the unit of a number that is predicted, which is trained as a part of its range."""
    if encoding is None or encoding.classes is not None or metric.name not in ("mae", "rmse"):
        return metric
    return replace(metric, function=lambda outputs, targets: encoding.span * metric.function(outputs, targets))
