"""The roles of a recipe, as protocols: what a strategy of one's own has to offer.

| role            | decides                                                | methods                          |
|-----------------|--------------------------------------------------------|----------------------------------|
| `Clip`          | how far one record may move the sum                    | `init`, `propose`, `observe`     |
| `NoiseSchedule` | the multiplier z_t of each step, known in advance      | `multiplier`, `relative`         |
| `FeedbackNoise` | the multiplier z_t from released values                | `observe`; no plan executes one  |
| `Update`        | what the optimiser is given of a released gradient     | `init`, `transform`, `observe`   |

A strategy is a frozen dataclass of public hyper-parameters with explicit state. Its state must survive a file (numbers, texts, tensors,
and tuples, lists or dicts of them), because a run may have to be resumed. It sees released values and public facts, nothing else.
`apportion.audit.check_strategy` tries one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from apportion.request import Release, Released
from apportion.strategies.context import Context

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class Clip(Protocol):
    """How far one record may move the sum: thresholds, and statistics of the norms that are released beside the gradient."""

    def init(self, context: Context) -> Any:
        """The state before the first step; `None` if there is nothing to remember."""
        ...

    def propose(self, state: Any, context: Context) -> tuple[Release, ...]:
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
    """A noise strategy that looks at released values to choose its multipliers.

    That is valid under a rule that allows it (`accounting/rules.py`: a multiset or a filter), never as a fixed plan.
    """

    def observe(self, state: Any, released: Released) -> Any:
        """The state after a release."""
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
