"""docs/performance.md, its pictures and the table of the README are written from the kept measurements, whichever of them there are."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
MODULES = ("performance_page", "results", "growth", "beside", "compiled", "memory")
TURNS = {"milliseconds": 2.0, "cpu_milliseconds": 3.0, "clean": 5, "turns": 5}


@pytest.fixture(scope="module")
def bench():
    """The modules of the benchmark; their names are forgotten afterwards, because others have them, too."""
    folder, before = str(ROOT / "benchmarks"), set(sys.modules)
    sys.path.insert(0, folder)
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    sys.path.remove(folder)
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(folder):
            del sys.modules[name]


@pytest.fixture
def nothing_kept(bench, monkeypatch, tmp_path):
    """No benchmark has kept anything."""
    for name in ("results", "growth", "beside", "compiled", "memory"):
        monkeypatch.setattr(getattr(bench, name), "FILE", tmp_path / f"{name}.json")


def engine_record(workload, **changed):
    record = {
        "workload": workload,
        "code": "0" * 12,
        "date": "2026-01-02",
        "processor": "one",
        "torch": "2",
        "opacus": "1",
    }
    record |= {"rounds": 5, "processes": [{name: dict(TURNS) for name in ("sgd", "vmap", "apportion")}]}
    return record | {"peak_mb": {"sgd": 0.0, "apportion": 1.0}, "failed": {}} | changed


def test_what_is_written_is_what_was_kept(bench):
    for path, text in bench.performance_page.content().items():
        assert path.read_text(encoding="utf-8") == text, path.name


def test_further_workloads_have_tables_of_their_own_and_their_day(bench, nothing_kept):
    bench.results.append(engine_record("mlp"))
    bench.results.append(engine_record("table", date="2026-03-04", failed={"opacus-ew": "RuntimeError: cannot"}))
    bench.results.append(engine_record("one-weight"))
    page = bench.performance_page.content()[bench.performance_page.PAGE]
    assert page.count("| engine | mlp |") == 3  # time, processor time, memory
    assert page.count("| engine | table | one-weight |") == 3
    assert "| 2026-03-04 |" in page
    assert "| 2026-01-02 |" in page
    assert "- opacus-ew on table: RuntimeError: cannot" in page
    assert "| table | apportion / sgd, at most | 3 | 1.00 | met |" in page
    assert "| table | fastest peer / apportion, at least | 1 | 1.00 | met |" in page
    assert "| one-weight | apportion, ms at most | 1.5 | 2.00 | **missed** |" in page
    assert not any(f"## {title}" in page for title in ("Growth", "Beside", "Compiling"))


def test_a_workload_that_no_peer_can_run_is_shown_without_one(bench, nothing_kept):
    alone = {name: dict(TURNS) for name in ("sgd", "apportion")}
    failed = dict.fromkeys(("vmap", "opacus-hooks"), "NotImplementedError: no such layer")
    bench.results.append(engine_record("mlp"))
    bench.results.append(engine_record("lora", processes=[alone], failed=failed))
    page = bench.performance_page.content()[bench.performance_page.PAGE]
    assert "| lora | apportion / sgd, at most | 1.5 | 1.00 | met |" in page
    assert "| lora | fastest peer" not in page
    assert "- vmap on lora: NotImplementedError: no such layer" in page


def test_growth_goes_on_where_it_stopped_and_fits_exponents(bench, nothing_kept, monkeypatch):
    growth, asked = bench.growth, []

    def measured(axis, size):
        asked.append(size)
        if size == 10**7:
            return {"failed": "killed"}
        figures = {"ms": size**2 / 1e6, "mib": size / 1e3}
        return {"size": size, "engines": {"sgd": figures, "apportion": figures}}

    monkeypatch.setattr(growth, "measure", measured)
    monkeypatch.setattr(growth, "surroundings", lambda: {"date": "2026-01-02"})
    monkeypatch.setattr(sys, "argv", ["growth.py", "--axes", "parameters"])
    assert growth.main() == 2
    assert asked == [10**4, 10**5, 10**6, 10**7, 10**8]
    assert growth.main() == 2
    assert asked[5:] == [10**7]
    assert "| parameters | 10,000 | 100,000,000 | apportion | 2.00 | 1.00 |" in growth.section()
    assert list(growth.pictures()) == ["growth-parameters.svg"]


def test_beside_another_job_the_growth_of_ours_is_compared_with_that_of_sgd(bench, nothing_kept):
    ways = {
        "sgd": (10.0, 20.0),
        "apportion": (10.0, 25.0),
        "sgd, one thread": (15.0, 18.0),
        "apportion, one thread": (20.0, 20.0),
    }
    found = {way: {"alone": [quiet], "beside": [busy]} for way, (quiet, busy) in ways.items()}
    bench.beside.FILE.write_text(json.dumps({"mlp": {"milliseconds": found, "date": "2026-01-02"}}))
    assert "| mlp | 10.0 | 2.00 | 2.50 | 1.25 | 2.00 | 0.80 |" in bench.beside.section()
    assert "none of them, and more on mlp." in bench.beside.section()


def test_compiling_is_judged_with_the_time_that_it_takes(bench, nothing_kept):
    def way(milliseconds, seconds=0.0):
        return {"milliseconds": milliseconds, "turns": [milliseconds], "compiling": seconds}

    ways = {
        "sgd": way(10.0),
        "sgd, compiled": way(9.0, 3.0),
        "apportion": way(20.0),
        "vmap": {"failed": "RuntimeError"},
    }
    ways |= {"apportion, model": way(16.0, 3.0), "apportion, kernels": way(20.0, 2.0)}
    record = {"date": "2026-01-02", "batch": 64, "loading": 12.0, "load": 2.0, "ways": ways}
    bench.compiled.FILE.write_text(json.dumps({"mlp": record}))
    page = bench.compiled.section()
    assert "| mlp | 64 | 0.90 (3 s) | – | 0.80 (3 s) | 1.00 (2 s) | – |" in page
    assert "Other jobs ran beside mlp" in page
    assert "no workload gained a tenth; the best was 0.95 (mlp, model)" in page  # 0.8 + 3 s of 20 s
