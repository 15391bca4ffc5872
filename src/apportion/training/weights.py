"""The weights that a run moves: whole on every rank, or divided between the ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from apportion.curator.gradients.model_walk import ModelWalk, trained_parameters
from apportion.distributed.sharded_model import ShardedModel
from apportion.errors import WrongOrder
from apportion.models.check import copy_model

Tensors = Mapping[str, Tensor]


class Weights(Protocol):
    """What a session asks of them. All ranks call every method together."""

    model: nn.Module
    """As the person has it: the optimiser moves its parameters."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]] | None:
        """Of whole parameters, if `own` are parts of them; otherwise `None`."""
        ...

    def own(self) -> Tensors:
        """The trained parameters that strategies work on."""
        ...

    def as_gradient(self, name: str, released: Tensor) -> Tensor:
        """What the optimiser is given for a parameter."""
        ...

    def settle(self) -> None:
        """After they were moved."""
        ...

    def require_settled(self) -> None:
        """Refuse to go on with weights that something else has moved."""
        ...

    def gather_average(self, average: Tensors | None) -> None:
        """Before somebody asks for the model with averaged weights."""
        ...

    def averaged(self, average: Tensors | None) -> nn.Module | None:
        """A copy of the model with averaged weights; `None` if there are none."""
        ...

    def kept(self, state: Any) -> Any:
        """The state of strategies as a checkpoint keeps it."""
        ...

    def taken_up(self, state: Any) -> Any:
        """The state of strategies from a checkpoint."""
        ...


class WholeWeights:
    """Weights that this rank has all of."""

    shapes = None

    def __init__(self, model: nn.Module):
        self.model, self._walk = model, ModelWalk(model)

    def own(self) -> Tensors:
        return trained_parameters(self._walk)

    def as_gradient(self, name: str, released: Tensor) -> Tensor:
        return released

    def settle(self) -> None:
        pass

    def require_settled(self) -> None:
        pass

    def gather_average(self, average: Tensors | None) -> None:
        pass

    def averaged(self, average: Tensors | None) -> nn.Module | None:
        if average is None:
            return None
        model = copy_model(self.model)
        parameters = trained_parameters(model)
        for name, value in average.items():
            parameters[name].data.copy_(value)
        return model

    def kept(self, state: Any) -> Any:
        return state

    def taken_up(self, state: Any) -> Any:
        return state


class ShardedWeights:
    """Weights of which each rank has a part. Strategies and the optimiser work on parts; what is computed with is the whole copy."""

    def __init__(self, shards: ShardedModel):
        self._shards, self.model = shards, shards.model
        self._averaged: nn.Module | None = None

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tuple(one.shape) for name, one in trained_parameters(self._shards.whole).items()}

    def own(self) -> Tensors:
        return self._shards.own()

    def as_gradient(self, name: str, released: Tensor) -> Tensor:
        return self._shards.parts[name].distributed(released)

    def settle(self) -> None:
        """Bring the new weights together in the whole copy."""
        self._shards.gather()

    def require_settled(self) -> None:
        if self._shards.moved:
            raise WrongOrder(
                "something has written to the weights of the sharded model between two steps. Set them before the run begins"
            )

    def gather_average(self, average: Tensors | None) -> None:
        """On the first rank, which measures and saves."""
        if average is None:
            return
        whole = None
        if self._shards.rank == 0:
            self._averaged = self._averaged or copy_model(self._shards.whole)
            whole = {name: one.detach() for name, one in trained_parameters(self._averaged).items()}
        self._shards.gather_into(whole, average)

    def averaged(self, average: Tensors | None) -> nn.Module | None:
        """As it was when it was last gathered; one rank cannot do that alone."""
        return self._averaged

    def kept(self, state: Any) -> Any:
        """Every tensor under the name of a parameter is divided like it."""
        parts = self._shards.parts
        return _mapped(state, lambda name, own: parts[name].distributed(own) if name in parts else own)

    def taken_up(self, state: Any) -> Any:
        """This rank's own parts, as plain tensors."""
        return _mapped(state, lambda _, one: one.to_local() if hasattr(one, "to_local") else one)


def _mapped(state: Any, change: Callable[[str, Any], Any], name: str = "") -> Any:
    if isinstance(state, Tensor):
        return change(name, state)
    if isinstance(state, Mapping):
        return {key: _mapped(one, change, str(key)) for key, one in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(_mapped(one, change) for one in state)
    return state
