"""Fills the parts of pages that are made of results.

A part stands between `<!-- results: NAME -->`, `<!-- figure: NAME -->`, `<!-- referee: NAME -->`, `<!-- choosing -->`,
`<!-- judged -->` or `<!-- default -->` and `<!-- end -->`. What people wrote around it stays.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from apportion import validate
from apportion.errors import InvalidArgument
from reproduction.figures.choosing import COMPARISONS, choosing_table
from reproduction.figures.default_table import STUDIES, default_table
from reproduction.figures.figure_catalogue import FIGURES
from reproduction.figures.judged_part import judged_part
from reproduction.figures.kept_results import Results
from reproduction.figures.referee_rows import questions, referee_part
from reproduction.figures.tables import study_table
from reproduction.folders import PAGES
from reproduction.study import study_names
from reproduction.trials import read_designs

_PART = re.compile(
    r"^<!-- (?:(?P<kind>results|figure|referee): (?P<name>\S+)|(?P<table>choosing|judged|default)) -->$",
    flags=re.MULTILINE,
)
_END = "<!-- end -->"


def fill_pages(results: Results, pages: Sequence[Path] = PAGES) -> list[Path]:
    """Make the parts of the pages anew. Nothing is written if a page is wrong."""
    filled = {}
    for page in pages:
        try:
            before = page.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgument("pages", str(page), f"it cannot be read ({error})", "Restore the page") from error
        filled[page] = fill(before, results, page.parent)
    for page, text in filled.items():
        page.write_text(text, encoding="utf-8")
    return list(filled)


def fill(page: str, results: Results, folder: Path) -> str:
    """A page that is kept in `folder`, with all its parts made anew."""
    starts = list(_PART.finditer(page))
    ends = [found.start() for found in re.finditer(re.escape(_END), page)]
    edges = [edge for start, end in zip(starts, ends, strict=False) for edge in (start.end(), end)]
    if len(starts) != len(ends) or edges != sorted(edges):
        raise InvalidArgument(
            "pages",
            [start.group() for start in starts],
            f"{len(ends)} times {_END} stands in the page, and not once after each of these",
            "Write one where each part ends, and spell the parts `results: NAME`, `figure: NAME`, `referee: NAME`, `choosing`, `judged` "
            "or `default`",
        )
    pieces, position = [], 0
    for start, end in zip(starts, ends, strict=True):
        content = _content(start["kind"] or start["table"], start["name"], results, folder)
        pieces += [page[position : start.end()], f"\n\n{content}\n\n"]
        position = end
    return "".join([*pieces, page[position:]])


def _content(kind: str, name: str, results: Results, folder: Path) -> str:
    if kind == "default":
        commands = ", ".join(f"`python -m reproduction run {one}`" for one in STUDIES)
        return default_table(results) or f"not run yet: {commands}"
    if kind == "choosing":
        commands = ", ".join(f"`python -m reproduction run {one}`" for one in COMPARISONS)
        return choosing_table(results) or f"not run yet: {commands}"
    if kind == "judged":
        return judged_part(results)
    if kind == "results":
        tuned = {design.study: design.name for design in read_designs("papers")}
        validate.known("results", name, (*study_names(), *tuned), "a page asks for it")
        if name in results.studies:
            return study_table(results.studies[name])
        run = f"`python -m reproduction run {name}`"
        return (
            f"not run yet: `python -m reproduction trials {tuned[name]}`, `choose` and {run}"
            if name in tuned
            else f"not run yet: {run}"
        )
    if kind == "referee":
        return referee_part(
            results, validate.known("referee", name, ("summary", "trials", *questions()), "a page asks for it")
        )
    figure = FIGURES[validate.known("figure", name, FIGURES, "a page asks for it")]
    if figure.drawn(results) is None:
        return f"not drawn yet: `{figure.command}`"
    return f"![{figure.shows}]({Path(os.path.relpath(figure.path, folder)).as_posix()})"
