"""Seeded bugs: apply each patch of this folder to a scratch copy and see whether the tests that it names fail.

    python tests/mutants/run.py [--only NAME] [--jobs N] [--write docs/seeded-bugs.md]

First the named tests run on an unpatched copy: they must pass, or "caught" would mean nothing. A bug is caught if *every* test that its
patch names fails. A patch that does not apply, or whose code cannot be imported, is an error of the patch and never a catch.
"""

from __future__ import annotations

import argparse
import json
import os
import re
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

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PATIENCE = 900  # seconds for the tests of one bug; one that makes them hang is not caught
COPIED = ("src", "tests", "pyproject.toml", "README.md", "docs")
HEADERS = ("Bug", "Seen in", "Caught by")

PLUGIN = '''
"""Refuses to test another package than the patched one; writes down which tests ran and which failed."""
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


@dataclass(frozen=True)
class Mutant:
    """One patch file. `tests` are the node ids that are claimed to fail, `files` the sources that it changes."""

    path: Path
    bug: str
    seen: str
    tests: tuple[str, ...]
    files: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.path.stem

    @classmethod
    def read(cls, path: Path) -> Mutant:
        """Header lines `Bug:`, `Seen in:`, `Caught by:` (one or more), then a unified diff."""
        text = path.read_text(encoding="utf-8")
        headers = text.split("\n--- ", 1)[0]
        found = {key: re.findall(rf"^{key}: *(\S.*)$", headers, re.MULTILINE) for key in HEADERS}
        for key, values in found.items():
            if not values or (key != "Caught by" and len(values) > 1):
                raise ValueError(f"{path.name} needs one line '{key}: …' (of 'Caught by' one or more) before its diff")
        files = tuple(re.findall(r"^\+\+\+ b/(\S+)", text, re.MULTILINE))
        return cls(path, found["Bug"][0], found["Seen in"][0], tuple(found["Caught by"]), files)


@dataclass
class Outcome:
    """What came of one mutant. `state` is "caught", "survived", "hangs", "does not apply" or "broken patch"."""

    mutant: Mutant
    state: str
    seconds: float = 0.0
    detail: str = ""
    passed: list[str] = field(default_factory=list)


def all_mutants() -> list[Mutant]:
    return [Mutant.read(path) for path in sorted(HERE.glob("*.patch"), key=lambda path: int(path.stem.split("-")[0]))]


def apply(patch: Path, root: Path, *, check: bool = False) -> str:
    """Apply `patch` to the tree at `root`, or only see whether it would apply. Returns what is wrong; nothing if all is well."""
    if shutil.which("git"):
        command = ["git", "apply", *(["--check"] if check else []), str(patch)]
    else:
        command = ["patch", "-p1", "--fuzz=0", "--batch", *(["--dry-run"] if check else []), "-i", str(patch)]
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(root.parent)}
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, env=environment, check=False)
    return "" if done.returncode == 0 else (done.stderr or done.stdout or "it failed").strip()


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


def check_unpatched(base: Path, mutants: list[Mutant], jobs: int) -> str:
    """What is wrong before any patch: a named test that does not exist, is slow, or fails anyway."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    parts = [part for part in (tests[start::jobs] for start in range(jobs)) if part]
    with ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(lambda part: run_tests(base, part), parts))
    ran = [test for _, found, _ in results for test in found["ran"]]
    missing = [test for test in tests if not named(test, ran)]
    output = "\n".join(text[-3000:] for code, _, text in results if code != 0)
    if output:
        return f"the named tests fail, or are gone, without any patch:\n{output}"
    return f"these tests did not run: {', '.join(missing)}" if missing else ""


def try_mutant(mutant: Mutant, base: Path, scratch: Path) -> Outcome:
    started = time.monotonic()
    root = scratch / mutant.name
    copy_tree(base, root)
    try:
        if wrong := apply(mutant.path, root):
            return Outcome(mutant, "does not apply", detail=wrong)
        for file in mutant.files:  # what was compiled before the patch must not be used again
            for compiled in (root / file).parent.glob(f"__pycache__/{Path(file).stem}.*.pyc"):
                compiled.unlink()
        code, found, output = run_tests(root, mutant.tests, [_module(file) for file in mutant.files])
    except subprocess.TimeoutExpired:
        return Outcome(mutant, "hangs", PATIENCE)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    seconds = time.monotonic() - started
    if code not in (0, 1):
        return Outcome(mutant, "broken patch", seconds, output[-1500:])
    passed = [test for test in mutant.tests if not named(test, found["failed"])]
    return Outcome(mutant, "survived" if passed else "caught", seconds, passed=passed)


def _module(file: str) -> str:
    parts = Path(file).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def show(outcomes: list[Outcome], console: Console) -> None:
    table = Table("bug", "seen in", "caught by", "s", title="Seeded bugs", show_lines=True)
    for outcome in outcomes:
        mutant = outcome.mutant
        if outcome.state == "caught":
            verdict = "\n".join(_short(test) for test in mutant.tests)
        else:
            passed = "".join(f"\npassed: {test}" for test in outcome.passed)
            verdict = f"[bold red]{outcome.state.upper()}[/]{passed}\n{outcome.detail}".strip()
        table.add_row(f"[bold]{mutant.name}[/]\n{mutant.bug}", mutant.seen, verdict, f"{outcome.seconds:.0f}")
    console.print(table)


def _short(test: str) -> str:
    return test.removeprefix("tests/").replace("::", " ")


def page(mutants: list[Mutant]) -> str:
    """The documentation page. It is written only after every bug on it was caught."""
    lines = [
        "# Seeded bugs",
        "",
        f"Can the test suite see a privacy bug? {len(mutants)} are kept as patches in `tests/mutants/`, most of them bugs that other "
        "libraries really had. `make mutants` applies each to a scratch copy of the sources and runs the tests named below, which are "
        "ordinary tests of the core suite. The command fails if one of them still passes. This page is written by it, after every bug was "
        "caught.",
        "",
        "A test that fails on a seeded bug shows that the suite can see bugs of that kind. It does not show that there are no others.",
        "",
        "| bug | seen in | caught by |",
        "|---|---|---|",
    ]
    for mutant in mutants:
        tests = "<br>".join(f"`{_short(test)}`" for test in mutant.tests)
        bug, seen = (text.replace("|", "\\|") for text in (mutant.bug, mutant.seen))
        lines.append(f"| **{mutant.name}**<br>{bug} | {seen} | {tests} |")
    lines += [
        "",
        "## To add one",
        "",
        "1. Break the source, `git diff -U1 > tests/mutants/NN-name.patch`, and restore it. One line of context keeps the patch",
        "   valid while the code around it changes.",
        "2. Put three lines on top: `Bug:` one sentence, `Seen in:` where it really happened, `Caught by:` the node id of a test",
        "   that is not marked slow (a line for each test that must fail).",
        "3. `.venv/bin/python tests/mutants/run.py --only NN-name`. If the bug survives, the suite misses that kind of bug: write",
        "   the test that guards the behaviour, not the patch, and name it.",
        "4. `make mutants` writes this page.",
        "",
        "`tests/guard/test_mutants.py` runs with the core suite and fails if a patch no longer applies or names a test that is gone.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME", help="patches whose name contains NAME")
    parser.add_argument("--jobs", type=int, default=2, help="mutants that are tried at one time")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the documentation page, if all were caught")
    options = parser.parse_args()
    console = Console()
    mutants = [mutant for mutant in all_mutants() if options.only is None or options.only in mutant.name]
    if not mutants:
        console.print(f"no patch is called {options.only!r}")
        return 2
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        scratch = Path(folder)
        copy_tree(ROOT, scratch / "base")
        console.print(f"{len(mutants)} seeded bugs; first their tests on the unpatched sources")
        if wrong := check_unpatched(scratch / "base", mutants, options.jobs):
            console.print(f"[bold red]Nothing can be said:[/] {wrong}", highlight=False)
            return 1
        with ThreadPoolExecutor(options.jobs) as pool:
            tried = pool.map(lambda mutant: try_mutant(mutant, scratch / "base", scratch), mutants)
            outcomes = []
            for outcome in track(tried, "seeding", total=len(mutants), console=console):
                outcomes.append(outcome)
                if outcome.state != "caught":
                    console.print(f"{outcome.mutant.name}: [bold red]{outcome.state}[/]")
    show(outcomes, console)
    missed = [outcome for outcome in outcomes if outcome.state != "caught"]
    console.print(f"{len(outcomes) - len(missed)} of {len(outcomes)} caught")
    if missed:
        return 1
    if options.write and options.only is None:
        options.write.write_text(page(mutants), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
