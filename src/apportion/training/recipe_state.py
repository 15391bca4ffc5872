"""The strategies of a plan and how far they have come: what they ask next, and what they make of an answer.

They see requests, released values and public facts. `Session` puts a curator and an optimiser beside them; audits and plans let them run on
made-up answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from torch import Tensor

from apportion import validate
from apportion.errors import InvalidArgument
from apportion.planning import Plan
from apportion.request import Released, Request
from apportion.strategies.context import Context
from apportion.strategies.roles import (
    AskingUpdate,
    AveragingUpdate,
    FeedbackNoise,
    PlannedUpdate,
    RatedUpdate,
    SteeringUpdate,
    ValidatedNoise,
)

Tensors = Mapping[str, Tensor]


class RecipeState:
    """The states of clip, noise and update.

    Args:
        plan: what is executed.
        parameters: the trained parameters by name, as they are at the beginning.
        learning_rate: of the run; an update that sets the weights itself begins with it.
        shapes: of the whole parameters, where `parameters` are the parts of them on one rank. Updates then work on these parts, and clip
            and noise, which every rank must choose alike, do not see a released gradient.
    """

    def __init__(
        self,
        plan: Plan,
        parameters: Tensors,
        learning_rate: float,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ):
        self.plan, self._in_parts = plan, shapes is not None
        self._shapes = (
            {name: tuple(parameter.shape) for name, parameter in parameters.items()} if shapes is None else dict(shapes)
        )
        update, noise = plan.recipe.update, plan.noise
        # which roles they play, once: to ask a protocol takes as long as a small layer
        self._steers = update if isinstance(update, SteeringUpdate) else None
        self._transforms = None if isinstance(update, SteeringUpdate) else update
        self._asks = update if isinstance(update, AskingUpdate) else None
        self._rates = update if isinstance(update, RatedUpdate) else None
        self._chooses = noise if isinstance(noise, FeedbackNoise) else None
        self._validates = noise if isinstance(noise, ValidatedNoise) else None
        self._asked: Request | None = None
        self._noise = plan.begin_noise(self._shapes)
        self._clip = plan.clip.init(self._context(1))
        self._update = (
            update.init(parameters, learning_rate) if isinstance(update, SteeringUpdate) else update.init(parameters)
        )
        if isinstance(update, PlannedUpdate):
            self._update = update.begin(self._update, self._context(1))

    @property
    def steering(self) -> bool:
        """Whether the update sets the weights itself."""
        return self._steers is not None

    def request(self, step: int) -> Request:
        """What is asked at a step of the plan."""
        context = self._context(step)
        question = None if self._asks is None else self._asks.ask(self._update, context)
        self._asked = self.plan.request(context, self._clip, question, self._asked)
        return self._asked

    def receive(self, released: Released, parameters: Tensors) -> Tensors | None:
        """Learn from an answer. Returns what the optimiser is given; if the update steers, the new weights, or `None` for the old ones."""
        released, _ = released.split_usable()
        noise, update, steering = self._chooses, self._transforms, self._steers
        if released.request.noised:
            self._clip = self.plan.clip.observe(
                self._clip, self._shown(released, self.plan.clip)
            )  # before an optimiser can work in place
        if noise is not None:
            self._noise = noise.observe(self._noise, self._shown(released, noise))
        if update is not None:
            expected = _kinds(released.gradient)  # before it is handed on
            gradient = update.transform(self._update, released)
            _require_fitting(update, gradient, expected, "transform")
            return gradient
        assert steering is not None
        values = {name: parameter.detach() for name, parameter in parameters.items()}
        expected = _kinds(values)
        self._update, weights = steering.move(self._update, released, values)
        if weights is not None:
            _require_fitting(steering, weights, expected, "move")
        return weights

    def _shown(self, released: Released, strategy: object) -> Released:
        """An answer as clip and noise see it."""
        return replace(released, gradient=HiddenGradient(strategy)) if self._in_parts else released

    def settle(self, released: Released, parameters: Tensors) -> None:
        """Learn from the weights to which an answer led."""
        if self._transforms is not None:
            self._update = self._transforms.observe(self._update, released.split_usable()[0], parameters)

    def rate(self, step: int) -> float:
        """By what the update multiplies the learning rates of the optimiser at a step of the plan."""
        if self._rates is None:
            return 1.0
        return validate.positive(
            "update.rate",
            self._rates.rate(self._context(step)),
            f"step {step} would be paid for and change nothing, or anything",
            "Return a factor such as 1.0",
        )

    def wants_validation(self, step: int) -> bool:
        """Whether the noise asks how accurate the model is on public data after this step."""
        noise = self._validates
        return noise is not None and noise.is_due(self._noise, self._context(step))

    def validate(self, accuracy: float) -> None:
        """Answer it."""
        noise = self._validates
        assert noise is not None
        self._noise = noise.validate(self._noise, accuracy)

    @property
    def learning_rate(self) -> float:
        """The step size of an update that steers."""
        assert self._steers is not None
        return float(self._steers.learning_rate(self._update))

    @property
    def averaged(self) -> Tensors | None:
        """The averaged weights, where the update keeps them."""
        update = self.plan.recipe.update
        return update.averaged(self._update) if isinstance(update, AveragingUpdate) else None

    def state(self) -> dict[str, Any]:
        """All that moves."""
        return {"clip": self._clip, "noise": self._noise, "update": self._update}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what `state` returned."""
        self._clip, self._update = state["clip"], state["update"]
        self._noise = state.get("noise")  # older checkpoints, of schedules, have none

    def _context(self, step: int) -> Context:
        return self.plan.context(step, self._shapes, self._noise)


class HiddenGradient(Mapping[str, Tensor]):
    """In place of a gradient of which each rank has another part: what is made of it would differ between the ranks."""

    def __init__(self, strategy: object):
        self._strategy = type(strategy).__name__

    def _refuse(self) -> NoReturn:
        reason = "it looks at the released gradient, of which each rank of a sharded model has its own part only"
        fix = "Use a strategy that goes by released statistics, or a model that is not sharded"
        raise InvalidArgument("plan", self._strategy, reason, fix)

    def __getitem__(self, name: str) -> Tensor:
        self._refuse()

    def __iter__(self) -> Iterator[str]:
        self._refuse()

    def __len__(self) -> int:
        self._refuse()


def _require_fitting(update: object, found: object, expected: object, method: str) -> None:
    if _kinds(found) != expected:
        raise InvalidArgument(
            "update",
            type(update).__name__,
            f"what it returns from {method} does not have the names and shapes of the parameters, or another type",
            f"Return one tensor for each parameter from {method}",
        )


def _kinds(tensors: object) -> object:
    """What tensors must have in common with the parameters to take their place; `None` if they are none."""
    if type(tensors) is not dict and not isinstance(tensors, Mapping):
        return None
    if not all(isinstance(value, Tensor) for value in tensors.values()):
        return None
    return {name: (value.shape, value.dtype, value.device) for name, value in tensors.items()}
