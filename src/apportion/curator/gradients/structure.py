"""An engine is built for a model's layers and trained parameters as they are when a run begins; later changes are refused."""

from __future__ import annotations

from torch import nn

from apportion.errors import WrongOrder

_REMEDY = (
    "Change the model before the private run begins, or end this run and begin another one for the rest of the budget"
)


class Structure:
    """Which modules a model is made of, and which of its parameters learn. Values may change, this may not."""

    def __init__(self, model: nn.Module):
        self._modules = dict(model.named_modules())
        self._learns = {name: parameter.requires_grad for name, parameter in model.named_parameters()}

    def require_same(self, model: nn.Module) -> None:
        """Refuse a model that was rebuilt since: its copies inside the engine would go on as before."""
        modules = dict(model.named_modules())
        for path in self._modules | modules:
            if self._modules.get(path) is not modules.get(path):
                done = "added" if path not in self._modules else "replaced" if path in modules else "removed"
                raise WrongOrder(f"the module {path!r} was {done} after the private run had begun. {_REMEDY}")
        learns = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
        for name in self._learns | learns:
            if self._learns.get(name) != learns.get(name):
                done = {True: "made to learn", False: "frozen", None: "removed"}[learns.get(name)]
                raise WrongOrder(f"the parameter {name!r} was {done} after the private run had begun. {_REMEDY}")
