"""Fills the parts of pages that are made of results.

A part stands between `<!-- results: NAME -->`, `<!-- figure: NAME -->` or `<!-- choosing -->` and `<!-- end -->`. What people wrote
around it stays.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from apportion import validate
from apportion.errors import InvalidArgument
from reproduction.experiments import find
from reproduction.figures.choosing import COMPARISONS, choosing_table
from reproduction.figures.figure_catalogue import FIGURES
from reproduction.figures.kept_results import Results
from reproduction.figures.tables import study_table

PAGES = ("results.md", "choosing.md")
_PART = re.compile(r"^<!-- (?:(?P<kind>results|figure): (?P<name>\S+)|choosing) -->$", flags=re.MULTILINE)
_END = "<!-- end -->"


def fill_pages(results: Results, folder: Path, figures: Path) -> list[Path]:
    """Fill the pages in `folder`; `figures` is where the pictures are. Nothing is written if a page is wrong."""
    filled = {}
    for file in (folder / name for name in PAGES):
        try:
            before = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = f"{file.name} cannot be read ({error})"
            raise InvalidArgument(
                "pages", str(folder), reason, f"Pass a folder that holds {', '.join(PAGES)}"
            ) from error
        filled[file] = fill(before, results, Path(os.path.relpath(figures, folder)).as_posix())
    for file, text in filled.items():
        file.write_text(text, encoding="utf-8")
    return list(filled)


def fill(page: str, results: Results, figures: str) -> str:
    """A page with all its parts made anew; `figures` is the folder of the pictures as the page sees it."""
    starts = list(_PART.finditer(page))
    ends = [found.start() for found in re.finditer(re.escape(_END), page)]
    edges = [edge for start, end in zip(starts, ends, strict=False) for edge in (start.end(), end)]
    if len(starts) != len(ends) or edges != sorted(edges):
        raise InvalidArgument(
            "pages",
            [start.group() for start in starts],
            f"{len(ends)} times {_END} stands in the page, and not once after each of these",
            "Write one where each part ends, and spell the parts `results: NAME`, `figure: NAME` or `choosing`",
        )
    pieces, position = [], 0
    for start, end in zip(starts, ends, strict=True):
        pieces += [
            page[position : start.end()],
            "\n\n",
            _content(start["kind"], start["name"], results, figures),
            "\n\n",
        ]
        position = end
    return "".join([*pieces, page[position:]])


def _content(kind: str | None, name: str, results: Results, figures: str) -> str:
    if kind is None:
        return choosing_table(results) or "not run yet: " + ", ".join(
            f"`apportion compare {one}`" for one in COMPARISONS
        )
    if kind == "results":
        if name in results.studies:
            return study_table(results.studies[name])
        return f"not run yet: `apportion compare {find(name).stem}`"
    figure = FIGURES[validate.known("figure", name, FIGURES, "a page asks for it")]
    if figure.drawn(results) is None:
        return f"not drawn yet: `{figure.command}`"
    return f"![{figure.shows}]({figures}/{figure.name}.svg)"
