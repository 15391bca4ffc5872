"""One place that turns a bad value into a clear `InvalidArgument`: rules for single values, and `Checked` for dataclasses.

A **rule** is a function (argument, value, why, fix) that returns the value as it is to be kept (a NumPy or torch scalar becomes a plain
number) or raises. It can be called where a function takes an argument, or be declared where a dataclass has a field:

    @dataclass(frozen=True)
    class WarmUp(ClipSchedule):
        threshold: float = checked(1.0, positive, "it bounds what one record can do")
        length: int | None = checked(None, whole, "it is a number of steps")
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, field, fields
from difflib import get_close_matches
from functools import cache, partial
from typing import Any, ClassVar, TypeVar

from apportion.errors import InvalidArgument

Default = TypeVar("Default")
Rule = Callable[..., Any]
Number = Callable[[str, Any, str, str], float]
"""A rule for a number."""


class Checked:
    """Base of frozen dataclasses whose fields are checked, in their order, by the rules they were declared with.

    A field gets its rule from `checked`, or from `check` if it is keyword-only or has no default. If its default is `None`, it may be
    `None`. A class that declares the field again, for another default, keeps the rule unless it gives another. What several fields
    must satisfy together is said in a `__post_init__`, after `super().__post_init__()`.

    Attributes:
        prefix: stands before the name of a field in messages. A clip strategy has "clip", so that a message speaks of `clip.threshold`,
            which is also what a person types after `--set`.

    Examples:
        >>> from dataclasses import dataclass
        >>> from apportion.validate import Checked, checked, positive
        >>> @dataclass(frozen=True)
        ... class Band(Checked):
        ...     prefix = "clip"
        ...     low: float = checked(0.1, positive, "0 would release noise only")
        ...     high: float | None = checked(None, positive, "it is a norm")
        >>> Band(low=1)
        Band(low=1.0, high=None)
        >>> Band(low=-1.0)
        Traceback (most recent call last):
            ...
        apportion.errors.InvalidArgument: clip.low=-1.0: it must be positive and finite, because 0 would release noise only. Try low=0.1.
    """

    __slots__ = ()
    prefix: ClassVar[str] = ""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, argument, optional, rule, why, fix in _declared(kind):
            value = getattr(self, name)
            if value is not None or not optional:
                object.__setattr__(self, name, rule(argument, value, why, fix))


def check(rule: Rule, why: str, fix: str = "", **options: Any) -> Mapping[str, Any]:
    """Metadata of a dataclass field that `Checked` keeps to `rule`.

    Args:
        rule: `positive`, `probability`, `at_least(1)`, `one_of("sgd", "adam")`, …, or a function of one's own.
        why: why other values make no sense; the message goes on with it.
        fix: what to do instead; by default to try the default of the field, or to leave it out if that is `None`.
        options: further arguments of the rule, as `least` of `whole`.
    """
    return {"check": (partial(rule, **options) if options else rule, why, fix)}


def checked(default: Default, rule: Rule, why: str, fix: str = "", **options: Any) -> Default:
    """Short for `field(default=default, metadata=check(rule, why, fix, **options))`; it has an effect in a class that is `Checked`."""
    return field(default=default, metadata=check(rule, why, fix, **options))


@cache
def _declared(kind: Any) -> tuple[tuple[str, str, bool, Rule, str, str], ...]:
    """Of each checked field: its name, how messages call it, whether it may be `None`, its rule, the reason and the fix."""
    checks: dict[str, tuple[Rule, str, str]] = {}
    for base in reversed(kind.__mro__):
        for one in vars(base).get("__dataclass_fields__", {}).values():
            checks |= {one.name: one.metadata["check"]} if "check" in one.metadata else {}
    declared = []
    for one in fields(kind):
        if one.name in checks:
            rule, why, fix = checks[one.name]
            if not fix and one.default is MISSING:
                raise TypeError(f"{kind.__name__}.{one.name} has no default to try: pass check(..., fix=...)")
            argument = f"{kind.prefix}.{one.name}" if kind.prefix else one.name
            fix = fix or ("Leave it out" if one.default is None else f"Try {one.name}={one.default}")
            declared.append((one.name, argument, one.default is None, rule, why, fix))
    return tuple(declared)


def store(instance: object, **values: Any) -> None:
    """Put values into a frozen dataclass while it is being made."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def shown(value: Any) -> Any:
    """`value` for a message, or its type where it cannot be printed, as an integer of thousands of digits."""
    try:
        repr(value)
    except Exception:
        return type(value).__name__
    return value


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


def _interval(words: str, contains: Callable[[float], bool]) -> Number:
    def rule(argument: str, value: Any, why: str, fix: str) -> float:
        number = _number(argument, value)
        if not contains(number):
            raise InvalidArgument(argument, value, f"it must {words}, because {why}", fix)
        return number

    return rule


def at_least(least: float) -> Number:
    """A rule: least ≤ value < ∞."""
    return _interval(f"be at least {least:g} and finite", lambda number: least <= number < math.inf)


positive = _interval("be positive and finite", lambda number: 0 < number < math.inf)
"""A rule: 0 < value < ∞."""
non_negative = at_least(0)
"""A rule: 0 ≤ value < ∞."""
in_open_unit = _interval("lie strictly between 0 and 1", lambda number: 0 < number < 1)
"""A rule: 0 < value < 1."""
probability = _interval("lie in (0, 1]", lambda number: 0 < number <= 1)
"""A rule: 0 < value ≤ 1."""
in_closed_unit = _interval("lie in [0, 1]", lambda number: 0 <= number <= 1)
"""A rule: 0 ≤ value ≤ 1."""
below_one = _interval("lie in [0, 1)", lambda number: 0 <= number < 1)
"""A rule: 0 ≤ value < 1."""


def whole(argument: str, value: Any, why: str, fix: str, *, least: int = 1) -> int:
    """A rule: a whole number ≥ `least`, which is returned as an int."""
    number = _number(argument, value)
    if not math.isfinite(number) or number != int(number) or number < least:
        raise InvalidArgument(argument, value, f"it must be a whole number of at least {least}, because {why}", fix)
    return int(number)


def instance_of(kind: type) -> Rule:
    """A rule: an instance of `kind`."""

    def rule(argument: str, value: Any, why: str, fix: str) -> Any:
        if not isinstance(value, kind):
            raise InvalidArgument(argument, shown(value), why, fix)
        return value

    return rule


def one_of(*names: str) -> Rule:
    """A rule: one of `names`. The fix is the closest of them, and the list."""
    return lambda argument, value, why, fix: known(argument, value, names, why)


DELTA = (
    "it is the part of probability for which e^ε does not bound the ratio",
    "Use less than 1/population, e.g. delta=1e-5",
)
"""Why δ lies in (0, 1), and what to do."""


def delta(value: Any) -> float:
    """Return δ if 0 < δ < 1."""
    return in_open_unit("delta", value, *DELTA)


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
