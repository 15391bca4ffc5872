"""How long work still takes, for a log where no bar can be drawn."""

from __future__ import annotations


def time_left(done: int, to_come: int, seconds: float) -> str:
    """As ", about 12 min left", if what is to come takes as long as what was done in these `seconds`; empty if nothing is."""
    if to_come <= 0:
        return ""
    left = seconds / done * to_come
    amount = f"{left:.0f} s" if left < 100 else f"{left / 60:.0f} min" if left < 100 * 60 else f"{left / 3600:.1f} h"
    return f", about {amount} left"
