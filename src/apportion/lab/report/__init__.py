"""The report room: from the results of a comparison to one HTML file that opens anywhere, without a network."""

from __future__ import annotations

from apportion.lab.report.report import read_results, write_report

__all__ = ["read_results", "write_report"]
