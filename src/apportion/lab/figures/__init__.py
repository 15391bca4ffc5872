"""The figures room: kept results become pictures and the tables of pages. Nothing is trained here."""

from __future__ import annotations

from apportion.lab.figures.catalogue import FIGURES, draw_all
from apportion.lab.figures.pages import fill_pages
from apportion.lab.figures.results import Results

__all__ = ["FIGURES", "Results", "draw_all", "fill_pages"]
