"""A figure as a page that needs no network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from apportion.errors import InvalidArgument

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def write_page(figure: Figure, out: Path, argument: str) -> Path:
    """Write `figure` to `out`. `argument` is what the person called the file, for the message that it cannot be written."""
    try:
        figure.write_html(out, include_plotlyjs=True, full_html=True)
    except OSError as error:
        raise InvalidArgument(
            argument, str(out), f"it cannot be written: {error.strerror}", "Choose another file"
        ) from error
    return out
