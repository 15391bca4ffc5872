"""Which records did not contribute, and why: exact counts, for the owner of the data alone.

Nothing of this leaves by itself. It is written to secret/problems.jsonl, beside the ledger, whether or not there is anything to write.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

NOTE = (
    "Exact and secret: do not publish this file or anything from it. To change settings after reading it is a decision about private "
    "records that the stated epsilon does not cover."
)
UNREAD, OUTSIDE, FAILED, NOT_FINITE = "cannot be read", "outside the domain", "cannot be evaluated", "not finite"
"""Why a record contributes nothing: the data set raised, a value was not declared, model or loss raised, the gradient is no number."""
MAX_TEXTS = 50
"""Different errors that are told apart; their texts may name single records."""

Tally = tuple[int, dict[tuple[str, str], int]]
"""How many records were drawn, and how often each problem was met."""


class Problems:
    """Counts, over all draws of a run.

    Args:
        found: what was found before the run, while the data was read: how often, by what.
    """

    def __init__(self, found: Mapping[str, int] | None = None):
        self.drawn = 0
        self._found = dict(found or {})
        self._counts: Counter[tuple[str, str]] = Counter()
        self._elsewhere: list[Tally] = []

    def count(self, kind: str, times: int, error: str = "") -> None:
        """So many records of a draw did not contribute, for this reason."""
        if not times:
            return
        if (kind, error) not in self._counts and len(self._counts) >= MAX_TEXTS:
            error = "other errors"
        self._counts[kind, error] += times

    def counted(self) -> Counter[tuple[str, str]]:
        """What was counted so far, for `count_again`."""
        return self._counts.copy()

    def count_again(self, counted: Counter[tuple[str, str]]) -> None:
        """Forget what was counted since then: the same records are tried in another way."""
        self._counts = counted

    def tally(self) -> Tally:
        """What was counted here, for other ranks."""
        return self.drawn, dict(self._counts)

    def know(self, elsewhere: Sequence[Tally]) -> None:
        """What other ranks have counted so far: the file adds it."""
        self._elsewhere = list(elsewhere)

    def lines(self) -> list[dict[str, object]]:
        """The file, line by line."""
        drawn, counts = self.drawn, self._counts.copy()
        for their_drawn, theirs in self._elsewhere:
            drawn += their_drawn
            counts.update(theirs)
        return [
            {"note": NOTE},
            {
                "records_drawn": drawn,
                "not_usable": sum(counts.values()),
                "counted": "once for each draw that a record was in",
            },
            *({"while_reading": what, "times": times} for what, times in sorted(self._found.items())),
            *(
                {"problem": kind, **({"error": error} if error else {}), "times": times}
                for (kind, error), times in counts.most_common()
            ),
        ]

    def text(self) -> str:
        """The file: one JSON object a line."""
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in self.lines())

    def restore(self, path: Path) -> None:
        """Go on counting from what an earlier process of the run wrote. A file that cannot be read is begun anew: nothing rests on it."""
        try:
            _, totals, *rest = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
            self.drawn = int(totals["records_drawn"])
            for line in rest:
                if "problem" in line:
                    self._counts[str(line["problem"]), str(line.get("error", ""))] += int(line["times"])
        except (OSError, ValueError, KeyError, TypeError):
            return
