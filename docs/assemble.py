"""Assembles the source of the site in build/docs: the pages of docs/, the notebooks as pages, those of reproduction/, and the top pages.

Pages and links are written so that they work in the repository. Here links are rewritten for the site; what has no page there, such as a
source file, becomes plain text.
"""

from __future__ import annotations

import json
import posixpath
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs/*.md", "docs/notebooks/*.ipynb", "reproduction/*.md")
PICTURES = ("docs/images/*", "reproduction/pictures/*")
_CODE_OR_LINK = re.compile(
    r"(?P<code>^```.*?^```$|`[^`\n]+`)|(?P<image>!?)\[(?P<label>[^\]]*)\]\((?P<target>[^)\s#]*)(?P<anchor>#[^)\s]*)?\)",
    flags=re.MULTILINE | re.DOTALL,
)


def as_markdown(notebook: str) -> str:
    """The cells of a notebook: text as it is, code in fences."""
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(notebook)["cells"]]
    return "\n\n".join(text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in cells) + "\n"


def find(patterns: tuple[str, ...]) -> dict[str, Path]:
    """Files by their place in the repository."""
    paths = sorted(path for pattern in patterns for path in ROOT.glob(pattern))
    return {path.relative_to(ROOT).as_posix(): path for path in paths}


def pages() -> dict[str, str]:
    """The Markdown of every page of the site, by the place of its source in the repository."""
    texts = {name: path.read_text(encoding="utf-8") for name, path in find(PAGES).items()}
    return {name: as_markdown(text) if name.endswith(".ipynb") else text for name, text in texts.items()}


def place(name: str) -> str:
    """Where a file of the repository is in the site's source."""
    return re.sub(r"\.ipynb$", ".md", name.removeprefix("docs/"))


def rewrite_links(name: str, text: str, known: set[str]) -> str:
    """The `text` of the page `name` with links as they are in the site. Those that lead nowhere stay, for the builder to report."""

    def rewrite(found: re.Match[str]) -> str:
        target = found["target"]
        if found["code"] or not target or "://" in target:
            return found[0]
        linked = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
        if linked in known or not (ROOT / linked).exists():
            here = posixpath.dirname(place(name)) or "."
            return (
                f"{found['image']}[{found['label']}]({posixpath.relpath(place(linked), here)}{found['anchor'] or ''})"
            )
        return f"{found['label']} (`{linked}` in the repository)"

    return _CODE_OR_LINK.sub(rewrite, text)


def assemble(folder: Path) -> None:
    """Write the source of the site into `folder`, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    sources, pictures = pages(), find(PICTURES)
    known = set(sources) | set(pictures)
    contents = {name: rewrite_links(name, text, known).encode() for name, text in sources.items()}
    contents |= {name: path.read_bytes() for name, path in pictures.items()}
    for name, content in contents.items():
        target = folder / place(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


if __name__ == "__main__":
    assemble(ROOT / "build" / "docs")
