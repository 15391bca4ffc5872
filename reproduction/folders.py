"""Where results, pictures and pages are kept, and how their paths are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apportion.advice.kept_table import FILE

HERE = Path(__file__).parent
RESULTS, PICTURES = HERE / "results", HERE / "pictures"
PAGES = (
    HERE / "README.md",
    HERE / "results.md",
    HERE.parent / "docs" / "choosing.md",
    HERE.parent / "docs" / "choosing-epsilon.md",
    HERE.parent / "docs" / "people.md",
    HERE.parent / "docs" / "referee.md",
)
TABLE = HERE.parent / "src" / "apportion" / "advice" / FILE
"""What the package carries of the results."""

ResultsFolder = Annotated[
    Path, typer.Option("--results", help="The folder of kept results.", show_default="reproduction/results")
]


def short(path: Path) -> str:
    """The path from the current folder, if it lies in it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
