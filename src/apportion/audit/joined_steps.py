"""What several ranks did in one step, put together: the step that the ledger has charged.

Each rank is watched by itself. What one record can move, and what hides it, is what all of them release together:

- ranks that hold the whole model add up: exact sums add up, noise adds up in variance, and coins are those of all;
- ranks that hold parts of each parameter lie side by side: a number and its noise are with one of them. A noise that is smaller on one
  rank than on the others is the noise of the whole: whoever looks at that part has no other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from apportion.audit.recording import NoiseCall, Step
from apportion.audit.state import State
from apportion.request import Released

_ROUNDING = 1e-14  # of a sum over a few dozen ranks in float64
Join = Callable[[Sequence[Step]], Step]


@dataclass(frozen=True)
class Division:
    """How the ranks of a run divide it.

    Args:
        join: makes one step of what each rank did in it.
        own: what of the public state each rank has for itself, by the first part of its path. All else is the same on all.
    """

    join: Join
    own: frozenset[str]

    def shared(self, state: State) -> State:
        """What must be the same on all ranks."""
        return {path: text for path, text in state.items() if _root(path) not in self.own}

    def state(self, states: Sequence[State]) -> State:
        """All that there is to be seen of these ranks."""
        found = dict(states[0])
        for rank, state in enumerate(states[1:], start=1):
            found |= {f"{path} (rank {rank})": text for path, text in state.items() if _root(path) in self.own}
        return found


def _root(path: str) -> str:
    return path.partition(".")[0].partition("[")[0]


def added_up(steps: Sequence[Step], wide: bool) -> Step:
    """Of ranks that hold the whole model.

    Args:
        wide: whether sums travelled in float64, because all noise came from the first rank.
    """
    first, parts = steps[0], _calls(steps)
    travelled = ([] if first.released is None or wide else _types(first.released)) + [torch.float64] * len(parts)
    calls = [sum_of(part, kind) for part, kind in zip(parts, travelled, strict=False)]
    return replace(with_all_coins(steps), calls=calls)


def side_by_side(steps: Sequence[Step], dimensions: Mapping[str, int]) -> Step:
    """Of ranks that hold parts of each parameter, and count together.

    Args:
        dimensions: along which each parameter is divided.
    """
    joined, answers = with_all_coins(steps), [step.released for step in steps if step.released is not None]
    if len(answers) < len(steps):
        return joined
    parts = _calls(steps)
    names = list(answers[0].gradient)
    calls = [_beside(part, dimensions[name]) for name, part in zip(names, parts, strict=False)]
    statistics = zip(answers[0].request.statistics, parts[len(names) :], strict=False)
    calls += [_as_told(part, answers[0].answer_to(statistic)) for statistic, part in statistics]
    gradient = {name: torch.cat([one.gradient[name] for one in answers], dimensions[name]) for name in names}
    return replace(joined, calls=calls, released=replace(answers[0], gradient=gradient), forms=all_forms(steps))


def with_all_coins(steps: Sequence[Step]) -> Step:
    """The first rank's step with the coins and the records of all, each of which has its own; without noise calls."""
    tossed = {rates for step in steps for _, rates in step.coins}
    return replace(
        steps[0],
        coins=[(sum(count for step in steps for count, _ in step.coins), rates) for rates in sorted(tossed)],
        members=set().union(*(step.members for step in steps)),
        read=set().union(*(step.read for step in steps)),
        calls=[],
    )


def all_forms(steps: Sequence[Step]) -> dict[str, tuple[object, ...]]:
    """The forms of what each rank was handed out."""
    return {f"{name} (rank {rank})": form for rank, step in enumerate(steps) for name, form in step.forms.items()}


def _calls(steps: Sequence[Step]) -> list[tuple[NoiseCall, ...]]:
    """The noise calls of all ranks, one by one; none if their numbers differ, which is a finding."""
    same = len({len(step.calls) for step in steps}) == 1
    return list(zip(*(step.calls for step in steps), strict=True)) if same else []


def _types(released: Released) -> list[torch.dtype]:
    """In which types the parts of each parameter travelled to the other ranks; those of statistics, after them, did so in float64."""
    sums = released.request.sums
    framed = {name for one in sums for name in one.parameters or released.gradient if one.frame is not None}
    return [
        torch.float64 if name in framed else torch.promote_types(answer.dtype, torch.float32)
        for name, answer in released.gradient.items()
    ]


def sum_of(parts: Sequence[NoiseCall], travelled: torch.dtype) -> NoiseCall:
    """One noisy sum of those of all ranks, each with its share of the noise."""
    answer = torch.zeros_like(parts[0].answer, dtype=travelled)
    for part in parts:
        answer = answer + part.answer.to(travelled)
    return NoiseCall(
        exact_sum=sum((part.exact_sum for part in parts[1:]), parts[0].exact_sum),
        standard_deviation=math.hypot(*(part.standard_deviation for part in parts)),
        divisor=_same_divisor(parts),
        answer=answer.double(),
        own_stream=all(part.own_stream for part in parts),
        dtype=travelled,
    )


def _as_told(parts: Sequence[NoiseCall], told: Sequence[float]) -> NoiseCall:
    """Likewise, as it was handed out: a backend adds in an order of its own, and the last bits follow from that order."""
    call = sum_of(parts, torch.float64)
    answer = torch.tensor(told, dtype=torch.float64).view_as(call.answer)
    rounding = _ROUNDING * torch.stack([part.answer.abs() for part in parts]).sum(0)
    return replace(call, answer=answer) if bool(((answer - call.answer).abs() <= rounding).all()) else call


def _beside(parts: Sequence[NoiseCall], dimension: int) -> NoiseCall:
    """One noisy sum of its parts, each with all of its noise."""
    return NoiseCall(
        exact_sum=torch.cat([part.exact_sum for part in parts], dimension),
        standard_deviation=min(part.standard_deviation for part in parts),
        divisor=_same_divisor(parts),
        answer=torch.cat([part.answer for part in parts], dimension),
        own_stream=all(part.own_stream for part in parts),
        dtype=parts[0].dtype,
    )


def _same_divisor(parts: Sequence[NoiseCall]) -> float:
    return parts[0].divisor if len({part.divisor for part in parts}) == 1 else math.nan
