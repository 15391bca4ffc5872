"""What can be asked of a batch: clipped sums, statistics of the norms, selections. Each says its own sensitivity.

The types here are final. A strategy of one's own may ask for any of them, but not for a subclass, whose sensitivity or price would be
its own claim: `Request` and the curator look at the exact type. Numbers become plain floats, and a frame copies its tensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from apportion.errors import InvalidArgument
from apportion.event import CHOICE_BUDGET, Choice
from apportion.validate import (
    Checked,
    check,
    checked,
    in_open_unit,
    instance_of,
    non_negative,
    one_of,
    positive,
    probability,
    shown,
)

if TYPE_CHECKING:
    from torch import Tensor

_RANGE = (1e-30, 1e30)
"""Of thresholds and frames: well inside of what float32 holds with all its digits, also after a headroom, a share and a multiplier."""


FLOAT32_HEADROOM = 1e-4
"""How far rounding may push a clipped record beyond its threshold, relatively. Tests measure the real excess (about 1e-6)."""

POOLED_THRESHOLDS = 64.0
"""To how many thresholds the gradient of a single record is cut before it is added to the others of its user."""


def _copy_tensors(argument: str, tensors: Mapping[str, Tensor], why: str, fix: str) -> dict[str, Tensor]:
    try:
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    except AttributeError:
        copies = {}
    if not copies or not all(type(name) is str for name in copies):
        raise InvalidArgument(argument, type(tensors).__name__, why, fix)
    return copies


_TENSORS = check(_copy_tensors, "it needs tensors by the name of their parameter", "Pass two dicts")


@final
@dataclass(frozen=True, eq=False)
class Frame(Checked):
    """Coordinates in which a gradient is clipped: g becomes (g − m)/b, and the noisy answer w̃ becomes b·w̃ + m again.

    Args:
        centre: m, by parameter. Public: chosen from released values or declared. Copied, as is the scale.
        scale: b > 0, by parameter.
    """

    prefix = "frame"
    centre: Mapping[str, Tensor] = field(metadata=_TENSORS)
    scale: Mapping[str, Tensor] = field(metadata=_TENSORS)

    def restored(self, name: str, value: Tensor) -> Tensor:
        """b·w̃ + m."""
        return self.scale[name].to(value.device) * value + self.centre[name].to(value.device)

    def require_usable(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Refuse a frame that a record could make visible: 0·∞ in an empty place is NaN, and an empty batch has no such place."""
        for name, shape in shapes.items():
            centre, scale = self.centre[name], self.scale[name]
            usable = bool((centre.abs() < _RANGE[1]).all() and (scale > _RANGE[0]).all())
            if not (
                usable and bool((scale < _RANGE[1]).all()) and tuple(centre.shape) == tuple(scale.shape) == tuple(shape)
            ):
                raise InvalidArgument(
                    "frame",
                    name,
                    f"centre and scale must have the parameter's shape {tuple(shape)}, be finite and in the range of float32, and the "
                    "scale positive",
                    "Bound the scale from below, as AdaClip does with its floor",
                )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frame) and _same(self.centre, other.centre) and _same(self.scale, other.scale)

    __hash__ = None  # type: ignore[assignment]


def _read_steps(argument: str, value: Any, why: str, fix: str) -> tuple[float, ...]:
    if type(value) is not tuple or not value:
        raise InvalidArgument(argument, shown(value), "it is not a tuple of numbers", fix)
    sizes = tuple(non_negative(argument, one, why, fix) for one in value)
    if len(set(sizes)) != len(sizes):
        raise InvalidArgument(argument, sizes, "a candidate stands there twice", fix)
    return sizes


@final
@dataclass(frozen=True, eq=False)
class Line(Checked):
    """Candidate weights w − α_j·d on a line through the model's weights w.

    Args:
        direction: d, by parameter, for every trained one. Public: from released values. Copied.
        step_sizes: α_1..α_k, each once.
    """

    prefix = "line"
    direction: Mapping[str, Tensor] = field(metadata=_TENSORS)
    step_sizes: tuple[float, ...] = field(metadata=check(_read_steps, "it is a step size", "Try (0.0, 0.5, 1.0)"))

    def require_usable(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Refuse a direction that does not fit the trained parameters, or is not finite."""
        found = {name: tuple(value.shape) for name, value in self.direction.items()}
        if found != {name: tuple(shape) for name, shape in shapes.items()} or not all(
            bool(value.isfinite().all()) for value in self.direction.values()
        ):
            raise InvalidArgument(
                "line.direction",
                sorted(found),
                "it must be finite, with the names and shapes of the trained parameters",
                "Use a released gradient",
            )

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Line) and self.step_sizes == other.step_sizes and _same(self.direction, other.direction)
        )

    __hash__ = None  # type: ignore[assignment]


def _same(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(bool((one[name] == two[name]).all()) for name in one)


def _read_threshold(argument: str, value: Any, why: str, fix: str) -> float:
    number = positive(argument, value, why, fix)
    if not _RANGE[0] <= number <= _RANGE[1]:
        outside = f"it lies outside of {_RANGE[0]:g} to {_RANGE[1]:g}, where rounding could exceed the headroom"
        raise InvalidArgument(argument, number, outside, fix)
    return number


def _read_names(argument: str, value: Any, why: str, fix: str) -> tuple[str, ...]:
    if not (type(value) is tuple and value and all(type(name) is str for name in value)):
        raise InvalidArgument(argument, shown(value), why, fix)
    return value


_PARAMETERS = check(_read_names, "it is not a tuple of names", "Name parameters of the model, or pass None for all")

_SHARE = check(probability, "it is a part of the request's budget", "Shares add up to 1")


@final
@dataclass(frozen=True)
class ClippedSum(Checked):
    """Release Σ_i g_i·min(1, C/‖g_i‖) over a group of parameters, where g_i is record i's gradient on that group.

    Args:
        threshold: C. One record contributes a vector of norm at most C·(1 + headroom).
        parameters: names of the parameters in the group; `None` means all that are trained.
        share: w, the part of the request's budget z⁻² that this release uses.
        headroom: h, the declared rounding error of clipping; it enlarges the noise, so that the stated z holds.
        stabiliser: γ ≥ C/10⁶; records then contribute g_i·C/(‖g_i‖ + γ) instead, which is shorter than C for every g_i.
        frame: coordinates in which gradients are clipped and noised, for exactly these parameters; their own if it is not given.

    Guarantee: adding or removing one record changes the sum by at most `sensitivity` in L2 norm.
    """

    threshold: float = field(metadata=check(_read_threshold, "it bounds what one record can do", "Try threshold=1.0"))
    parameters: tuple[str, ...] | None = field(default=None, metadata=_PARAMETERS)
    share: float = field(default=1.0, metadata=_SHARE)
    headroom: float = checked(FLOAT32_HEADROOM, non_negative, "it is a relative rounding error", "Try 1e-4")
    stabiliser: float | None = checked(
        None, positive, "it keeps the quotient finite for a gradient of zero", "Try stabiliser=0.01"
    )
    frame: Frame | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stabiliser is not None and self.stabiliser < 1e-6 * self.threshold:
            reason = f"beside threshold={self.threshold:g} it is too small to keep quotients in the range of float32"
            raise InvalidArgument("stabiliser", self.stabiliser, reason, "Try stabiliser=0.01")
        if self.frame is not None and type(self.frame) is not Frame:
            raise InvalidArgument("frame", shown(self.frame), "it is not a Frame", "Pass a Frame, or None")
        framed = set() if self.frame is None else {*self.frame.scale, *self.frame.centre}
        if self.frame is not None and not framed == set(self.parameters or ()) == set(self.frame.scale):
            raise InvalidArgument(
                "frame",
                sorted(framed),
                "it must have a centre and a scale for the parameters of the release",
                "Name them all",
            )

    @property
    def sensitivity(self) -> float:
        return self.threshold * (1 + self.headroom)


@final
@dataclass(frozen=True)
class UnclippedCount(Checked):
    """Release Σ_i (b_i − ½) over the gradients of a group: how many are not clipped, less half of all.

    b_i is 1 for norms below 0.95·C, 0 for norms above 1.05·C, and falls evenly in between. A step at C would let the last bit of a norm,
    which depends on the other records of a micro-batch, move the count by 1; here it moves it by 10⁻⁶.

    A record that contributes nothing (not finite, unreadable) counts 0, not −½ or ½. Without the ½ one record would move the count
    by 1 instead of ½.

    Args:
        threshold: C.
        parameters, share: as of `ClippedSum`.

    Guarantee: adding or removing one record changes the count by at most ½.
    """

    threshold: float = field(metadata=check(_read_threshold, "norms are compared with it", "Try threshold=1.0"))
    parameters: tuple[str, ...] | None = field(default=None, metadata=_PARAMETERS)
    share: float = field(default=1.0, metadata=_SHARE)

    @property
    def sensitivity(self) -> float:
        return 0.5


@final
@dataclass(frozen=True)
class NormSum(Checked):
    """Release Σ_i min(‖g_i‖, c) over the gradients of a group.

    Args:
        bound: c.
        parameters, share: as of `ClippedSum`.

    Guarantee: adding or removing one record changes the sum by at most c.
    """

    bound: float = field(metadata=check(_read_threshold, "it bounds what one record can add", "Try bound=1.0"))
    parameters: tuple[str, ...] | None = field(default=None, metadata=_PARAMETERS)
    share: float = field(default=1.0, metadata=_SHARE)

    @property
    def sensitivity(self) -> float:
        return self.bound


CLOSEST_POINTS = 0.04
"""How far apart the points of a histogram must be, relative to the upper of two: 24 or fewer that are evenly spaced from 0."""


def _read_points(argument: str, value: Any, why: str, fix: str) -> tuple[float, ...]:
    if type(value) is not tuple or len(value) < 2:
        raise InvalidArgument(argument, shown(value), why, fix)
    first, *rest = value
    points = (
        non_negative(argument, first, why, fix),
        *(_read_threshold(argument, point, "norms are counted at it", fix) for point in rest),
    )
    for lower, upper in itertools.pairwise(points):
        if not upper - lower >= CLOSEST_POINTS * upper:
            reason = f"{upper:g} is less than {100 * CLOSEST_POINTS:g} % above {lower:g}, so that rounding could exceed the headroom"
            raise InvalidArgument(argument, shown(points), reason, fix)
    return points


@final
@dataclass(frozen=True)
class NormHistogram(Checked):
    """Release Σ_i h_i over the gradients of a group, which tells how their norms are distributed over points p_1 < … < p_K.

    A norm n between p_j and p_{j+1} counts (p_{j+1} − n)/(p_{j+1} − p_j) at p_j and the rest at p_{j+1}; one below p_1 or beyond p_K
    counts 1 there. Bins with sharp edges would let the last bit of a norm, which depends on the other records of a micro-batch, move a
    record from one bin to the next. A record that contributes nothing (not finite, unreadable) counts nowhere.

    Args:
        points: p_1 ≥ 0 and the others, each at least 4 % above the one before. Public: declared, or from released values.
        parameters, share: as of `ClippedSum`.

    Guarantee: the K numbers h_i are at least 0 and add up to 1, so that adding or removing one record changes the histogram by at most 1
    in L2 norm; a headroom, as of `ClippedSum`, covers the last bits of the others.
    """

    points: tuple[float, ...] = field(
        metadata=check(_read_points, "it is not a tuple of two or more norms", "Try points=(0.0, 0.5, 1.0)")
    )
    parameters: tuple[str, ...] | None = field(default=None, metadata=_PARAMETERS)
    share: float = field(default=1.0, metadata=_SHARE)

    @property
    def sensitivity(self) -> float:
        return 1 + FLOAT32_HEADROOM


@final
@dataclass(frozen=True)
class UsableCount(Checked):
    """Release Σ_i (u_i − ½) over the units of a batch, u_i = 1 if unit i contributes to the gradient and 0 if it cannot.

    A record cannot contribute if it cannot be read, lies outside of the declared domain, makes the model or the loss fail, or has a
    gradient that is not finite; a user, if none of its records can. The sum is below 0 where fewer than half of a batch contribute.

    Args:
        share: as of `ClippedSum`.

    Guarantee: adding or removing one record changes the sum by exactly ½.
    """

    share: float = field(default=1.0, metadata=_SHARE)

    @property
    def parameters(self) -> tuple[str, ...] | None:
        """It is about all of them."""
        return None

    @property
    def sensitivity(self) -> float:
        return 0.5


_LINE = check(instance_of(Line), "it says what the candidates are", "Pass Line(direction, step_sizes)")

_LOSS_BOUND = check(_read_threshold, "it bounds what one record can add to a summed loss", "Try bound=3.0")

_HEADROOM = (non_negative, "it is a relative rounding error", "Try 1e-4")


@final
@dataclass(frozen=True)
class LowestLoss(Checked):
    """Which candidate on a line has the lowest Ω_j = Σ_i ℓ_ij, the losses clipped to [0, C_obj]: j* = argmin_j (Ω_j − X_j).

    The X_j are independent Gumbel or exponential variables with scale C_obj/ε₀. A loss that is not finite counts C_obj.

    Args:
        line: the candidates. One of the step sizes must be 0: to stay must be possible.
        bound: C_obj.
        epsilon: ε₀.
        noise: "gumbel" (the exponential mechanism, ρ = ε₀²/8) or "exponential" (ρ = ε₀·tanh(ε₀/2)).
        headroom: of rounding in float32 losses, as of `ClippedSum`.

    Guarantee: ε₀-DP on the batch for any number of candidates. A record adds to every Ω_j between 0 and C_obj, so all move one way, and
    j wins iff X_j exceeds a number that moves by at most C_obj. With the opposite sign, argmin(Ω_j + X_j), it would be (k−1)·ε₀.
    """

    line: Line = field(metadata=_LINE)
    bound: float = field(metadata=_LOSS_BOUND)
    epsilon: float = field(metadata=check(*CHOICE_BUDGET))
    noise: str = checked("gumbel", one_of("gumbel", "exponential"), "two kinds of noise are known for it")
    headroom: float = checked(FLOAT32_HEADROOM, *_HEADROOM)

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0.0 not in self.line.step_sizes:
            raise InvalidArgument(
                "step_sizes",
                self.line.step_sizes,
                "0 is not among them, so the search could not find that the direction is bad",
                "Add 0.0 to the step sizes",
            )

    @property
    def sensitivity(self) -> float:
        return self.bound * (1 + self.headroom)

    @property
    def scale(self) -> float:
        """Of the noise."""
        return self.sensitivity / self.epsilon

    def choice(self) -> Choice:
        return Choice(self.epsilon, bounded_range=self.noise == "gumbel")


@final
@dataclass(frozen=True)
class FirstGain(Checked):
    """The first step size of a line whose gain exceeds a noisy threshold (AboveThreshold, the sparse vector technique).

    The gain of α_j is G_j = Σ_i [ℓ_i(w) − ℓ_i(w − α_j·d)] − s·α_j·B with losses clipped to [0, C_obj] and B the expected batch size.
    Released is the first j with G_j + Lap(2·C_obj/ε₂) ≥ Lap(C_obj/ε₁), or none; the threshold is drawn anew for each search.

    Args:
        line: the step sizes, in the order in which they are tried.
        bound: C_obj.
        epsilon: ε₁ + ε₂.
        slope: s ≥ 0, the gain per record and unit of step size that is asked for (Armijo: a part of ‖g̃‖²). Public.
        threshold_share: ε₁/(ε₁ + ε₂).
        headroom: of rounding in float32 losses, as of `ClippedSum`.

    Guarantee: (ε₁+ε₂)-DP on the batch, however many step sizes are rejected. Gains move both ways, so the factor 2 stays.
    """

    line: Line = field(metadata=_LINE)
    bound: float = field(metadata=_LOSS_BOUND)
    epsilon: float = field(metadata=check(*CHOICE_BUDGET))
    slope: float = checked(0.0, non_negative, "it is a gain that is asked for", "Use 0 for any gain")
    threshold_share: float = checked(0.5, in_open_unit, "threshold and queries both need noise")
    headroom: float = checked(FLOAT32_HEADROOM, *_HEADROOM)

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0.0 in self.line.step_sizes:
            raise InvalidArgument("step_sizes", self.line.step_sizes, "a step of 0 gains nothing", "Leave 0 out")

    @property
    def sensitivity(self) -> float:
        return self.bound * (1 + self.headroom)

    @property
    def scales(self) -> tuple[float, float]:
        """Of the threshold's noise, and of each gain's."""
        first = self.threshold_share * self.epsilon
        return self.sensitivity / first, 2 * self.sensitivity / (self.epsilon - first)

    def choice(self) -> Choice:
        return Choice(self.epsilon)


Statistic = UnclippedCount | NormSum | NormHistogram | UsableCount
"""One number, or a few, about the gradients of a batch."""


def count_numbers(statistic: Statistic) -> int:
    """How many numbers a statistic is: a histogram has one for each point."""
    return len(statistic.points) if isinstance(statistic, NormHistogram) else 1


Noised = ClippedSum | Statistic
"""A release with Gaussian noise."""

Selection = LowestLoss | FirstGain
"""A release that is an index."""

Release = Noised | Selection

NOISED = (ClippedSum, UnclippedCount, NormSum, NormHistogram, UsableCount)

SELECTIONS = (LowestLoss, FirstGain)

KINDS = (*NOISED, *SELECTIONS)
"""The releases there are. Compared with `type(...)`: a subclass could claim another sensitivity than the one that is executed."""
