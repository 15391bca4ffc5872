"""What two recorded runs on neighbouring data sets say about the guarantee."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from scipy.stats import chi2
from torch import nn

from apportion.audit.recording import ChoiceCall, NoiseCall, Recording, Step
from apportion.audit.replay_report import Finding, Kind
from apportion.audit.state import differences
from apportion.curator.clipping import group_names
from apportion.curator.gradients.model_walk import trained_parameters
from apportion.event import Event, rate_of_any
from apportion.releases import ClippedSum, Frame, LowestLoss, Noised, Statistic, UnclippedCount, UsableCount
from apportion.request import Request

_ROUNDING = 1e-9  # float64 sums of a few records
_RAMP_ROUNDING = 1e-5  # of a dozen other records, whose norms move in the last bit when they run in another micro-batch
_CHANCE = 1e-9  # probability that sound noise is called unsound
_HEAD, _ALIKE = (
    3,
    1e-4,
)  # numbers by which two noises are compared, and how far they may differ; answers may be rounded to float32
_NEAREST = 3  # of the sorted first numbers, so many of the next are looked at


@dataclass(frozen=True)
class Declared:
    """What was said in public before the run."""

    model: nn.Module
    expected_batch_size: float
    coins_per_unit: int = 1
    may_leave_out: bool = False
    """Whether somebody whose coin fell true may be left out, as by an individual filter."""

    def groups(self, request: Request) -> list[tuple[Noised, str]]:
        """(release, parameter) of every noise call that the request leads to, in order. Statistics come last and have no parameter."""
        trained = list(trained_parameters(self.model))
        gradient: list[tuple[Noised, str]] = [
            (release, name) for release in request.sums for name in group_names(release, trained)
        ]
        return gradient + [(statistic, "") for statistic in request.statistics]

    def shape(self, name: str) -> torch.Size:
        """Of a trained parameter."""
        return trained_parameters(self.model)[name].shape


def inspect_run(run: Recording, neighbour: str, declared: Declared, size: int) -> Iterator[Finding]:
    """What a single run shows: each draw charged, tossed fairly, noised as charged, and handed out as noised.

    Args:
        size: how many coins are to be tossed for the data set.
    """
    for number, step in enumerate(run.steps, start=1):
        if len(step.charged) != number:
            yield Finding(
                neighbour, "charge", f"the ledger held {len(step.charged)} charges when draw {number} began", number
            )
        event = run.charged[number - 1] if number <= len(run.charged) else None
        if event is not None:
            yield from _inspect_coins(step, neighbour, number, event, size, declared)
        if run.failure is not None and step is run.steps[-1]:
            return  # an exception ended it: it has no answer to judge
        yield from _inspect_answer(step, neighbour, number, event, declared)


def _inspect_coins(
    step: Step, neighbour: str, number: int, event: Event, size: int, declared: Declared
) -> Iterator[Finding]:
    charged = tuple(rate for rate, _ in event.groups) or (event.sample_rate,)
    tossed = [tuple(rate_of_any(rate, declared.coins_per_unit) for rate in rates) for _, rates in step.coins]
    fair = all(
        len(rates) == len(charged) and all(a <= b for a, b in zip(rates, charged, strict=True)) for rates in tossed
    )
    if [count for count, _ in step.coins] != [size] or not fair:
        text = f"coins (how many, rates) {step.coins} for {size} of them, at charged rates of {charged}"
        yield Finding(neighbour, "sampling", text, number)
    elif not (step.read <= step.members if declared.may_leave_out else step.read == step.members):
        yield Finding(neighbour, "sampling", "other records were read than those whose coin fell true", number)


def _inspect_answer(
    step: Step, neighbour: str, number: int, event: Event | None, declared: Declared
) -> Iterator[Finding]:
    released = step.released
    if released is None:
        return  # charged and never answered: a waste, but no leak
    groups = declared.groups(released.request)
    names = [name for _, name in groups if name]
    answers = len(released.gradient) + len(released.statistics)
    asked = len(names) + released.request.statistic_numbers
    if len(step.calls) != len(groups) or answers != asked or sorted(released.gradient) != sorted(names):
        text = f"{len(step.calls)} noise calls and {answers} answers for {len(groups)} trained parameters and statistics of {asked} answers"
        yield Finding(neighbour, "calls", text, number)
        return
    yield from _inspect_choices(step, neighbour, number, event)
    if not all([*(call.own_stream for call in step.calls), *(call.own_stream for call in step.choices)]):
        yield Finding(neighbour, "noise", "noise was drawn from another stream than the draw's own", number)
    # One noise call of each release stands for it: all calls of a release have the same standard deviation, or the largest
    # quotient counts.
    quotients: dict[int, float] = {}
    order = [id(release) for release in (*released.request.sums, *released.request.statistics)]
    for (release, name), call in zip(groups, step.calls, strict=True):
        j = order.index(id(release))
        quotients[j] = max(quotients.get(j, 0.0), _quotient(release.sensitivity, call.standard_deviation))
        if isinstance(release, Statistic):
            right = tuple(call.answer.view(-1).tolist()) == released.answer_to(release)
        else:
            right = torch.equal(_restored(release, name, call.answer, released.gradient[name]), released.gradient[name])
            right = right and released.gradient[name].shape == declared.shape(name)  # also where ranks have parts of it
        # rounded once, at the very end; in a frame the end is later
        allowed = {torch.float64} if not name or _frame(release) else {torch.float64, released.gradient[name].dtype}
        divisor = declared.expected_batch_size if name else _declared_weight(released.request, declared)
        if not right or call.divisor != divisor or call.dtype not in allowed:
            text = f"{name or release} is not the noisy sum divided by the declared {divisor:g}"
            yield Finding(neighbour, "release", text, number, j)
    joint = math.sqrt(math.fsum(quotient**2 for quotient in quotients.values()))
    for group, clip in enumerate(released.request.clips):
        charged = math.inf if event is None else event.of_group(group).noise_multiplier
        if event is not None and not joint * clip <= (1 + _ROUNDING) / charged:
            text = f"sensitivity over noise is {joint * clip:.6g}, but 1/{charged:.6g} was charged"
            yield Finding(neighbour, "multiplier", text, number, None, joint * clip, 1 / charged)


def _inspect_choices(step: Step, neighbour: str, number: int, event: Event | None) -> Iterator[Finding]:
    """Each selection that was asked for was made once, handed out as it was made, and paid for."""
    released = step.released
    assert released is not None
    asked, made = released.request.selections, [call.release for call in step.choices]
    if list(asked) != made or released.selected != tuple(call.answer for call in step.choices):
        yield Finding(
            neighbour, "calls", f"{len(made)} selections were made, or answered otherwise, for {len(asked)}", number
        )
    needed = sorted((release.choice() for release in made), reverse=True)
    if event is not None and list(event.choices) != needed:
        yield Finding(neighbour, "charge", f"{needed} was executed, and {list(event.choices)} charged", number)


def _declared_weight(request: Request, declared: Declared) -> float:
    """What records weigh in statistics, from the declared size of a batch: not from the request's own claim of it."""
    if not request.groups:
        return declared.expected_batch_size
    everybody, *rates = (rate_of_any(q, declared.coins_per_unit) for q in (request.sample_rate, *request.rates))
    weight = math.fsum(one.share * q * one.clip for one, q in zip(request.groups, rates, strict=True))
    return declared.expected_batch_size * weight / everybody


def _restored(release: Noised, name: str, answer: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    frame = _frame(release)
    return (answer if frame is None else frame.restored(name, answer)).to(like.dtype)


def _frame(release: Noised) -> Frame | None:
    return release.frame if isinstance(release, ClippedSum) else None


def inspect_noise(run: Recording, neighbour: str) -> Iterator[Finding]:
    """Whether the noise that was really added has the declared size, Σ((noisy − exact)/s)² against χ², and is used once."""
    normals = torch.cat([torch.zeros(0, dtype=torch.float64), *map(_normals, _all_calls(run))])
    if not len(normals):
        return
    total, count = float(normals.square().sum()), len(normals)
    if not min(chi2.cdf(total, count), chi2.sf(total, count)) > _CHANCE:
        measured = math.sqrt(total / count)
        text = f"the noise has {measured:.3g} times the declared standard deviation ({count} numbers)"
        yield Finding(neighbour, "noise", text, None, None, measured, 1.0)
    if _repeated([_normals(call) for part in run.parts or [run] for call in _all_calls(part)]):
        yield Finding(neighbour, "noise", "two noise calls, of one rank or of two, have the same noise")


def _all_calls(run: Recording) -> list[NoiseCall]:
    return [call for step in run.steps for call in step.calls]


def _normals(call: NoiseCall) -> torch.Tensor:
    return ((call.answer * call.divisor - call.exact_sum) / call.standard_deviation).flatten()


def _repeated(noises: Sequence[torch.Tensor]) -> bool:
    """Whether two of these begin alike. That independent ones do has a probability of 10⁻¹³ for each pair."""
    heads = torch.stack([noise[:_HEAD] for noise in noises if len(noise) >= _HEAD] or [torch.zeros(_HEAD)])
    heads = heads[heads[:, 0].argsort()]
    near = (heads[1 + shift :] - heads[: -1 - shift] for shift in range(_NEAREST))
    return any(bool((gaps.abs() < _ALIKE).all(1).any()) for gaps in near)


def compare(before: Recording, after: Recording, neighbour: str) -> Iterator[Finding]:
    """What tells the runs on D and D′ apart although both handed out the same noisy values. Each kind is told once."""
    if before.failure != after.failure:
        text = f"D: {before.failure or 'no exception'}; neighbour: {after.failure or 'no exception'}"
        yield Finding(neighbour, "error", f"an exception tells the data sets apart ({text})", len(after.steps))
    elif len(before.steps) != len(after.steps):
        yield Finding(neighbour, "calls", f"{len(before.steps)} draws became {len(after.steps)}")
    if before.charged != after.charged:
        yield Finding(neighbour, "charge", "other events were charged")
    for number, (one, other) in enumerate(zip(before.steps, after.steps, strict=False), start=1):
        if one.released and other.released and one.released.request != other.released.request:
            text = f"{one.released.request} became {other.released.request}"
            yield Finding(neighbour, "request", f"the strategies asked something else: {text}", number)
            break
    for number, (one, other) in enumerate(zip(before.steps, after.steps, strict=False), start=1):
        if _signature(one) != _signature(other):
            yield Finding(neighbour, "calls", "shape, number or standard deviation of the noise calls differ", number)
            break
    for number, (one, other) in enumerate(zip(before.steps, after.steps, strict=False), start=1):
        if one.forms != other.forms:
            yield Finding(neighbour, "state", "released tensors differ in type, strides, storage or writes", number)
            break
    for number, (earlier, later) in enumerate(zip(before.states(), after.states(), strict=False)):
        if different := differences(earlier, later):
            more = "" if len(different) <= 3 else f" and {len(different) - 3} more"
            yield Finding(neighbour, "state", f"{', '.join(different[:3])}{more} differ after this step", number)
            break


@dataclass(frozen=True)
class Distance:
    """How far one record moved a release (or, with `release=None`, the whole answer in units of its noise)."""

    step: int
    release: int | None
    measured: float
    allowed: float
    tells: bool = True
    """Whether it says how close a record can come to what is allowed; a count of usable records always comes as close."""

    @property
    def ratio(self) -> float:
        return self.measured / self.allowed

    @property
    def within(self) -> bool:
        return self.measured <= self.allowed * (1 + _ROUNDING)

    def finding(self, neighbour: str) -> Finding:
        what = "the whole answer, in units of its noise," if self.release is None else f"release {self.release + 1}"
        text = f"one record moved {what} by {self.measured:.6g}, and {self.allowed:.6g} is allowed"
        kind: Kind = "multiplier" if self.release is None else "sensitivity"
        return Finding(neighbour, kind, text, self.step, self.release, self.measured, self.allowed)


def distances(
    before: Recording, after: Recording, multiple: float, declared: Declared, group: int = 0
) -> Iterator[Distance]:
    """‖S_j(D) − S_j(D′)‖ against multiple·s_p·Δ_j for each release j, and √(Σ_j (‖…‖/s_j)²) against multiple/z_p of what was charged.

    Args:
        group: of whoever is added or removed.
    """
    for number, (one, other) in enumerate(zip(before.steps, after.steps, strict=False), start=1):
        if _signature(one) != _signature(other):
            continue
        moved = [_distance(a.exact_sum, b.exact_sum) for a, b in zip(one.calls, other.calls, strict=True)]
        if other.calls and number <= len(after.charged):
            joint = math.hypot(*map(_quotient, moved, (call.standard_deviation for call in other.calls)))
            yield Distance(number, None, joint, multiple / after.charged[number - 1].of_group(group).noise_multiplier)
        if other.released is None or len(groups := declared.groups(other.released.request)) != len(moved):
            continue
        request = other.released.request
        clip = request.clips[group] if request.groups else 1.0
        for j, release in enumerate((*request.sums, *request.statistics)):
            measured = math.hypot(
                *(distance for distance, (one, _) in zip(moved, groups, strict=True) if one is release)
            )
            rounding = 1 + _RAMP_ROUNDING if isinstance(release, UnclippedCount) else 1.0
            tells = not isinstance(release, UsableCount)
            yield Distance(number, j, measured, multiple * clip * release.sensitivity * rounding, tells)
        for j, (a, b) in enumerate(zip(one.choices, other.choices, strict=True), start=len(request.noised)):
            yield Distance(number, j, _choice_distance(a, b), multiple * b.release.sensitivity)


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    distance = float(torch.linalg.vector_norm(one.double() - other.double()))
    return math.inf if math.isnan(distance) else distance


def _choice_distance(one: ChoiceCall, other: ChoiceCall) -> float:
    """How far the candidates moved. Summed losses must all move one way: a spread counts as a distance, as it does in the proof."""
    moved = other.totals - one.totals
    if isinstance(other.release, LowestLoss):
        return float(torch.cat([moved, torch.zeros(1, dtype=moved.dtype)]).max() - min(0.0, float(moved.min())))
    return float(moved.abs().max())


def _quotient(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else math.inf


def _signature(step: Step) -> list[tuple[torch.Size, object]]:
    noised: list[tuple[torch.Size, object]] = [(call.exact_sum.shape, call.standard_deviation) for call in step.calls]
    return noised + [(call.totals.shape, type(call.release).__name__) for call in step.choices]
