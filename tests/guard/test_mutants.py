"""The seeded bugs do not rot: every patch says what it is, applies to the sources as they are, and names tests that exist.

Whether the tests catch them is what `make mutants` finds out.
"""

import ast
import functools
import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATCHES = sorted((ROOT / "tests/mutants").glob("*.patch"))


def _runner():
    name = "mutants_runner"
    specification = importlib.util.spec_from_file_location(name, ROOT / "tests/mutants/run.py")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # dataclasses look their module up
    specification.loader.exec_module(module)
    return module


RUNNER = _runner()


@functools.cache
def functions_of(path):
    """name → whether it is marked slow, of the tests in a file."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {
        node.name: any("slow" in ast.unparse(decorator) for decorator in node.decorator_list)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_there_are_enough_of_them():
    assert len(PATCHES) >= 45
    numbers = [path.name.split("-")[0] for path in PATCHES]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("path", PATCHES, ids=lambda path: path.stem)
def test_a_patch_says_what_it_is_and_names_tests_that_exist(path):
    mutant = RUNNER.Mutant.read(path)
    assert mutant.bug.endswith(".")
    assert mutant.files
    assert all(file.startswith("src/apportion/") and (ROOT / file).exists() for file in mutant.files)
    for test in mutant.tests:
        file, _, name = test.partition("::")
        found = functions_of(file)
        assert name.partition("[")[0] in found, f"{test} is gone"
        assert not found[name.partition("[")[0]], f"{test} is slow: it is no part of the core suite"


@pytest.mark.parametrize("path", PATCHES, ids=lambda path: path.stem)
def test_a_patch_applies_to_the_sources_as_they_are(path):
    if not (shutil.which("git") or shutil.which("patch")):
        pytest.skip("neither git nor patch is installed")
    assert RUNNER.apply(path, ROOT, check=True) == ""


def test_the_page_is_that_of_these_patches():
    assert (ROOT / "docs/seeded-bugs.md").read_text(encoding="utf-8") == RUNNER.page(RUNNER.all_mutants())


def test_a_patch_without_headers_is_refused(tmp_path):
    path = tmp_path / "99-nothing.patch"
    path.write_text("Bug: something.\nCaught by: tests/test_request.py::test_a_request_is_frozen\n\n--- a/x\n+++ b/x\n")
    with pytest.raises(ValueError, match="Seen in"):
        RUNNER.Mutant.read(path)
