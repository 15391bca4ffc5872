"""How the report writes a number, a duration, a configuration. What is missing is a dash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Any

from apportion.reporting.result import as_number

DASH = "–"


def format_percent(value: Any, digits: int = 1) -> str:
    """A share in percent."""
    found = as_number(value)
    return DASH if found is None else f"{100 * found:.{digits}f}\u00a0%"


def format_points(difference: float) -> str:
    """A difference of two shares in percentage points, with its sign."""
    shown = f"{100 * difference:+.1f}".replace("-", "−")
    return "0.0" if shown in ("+0.0", "−0.0") else shown


def format_epsilon(value: Any) -> str:
    """ε with three decimals, rounded up: a loss of privacy is never shown smaller than it is."""
    found = as_number(value)
    if found is None:
        return DASH
    up = Decimal(repr(found)).quantize(Decimal("0.001"), rounding=ROUND_CEILING) if abs(found) < 1e15 else found
    shown = f"{up:f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def format_delta(value: Any) -> str:
    """δ as a multiple of a power of ten."""
    found = as_number(value)
    if found is None:
        return DASH
    mantissa, _, exponent = f"{found:.2e}".partition("e")
    power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    mantissa = mantissa.rstrip("0").rstrip(".")
    return power if mantissa == "1" else f"{mantissa}\u00a0×\u00a0{power}"


def format_count(value: Any) -> str:
    """A number of things, which need not be whole."""
    found = as_number(value)
    return DASH if found is None else f"{found:,.0f}" if found == int(found) else f"{found:,.4g}"


def format_epochs(value: Any) -> str:
    """A number of passes over the data."""
    found = as_number(value)
    return DASH if found is None else f"{found:,.1f}" if found < 100 else f"{found:,.0f}"


def format_seconds(value: Any) -> str:
    """A duration."""
    found = as_number(value)
    if found is None:
        return DASH
    if found < 60:
        return f"{found:.1f}\u00a0s"
    minutes, rest = divmod(round(found), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}\u00a0h {minutes:02d}\u00a0min" if hours else f"{minutes}\u00a0min {rest:02d}\u00a0s"


def format_value(value: Any) -> str:
    """Any value of a configuration as text."""
    if value is None:
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        rest = ", ".join(f"{name} = {format_value(one)}" for name, one in value.items() if name != "kind")
        return f"{value['kind']}({rest})" if "kind" in value else rest
    if isinstance(value, (list, tuple)):
        return ", ".join(map(format_value, value))
    return str(value)


def join_names(names: Sequence[str]) -> str:
    """a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def list_facts(pairs: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """Names with their values, without those that are missing."""
    return [{"name": name, "value": value} for name, value in pairs if value not in ("", DASH)]
