"""Amounts of memory, as people write them: 2GB, 512 MiB, or a number of bytes."""

from __future__ import annotations

import re

from apportion import validate
from apportion.errors import InvalidArgument

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def bytes_of(argument: str, value: str | int) -> int:
    """The number of bytes that `value` stands for: "2GB" is 2·10⁹, "2GiB" is 2·2³⁰, a number is bytes."""
    fix = 'Use a number of bytes, or a text such as "2GB" or "512MiB"'
    if not isinstance(value, str):
        return validate.whole(argument, value, "it is a number of bytes", fix)
    found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([A-Za-z]+)\s*", value)
    if found is None or found[2].upper() not in _UNITS:
        raise InvalidArgument(argument, value, "it is not an amount of memory", fix)
    amount = int(float(found[1]) * _UNITS[found[2].upper()])
    if amount < 1:
        raise InvalidArgument(argument, value, "it is less than one byte", fix)
    return amount


def as_text(amount: float) -> str:
    """1234567 → "1.2 MB"."""
    for unit in ("B", "kB", "MB"):
        if amount < 999.5:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} GB"
