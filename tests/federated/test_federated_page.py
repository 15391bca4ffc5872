"""The figures of docs/federated.md are those of the kept benchmark, and say what the page says."""

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _table_module():
    spec = importlib.util.spec_from_file_location("federated_table", ROOT / "benchmarks" / "federated_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLE = _table_module()
CONTENT = json.loads(TABLE.RESULTS.read_text(encoding="utf-8"))


def test_the_table_is_that_of_the_results():
    page = TABLE.PAGE.read_text(encoding="utf-8")
    assert TABLE.table(CONTENT) in page
    assert TABLE.filled(page, CONTENT) == page


def test_ours_settles_at_the_median_and_flowers_runs_away():
    for one in CONTENT["results"]:
        distance = abs(one["last_clip"] / one["median_norm"] - 1)
        first = abs(one["start"] / one["median_norm"] - 1)
        if one["system"] == "Apportion":
            assert distance < 0.5, one
            assert 0.3 < one["unclipped_in_the_last_quarter"] < 0.7
            assert one["epsilon"] > 0
        else:
            assert (
                one["last_clip"] < one["start"]
                if one["start"] < one["median_norm"]
                else one["last_clip"] > one["start"]
            )
            assert distance > first or one["last_clip"] < 0.1 * one["start"]
