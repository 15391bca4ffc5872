"""Groups of parameters, each with a threshold and noise of its own. Any clip strategy can use them.

**Noise.** Group k has threshold C_k and gets noise of standard deviation s_k = z·C_k/√w_k, where the shares w_k of the step's budget
add up to 1. One record then moves the whole answer, in units of its noise, by √(Σ_k (C_k/s_k)²) = 1/z: every allocation has the
same price.

| allocation  | share w_k     | noise s_k           | meaning                                          |
|-------------|---------------|---------------------|--------------------------------------------------|
| `equal`     | 1/K           | z·C_k·√K            | each group its own noise, in proportion to C_k   |
| `global`    | C_k²/Σ_j C_j² | z·√(Σ_j C_j²)       | the same noise on every coordinate               |
| `dimension` | d_k/Σ_j d_j   | z·C_k·√(Σ_j d_j/d_k)| large groups get less noise; d_k: their size     |

Source: He et al., Exploring the Limits of Differentially Private Deep Learning with Group-wise Clipping.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Literal, cast, get_args

from apportion.errors import InvalidArgument
from apportion.releases import ClippedSum
from apportion.strategies.context import Context
from apportion.validate import Checked, check, known, one_of, shown

Allocation = Literal["equal", "global", "dimension"]
Groups = Literal["flat", "layer"] | tuple[tuple[str, ...], ...]
"""One group of all parameters, one for each layer, or the groups that patterns of names describe: (("conv*",), ("fc*", "out.*"))."""


@dataclass(frozen=True)
class Group:
    """Some parameters. `names` is `None` for all of them, and `size` is how many numbers they have."""

    names: tuple[str, ...] | None
    size: int


def _read_groups(argument: str, value: Any, why: str, fix: str) -> Groups:
    """A rule: a name, or patterns for each group, which may be a single one."""
    if isinstance(value, str):
        known(argument, value, ("flat", "layer"), "it is neither a name nor a list of groups")
        return cast(Groups, value)
    listed = tuple((one,) if isinstance(one, str) else one for one in value) if isinstance(value, Sequence) else ()
    patterns = tuple(tuple(one) if isinstance(one, Sequence) else () for one in listed)
    if not patterns or not all(one and all(isinstance(name, str) for name in one) for one in patterns):
        raise InvalidArgument(argument, shown(value), why, fix)
    return patterns


@dataclass(frozen=True)
class Grouped(Checked):
    """What all clip strategies have in common: the groups of parameters, and how the noise is allocated to them.

    Args:
        groups: "flat", "layer", or patterns of names for each group.
        allocation: "equal" (noise of a group in proportion to its threshold), "global" (the same noise on every coordinate) or
            "dimension" (large groups get less).
    """

    prefix = "clip"
    groups: Groups = field(
        default="flat",
        kw_only=True,
        metadata=check(
            _read_groups,
            'it is neither "flat" nor "layer" nor a list of groups of names',
            'Try groups="layer", or groups=[["conv*"], ["fc*"]]',
        ),
    )
    allocation: Allocation = field(
        default="equal", kw_only=True, metadata=check(one_of(*get_args(Allocation)), "there is no such allocation")
    )

    def split(self, context: Context) -> tuple[Group, ...]:
        """The groups of the model that is trained."""
        sizes = {name: math.prod(shape) for name, shape in context.parameter_shapes.items()}
        if self.groups == "flat":
            return (Group(None, sum(sizes.values())),)
        if self.groups == "layer":
            layers: dict[str, list[str]] = {}
            for name in sizes:
                layers.setdefault(name.rpartition(".")[0], []).append(name)
            members = list(layers.values())
        else:
            members = [[name for name in sizes if _matches(name, patterns)] for patterns in self.groups]
            _require_partition(self.groups, members, sizes)
        return tuple(Group(tuple(names), sum(sizes[name] for name in names)) for names in members)

    def clipped_sums(
        self, context: Context, thresholds: Sequence[float], *, share: float = 1.0, **options: Any
    ) -> tuple[ClippedSum, ...]:
        """One release for each group.

        Args:
            thresholds: C_k of each group.
            share: what all of them together may use of the step's budget.
            options: further arguments of every `ClippedSum`.
        """
        # floats alone are taken from the cache: a tensor that was written to since would be found again
        make = ClippedSum if options or any(type(one) is not float for one in thresholds) else _plain_sum
        if self.groups == "flat":  # one group has all of the share
            return tuple(make(threshold, None, share, **options) for threshold in thresholds)
        groups = self.split(context)
        weights = {
            "equal": [1.0 for _ in groups],
            "global": [threshold**2 for threshold in thresholds],
            "dimension": [float(group.size) for group in groups],
        }[self.allocation]
        total = math.fsum(weights)
        return tuple(
            make(threshold, group.names, share * weight / total, **options)
            for group, threshold, weight in zip(groups, thresholds, weights, strict=True)
        )


@lru_cache(maxsize=64)
def _plain_sum(threshold: float, names: tuple[str, ...] | None, share: float) -> ClippedSum:
    """The same object for the same sum, which is checked once: most schedules ask for it again and again."""
    return ClippedSum(threshold, names, share)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _require_partition(groups: Groups, members: list[list[str]], sizes: Mapping[str, int]) -> None:
    """Each trained parameter in exactly one group, and no group without one."""
    empty = [patterns for patterns, names in zip(groups, members, strict=True) if not names]
    if empty:
        raise InvalidArgument("clip.groups", empty[0], "no trained parameter has such a name", f"Use {sorted(sizes)}")
    counted = [name for names in members for name in names]
    odd = sorted(name for name in sizes if counted.count(name) != 1)
    if odd:
        raise InvalidArgument(
            "clip.groups",
            odd,
            "each trained parameter must be in exactly one group",
            'Correct the patterns; "*" is all',
        )
