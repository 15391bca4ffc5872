"""Every figure by its name, and what it is drawn of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from reproduction.figures import du_figures as du
from reproduction.figures import lin_figures as lin
from reproduction.figures import prices, searches
from reproduction.figures.kept_results import Results
from reproduction.figures.referee_figure import referee
from reproduction.folders import PICTURES

SEARCH = "python -m reproduction search --out reproduction/results/search_NAME.json"


@dataclass(frozen=True)
class Figure:
    """A picture of one study, or of searches if `study` is `None`; `shows` says in words what is to be seen.

    `draw` returns `None` if the results are there and hold nothing that it shows.
    """

    name: str
    study: str | None
    shows: str
    draw: Callable[[Results], str | None]

    @property
    def command(self) -> str:
        """What makes its results."""
        return SEARCH if self.study is None else f"python -m reproduction run {self.study}"

    @property
    def path(self) -> Path:
        """Where it is kept."""
        return PICTURES / f"{self.name}.svg"

    def drawn(self, results: Results) -> str | None:
        """The picture as SVG, or `None` if its results are missing."""
        return self.draw(results) if self.study is None or self.study in results.studies else None


FIGURES = {
    figure.name: figure
    for figure in (
        Figure(
            "headline", "lin_table_2", "The best methods on MNIST and Fashion-MNIST at one privacy budget", lin.headline
        ),
        Figure("ramp_up", "ramp_up", "Median gradient norm against the epoch, for fixed thresholds", lin.ramp_up),
        Figure("lin_table_2", "lin_table_2", "Accuracy of each method, ours beside the printed one", lin.lin_table_2),
        Figure("lin_thresholds", "lin_table_2", "Clip threshold of each method against the epoch", lin.lin_thresholds),
        Figure("lin_initial", "lin_initial", "Accuracy against the first threshold of the decay", lin.lin_initial),
        Figure("du_table_1", "du_table_1", "Accuracy against ε, ours and printed", du.du_table_1),
        Figure("du_consumption", "du_consumption", "ε spent against the step, for growing-μ", du.du_consumption),
        Figure(
            "du_sensitivity",
            "du_sensitivity",
            "Accuracy against the factors by which threshold and noise fall",
            du.du_sensitivity,
        ),
        Figure("du_bounds", "du_bounds", "True ε against the ε that a limit theorem claims", du.du_bounds),
        Figure(
            "monir_consumption",
            "monir_consumption",
            "ε spent against the step, for noise that decays",
            prices.monir_consumption,
        ),
        Figure("referee", "referee", "Accuracy of each method less that of an equally tuned fixed clip", referee),
        Figure("search", None, "Thresholds found on public data, and their accuracy", searches.search),
    )
}


def draw_all(results: Results, folder: Path) -> tuple[list[Path], list[Figure]]:
    """Write every picture whose results exist; which were written, and which were left out."""
    pictures = {figure: figure.drawn(results) for figure in FIGURES.values()}
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for figure, picture in pictures.items():
        if picture is not None:
            written.append(folder / figure.path.name)
            written[-1].write_text(picture, encoding="utf-8")
    return written, [figure for figure, picture in pictures.items() if picture is None]
