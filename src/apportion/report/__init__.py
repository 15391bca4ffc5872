"""The report room: from results to one HTML file that opens anywhere, without a network.

`reading.py` checks results and `page.py` writes the page. In between, `series.py` says what is compared with what; `curves.py` has the
data of the plots, `figures.py` draws them from `traces.py`, `axes.py` and `palette.py`; `table.py`, `summary.py`, `captions.py`,
`reach.py`, `statements.py`, `attacker.py` and `configuration.py` say the rest in `words.py`; `sections.py` puts one experiment
together, and `template/` has the page's HTML, style and script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from apportion.lazy import lazy_names

if TYPE_CHECKING:
    from apportion.report.page import write_report
    from apportion.report.reading import read_results

__all__ = ["read_results", "write_report"]

__getattr__, __dir__ = lazy_names(__name__, {"page": ("write_report",), "reading": ("read_results",)})
