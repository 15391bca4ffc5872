"""The table of docs/federated.md, from benchmarks/federated.json.

python benchmarks/federated_table.py        # writes it into the page
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "benchmarks/federated.json", ROOT / "docs/federated.md"
BEGIN, END = "<!-- quantile clipping -->", "<!-- end of quantile clipping -->"


def table(content: dict[str, Any]) -> str:
    """Threshold, median norm and accuracy at the end of each run."""
    quarter = content["settings"]["rounds"] // 4
    lines = [
        "| server | threshold: start | after a quarter | at the end | median norm of the last updates | accuracy |",
        "|---|---|---|---|---|---|",
    ]
    for one in content["results"]:
        figures = (one["start"], one["clip"][quarter], one["last_clip"], one["median_norm"])
        shown = " | ".join(f"{figure:.3g}" for figure in figures)
        lines.append(f"| {one['system']} | {shown} | {one['accuracy']:.1%} |")
    return "\n".join(lines)


def filled(page: str, content: dict[str, Any]) -> str:
    """The page with its table."""
    return re.sub(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n\n{table(content)}\n\n{END}", page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(
        filled(PAGE.read_text(encoding="utf-8"), json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8"
    )
