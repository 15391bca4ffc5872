"""The roles of a recipe, as protocols: what a strategy of one's own has to offer.

| role             | decides                                                       | methods                                          |
|------------------|---------------------------------------------------------------|--------------------------------------------------|
| `Clip`           | how far one record may move the sum                           | `init`, `propose`, `observe`                     |
| `NoiseSchedule`  | the multiplier z_t of each step, known in advance             | `multiplier`, `relative`                         |
| `FeedbackNoise`  | the multiplier z_t from released values; under a filter       | `multiplier`, `init`, `choose`, `observe`        |
| `MultisetNoise`  | the order in which declared multipliers are used; a multiset  | likewise, and `levels`                           |
| `ValidatedNoise` | likewise, from accuracy on public data                        | likewise, and `is_due`, `validate`               |
| `Update`         | what the optimiser is given of a released gradient            | `init`, `transform`, `observe`                   |
|                  | optionally: weights for the end, the plan, learning rates     | `averaged`, `begin`, `rate`, `optimizing`        |
| `SteeringUpdate` | how the weights move, without an optimiser                    | `init`, `move`, `learning_rate`                  |
| `AskingUpdate`   | likewise, and what is asked next; under a filter              | likewise, and `ask`, `reference`                 |
| `People`         | rates and thresholds of groups with budgets of their own      | `solve`                                          |

Which rule of accounting covers a recipe follows from these types: `accounting/rules.py` has the rules, `planning.py` the choice.

A strategy is a frozen dataclass of public hyper-parameters with explicit state. Its state must survive a file (numbers, texts, tensors,
and tuples, lists or dicts of them), because a run may have to be resumed. It sees released values and public facts, nothing else.
`apportion.audit.check_strategy` tries one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from apportion.accounting.group_calibration import GroupProblem, GroupSolution
from apportion.event import Event
from apportion.releases import Noised, Selection
from apportion.request import Released
from apportion.strategies.context import Context

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class Clip(Protocol):
    """How far one record may move the sum: thresholds, and statistics of the norms that are released beside the gradient."""

    def init(self, context: Context) -> Any:
        """The state before the first step; `None` if there is nothing to remember."""
        ...

    def propose(self, state: Any, context: Context) -> tuple[Noised, ...]:
        """The releases of the next request."""
        ...

    def observe(self, state: Any, released: Released) -> Any:
        """The state after a release."""
        ...


@runtime_checkable
class NoiseSchedule(Protocol):
    """The multipliers z_t = scale·relative(t), fixed before any record is read. `multiplier=None`: the budget decides the scale."""

    @property
    def multiplier(self) -> float | None: ...

    def relative(self, context: Context) -> float:
        """z_t divided by the scale."""
        ...


@runtime_checkable
class FeedbackNoise(Protocol):
    """Multipliers z_t = scale·r_t that are chosen from released values. Valid under a filter, never as a fixed plan.

    The scale is the multiplier of a reference run of as many steps as were asked for, all alike, that just fits into the filter.
    `multiplier`: the scale, if the budget is not to decide it.
    """

    @property
    def multiplier(self) -> float | None: ...

    def init(self, context: Context) -> Any:
        """The state before the first step. `context.noise_multiplier` is the scale."""
        ...

    def choose(self, state: Any, context: Context) -> float:
        """r_t > 0, before the batch is drawn. `context.noise_multiplier` is the scale."""
        ...

    def observe(self, state: Any, released: Released) -> Any:
        """The state after a release."""
        ...


@runtime_checkable
class MultisetNoise(FeedbackNoise, Protocol):
    """Chooses among multipliers of which each is declared in advance with the number of steps that may have it. Valid as a multiset."""

    def levels(self, steps: int) -> tuple[float, ...]:
        """r of each token, at most `steps` of them; the first is 1. `choose` must return one of which a token is left."""
        ...


@runtime_checkable
class ValidatedNoise(MultisetNoise, Protocol):
    """Chooses by the accuracy of the private model on data declared public, which costs nothing."""

    def is_due(self, state: Any, context: Context) -> bool:
        """Whether the accuracy after the step of `context` is asked for."""
        ...

    def validate(self, state: Any, accuracy: float) -> Any:
        """The state after the accuracy, in [0, 1], is known."""
        ...


@runtime_checkable
class People(Protocol):
    """What groups of people with different budgets get: factors of the sampling rate and of thresholds, fixed before a run.

    Whatever it answers, a plan in which a group costs more than its budget is refused.
    """

    def solve(self, problem: GroupProblem) -> GroupSolution:
        """The scale of the noise, and the factors of each group."""
        ...


@runtime_checkable
class Update(Protocol):
    """What the optimiser is given of a released gradient, and what else is made of released values. It costs nothing."""

    def init(self, parameters: Mapping[str, Tensor]) -> Any:
        """The state before the first step, from the trained parameters by name."""
        ...

    def transform(self, state: Any, released: Released) -> Mapping[str, Tensor]:
        """The gradient for the optimiser, by parameter. It must have the names and shapes of `released.gradient`."""
        ...

    def observe(self, state: Any, released: Released, parameters: Mapping[str, Tensor]) -> Any:
        """The state after the step that led to `parameters`."""
        ...


@runtime_checkable
class AveragingUpdate(Update, Protocol):
    """An update that keeps other weights to be used in the end, such as averages over the steps."""

    def averaged(self, state: Any) -> Mapping[str, Tensor] | None:
        """These weights by parameter; `None` if there are none (yet)."""
        ...


@runtime_checkable
class PlannedUpdate(Update, Protocol):
    """An update that follows the length of the run."""

    def begin(self, state: Any, context: Context) -> Any:
        """The state before the first step, once it is known that this is the step of `context`, of so many."""
        ...


@runtime_checkable
class RatedUpdate(Update, Protocol):
    """An update with a learning rate that is known in advance, as the multipliers of a `NoiseSchedule` are."""

    def rate(self, context: Context) -> float:
        """By what the learning rates of the optimiser are multiplied in the step of `context`; positive."""
        ...


@runtime_checkable
class OptimizingUpdate(Update, Protocol):
    """An update that may be an optimiser itself."""

    @property
    def optimizing(self) -> bool:
        """Whether what `transform` returns is to be subtracted as it is, times the learning rate: the optimiser must be plain SGD."""
        ...


def is_optimizing(update: object) -> bool:
    """Whether an update takes the place of an optimiser with momentum or scales of its own."""
    return isinstance(update, OptimizingUpdate) and update.optimizing


@runtime_checkable
class SteeringUpdate(Protocol):
    """An update that sets the weights itself, from released values alone. It takes the place of a momentum-free SGD.

    One draw is one step of the plan: what takes several draws keeps in its state how far it has come.
    """

    @property
    def draws(self) -> int:
        """How many draws one of its steps takes. A schedule has a multiple of it; a filter or a multiset may end a run in between."""
        ...

    def init(self, parameters: Mapping[str, Tensor], learning_rate: float) -> Any:
        """The state before the first draw."""
        ...

    def move(
        self, state: Any, released: Released, parameters: Mapping[str, Tensor]
    ) -> tuple[Any, Mapping[str, Tensor] | None]:
        """The state after a release, and the weights to go on with; `None` leaves them as they are, bit for bit."""
        ...

    def learning_rate(self, state: Any) -> float:
        """The step size, for the history."""
        ...


@dataclass(frozen=True)
class AskGradient:
    """The question of an ordinary step: the noisy clipped gradient at the model's weights.

    Args:
        noise: by which factor the multiplier of the step is multiplied.
        threshold: by which factor the thresholds of the clip are multiplied.
    """

    noise: float = 1.0
    threshold: float = 1.0


Question = AskGradient | Selection


@runtime_checkable
class AskingUpdate(SteeringUpdate, Protocol):
    """A steering update that chooses its next question, and how much noise is in the answer, from released values. Valid under a filter."""

    def ask(self, state: Any, context: Context) -> Question:
        """What is asked next. `context.noise_multiplier` is the multiplier of an ordinary gradient."""
        ...

    def reference(self, events: Mapping[Event, int]) -> Mapping[Event, int]:
        """The events of a typical run, given those of a run that asks for gradients only. Public: the noise is solved from it."""
        ...
