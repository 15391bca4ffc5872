"""The seeded bugs do not rot: every one says what it is, can be planted in the sources as they are, and names tests that exist.

Whether the tests catch them is what `make mutants` finds out.
"""

import ast
import functools
import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests/mutants"
BUGS = sorted(FOLDER.glob("*.bug"))


def _module(name, file):
    specification = importlib.util.spec_from_file_location(name, FOLDER / file)
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # dataclasses look their module up, and the runner imports the other
    specification.loader.exec_module(module)
    return module


SEEDED = _module("seeded", "seeded.py")
RUNNER = _module("mutants_runner", "run.py")
SOURCES = SEEDED.sources(ROOT)


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
    assert len(BUGS) >= 206
    numbers = [int(path.name.split("-")[0]) for path in BUGS]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert {path.suffix for path in FOLDER.iterdir() if path.is_file()} == {".bug", ".py"}


@pytest.mark.parametrize("path", BUGS, ids=lambda path: path.stem)
def test_a_bug_says_what_it_is_and_names_tests_that_exist(path):
    bug = SEEDED.Bug.read(path)
    assert bug.what.endswith(".")
    for test in bug.tests:
        file, _, name = test.partition("::")
        found = functions_of(file)
        assert name.partition("[")[0] in found, f"{test} is gone"
        assert not found[name.partition("[")[0]], f"{test} is slow: it is no part of the core suite"


@pytest.mark.parametrize("path", BUGS, ids=lambda path: path.stem)
def test_a_bug_can_be_planted_in_the_sources_as_they_are(path):
    bug = SEEDED.Bug.read(path)
    assert bug.planted(SOURCES)
    for edit in bug.edits:
        old, new = ([token.text for token in SEEDED.tokens(side)] for side in (edit.old, edit.new))
        assert old != new


def test_the_page_is_that_of_these_bugs():
    assert (ROOT / "docs/seeded-bugs.md").read_text(encoding="utf-8") == RUNNER.page(RUNNER.all_bugs())


HOUSE = "src/apportion/house.py"
WRITTEN = """\
LIMIT = 3

class Room:
    def open(self, key):
        # only with a key
        total = self.first(key) + self.second(key)
        if total > LIMIT:
            raise ValueError(key, total)
        return total

    def close(self, key):
        total = self.first(key) + self.second(key)
        return total
"""


def _bug(tmp_path, *edits):
    text = "Bug: It does not lock.\nSeen in: nowhere\nCaught by: tests/none.py::test_none\n\n" + "\n".join(edits)
    path = tmp_path / "1-lock.bug"
    path.write_text(text, encoding="utf-8")
    return SEEDED.Bug.read(path)


def _edit(place, old, new, file=HOUSE):
    old, new = ("".join(f"    {line}\n" for line in side.splitlines()) for side in (old, new))
    return f"In: {place} ({file})\nOld:\n{old}New:\n{new}"


SWAP = ("Room.open", "total = self.first(key) + self.second(key)", "total = self.first(key)")


def _same(found, expected):
    return {file: ast.unparse(ast.parse(text)) for file, text in found.items()} == {
        file: ast.unparse(ast.parse(text)) for file, text in expected.items()
    }


def test_an_edit_changes_the_named_function_alone(tmp_path):
    found = _bug(tmp_path, _edit(*SWAP)).planted({HOUSE: WRITTEN})
    assert found == {HOUSE: WRITTEN.replace(" + self.second(key)", "", 1)}


def test_an_edit_survives_another_layout_and_other_comments(tmp_path):
    laid_out = WRITTEN.replace(
        "        total = self.first(key) + self.second(key)\n        if",
        "        total = (  # of both\n            self.first(\n                key,\n            )\n"
        "            # and\n            + self.second(key)\n        )\n        if",
    )
    for new in ("total = self.first(key)", "total = self.first(\n    key\n)\ntotal += 1"):
        bug = _bug(tmp_path, _edit(SWAP[0], SWAP[1], new))
        assert _same(bug.planted({HOUSE: laid_out}), bug.planted({HOUSE: WRITTEN}))


def test_an_edit_survives_another_depth(tmp_path):
    deeper = WRITTEN.replace(
        "        if total > LIMIT:\n            raise ValueError(key, total)\n",
        "        with self:\n            if total > LIMIT:\n                raise ValueError(key, total)\n",
    )
    bug = _bug(
        tmp_path, _edit("Room.open", "if total > LIMIT:\n    raise ValueError(key, total)", "if not total:\n    pass")
    )
    expected = deeper.replace("total > LIMIT", "not total").replace("raise ValueError(key, total)", "pass")
    assert bug.planted({HOUSE: deeper}) == {HOUSE: expected}


def test_an_edit_follows_its_function_to_another_file(tmp_path):
    elsewhere = "src/apportion/yard.py"
    found = _bug(tmp_path, _edit(*SWAP)).planted({HOUSE: "LIMIT = 3\n", elsewhere: WRITTEN})
    assert found == {elsewhere: WRITTEN.replace(" + self.second(key)", "", 1)}


def test_brackets_at_the_end_of_the_old_text_need_not_end_a_line(tmp_path):
    inside = WRITTEN.replace("return total", "return max(one for one in (total, LIMIT))")
    bug = _bug(tmp_path, _edit("Room.open", "one in (total, LIMIT)", "one in (total, 0)"))
    assert bug.planted({HOUSE: inside}) == {HOUSE: inside.replace("(total, LIMIT)", "(total, 0)", 1)}


def test_the_last_argument_may_have_a_comma_or_not(tmp_path):
    bug = _bug(tmp_path, _edit("Room.open", "key, total,", "key, None,"))
    with_comma = WRITTEN.replace("key, total)", "key, total,)")
    assert _same(bug.planted({HOUSE: with_comma}), bug.planted({HOUSE: WRITTEN}))


def test_edits_look_at_the_sources_as_they_are(tmp_path):
    bug = _bug(
        tmp_path,
        _edit("module", "LIMIT = 3", "LIMIT = 4"),
        _edit("Room.open", "total > LIMIT", "return_total > LIMIT"),
        _edit("Room.open", "return total", "if total > LIMIT:\n    total = LIMIT\nreturn total"),
    )
    (text,) = bug.planted({HOUSE: WRITTEN}).values()
    assert "LIMIT = 4\n" in text
    assert text.count("total > LIMIT") == 2
    ast.parse(text)


@pytest.mark.parametrize(
    "edits",
    [
        [("Room.shut", *SWAP[1:])],  # no such place
        [("Room.open", "total = self.third(key)", "total = 0")],  # no such text
        [("Room", *SWAP[1:])],  # twice
        [("Room.open", "total", "nothing")],  # several times
        [("module", "total > LIMIT", "True")],  # inside a function
        [("Room.open", "", "pass")],  # nothing
        [("Room.open", "(key, total", "(total")],  # an open bracket
        [("Room.open", "return total", "return (")],  # no program any more
        [("Room.open", "return total", "return 1"), ("Room.open", "total", "1")],
        [
            ("Room.open", "raise ValueError(key, total)", "pass"),
            ("Room.open", "ValueError(key, total)", "1"),
        ],  # overlap
    ],
)
def test_a_bug_that_cannot_be_planted_in_one_way_only_is_an_error(tmp_path, edits):
    with pytest.raises(ValueError):
        _bug(tmp_path, *(_edit(*edit) for edit in edits)).planted({HOUSE: WRITTEN})


def test_a_place_in_two_files_is_an_error_unless_the_hint_is_right(tmp_path):
    twins = {"src/apportion/a.py": WRITTEN, "src/apportion/b.py": WRITTEN}
    with pytest.raises(SEEDED.CannotBePlanted):
        _bug(tmp_path, _edit(*SWAP)).planted(twins)
    assert list(_bug(tmp_path, _edit(*SWAP, file="src/apportion/b.py")).planted(twins)) == ["src/apportion/b.py"]


def test_a_file_with_other_words_in_it_is_an_error(tmp_path):
    with pytest.raises(ValueError):
        _bug(tmp_path, _edit(*SWAP), "And: more\n")
