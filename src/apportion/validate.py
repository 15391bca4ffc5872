"""One place that turns a bad number into a clear `InvalidArgument`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from apportion.errors import InvalidArgument


def _number(argument: str, value: Any) -> float:
    try:
        number = value if isinstance(value, (int, float)) else value.item()  # a NumPy or torch scalar
        if isinstance(value, bool):
            raise TypeError
        number = float(number)
    except OverflowError:  # its digits may be too many to print
        size = f"an integer of {value.bit_length()} bits"
        raise InvalidArgument(argument, size, "it is larger than any float", "Check where it comes from") from None
    except (AttributeError, TypeError, ValueError, RuntimeError):
        raise InvalidArgument(argument, shown(value), "a number is needed", f"Pass {argument} as a number") from None
    if math.isnan(number):
        raise InvalidArgument(argument, value, "it is not a number", "Check where the value comes from")
    return number


def shown(value: Any) -> Any:
    """`value` for a message, or its type where it cannot be printed, as an integer of thousands of digits."""
    try:
        repr(value)
    except Exception:
        return type(value).__name__
    return value


def positive(argument: str, value: Any, why: str, fix: str) -> float:
    """Return `value` if 0 < value < ∞."""
    number = _number(argument, value)
    if not 0 < number < math.inf:
        raise InvalidArgument(argument, value, f"it must be positive and finite, because {why}", fix)
    return number


def non_negative(argument: str, value: Any, why: str, fix: str) -> float:
    """Return `value` if 0 ≤ value < ∞."""
    number = _number(argument, value)
    if not 0 <= number < math.inf:
        raise InvalidArgument(argument, value, f"it must be at least 0 and finite, because {why}", fix)
    return number


def in_open_unit(argument: str, value: Any, why: str, fix: str) -> float:
    """Return `value` if 0 < value < 1."""
    number = _number(argument, value)
    if not 0 < number < 1:
        raise InvalidArgument(argument, value, f"it must lie strictly between 0 and 1, because {why}", fix)
    return number


def probability(argument: str, value: Any, why: str, fix: str) -> float:
    """Return `value` if 0 < value ≤ 1."""
    number = _number(argument, value)
    if not 0 < number <= 1:
        raise InvalidArgument(argument, value, f"it must lie in (0, 1], because {why}", fix)
    return number


def delta(value: Any) -> float:
    """Return δ if 0 < δ < 1."""
    reason = "it is the part of probability for which e^ε does not bound the ratio"
    return in_open_unit("delta", value, reason, "Use less than 1/population, e.g. delta=1e-5")


def whole(argument: str, value: Any, why: str, fix: str, *, least: int = 1) -> int:
    """Return `value` as an int if it is a whole number ≥ `least`."""
    number = _number(argument, value)
    if not math.isfinite(number) or number != int(number) or number < least:
        raise InvalidArgument(argument, value, f"it must be a whole number of at least {least}, because {why}", fix)
    return int(number)


def store(instance: object, **numbers: Any) -> None:
    """Put validated numbers into a frozen dataclass, so that a NumPy or torch scalar becomes a plain one."""
    for name, number in numbers.items():
        object.__setattr__(instance, name, number)


_ALIASES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("learning_rate", "learningrate", "eta"), ("lr",)),
    **dict.fromkeys(("batch", "lot_size", "expected_batch_size"), ("batch_size",)),
    **dict.fromkeys(("q", "sampling_rate", "sampling_probability"), ("sample_rate",)),
    **dict.fromkeys(("iterations", "max_steps", "num_steps"), ("steps",)),
    **dict.fromkeys(("dataset_size", "num_records", "records", "sample_size"), ("population",)),
    **dict.fromkeys(("noise_multiplier", "sigma", "noise_scale", "z"), ("noise.multiplier",)),
    **dict.fromkeys(
        ("clip_norm", "max_grad_norm", "l2_norm_clip", "clipping_norm", "c"), ("clip.threshold", "clip.start")
    ),
    **dict.fromkeys(("target_epsilon", "eps"), ("epsilon",)),
    "target_delta": ("delta",),
    "threshold": ("clip.threshold", "clip.start"),
    "start": ("clip.start", "clip.threshold"),
    "dataset": ("data",),
}
"""What papers and other libraries call our settings: letters would lead from `learning_rate` to `sample_rate`."""


def known(argument: str, value: str, choices: Iterable[str], reason: str = "there is no such name") -> str:
    """Return `value` if it is one of `choices`; otherwise say which name is closest, in meaning or in letters."""
    names = sorted(choices)
    if isinstance(value, str) and value in names:
        return value
    value = shown(value)
    closest = _closest(str(value), names)
    hint = f"Did you mean {closest!r}? " if closest else ""
    raise InvalidArgument(argument, value, reason, f"{hint}Choose from: {', '.join(names)}")


def _closest(value: str, names: Sequence[str]) -> str | None:
    """An alias may stand for a setting of a role (`noise.multiplier`): it is named in whole where roles or recipes are chosen."""
    for alias in _ALIASES.get(value.lower().replace("-", "_"), ()):
        role, dot, parameter = alias.rpartition(".")
        if parameter in names:
            return parameter
        if dot and not {role, "recipe"}.isdisjoint(names):
            return alias
    close = get_close_matches(value, names, n=1, cutoff=0.5)
    return close[0] if close else None
