"""The figures room: kept results become pictures and the tables of pages. Nothing is trained here."""

from __future__ import annotations

from reproduction.figures.figure_catalogue import FIGURES, draw_all
from reproduction.figures.kept_results import Results
from reproduction.figures.pages import fill_pages

__all__ = ["FIGURES", "Results", "draw_all", "fill_pages"]
