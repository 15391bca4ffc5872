"""The README's code is run, block after block, as a newcomer would paste it; its links lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])


def test_the_code_blocks_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) >= 3
    names = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert 0.998 * 3 <= names["run"].epsilon() <= 3
    assert names["run"].history[-1].test_accuracy > 0.9
    assert names["private"].epsilon() <= 1
    assert "BatchNorm2d" in capsys.readouterr().out


def test_the_shell_commands_exist(monkeypatch):
    from apportion.cli.main import app

    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    commands |= {group.name for group in app.registered_groups}
    used = set(re.findall(r"^apportion (\w+)", README, flags=re.MULTILINE))
    assert used
    assert used <= commands
    targets = set(re.findall(r"^make (\w+)", README, flags=re.MULTILINE))
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in targets)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_nothing_points_outside_the_project():
    for page in PAGES:
        assert "shared/" not in page.read_text(encoding="utf-8"), page.name
