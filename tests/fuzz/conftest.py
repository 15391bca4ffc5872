"""Counts the inputs of all fuzz tests, in whichever process they run, and prints the sum."""

import tempfile
from pathlib import Path

import pytest
from fuzz_commands import build, isolate
from fuzz_share import WANTED

MEMORY = Path("/dev/shm")
"""Every charge waits for the disk; where a folder can be kept in memory, thousands of commands need not."""


@pytest.fixture(scope="module")
def workshop():
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name,
    ):
        root = Path(name)
        isolate(patch, root)
        yield build(root / "original")


@pytest.fixture
def tally(record_property):
    """Count an input: tally(refused)."""
    counts = {"tried": 0, "refused": 0}
    record_property("fuzz", counts)

    def count(refused):
        counts["tried"] += 1
        counts["refused"] += bool(refused)

    return count


def pytest_terminal_summary(terminalreporter):
    found = [
        counts
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, counts in report.user_properties
        if name == "fuzz"
    ]
    if found:
        tried, refused = (sum(counts[kind] for counts in found) for kind in ("tried", "refused"))
        terminalreporter.write_line(f"fuzz: {tried:,} inputs tried, {refused:,} refused, the rest was valid")
        if refused < WANTED:
            raise pytest.UsageError(f"fewer than {WANTED:,} malformed inputs were tried")
