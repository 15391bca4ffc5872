"""Thresholds that were found elsewhere, one for each epoch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apportion import validate
from apportion.errors import InvalidArgument
from apportion.strategies.clip.clip_schedule import ClipSchedule
from apportion.strategies.context import Context

_FIX = 'Write a JSON list of numbers, an object {"thresholds": [...]}, or one number on each line'


@dataclass(frozen=True)
class Sequence(ClipSchedule):
    """C_t = the threshold of the epoch that holds step t; after the last one, the last one.

    Thresholds belong to epochs and not to steps, because the run they come from may have had other batches.

    Args:
        thresholds: C_1, C_2, …, found on public data.
        file: where they stand instead: a JSON list, a JSON object with the key "thresholds", or one number on each line. It is read
            here, once; what is kept are the thresholds, and a change of the file changes nothing any more.

    With neither it is an empty place for them, as in a recipe that waits for its file; a run with it is refused.

    Source: Lin et al., Transfer clipping.
    Guarantee: one record moves the sum by at most C_t; the price is that of a fixed threshold. Thresholds that were searched for on
    the private records are not covered: every trial would have to be paid for.

    Examples:
        >>> from apportion.strategies import Context, clip
        >>> found = clip.Sequence(thresholds=(1.0, 0.7))
        >>> [found.threshold_at(Context(step, steps=30, sample_rate=0.1)) for step in (1, 10, 11, 30)]
        [1.0, 1.0, 0.7, 0.7]
    """

    thresholds: tuple[float, ...] = ()
    file: str | Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        given: Any = self.thresholds
        if not isinstance(given, (tuple, list)):
            raise InvalidArgument(
                "clip.thresholds", validate.shown(given), "it is not a list of numbers", "Try thresholds=(1.0, 0.7)"
            )
        if given and self.file is not None:
            raise InvalidArgument(
                "clip.file", str(self.file), "thresholds were given as well, and only one can count", "Pass one of them"
            )
        where = "clip.thresholds"
        if self.file is not None:
            where, given = f"clip.file={str(self.file)!r}, thresholds", _read_entries(self.file)
        reason, fix = "it bounds what one record can do", "Correct it, or leave it out"
        numbers = (validate.positive(f"{where}[{i}]", number, reason, fix) for i, number in enumerate(given))
        validate.store(self, thresholds=tuple(numbers), file=None)

    def threshold_at(self, context: Context) -> float:
        if not self.thresholds:
            reason, fix = "there are no thresholds to use", "Pass file= or thresholds=, found on public data"
            raise InvalidArgument("clip.thresholds", self.thresholds, reason, fix)
        return self.thresholds[min(context.epoch, len(self.thresholds)) - 1]


def _read_entries(file: Any) -> list[Any]:
    """The entries of a file of thresholds, which are not checked yet."""
    if not isinstance(file, (str, Path)):
        raise InvalidArgument("clip.file", validate.shown(file), "it is not a path", 'Try file="thresholds.json"')
    try:
        text = Path(file).read_text(encoding="utf-8").strip()
        found = json.loads(text) if text.startswith(("[", "{")) else [float(line) for line in text.split()]
    except (OSError, ValueError, RecursionError) as error:
        reason = f"it cannot be read ({error.strerror or error})" if isinstance(error, OSError) else f"{error}"
        raise InvalidArgument("clip.file", str(file), reason, _FIX) from None
    entries = found.get("thresholds") if isinstance(found, dict) else found
    if not isinstance(entries, list) or not entries:
        raise InvalidArgument("clip.file", str(file), "it holds no thresholds", _FIX)
    return entries
