"""Which values a record may have, declared in public. Records outside contribute nothing, and cost no more time than others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from apportion import validate
from apportion.errors import InvalidArgument

IGNORED = -100
"""What torch's losses take for "no class here", as for padding."""


@dataclass(frozen=True)
class Domain:
    """The values that inputs and targets may have, said before a record is read: never found from the records.

    A record with a value outside is not evaluated. It contributes zero, like one whose gradient is not finite, and is counted as not
    usable. Without a domain its loss would fail for the whole micro-batch, which then runs record by record.

    Args:
        classes: targets are whole numbers 0 … classes−1, of whatever type, or `ignored`.
        inputs: (lowest, highest) value of every input; NaN lies outside.
        ignored: a target that stands for no class. A record that has no other is outside too: there is nothing to learn from.

    Examples:
        >>> import apportion as ap
        >>> ap.Domain(classes=10)
        Domain(classes=10)
        >>> ap.Domain(classes=2, inputs=(0, 1))
        Domain(classes=2, inputs=(0.0, 1.0))
    """

    classes: int | None = None
    inputs: tuple[float, float] | None = None
    ignored: int = IGNORED

    def __post_init__(self) -> None:
        if self.classes is not None:
            validate.whole("domain.classes", self.classes, "it is a number of classes", "Use 2 for yes and no", least=1)
        validate.whole("domain.ignored", self.ignored, "it is a class number", "Use -100", least=-(2**63))
        if self.inputs is not None:
            validate.store(self, inputs=_read_range(self.inputs))

    def __repr__(self) -> str:
        said = {"classes": self.classes, "inputs": self.inputs}
        if self.ignored != IGNORED:
            said["ignored"] = self.ignored
        return f"Domain({', '.join(f'{name}={value!r}' for name, value in said.items() if value is not None)})"


def _read_range(value: Any) -> tuple[float, float]:
    try:
        low, high = (float(one) for one in value)
    except (TypeError, ValueError):
        low, high = math.nan, math.nan
    if not low < high:
        reason = "it is not a pair of a lowest and a highest value"
        raise InvalidArgument("domain.inputs", validate.shown(value), reason, "Use for example (0.0, 1.0)")
    return low, high
