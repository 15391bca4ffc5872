"""The pages keep up with the project: links, paths, commands and code in them are those of the project, and the site holds all of them."""

import importlib.util
import inspect
import json
import pkgutil
import re
import shlex
from pathlib import Path

import click
import pytest
import torch
import typer

import apportion as ap
from apportion.accounting.run_filter import GaussianRuns
from apportion.cli.main import app

ROOT = Path(__file__).parents[1]


def _assembler():
    spec = importlib.util.spec_from_file_location("assemble", ROOT / "docs" / "assemble.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ASSEMBLER = _assembler()
SITE = ASSEMBLER.pages()
PAGES = SITE | {"README.md": (ROOT / "README.md").read_text(encoding="utf-8")}
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
every_page = pytest.mark.parametrize("page", sorted(PAGES))

FENCED = re.compile(r"^```.*?^```", flags=re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```python\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"`((?:src|tests|docs|benchmarks|reproduction)/[^`\s:]+)")
COMMAND = re.compile(r"^apportion (.+?)(?:  +#.*)?$", flags=re.MULTILINE)


def text_of(page):
    """Without code blocks, in which a bracket may be anything."""
    return FENCED.sub("", PAGES[page])


def anchors_of(text):
    """The names that GitHub gives to headings: lower case, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_page
def test_links_lead_to_a_file_and_a_heading(page):
    for target in LINK.findall(text_of(page)):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        linked = ((ROOT / page).parent / file).resolve() if file else ROOT / page
        assert linked.exists(), target
        if anchor:
            name = linked.relative_to(ROOT).as_posix()
            assert anchor in anchors_of(PAGES.get(name) or linked.read_text(encoding="utf-8")), target


@pytest.mark.parametrize("page", sorted(set(PAGES) - {"CHANGELOG.md"}))  # which names files of its time
def test_paths_in_the_text_exist(page):
    for path in PATH.findall(text_of(page)):
        assert (ROOT / path).exists(), path


@every_page
def test_nothing_points_outside_the_project(page):
    assert "shared/" not in PAGES[page]


def known_options(words):
    """The options of the command that `words` name; fails if there is no such command."""
    command = typer.main.get_command(app)
    while isinstance(command, click.Group) or hasattr(command, "commands"):
        assert words[0] in command.commands, f"there is no command {words[0]}"
        command = command.commands[words.pop(0)]
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


@every_page
def test_commands_exist_with_their_options(page):
    for line in COMMAND.findall(PAGES[page]):
        words = shlex.split(line.replace("…", ""), comments=True)
        options = known_options(words)
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert used <= options, line


@every_page
def test_make_targets_exist(page):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)`", PAGES[page], flags=re.MULTILINE):
        assert re.search(rf"^{''.join(target)}:", makefile, flags=re.MULTILINE), target


ELSEWHERE = {"docs/extending.md"}  # its strategies are checked in tests/audit/test_check_strategy.py
RUN = sorted({page for page, text in SITE.items() if BLOCK.search(text) and page.endswith(".md")} - ELSEWHERE)


@pytest.mark.parametrize("page", RUN)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    """Block after block, as somebody would paste them. Pages find a model and records of one's own, a ledger, and a finished run."""
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(SITE[page])
    names = {"__name__": "page", "model": torch.nn.Linear(3, 2), "loss_fn": torch.nn.functional.cross_entropy}
    names["records"] = torch.randn(1437, 3), torch.zeros(1437, dtype=torch.long)  # as many as the pages declare
    if "patients.sqlite" in "".join(blocks):
        limit = ap.Budget(epsilon=3.0, delta=1e-6, unit=ap.Record())
        ap.Ledger.create(tmp_path / "patients.sqlite", name="patients", rule=GaussianRuns(limit))
    if "runs/mine" in "".join(blocks):
        budget = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())
        plan = ap.plan(budget=budget, population=1437, sample_rate=0.5, steps=2)
        storage = ap.Storage(folder="runs/mine")
        ap.train(torch.nn.Linear(3, 2), names["loss_fn"], names["records"], plan, lr=0.1, storage=storage)
    for block in blocks:
        exec(compile(block, page, "exec"), names)


def code_cells(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_runs(notebook, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for cell in code_cells(notebook):
        exec(compile("".join(cell["source"]), notebook.name, "exec"), names)
    assert "ε = " in capsys.readouterr().out
    if notebook.stem == "first-private-model":
        assert names["run"].history[-1].test_accuracy > 0.85
        assert 0.998 * 3 <= names["run"].epsilon() <= 3
    else:
        assert names["private"].epsilon() <= 3


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_is_stored_without_outputs(notebook):
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code_cells(notebook))


def test_the_menu_of_the_site_has_every_page():
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"[:-] (\S+\.md)$", config[config.index("nav:") :], flags=re.MULTILINE)
    assert sorted(listed) == sorted(map(ASSEMBLER.place, SITE))


def test_the_reference_has_every_public_name():
    documented = re.findall(r"^::: apportion\.([\w.]+)$", SITE["docs/api.md"], flags=re.MULTILINE)
    assert len(documented) == len(set(documented))
    modules = {name for name in ap.__all__ if inspect.ismodule(getattr(ap, name))}
    expected = set(ap.__all__) - modules
    roles = {f"{role}.{name}": name for role in ("clip", "noise", "update") for name in getattr(ap, role).__all__}
    expected |= set(roles)
    protocols = {path for path, name in roles.items() if name in ap.__all__}  # listed once
    short = {name.rpartition(".")[2] for name in documented if name.startswith("audit.")}
    assert expected - protocols <= set(documented) | short
    for name in documented:
        pkgutil.resolve_name(f"apportion.{name}")


def test_the_site_is_assembled_with_links_that_lead_somewhere(tmp_path):
    ASSEMBLER.assemble(tmp_path / "site")
    pages = list((tmp_path / "site").rglob("*.md"))
    assert len(pages) == len(SITE)
    for page in pages:
        for target in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
            if "://" not in target and (file := target.partition("#")[0]):
                assert (page.parent / file).exists(), (page.name, target)


def test_nothing_remote_is_asked_for():
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "font: false" in config
    assert "http" not in config
    for name, text in SITE.items():
        assert "<script" not in text, name
        assert not re.search(r"!\[[^\]]*\]\(http|<img[^>]*http", text), name


def test_the_patterns_find_what_they_are_for():
    text = "see [here](a.md#b), `tests/test_docs.py::test` and `src/apportion/request.py`"
    assert LINK.findall(text) == ["a.md#b"]
    assert PATH.findall(text) == ["tests/test_docs.py", "src/apportion/request.py"]
    assert COMMAND.findall("apportion train --data digits    # why\n") == ["train --data digits"]
    assert "exact-the-key" in anchors_of(PAGES["docs/ledger.md"])
    assert len(RUN) >= 4
    assert len(NOTEBOOKS) == 2
    with pytest.raises(AssertionError, match="there is no command"):
        known_options(["trian"])


def test_links_are_rewritten_for_the_site():
    known = {"docs/a.md", "docs/notebooks/b.ipynb", "SECURITY.md"}
    rewrite = ASSEMBLER.rewrite_links
    assert rewrite("docs/a.md", "[b](notebooks/b.ipynb#x)", known) == "[b](notebooks/b.md#x)"
    assert rewrite("docs/a.md", "[s](../SECURITY.md)", known) == "[s](SECURITY.md)"
    assert rewrite("docs/notebooks/b.ipynb", "[a](../a.md)", known) == "[a](../a.md)"
    assert rewrite("SECURITY.md", "[a](docs/a.md)", known) == "[a](a.md)"
    assert rewrite("docs/a.md", "[l](../LICENSE)", known) == "l (`LICENSE` in the repository)"
    assert rewrite("docs/a.md", "`[l](../LICENSE)`", known) == "`[l](../LICENSE)`"
    assert rewrite("docs/a.md", "[`s`](../SECURITY.md)", known) == "[`s`](SECURITY.md)"
