"""The advice room: what to decide before a run, from public figures alone.

`epsilon_candidates.py` prices candidates for ε and puts them into an attacker's words; `kept_table.py` has what earlier runs reached, from
a table that `python -m reproduction figures --pages` writes; `rehearsal.py` tries candidates on public data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from apportion.lazy import lazy_names

if TYPE_CHECKING:
    from apportion.advice.epsilon_candidates import Advice, Candidate, advise, suggest_delta
    from apportion.advice.kept_table import KeptResult, kept_results
    from apportion.advice.rehearsal import dry_run

__all__ = ["Advice", "Candidate", "KeptResult", "advise", "dry_run", "kept_results", "suggest_delta"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "epsilon_candidates": ("Advice", "Candidate", "advise", "suggest_delta"),
        "rehearsal": ("dry_run",),
        "kept_table": ("KeptResult", "kept_results"),
    },
)
