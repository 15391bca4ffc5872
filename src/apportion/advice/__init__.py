"""The advice room: what to decide before a run, from public figures alone.

`advise.py` prices candidates for ε and puts them into an attacker's words; `kept_table.py` has what earlier runs reached, from a table that
`python -m reproduction figures --pages` writes; `dry_run.py` tries candidates on public data; `advice_page.py` draws them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from apportion.lazy import lazy_names

if TYPE_CHECKING:
    from apportion.advice.advise import Advice, Candidate, advise, suggest_delta
    from apportion.advice.dry_run import dry_run
    from apportion.advice.kept_table import KeptResult, kept_results

__all__ = ["Advice", "Candidate", "KeptResult", "advise", "dry_run", "kept_results", "suggest_delta"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "advise": ("Advice", "Candidate", "advise", "suggest_delta"),
        "dry_run": ("dry_run",),
        "kept_table": ("KeptResult", "kept_results"),
    },
)
