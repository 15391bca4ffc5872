"""What is installed and what is exported: names, dependencies, and one version in one place."""

import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import apportion
from apportion.extras import EXTRAS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CORE = {"torch", "numpy", "scipy", "cryptography", "safetensors", "dp-accounting"}
OPTIONAL = sorted({module for modules in EXTRAS.values() for module in modules})
APART = ("flower",)  # extras with an environment of their own: they pin other versions of what the others need
TOGETHER = [extra for extra in EXTRAS if extra not in APART]
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(apportion.__path__, "apportion.")
    if not module.name.startswith("apportion.federated.flower")  # make test-flower
)
PACKAGES = sorted(module.name for module in pkgutil.walk_packages(apportion.__path__, "apportion.") if module.ispkg)
PARTS = (
    "accounting",
    "audit",
    "clip",
    "data",
    "distributed",
    "features",
    "federated",
    "integrations",
    "noise",
    "people",
    "recipes",
    "sklearn",
    "statistics",
    "tables",
    "teachers",
    "update",
)  # the modules among the exported names
BARE = ("cli", "reporting", "data", "compare", "search", "integrations", "sklearn")  # the rooms that may need an extra

# The program runs as if the optional packages were not installed.
WITHOUT_EXTRAS = f"""
import sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {OPTIONAL} else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""


TRAIN = ["train", "--data", "digits", "--epsilon", "1", "--delta", "1e-5", "--unit", "record"]


def run(program, *arguments):
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def names_of(requirements):
    return {re.split(r"[\[<>=]", requirement)[0] for requirement in requirements}


def test_the_core_needs_six_packages():
    assert names_of(PROJECT["dependencies"]) == CORE


@pytest.mark.parametrize("extra", TOGETHER)
def test_an_extra_installs_the_modules_that_are_asked_for_in_its_name(extra):
    found = packages_distributions()
    installed = {found[module][0].lower() for module in EXTRAS[extra]}
    assert names_of(PROJECT["optional-dependencies"][extra]) == installed


@pytest.mark.parametrize("extra", APART)
def test_an_extra_apart_is_tested_with_its_lowest_version(extra):
    (requirement,) = PROJECT["optional-dependencies"][extra]
    assert names_of([requirement]) == set(EXTRAS[extra])
    tested = (ROOT / f"constraints-{extra}.txt").read_text(encoding="utf-8").splitlines()
    assert requirement.replace(">=", "==") in tested


def test_all_is_every_extra_that_can_be_installed_beside_the_others():
    assert PROJECT["optional-dependencies"]["all"] == [f"apportion[{','.join(TOGETHER)}]"]


def test_the_lowest_versions_are_the_ones_that_are_promised():
    lowest = dict(
        line.split("==")
        for line in (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    )
    extras = (PROJECT["optional-dependencies"][extra] for extra in TOGETHER)
    for requirement in (*PROJECT["dependencies"], *(one for extra in extras for one in extra)):
        name, bound = requirement.split(">=")
        assert lowest[name] == bound, requirement


def test_importing_the_package_imports_nothing_else():
    code, out, err = run("import apportion, sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))")
    assert code == 0, err
    heavy = {"torch", "numpy", "scipy", "dp_accounting", "cryptography", "safetensors", "pandas", *OPTIONAL}
    assert not heavy & set(out.split())


def test_the_core_can_be_imported_without_any_extra():
    core = [name for name in MODULES if name.split(".")[1] not in BARE]
    code, _, err = run(f"{WITHOUT_EXTRAS}\nimport importlib\nfor name in {core}: importlib.import_module(name)")
    assert code == 0, err


def test_the_core_trains_without_any_extra():
    watched = "sys.stderr.isatty = lambda: True  # there is no rich to draw a bar"
    training = (ROOT / ".ci" / "short_training.py").read_text(encoding="utf-8")
    code, out, err = run(f"{WITHOUT_EXTRAS}\n{watched}\n{training}")
    assert code == 0, err
    assert 1.9 < float(out) <= 2
    assert "step 5/5" in err


def test_the_command_line_without_its_extra_is_one_sentence():
    code, out, err = run(f"{WITHOUT_EXTRAS}\nfrom apportion.cli import run; run()", "train", "--help")
    assert (code, out) == (2, "")
    assert err.startswith("error: typer and rich and pydantic are not installed.")
    assert err.endswith('pip install "apportion[cli]"\n')
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "module", "extra"),
    [
        (["compare", "demo"], "plotly", "report"),
        (["recipes", "lin-decay", "--html", "a.html"], "plotly", "report"),
        (["data", "list"], "platformdirs", "data"),
        ([*TRAIN, "--population", "1437"], "sklearn", "data"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_a_command_without_its_extra_is_one_sentence(command, module, extra, tmp_path):
    program = f"{WITHOUT_EXTRAS.replace(str(OPTIONAL), str([module]))}\nimport os; os.chdir({str(tmp_path)!r})"
    code, out, err = run(f"{program}\nfrom apportion.cli import run; run()", *command)
    assert (code, out) == (2, ""), err
    assert err.startswith("error: ")
    assert module in err
    assert err.endswith(f'pip install "apportion[{extra}]"\n')
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_what_a_person_lacks_is_no_extra_of_ours(tmp_path):
    (tmp_path / "mine.py").write_text("import nonsense_that_nobody_has\n", encoding="utf-8")
    program = (
        f"import os, sys; os.chdir({str(tmp_path)!r}); sys.path.insert(0, '.')\nfrom apportion.cli import run; run()"
    )
    code, _, err = run(program, "check", "--model", "mine:model")
    assert code != 0
    assert "nonsense_that_nobody_has" in err
    assert "pip install" not in err


def test_every_exported_name_is_what_it_says():
    """Also after all modules were imported: a module must not take the place of a function of the same name."""
    program = f"""
import importlib, types
for name in {MODULES}: importlib.import_module(name)
for name in {["apportion", *MODULES]}:
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", ()):
        assert public in dir(module), (name, public)
        parts = {PARTS} if name == "apportion" else (public,) if f"{{name}}.{{public}}" in {PACKAGES} else ()
        assert isinstance(getattr(module, public), types.ModuleType) == (public in parts), (name, public)
"""
    code, _, err = run(program)
    assert code == 0, err


def test_public_packages_say_what_they_export():
    for name in (
        "",
        ".accounting",
        ".audit",
        ".curator",
        ".data",
        ".distributed",
        ".models",
        ".reporting",
        ".search",
        ".statistics",
        ".strategies",
    ):
        assert importlib.import_module(f"apportion{name}").__all__


def test_there_is_one_version():
    assert PROJECT["dynamic"] == ["version"]
    assert "version" not in PROJECT
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert cited.group(1) == apportion.__version__


def test_the_package_is_typed():
    assert (ROOT / "src" / "apportion" / "py.typed").exists()
