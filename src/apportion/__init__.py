"""Apportion: adaptive differentially private training on PyTorch.

Tier 1, we own the loop:       `train`
Tier 2, your own loop:         `make_private`
Tier 3, the parts:             `apportion.accounting`, `apportion.curator`, `apportion.strategies`

Names are imported when they are first used, so that `import apportion` and the command line's `--help` do not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from apportion.budget import Budget, Public, Record
from apportion.errors import (
    ApportionError,
    BudgetExhausted,
    DataNotFound,
    InvalidArgument,
    UnsupportedModel,
    WrongOrder,
)
from apportion.report import (
    report,  # at once: imported later, the package of that name would take the place of the function
)

if TYPE_CHECKING:
    from apportion.execution import Execution
    from apportion.models.check import check
    from apportion.models.fix import fix
    from apportion.models.temper import TemperedSigmoid, temper
    from apportion.planning import Plan, plan
    from apportion.strategies import clip, noise, recipes, update
    from apportion.strategies.citations import cite
    from apportion.strategies.recipes import Recipe
    from apportion.strategies.roles import Clip, NoiseSchedule, Update
    from apportion.training.private import make_private
    from apportion.training.run import Run
    from apportion.training.storage import Storage
    from apportion.training.train import train

__version__ = "0.1.0"

__all__ = [
    "ApportionError",
    "Budget",
    "BudgetExhausted",
    "Clip",
    "DataNotFound",
    "Execution",
    "InvalidArgument",
    "NoiseSchedule",
    "Plan",
    "Public",
    "Recipe",
    "Record",
    "Run",
    "Storage",
    "TemperedSigmoid",
    "UnsupportedModel",
    "Update",
    "WrongOrder",
    "audit",
    "check",
    "cite",
    "clip",
    "fix",
    "make_private",
    "noise",
    "plan",
    "recipes",
    "report",
    "temper",
    "train",
    "update",
]

_LAZY = {
    "Execution": ("apportion.execution", "Execution"),
    "Clip": ("apportion.strategies.roles", "Clip"),
    "NoiseSchedule": ("apportion.strategies.roles", "NoiseSchedule"),
    "Plan": ("apportion.planning", "Plan"),
    "Recipe": ("apportion.strategies.recipes", "Recipe"),
    "Storage": ("apportion.training.storage", "Storage"),
    "Update": ("apportion.strategies.roles", "Update"),
    "audit": ("apportion.audit", None),
    "plan": ("apportion.planning", "plan"),
    "Run": ("apportion.training.run", "Run"),
    "TemperedSigmoid": ("apportion.models.temper", "TemperedSigmoid"),
    "check": ("apportion.models.check", "check"),
    "cite": ("apportion.strategies.citations", "cite"),
    "clip": ("apportion.strategies.clip", None),
    "fix": ("apportion.models.fix", "fix"),
    "make_private": ("apportion.training.private", "make_private"),
    "noise": ("apportion.strategies.noise", None),
    "recipes": ("apportion.strategies.recipes", None),
    "temper": ("apportion.models.temper", "temper"),
    "train": ("apportion.training.train", "train"),
    "update": ("apportion.strategies.update", None),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'apportion' has no attribute {name!r}")
    module_name, attribute = _LAZY[name]
    module = importlib.import_module(module_name)
    value = module if attribute is None else getattr(module, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
