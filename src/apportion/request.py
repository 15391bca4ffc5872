"""One private question, its noisy answer and its price: the heart of the house.

A `Request` is frozen. The curator executes it; the `Event` that is charged is derived from the same object by
`Request.event()`. There is no second copy of a threshold or of a noise multiplier anywhere, so what is executed is what is
accounted. This file imports no torch, so that every room may import it.

**Price of a request.** Let release j have L2 sensitivity Δ_j (how far one record can move it) and noise of standard deviation
s_j on every coordinate. Divide each release by its s_j: one record then moves the concatenation by at most
√(Σ_j (Δ_j/s_j)²) = 1/z. So all of it together is one Gaussian mechanism with multiplier z, and on a fresh Poisson batch with
rate q it is dominated by the subsampled Gaussian (q, z). A request fixes z and gives every release a *share* w_j of it,
s_j = z·Δ_j/√w_j with Σ_j w_j = 1, which makes the sum above exactly 1/z² for any thresholds: thresholds may follow released
values, the multiplier may not.

**Selections.** A batch may also be asked which of several candidate weights has the lowest loss (`LowestLoss`), or for the first step size
that gains enough (`FirstGain`). Either answer is an index and ε₀-DP by itself. All that is asked of a batch is fixed before its coins
are tossed; its price is that of the parts together, without sampling, amplified once.

**Groups.** People may ask for different ε. A request then has factors for each group: its members are drawn with the rate q·ρ_p, clipped
to s_p·C, and weigh s_p in statistics. One of them moves the whitened answer by at most s_p/z, so for data sets that differ in a member of
group p the request is the event (q·ρ_p, z/s_p), whatever the thresholds are. The event of a request names that of every group, and the one
that covers all of them.

The types here are final. A strategy of one's own may ask for any of them, but not for a subclass, whose sensitivity or price would be
its own claim: `Request` and the curator look at the exact type. Numbers become plain floats, and a frame copies its tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from apportion.errors import InvalidArgument
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
    store,
    whole,
)

if TYPE_CHECKING:
    from torch import Tensor

_RANGE = (1e-30, 1e30)
"""Of thresholds and frames: well inside of what float32 holds with all its digits, also after a headroom, a share and a multiplier."""
FLOAT32_HEADROOM = 1e-4
"""How far rounding may push a clipped record beyond its threshold, relatively. Tests measure the real excess (about 1e-6)."""
POOLED_THRESHOLDS = 64.0
"""To how many thresholds the gradient of a single record is cut before it is added to the others of its user."""

_RATE = check(probability, "it is a probability", "Use batch_size / population")
_CHOICE_BUDGET = (positive, "without noise no finite epsilon holds", "Try epsilon=0.5")


def _read_multiplier(argument: str, value: Any, why: str, fix: str) -> float:
    """∞ stands for no Gaussian at all."""
    return math.inf if isinstance(value, float) and value == math.inf else positive(argument, value, why, fix)


_MULTIPLIER = check(
    _read_multiplier,
    "without noise no finite epsilon holds",
    "Leave the multiplier out to have it solved from the budget",
)


@final
@dataclass(frozen=True, slots=True, order=True)
class Choice(Checked):
    """The price of a selection on a batch, without sampling: ε₀-DP, whatever the number of candidates.

    Args:
        epsilon: ε₀.
        bounded_range: whether the ratio of the probabilities of any two outcomes changes by at most e^ε₀ too, as with Gumbel noise. Then
            ρ = ε₀²/8 instead of ε₀·tanh(ε₀/2). (Dong, Durfee and Rogers 2020.)
    """

    epsilon: float = field(metadata=check(*_CHOICE_BUDGET))
    bounded_range: bool = checked(False, instance_of(bool), "it is a property of the noise", "Use True or False")

    @property
    def rho(self) -> float:
        """Of zero-concentrated DP: D_α ≤ ρ·α for all α > 1."""
        return self.epsilon**2 / 8 if self.bounded_range else self.epsilon * math.tanh(self.epsilon / 2)

    def covers(self, other: Choice) -> bool:
        """Whether `other` is dominated by this choice."""
        return other.epsilon <= self.epsilon and (other.bounded_range or not self.bounded_range)


@final
@dataclass(frozen=True, slots=True)
class GroupFactors(Checked):
    """How a request treats the members of a group, in proportion to what it says for all. Public and constant during a run.

    Args:
        rate: ρ_p. They join a batch with probability q·ρ_p.
        clip: s_p. Their gradients are clipped to s_p·C, and they weigh s_p in statistics.
        share: r_p, the declared part of the population that is in the group.
    """

    share: float = field(metadata=check(probability, "it is a part of the population", "Use the declared share"))
    rate: float = checked(1.0, positive, "it multiplies the sampling rate", "Use 1.0 for the rate of all")
    clip: float = checked(1.0, positive, "it multiplies thresholds", "Use 1.0 for the threshold of all")


@final
@dataclass(frozen=True, slots=True)
class Event(Checked):
    """What the accountant sees of a request: on a Poisson batch with rate q, a Gaussian with noise multiplier z, and choices.

    Args:
        sample_rate: q; with groups the largest of theirs.
        noise_multiplier: z; ∞ for an event of choices alone. With groups the smallest of theirs: the event covers everybody.
        choices: the selections on the same batch.
        groups: (q_p, z_p) of each group, in the order of the budget.
    """

    sample_rate: float = field(metadata=_RATE)
    noise_multiplier: float = field(metadata=_MULTIPLIER)
    choices: tuple[Choice, ...] = ()
    groups: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        Checked.__post_init__(self)  # `super()` does not find a class with slots
        if type(self.choices) is not tuple or not all(type(one) is Choice for one in self.choices):
            raise InvalidArgument("choices", shown(self.choices), "it is not a tuple of choices", "Pass (Choice(0.5),)")
        store(self, choices=tuple(sorted(self.choices, reverse=True)))
        if self.noise_multiplier == math.inf and not self.choices:
            raise InvalidArgument(
                "noise_multiplier", math.inf, "an event that releases nothing is none", "Use a finite one"
            )
        if self.groups:
            store(self, groups=_read_pairs(self.groups))
            rates, multipliers = zip(*self.groups, strict=True)
            if self.choices or self.sample_rate < max(rates) or self.noise_multiplier > min(multipliers):
                raise InvalidArgument(
                    "groups",
                    self.groups,
                    "the event must cover each of them, and holds no choices",
                    "Use Request.event()",
                )

    def __repr__(self) -> str:
        choices = f", choices={self.choices!r}" if self.choices else ""
        groups = f", groups={self.groups!r}" if self.groups else ""
        return f"Event(sample_rate={self.sample_rate!r}, noise_multiplier={self.noise_multiplier!r}{choices}{groups})"

    def of_group(self, number: int) -> Event:
        """What it is for a member of a group, counted from 0; the same for everybody if it has no groups."""
        return Event(*self.groups[number]) if self.groups else self

    def covers(self, other: Event) -> bool:
        """Whether `other` is dominated by this event, in every group: its rate is no larger, its multiplier no smaller, and each choice
        no dearer."""
        return (
            len(self.groups) == len(other.groups)
            and all(two[0] <= one[0] and two[1] >= one[1] for one, two in zip(self.groups, other.groups, strict=True))
            and other.sample_rate <= self.sample_rate
            and other.noise_multiplier >= self.noise_multiplier
            and len(other.choices) <= len(self.choices)
            and all(one.covers(two) for one, two in zip(self.choices, other.choices, strict=False))
        )


def _read_pairs(groups: Any) -> tuple[tuple[float, float], ...]:
    fix = "Use Request.event()"
    if not isinstance(groups, (tuple, list)) or not all(
        isinstance(one, (tuple, list)) and len(one) == 2 for one in groups
    ):
        raise InvalidArgument("groups", shown(groups), "it does not hold pairs (q, z)", fix)
    return tuple(
        (probability("groups", rate, "it is a sampling rate", fix), positive("groups", multiplier, "it is noise", fix))
        for rate, multiplier in groups
    )


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
    epsilon: float = field(metadata=check(*_CHOICE_BUDGET))
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
    epsilon: float = field(metadata=check(*_CHOICE_BUDGET))
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


Statistic = UnclippedCount | NormSum | UsableCount
"""One number about the gradients of a batch."""

Noised = ClippedSum | Statistic
"""A release with Gaussian noise."""

Selection = LowestLoss | FirstGain
"""A release that is an index."""

Release = Noised | Selection

NOISED = (ClippedSum, UnclippedCount, NormSum, UsableCount)
SELECTIONS = (LowestLoss, FirstGain)
KINDS = (*NOISED, *SELECTIONS)
"""The releases there are. Compared with `type(...)`: a subclass could claim another sensitivity than the one that is executed."""


@final
@dataclass(frozen=True)
class Request(Checked):
    """Everything that is asked of one Poisson batch.

    Args:
        sample_rate: q, the probability with which each record joins the batch, independently of all others.
        noise_multiplier: z, the multiplier of all noisy sums of this batch together (see the module's text); ∞ if there are none.
        expected_batch_size: q·population, the public constant by which the noisy sum is divided. Never the realised size,
            which is private.
        releases: clipped sums, whose parameter groups are disjoint, and statistics of the same batch, whose shares add up to 1; and
            selections.
        groups: the factors of each group of people; none if all are treated alike.
        coins_per_unit: k, how many coins of a draw may belong to one unit of privacy. It is in the batch with probability up to
            1 − (1 − q)^k, which is the rate of the event.

    Examples:
        >>> from apportion.request import ClippedSum, Request, UnclippedCount
        >>> releases = (ClippedSum(2.0, share=0.75, headroom=0.0), UnclippedCount(2.0, share=0.25))
        >>> request = Request(sample_rate=0.01, noise_multiplier=1.0, expected_batch_size=600.0, releases=releases)
        >>> [round(request.standard_deviation(release), 3) for release in releases]  # more than 2·1 and ½·1: they share one price
        [2.309, 1.0]
        >>> request.event()
        Event(sample_rate=0.01, noise_multiplier=1.0)
    """

    sample_rate: float = field(metadata=_RATE)
    noise_multiplier: float = field(metadata=_MULTIPLIER)
    expected_batch_size: float = field(
        metadata=check(positive, "the noisy sum is divided by it", "Use sample_rate * population")
    )
    releases: tuple[Release, ...]
    groups: tuple[GroupFactors, ...] = ()
    coins_per_unit: int = checked(1, whole, "it is a number of coins")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_usable_groups()
        if type(self.releases) is not tuple or not all(type(one) in KINDS for one in self.releases):
            raise InvalidArgument(
                "releases",
                shown(self.releases),
                "it is not a tuple of releases; a subclass of one would be priced by its own claim",
                "Pass (ClippedSum(1.0),)",
            )
        shares = [release.share for release in self.noised]
        if not self.noised and self.selections:
            if self.noise_multiplier != math.inf:
                reason = "a request of selections alone releases nothing with Gaussian noise"
                raise InvalidArgument("noise_multiplier", self.noise_multiplier, reason, "Pass math.inf")
            return
        if self.noise_multiplier == math.inf:
            raise InvalidArgument("noise_multiplier", math.inf, "sums would be released without noise", "Use a number")
        if not self.sums or not math.isclose(math.fsum(shares), 1.0, rel_tol=1e-9):
            raise InvalidArgument(
                "releases",
                shares,
                "the shares of one batch must add up to 1, or the stated multiplier would not be the executed one",
                "Divide each share by their sum",
            )
        named = [name for release in self.sums for name in release.parameters or ("*",)]
        if len(set(named)) != len(named) or ("*" in named and len(named) > 1):
            raise InvalidArgument(
                "releases",
                named,
                "a parameter stands in two groups, so its gradient would be released twice",
                "Use disjoint groups",
            )
        if len(set(self.statistics)) != len(self.statistics):
            raise InvalidArgument(
                "releases",
                shown(self.statistics),
                "a statistic is asked for twice, and there is one answer to it",
                "Ask once, with the share of both",
            )

    def _require_usable_groups(self) -> None:
        if type(self.groups) is not tuple or not all(type(one) is GroupFactors for one in self.groups):
            reason = "it is not a tuple of GroupFactors; a subclass would be priced by its own claim"
            raise InvalidArgument("groups", shown(self.groups), reason, "Pass (GroupFactors(share=1.0),)")
        if any(rate > 1 for rate in self.rates):
            raise InvalidArgument("groups", self.rates, "a sampling rate exceeds 1", "Use smaller factors")
        if self.groups and any(type(release) in SELECTIONS for release in self.releases):
            reason = "selections are priced for everybody alike, and groups have prices of their own"
            raise InvalidArgument("groups", self.groups, reason, "Ask for gradients and statistics only")

    @property
    def rates(self) -> tuple[float, ...]:
        """q_p = q·ρ_p of each group; q alone if there are none."""
        return tuple(self.sample_rate * one.rate for one in self.groups) or (self.sample_rate,)

    @property
    def clips(self) -> tuple[float, ...]:
        """s_p of each group; 1 alone if there are none."""
        return tuple(one.clip for one in self.groups) or (1.0,)

    @property
    def expected_weight(self) -> float:
        """N·Σ_p r_p·q_p·s_p: what the units of a batch weigh in statistics together, as declared; q·N without groups.

        q and q_p are rates of units: of at least one of the coins that belong to a unit.
        """
        if not self.groups:
            return self.expected_batch_size
        rates = [rate_of_any(rate, self.coins_per_unit) for rate in self.rates]
        weight = math.fsum(one.share * rate * one.clip for one, rate in zip(self.groups, rates, strict=True))
        return self.expected_batch_size * weight / rate_of_any(self.sample_rate, self.coins_per_unit)

    @property
    def sums(self) -> tuple[ClippedSum, ...]:
        """The releases that make the gradient."""
        return tuple(release for release in self.releases if isinstance(release, ClippedSum))

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """The releases that are one number each."""
        return tuple(release for release in self.releases if isinstance(release, Statistic))

    @property
    def noised(self) -> tuple[Noised, ...]:
        """The releases with Gaussian noise."""
        return tuple(release for release in self.releases if isinstance(release, Noised))

    @property
    def selections(self) -> tuple[Selection, ...]:
        """The releases that are an index each."""
        return tuple(release for release in self.releases if isinstance(release, Selection))

    def event(self) -> Event:
        """The price of this request. The only source of what is charged."""
        choices = tuple(release.choice() for release in self.selections)
        return event_for(self.sample_rate, self.noise_multiplier, self.groups, choices, self.coins_per_unit)

    def standard_deviation(self, release: Noised) -> float:
        """s = z·Δ/√w: the noise on every coordinate of the *sum* that `release` asks for."""
        return self.noise_multiplier * release.sensitivity / math.sqrt(release.share)


def event_for(
    sample_rate: float,
    noise_multiplier: float,
    groups: tuple[GroupFactors, ...] = (),
    choices: tuple[Choice, ...] = (),
    coins_per_unit: int = 1,
) -> Event:
    """The event of a request with rate q and multiplier z: for group p (q·ρ_p, z/s_p); with several coins the rate of at least one."""
    if not groups:
        return Event(rate_of_any(sample_rate, coins_per_unit), noise_multiplier, choices)
    pairs = tuple((rate_of_any(sample_rate * one.rate, coins_per_unit), noise_multiplier / one.clip) for one in groups)
    rates, multipliers = zip(*pairs, strict=True)
    return Event(max(rates), min(multipliers), choices, pairs)


def rate_of_any(rate: float, coins: int) -> float:
    """1 − (1 − q)^k, the probability that at least one of k coins falls true; rounded up."""
    if coins == 1 or rate == 1:
        return rate
    return min(1.0, -math.expm1(coins * math.log1p(-rate)) * (1 + 1e-12))


@final
@dataclass(frozen=True)
class Released:
    """The noisy answer to a request. Safe to look at, to log and to publish.

    Args:
        request: what was asked (public).
        gradient: for each trained parameter, (clipped sum + noise) / expected batch size, in its own coordinates.
        statistics: for each of `request.statistics`, (sum + noise) / expected weight of a batch, which is its size without groups.
        selected: for each of `request.selections`, the index of the chosen step size; `None` if a `FirstGain` found none.
    """

    request: Request
    gradient: Mapping[str, Tensor]
    statistics: tuple[float, ...] = ()
    selected: tuple[int | None, ...] = ()

    def split_usable(self) -> tuple[Released, float | None]:
        """This answer without the one to a `UsableCount`, which is not for strategies, and that one; `None` if it was not asked for.

        It is asked last, and answered as Σ_i (u_i − ½) + noise, divided by the expected weight of a batch.
        """
        if not self.request.statistics or type(self.request.statistics[-1]) is not UsableCount:
            return self, None
        *others, answer = self.statistics
        return Released(self.request, self.gradient, tuple(others), self.selected), answer

    def __repr__(self) -> str:  # a gradient of a million numbers is no help in a traceback
        names: Any = list(self.gradient)
        return f"Released(request={self.request!r}, gradient of {names})"
