"""The report room: from runs to one HTML file that opens anywhere, without a network.

`result.py` is the result of a run and the files that keep it; `write.py` takes runs and writes the page. In between, `series.py` says
what is compared with what, `curves.py` has the data of the plots, `panels.py` draws and captions them with `drawing.py` and
`palette.py`; `results_table.py`, `statements.py` and `configuration.py` say the rest in the words of `formatting.py`; `page.py` puts
the page together, and `template/` has its HTML, style and script. `plan_page.py` describes and draws plans before there is a run.
`export.py` writes the table of a comparison for other programs. `documents.py` writes what people must hand in about one run: a page, a
model card, answers for an evaluation or a registry, each from the facts that `run_facts.py` reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from apportion.lazy import lazy_names

if TYPE_CHECKING:
    from apportion.reporting.documents import write_statement
    from apportion.reporting.result import HistoryEntry, NotRun, Results, RunResult, read_results
    from apportion.reporting.write import report, write_report

__all__ = [
    "HistoryEntry",
    "NotRun",
    "Results",
    "RunResult",
    "read_results",
    "report",
    "write_report",
    "write_statement",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "documents": ("write_statement",),
        "result": ("HistoryEntry", "NotRun", "Results", "RunResult", "read_results"),
        "write": ("report", "write_report"),
    },
)
