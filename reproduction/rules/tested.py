"""The rule of tables on two small ones that had no part in it, beside the settings that were the default before.

python -m reproduction.rules.tested          # writes tested.json
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

KEPT = Path(__file__).parent / "tested.json"
_SEEDS = ["--seed", "1", "--seed", "2", "--seed", "3"]
_BEFORE = ["--model", "mlp", "--sample-rate", "0.1", "--steps", "100", "--lr", "2"]
_BEFORE += ["--set", "clip.start=1", "--set", "clip.ratio=3.33", "--set", "update.average=0.9"]
_BEFORE += ["--set", "update.divide_by_clip=false"]
_EPSILONS = ("1", "3")


def run() -> None:
    """Breast cancer is classified, and diabetes is a number; a fifth of the records is tested on."""
    from sklearn import datasets

    rows = []
    for name, loaded in (("breast cancer", datasets.load_breast_cancer()), ("diabetes", datasets.load_diabetes())):
        with tempfile.TemporaryDirectory() as folder:
            population = _write(Path(folder), loaded)
            for epsilon in _EPSILONS:
                for settings, options in (("the rule", []), ("before", _BEFORE)):
                    found = _train(Path(folder), population, epsilon, options)
                    metric = "test_accuracy" if name == "breast cancer" else "test_rmse"
                    scores = [round(one[metric], 4) for one in found]
                    row = {"table": name, "records": population, "epsilon": float(epsilon), "settings": settings}
                    rows.append(row | {"model": found[0]["model"], metric: scores})
                    print(json.dumps(rows[-1]), flush=True)
    lines = ",\n".join(json.dumps(row) for row in rows)
    KEPT.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _write(folder: Path, loaded: Any) -> int:
    """The tables and a schema, whose ranges are those that the documentation of the data prints."""
    table, order = (
        np.column_stack([loaded.data, loaded.target]),
        np.random.default_rng(0).permutation(len(loaded.target)),
    )
    tested = len(order) // 5
    names = [*(f"column {place}" for place in range(loaded.data.shape[1])), "target"]
    for name, rows in (("test", order[:tested]), ("train", order[tested:])):
        lines = [",".join(names), *(",".join(f"{value:.6g}" for value in table[row]) for row in rows)]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    columns = []
    for place, name in enumerate(names):
        low, high = table[:, place].min(), table[:, place].max()
        classes = name == "target" and len(np.unique(table[:, place])) == 2
        held = 'categories = ["0", "1"]' if classes else f"range = [{low:.6g}, {high:.6g}]"
        columns.append(f'[columns."{name}"]\n{held}\n')
    (folder / "schema.toml").write_text("".join(columns), encoding="utf-8")
    return len(order) - tested


def _train(folder: Path, population: int, epsilon: str, options: list[str]) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "apportion", "compare", "--data", "train.csv", "--test", "test.csv"]
    command += ["--schema", "schema.toml", "--target", "target", "--recipe", "default", "--epsilon", epsilon]
    command += ["--delta", "1e-4", "--unit", "record", "--population", str(population), "--json", *_SEEDS, *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    runs: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])["runs"]
    return runs


if __name__ == "__main__":
    run()
