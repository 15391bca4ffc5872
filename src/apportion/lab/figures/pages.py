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
from apportion.lab.figures.catalogue import FIGURES
from apportion.lab.figures.choosing import COMPARISONS, choosing_table
from apportion.lab.figures.results import Results
from apportion.lab.figures.tables import study_table

PAGES = ("results.md", "choosing.md")
_PART = re.compile(r"^<!-- (?P<kind>results|figure|choosing)(?:: (?P<name>\S+))? -->$", flags=re.MULTILINE)
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
        filled[file] = fill(before, results, os.path.relpath(figures, folder))
    for file, text in filled.items():
        file.write_text(text, encoding="utf-8")
    return list(filled)


def fill(page: str, results: Results, figures: str) -> str:
    """A page with all its parts made anew; `figures` is the folder of the pictures as the page sees it."""
    pieces, position = [], 0
    for start in _PART.finditer(page):
        end = page.find(_END, start.end())
        following = _PART.search(page, start.end())
        if start.start() < position or end < 0 or (following is not None and following.start() < end):
            raise InvalidArgument("pages", start.group(), f"no {_END} comes after it", "Write one where the part ends")
        content = _content(start["kind"], start["name"], results, figures)
        pieces += [page[position : start.end()], f"\n\n{content}\n\n"]
        position = end
    return "".join([*pieces, page[position:]])


def _content(kind: str, name: str | None, results: Results, figures: str) -> str:
    if kind == "choosing":
        commands = ", ".join(f"`apportion compare {study}`" for study in COMPARISONS)
        return choosing_table(results) or f"not run yet: {commands}"
    if kind == "results":
        study = results.studies.get(name or "")
        return f"not run yet: `apportion compare {name}`" if study is None else study_table(study)
    figure = FIGURES[validate.known("figure", name or "", FIGURES, "a page asks for it")]
    if figure.drawn(results) is None:
        return f"not drawn yet: `{figure.command}`"
    return f"![{figure.shows}]({figures}/{figure.name}.svg)"
