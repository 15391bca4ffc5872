"""Seeded bugs: plant each bug of this folder in a scratch copy and see whether the tests that it names fail.

    python tests/mutants/run.py [--only NAME …] [--jobs N] [--write docs/seeded-bugs.md]

First the named tests run on a copy without a bug: they must pass, or "caught" would mean nothing. A bug is caught if *every* test that its
file names fails. A bug that cannot be planted (`seeded.py` says when), or whose code cannot be imported, is an error and never a catch.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table
from seeded import Bug, CannotBePlanted, sources

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PATIENCE = 900  # seconds for the tests of one bug; one that makes them hang is not caught
COPIED = ("src", "tests", "pyproject.toml", "README.md", "docs")

PLUGIN = '''
"""Refuses to test another package than the one with the bug; writes down which tests ran and which failed."""
import importlib, json, os, traceback
import pytest

RAN, FAILED = set(), set()

def pytest_sessionstart(session):
    try:
        import apportion
        for name in json.loads(os.environ["MUTANT_MODULES"]):
            importlib.import_module(name)
    except Exception:
        pytest.exit("import: " + traceback.format_exc(limit=-1), returncode=4)
    if not os.path.realpath(apportion.__file__).startswith(os.path.realpath(os.environ["MUTANT_ROOT"]) + os.sep):
        pytest.exit("import: the tests would import " + apportion.__file__, returncode=4)

def pytest_runtest_logreport(report):
    RAN.add(report.nodeid)
    if report.failed:
        FAILED.add(report.nodeid)

def pytest_sessionfinish(session):
    with open(os.environ["MUTANT_RESULT"], "w") as file:
        json.dump({"ran": sorted(RAN), "failed": sorted(FAILED)}, file)
'''


@dataclass
class Outcome:
    """What came of one bug. `state` is "caught", "survived", "hangs", "cannot be planted" or "cannot be run"."""

    bug: Bug
    state: str
    seconds: float = 0.0
    detail: str = ""
    passed: list[str] = field(default_factory=list)


def all_bugs() -> list[Bug]:
    return [Bug.read(path) for path in sorted(HERE.glob("*.bug"), key=lambda path: int(path.stem.split("-")[0]))]


def plant(bug: Bug, root: Path) -> list[str]:
    """Write the bug into the tree at `root`. Returns the files that it changed, or raises `CannotBePlanted`."""
    changed = bug.planted(sources(root))
    for file, text in changed.items():
        (root / file).write_text(text, encoding="utf-8")
    return sorted(changed)


def copy_tree(source: Path, target: Path) -> None:
    target.mkdir()
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name)
        elif (source / name).exists():
            shutil.copy2(source / name, target / name)


def run_tests(root: Path, tests: Sequence[str], modules: Sequence[str] = ()) -> tuple[int, dict[str, list[str]], str]:
    """pytest's exit code, what ran and failed, and its output."""
    plugins = Path(tempfile.mkdtemp(prefix="plugins-", dir=root))
    (plugins / "mutant_plugin.py").write_text(PLUGIN, encoding="utf-8")
    result = plugins / "result.json"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "mutant_plugin", "--tb=line"]
    command += ["-m", "not slow", "-n0", *tests]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(root / "src"), str(plugins))),
        "MUTANT_ROOT": str(root),
        "MUTANT_RESULT": str(result),
        "MUTANT_MODULES": json.dumps(list(modules)),
    }
    limit = PATIENCE if modules else None
    done = subprocess.run(
        command, cwd=root, capture_output=True, text=True, env=environment, check=False, timeout=limit
    )
    found = json.loads(result.read_text()) if result.exists() else {"ran": [], "failed": []}
    return done.returncode, found, done.stdout + done.stderr


def named(test: str, ids: list[str]) -> list[str]:
    """Those of `ids` that `test` stands for: itself, or all its parameters."""
    return [one for one in ids if one == test or one.startswith((test + "[", test + "::"))]


def check_without_bugs(base: Path, bugs: list[Bug], jobs: int) -> str:
    """What is wrong before any bug is planted: a named test that does not exist, is slow, or fails anyway."""
    tests = sorted({test for bug in bugs for test in bug.tests})
    parts = [part for part in (tests[start::jobs] for start in range(jobs)) if part]
    with ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(lambda part: run_tests(base, part), parts))
    ran = [test for _, found, _ in results for test in found["ran"]]
    missing = [test for test in tests if not named(test, ran)]
    output = "\n".join(text[-3000:] for code, _, text in results if code != 0)
    if output:
        return f"the named tests fail, or are gone, without any bug:\n{output}"
    return f"these tests did not run: {', '.join(missing)}" if missing else ""


def try_bug(bug: Bug, base: Path, scratch: Path) -> Outcome:
    started = time.monotonic()
    root = scratch / bug.name
    copy_tree(base, root)
    try:
        files = plant(bug, root)
        for file in files:  # what was compiled before must not be used again
            for compiled in (root / file).parent.glob(f"__pycache__/{Path(file).stem}.*.pyc"):
                compiled.unlink()
        code, found, output = run_tests(root, bug.tests, [_module(file) for file in files])
    except CannotBePlanted as error:
        return Outcome(bug, "cannot be planted", detail=str(error))
    except subprocess.TimeoutExpired:
        return Outcome(bug, "hangs", PATIENCE)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    seconds = time.monotonic() - started
    if code not in (0, 1):
        return Outcome(bug, "cannot be run", seconds, output[-1500:])
    passed = [test for test in bug.tests if not named(test, found["failed"])]
    return Outcome(bug, "survived" if passed else "caught", seconds, passed=passed)


def _module(file: str) -> str:
    parts = Path(file).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def show(outcomes: list[Outcome], console: Console) -> None:
    table = Table("bug", "seen in", "caught by", "s", title="Seeded bugs", show_lines=True)
    for outcome in outcomes:
        bug = outcome.bug
        if outcome.state == "caught":
            verdict = "\n".join(_short(test) for test in bug.tests)
        else:
            passed = "".join(f"\npassed: {test}" for test in outcome.passed)
            verdict = f"[bold red]{outcome.state.upper()}[/]{passed}\n{outcome.detail}".strip()
        table.add_row(f"[bold]{bug.name}[/]\n{bug.what}", bug.seen, verdict, f"{outcome.seconds:.0f}")
    console.print(table)


def _short(test: str) -> str:
    return test.removeprefix("tests/").replace("::", " ")


def page(bugs: list[Bug]) -> str:
    """The documentation page. It is written only after every bug on it was caught."""
    really = sum(not bug.seen.startswith("nowhere") for bug in bugs)
    lines = [
        "# Seeded bugs",
        "",
        f"Can the test suite see a privacy bug? {len(bugs)} are kept in `tests/mutants/`, {really} of them bugs that other libraries, or "
        "earlier versions of this one, really had. `make mutants` plants each in a scratch copy of the sources and runs the tests named "
        "below, which are ordinary tests of the core suite. The command fails if one of them still passes. This page is written by it, "
        "after every bug was caught.",
        "",
        "A test that fails on a seeded bug shows that the suite can see bugs of that kind. It does not show that there are no others. "
        '"Ours" was seen in an earlier version of this library, "–" nowhere that we know of.',
        "",
        "| bug | seen in | caught by |",
        "|---|---|---|",
    ]
    for bug in bugs:
        tests = "<br>".join(f"`{_short(test)}`" for test in bug.tests)
        what, seen = (text.replace("|", "\\|") for text in (bug.what, bug.seen))
        seen = {"an earlier version of this library": "ours"}.get(seen, "–" if seen.startswith("nowhere") else seen)
        lines.append(f"| **{bug.name}**<br>{what} | {seen} | {tests} |")
    lines += [
        "",
        "## To add one",
        "",
        "1. Write a file `NN-name.bug` into `tests/mutants/`. On top three lines: `Bug:` one sentence, `Seen in:` where it really",
        "   happened, `Caught by:` the node id of a test that is not marked slow (a line for each test that must fail). Then the edits:",
        "",
        "   ```",
        "   In: Draw.release (src/apportion/curator/curator.py)",
        "   Old:",
        "       self._released = True",
        "   New:",
        "       pass",
        "   ```",
        "",
        "   The old text must occur exactly once in the function, method or class that is named (`module` for what is in none of them).",
        "   Comments, indentation and line breaks do not count, and the function may have moved to another file. Import in the new text",
        "   what it needs. `tests/mutants/seeded.py` has the rules.",
        "2. `.venv/bin/python tests/mutants/run.py --only NN-name`. If the bug survives, the suite misses that kind of bug: write",
        "   the test that guards the behaviour, not the edit, and name it.",
        "3. `make mutants` writes this page.",
        "",
        "`tests/guard/test_mutants.py` runs with the core suite and fails if a bug can no longer be planted or names a test that is gone.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME", nargs="+", help="bugs whose name contains NAME")
    parser.add_argument("--jobs", type=int, default=2, help="bugs that are tried at one time")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the documentation page, if all were caught")
    options = parser.parse_args()
    console = Console()
    bugs = [bug for bug in all_bugs() if options.only is None or any(name in bug.name for name in options.only)]
    if not bugs:
        console.print(f"no bug is called {options.only!r}")
        return 2
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        scratch = Path(folder)
        copy_tree(ROOT, scratch / "base")
        console.print(f"{len(bugs)} seeded bugs; first their tests on the sources as they are")
        if wrong := check_without_bugs(scratch / "base", bugs, options.jobs):
            console.print(f"[bold red]Nothing can be said:[/] {wrong}", highlight=False)
            return 1
        with ThreadPoolExecutor(options.jobs) as pool:
            tried = pool.map(lambda bug: try_bug(bug, scratch / "base", scratch), bugs)
            outcomes = []
            for outcome in track(tried, "seeding", total=len(bugs), console=console):
                outcomes.append(outcome)
                if outcome.state != "caught":
                    console.print(f"{outcome.bug.name}: [bold red]{outcome.state}[/]")
    show(outcomes, console)
    missed = [outcome for outcome in outcomes if outcome.state != "caught"]
    console.print(f"{len(outcomes) - len(missed)} of {len(outcomes)} caught")
    if missed:
        return 1
    if options.write and options.only is None:
        options.write.write_text(page(bugs), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
