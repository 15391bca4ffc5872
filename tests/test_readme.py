"""The README's code is run as a newcomer would paste it. Its links and commands are tested with those of the other pages (test_docs.py)."""

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_code_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert blocks
    names = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert 0.998 * 3 <= names["run"].epsilon() <= 3
    assert names["run"].history[-1].test_accuracy > 0.9
    assert (tmp_path / "run.html").stat().st_size > 1000


def test_it_can_be_read_in_a_few_minutes():
    """What is longer belongs to a page of docs/."""
    text = re.sub(r"^\|.*$|<!--.*?-->", "", README, flags=re.MULTILINE)
    assert len(text.split()) < 700
