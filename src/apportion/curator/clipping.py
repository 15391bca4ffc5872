"""From the gradients of single records to their clipped sum.

Edge cases, each with a test:

| record                               | contribution                                   |
|--------------------------------------|------------------------------------------------|
| ‖g‖ ≤ C (zero included)              | g itself                                       |
| ‖g‖ > C                              | g·C/‖g‖                                        |
| any entry NaN or infinite, any group | 0 in every group: the rest of the batch stays  |
| finite, but ‖g‖² overflows           | 0                                              |
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from apportion.curator.problems import NOT_FINITE, Problems
from apportion.devices import with_float64
from apportion.releases import (
    POOLED_THRESHOLDS,
    ClippedSum,
    Frame,
    Noised,
    NormHistogram,
    Statistic,
    UnclippedCount,
    UsableCount,
)

RAMP_WIDTH = 0.1
"""The width, in thresholds, over which a record passes from unclipped to clipped in a count (`UnclippedCount`)."""

FRAME_CHUNK_NUMBERS = 1 << 17
"""Numbers that are written out at a time: in float64 they stay in a core's cache."""

Rows = Mapping[str, Tensor]
"""For each trained parameter the gradients of b records: a tensor (b, *shape of the parameter)."""


class Gradients(Protocol):
    """The gradients of b records, materialised or not."""

    def squared_norms(self) -> dict[str, Tensor]:
        """‖g_i‖² for each trained parameter, (b,), in float64 and never too small by more than the headroom."""
        ...

    def zero_records(self, records: Tensor) -> None:
        """Set the gradients of these records, a mask (b,), to zero: NaN times a weight of zero would still be NaN."""
        ...

    def weighted_sums(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Σ_i w_i·g_i for each trained parameter, for weights (b,) by name: new tensors, which the caller may write over."""
        ...

    def rows(self, name: str, records: slice) -> Tensor:
        """The gradients of some records for one parameter, written out: (n, *shape of the parameter)."""
        ...

    def __len__(self) -> int:
        """b."""
        ...


class MaterialisedGradients:
    """Gradients as one tensor per parameter. All arithmetic in float64, so that rounding stays far below the headroom."""

    def __init__(self, rows: Rows):
        self._rows = dict(rows)

    def squared_norms(self) -> dict[str, Tensor]:
        return {
            name: torch.linalg.vector_norm(with_float64(flatten_rows(rows)), dim=1, dtype=torch.float64).square()
            for name, rows in self._rows.items()
        }

    def zero_records(self, records: Tensor) -> None:
        for name, rows in self._rows.items():
            mask = records.to(rows.device).reshape(-1, *[1] * (rows.dim() - 1))
            self._rows[name] = torch.where(mask, 0.0, rows)

    def weighted_sums(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        sums = {}
        for name, rows in self._rows.items():
            exact = with_float64(flatten_rows(rows)).to(torch.float64)
            sums[name] = (weights[name].to(exact.device) @ exact).reshape(rows.shape[1:])
        return sums

    def rows(self, name: str, records: slice) -> Tensor:
        return self._rows[name][records]

    def __len__(self) -> int:
        return next((len(rows) for rows in self._rows.values()), 0)


def group_names(release: Noised, trained: Sequence[str]) -> tuple[str, ...]:
    """The parameters of a release, written out."""
    return tuple(trained) if release.parameters is None else release.parameters


def as_gradients(gradients: Gradients | Rows) -> Gradients:
    """Gradients in the form that clipping uses."""
    return MaterialisedGradients(gradients) if isinstance(gradients, Mapping) else gradients


def clip_and_sum(
    gradients: Gradients | Rows,
    releases: Sequence[Noised],
    clips: Tensor | None = None,
    problems: Problems | None = None,
) -> dict[str | Statistic, Tensor]:
    """What the records add to each release, before noise: by parameter Σ_i g_i·min(1, s_i·C/‖g_i‖), and by statistic Σ_i s_i·b_i.

    ‖g_i‖ is taken over the parameters of the release. Sums of a release with a frame are in the coordinates of that frame.

    Args:
        clips: s_i, the factor of each record's group (b,); 1 if it is not given.
        problems: is told how many are not finite.
    """
    records = as_gradients(gradients)
    frames = _frames_of(releases)
    squares = squared_norms(records, releases)
    norms = release_norms(squares, releases)
    clips = None if clips is None else clips.to(norms[0].device)
    finite = None
    if not all(math.isfinite(norm.sum()) for norm in norms):  # otherwise, nearly always, there is nobody to leave out
        finite = torch.stack([norm.isfinite() for norm in norms]).all(0)
        records.zero_records(~finite)
        if problems is not None:
            problems.count(NOT_FINITE, int((~finite).sum()))
    weights: dict[str, Tensor] = {}
    sums: dict[str | Statistic, Tensor] = {}
    for release, norm in zip(releases, norms, strict=True):
        if isinstance(release, ClippedSum):
            factors = _of_finite(clip_factors(release, norm, clips), finite)
            weights |= dict.fromkeys(group_names(release, list(squares)), factors)
        else:
            sums[release] = _of_finite(statistic_terms(release, norm, clips), finite).sum(-1)
    if frames.keys() != squares.keys():
        sums.update(records.weighted_sums(weights))
    for name, frame in frames.items():
        sums[name] = framed_weighted_sum(records, name, frame, weights[name])
    return sums


def _of_finite(values: Tensor, finite: Tensor | None) -> Tensor:
    """`values` with 0 for the records that are not finite; `None` stands for all of them."""
    return values if finite is None else torch.where(finite, values, 0.0)


def _frames_of(releases: Sequence[Noised]) -> dict[str, Frame]:
    """The frames of those parameters that have one."""
    frames: dict[str, Frame] = {}
    for release in releases:
        if isinstance(release, ClippedSum) and release.frame is not None:
            frames |= dict.fromkeys(release.frame.scale, release.frame)
    return frames


def squared_norms(records: Gradients, releases: Sequence[Noised]) -> dict[str, Tensor]:
    """‖g_i‖² by parameter, in the coordinates of its release."""
    frames = _frames_of(releases)
    whole = bool(frames) and all(
        isinstance(one, UsableCount) or (isinstance(one, ClippedSum) and one.frame) for one in releases
    )
    squares = {} if whole else records.squared_norms()
    return squares | {name: framed_squared_norms(records, name, frame) for name, frame in frames.items()}


def release_norms(squares: Mapping[str, Tensor], releases: Sequence[Noised]) -> list[Tensor]:
    """‖g_i‖ over the parameters of each release."""
    return [_total([squares[name] for name in group_names(release, list(squares))]).sqrt() for release in releases]


def _total(parts: Sequence[Tensor]) -> Tensor:
    """Σ_k parts_k; of one or two without a copy of them."""
    if len(parts) > 2:
        return torch.stack(list(parts)).sum(0)
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


def pooling_factors(records: Gradients, sums: Sequence[ClippedSum]) -> Tensor:
    """By how much each record's gradient is multiplied before those of a user are added up, (b,); NaN where it is not finite.

    It is cut to 64·C, over the parameters of every release; of a release with a stabiliser to 64·γ. Gradients of 10⁷·C that nearly
    cancel would leave their last bits, which depend on the other users of a micro-batch, and clipping would make a vector of norm C of
    them.
    """
    norms = release_norms(squared_norms(records, sums), sums)
    limits = [POOLED_THRESHOLDS * (release.stabiliser or release.threshold) for release in sums]
    factors = [
        torch.where(norm.isfinite(), limit / norm.clamp(min=limit), torch.nan)
        for norm, limit in zip(norms, limits, strict=True)
    ]
    return torch.stack(factors).amin(0)


def clip_factors(release: ClippedSum, norms: Tensor, clips: Tensor | None = None) -> Tensor:
    """By how much each record's gradient is multiplied: never to more than s_i·C."""
    threshold: float | Tensor = release.threshold if clips is None else release.threshold * clips
    if release.stabiliser is not None:
        return threshold / (norms + release.stabiliser)
    # A norm of 0 gives an infinite quotient, which the bound at 1 turns into "unclipped".
    return (threshold / norms).clamp(max=1.0)


def statistic_terms(statistic: Statistic, norms: Tensor, clips: Tensor | None = None) -> Tensor:
    """What each record with a finite gradient adds to a statistic, (b,), of a histogram (points, b): s_i times whether it is unclipped at
    s_i·C, less a half; s_i times its bounded norm; s_i times where ‖g_i‖/s_i lies among the points; s_i alone to the count of usable
    records, from which the halves of all that were drawn are taken off elsewhere."""
    if isinstance(statistic, UsableCount):
        return torch.ones_like(norms) if clips is None else clips.to(norms.dtype)
    if isinstance(statistic, NormHistogram):
        return (
            _shares_of_points(statistic.points, norms)
            if clips is None
            else clips * _shares_of_points(statistic.points, norms / clips)
        )
    if not isinstance(statistic, UnclippedCount):
        bounded = norms.clamp(max=statistic.bound)
        return bounded if clips is None else clips * bounded
    if clips is None:
        return ((statistic.threshold - norms) / (RAMP_WIDTH * statistic.threshold)).clamp(-0.5, 0.5)
    own = clips * statistic.threshold
    return clips * ((own - norms) / (RAMP_WIDTH * own)).clamp(-0.5, 0.5)


def _shares_of_points(points: Sequence[float], norms: Tensor) -> Tensor:
    """Where each norm lies among the points, (points, b): two neighbours share it, and each column adds up to 1."""
    exact = torch.tensor(points, dtype=torch.float64).to(norms.device).unsqueeze(1)
    passed = ((norms - exact[:-1]) / (exact[1:] - exact[:-1])).clamp(
        0.0, 1.0
    )  # how far beyond each point, up to the next
    ends = torch.ones_like(norms).unsqueeze(0), torch.zeros_like(norms).unsqueeze(0)
    return torch.cat([ends[0], passed]) - torch.cat([passed, ends[1]])


# Clipping in a frame, (g_i − m)/b: every record has to be written out, a few at a time. In float64 from the first subtraction on: m may be
# far larger than what is left of g_i − m, and the bound holds for that.


def framed_squared_norms(records: Gradients, name: str, frame: Frame) -> Tensor:
    """‖(g_i − m)/b‖² for one parameter, (b,)."""
    squares = [torch.linalg.vector_norm(rows, dim=1).square() for _, rows in _framed_rows(records, name, frame)]
    return torch.cat(squares) if squares else torch.zeros(0, dtype=torch.float64)


def framed_weighted_sum(records: Gradients, name: str, frame: Frame, weights: Tensor) -> Tensor:
    """Σ_i w_i·(g_i − m)/b for one parameter."""
    total = torch.zeros(frame.scale[name].numel(), dtype=torch.float64, device=weights.device)
    for part, rows in _framed_rows(records, name, frame):
        unused = weights[part] == 0
        if unused.any():  # such a record need not be finite in this frame, and NaN times a weight of 0 would be NaN
            rows[unused] = 0.0
        total += weights[part] @ rows
    return total.reshape(frame.scale[name].shape)


def flatten_rows(rows: Tensor) -> Tensor:
    """(n, numbers); a parameter may be a single number."""
    return rows.flatten(1) if rows.dim() > 1 else rows.unsqueeze(1)


def _framed_rows(records: Gradients, name: str, frame: Frame) -> Iterator[tuple[slice, Tensor]]:
    centre, scale = (with_float64(part[name]).double().flatten() for part in (frame.centre, frame.scale))
    few = max(1, FRAME_CHUNK_NUMBERS // max(1, centre.numel()))
    for start in range(0, len(records), few):
        part = slice(start, min(start + few, len(records)))
        rows = with_float64(flatten_rows(records.rows(name, part)))
        centre, scale = centre.to(rows.device), scale.to(rows.device)
        yield part, (rows - centre).div_(scale)  # float64, and a tensor of its own
