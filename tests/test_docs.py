"""The pages keep up with the project: their links lead to files and headings that exist, and so do the paths that they name."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = (ROOT / "docs", ROOT / "reproduction")
PAGES = sorted(
    [ROOT / "README.md", ROOT / "SECURITY.md", *(page for folder in FOLDERS for page in folder.glob("*.md"))]
)
named = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())

FENCED = re.compile(r"^```.*?^```", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"`((?:src|tests|docs|benchmarks|reproduction)/[^`\s:]+)")


def text_of(page):
    """Without code blocks, in which a bracket may be anything."""
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors_of(page):
    """The names that GitHub gives to headings: lower case, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", text_of(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@named
def test_links_lead_to_a_file_and_a_heading(page):
    for target in LINK.findall(text_of(page)):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors_of(linked), target


@named
def test_paths_in_the_text_exist(page):
    for path in PATH.findall(text_of(page)):
        assert (ROOT / path).exists(), path


def test_the_patterns_find_what_they_are_for():
    text = "see [here](a.md#b), `tests/test_docs.py::test` and `src/apportion/request.py`"
    assert LINK.findall(text) == ["a.md#b"]
    assert PATH.findall(text) == ["tests/test_docs.py", "src/apportion/request.py"]
    assert "exact-the-key" in anchors_of(ROOT / "docs" / "recovery.md")
