"""The rooms import in one direction only, as docs/architecture.md draws them."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "apportion"
FOUNDATION = {"errors", "extras", "lazy", "validate", "budget", "event", "releases", "request"}
FOUNDATION |= {"execution", "devices", "domain", "usable", "channel_norm", "ranks"}
PLANNING = FOUNDATION | {
    "accounting",
    "strategies",
    "sampling",
    "planning",
    "plan_filters",
    "plan_files",
    "plan_drawing",
}
CORE = PLANNING | {"curator", "models", "training"}
MAY_IMPORT = {
    "errors": set(),
    "extras": {"errors"},
    "lazy": set(),
    "validate": {"errors"},
    "budget": {"errors", "validate"},
    "event": {"errors", "validate"},
    "releases": {"errors", "validate", "event"},
    "request": {"errors", "validate", "event", "releases"},
    "execution": {"errors", "validate"},
    "devices": set(),
    "ranks": set(),
    "domain": {"errors", "validate"},
    "usable": {"errors", "validate"},
    "channel_norm": {"validate", "event", "releases", "request"},
    "accounting": FOUNDATION,
    "strategies": FOUNDATION | {"accounting"},
    "sampling": FOUNDATION | {"strategies"},
    "planning": FOUNDATION | {"accounting", "strategies", "sampling", "plan_filters", "plan_files", "plan_drawing"},
    "plan_filters": FOUNDATION | {"accounting", "strategies"},
    "plan_files": FOUNDATION | {"sampling"},
    "plan_drawing": {"reporting", "planning"},
    "curator": FOUNDATION,
    "models": FOUNDATION | {"curator", "strategies"},
    "distributed": FOUNDATION | {"curator"},
    "training": CORE | {"reporting", "distributed"},
    "audit": CORE | {"distributed"},
    "data": FOUNDATION,
    "reporting": CORE,
    "features": CORE,
    "compare": CORE | {"data", "features", "reporting", "statistics", "tables", ""},
    "search": CORE | {"data", "compare", ""},
    "sklearn": CORE | {"tables"},
    "statistics": CORE,
    "advice": CORE | {"data", "reporting"},
    "tables": CORE | {"statistics"},
    "tuning": CORE | {"compare"},
    "teachers": CORE | {"compare"},
    "integrations": CORE,
    "federated": CORE | {"audit", "distributed"},
    "pipeline": CORE | {"audit", "distributed"},
    "cli": CORE
    | {
        "audit",
        "data",
        "reporting",
        "compare",
        "search",
        "statistics",
        "tables",
        "tuning",
        "teachers",
        "advice",
        "integrations",
        "distributed",
        "",
    },
    "__main__": {"cli"},
}
WITHOUT_TORCH = (
    FOUNDATION
    | {"accounting", "strategies", "sampling", "planning", "plan_filters", "plan_files"}
    | {
        "statistics",
        "tables",
    }
)


def room_of(path):
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "apportion":
                yield from ((f"apportion.{alias.name}", node) for alias in node.names)
            else:
                yield node.module, node


def test_nothing_in_the_package_needs_the_papers():
    for path in SOURCE.rglob("*.py"):
        assert not [name for name, _ in imports_of(path) if name.split(".")[0] == "reproduction"], path


def test_the_wheel_holds_the_package_alone():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["packages"] == ["src/apportion"]
    assert "force-include" not in wheel


FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    room = room_of(path)
    for name, _ in imports_of(path):
        if not name.startswith("apportion"):
            continue
        other = name.split(".")[1] if "." in name else ""
        other = other if (SOURCE / other).is_dir() or (SOURCE / f"{other}.py").exists() else ""
        assert other == room or other in MAY_IMPORT[room], f"{room} must not import {name}"


@pytest.mark.parametrize(
    "path", [path for path in FILES if room_of(path) in WITHOUT_TORCH], ids=lambda path: str(path.relative_to(SOURCE))
)
def test_these_rooms_need_no_torch(path):
    text = path.read_text(encoding="utf-8")
    outside_type_checking = [
        node
        for name, node in imports_of(path)
        if name.split(".")[0] == "torch" and not text.splitlines()[node.lineno - 1].startswith("    ")
    ]
    assert not outside_type_checking


def test_a_file_is_found_by_its_name():
    """One name, one file, in the whole package."""
    names = [path.name for path in FILES if path.name != "__init__.py"]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_importing_the_package_imports_no_torch():
    program = (
        "import sys, apportion; apportion.Budget; apportion.clip.Fixed(1.0); apportion.recipes.abadi();"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_command_line_starts_without_torch():
    """`--help`, `plan` and `ledger` need none, and it takes seconds."""
    program = "import sys, apportion.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_plan_is_made_on_the_command_line_without_torch():
    asked = (
        "plan --recipe abadi --epsilon 3 --delta 1e-5 --unit record --population 600 --batch-size 60 --steps 9 --json"
    )
    program = f"""
import sys
from apportion.cli import run
sys.argv = ["apportion", *{asked.split()!r}]
try:
    run()
except SystemExit as end:
    assert not end.code, end.code
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_every_public_name_exists():
    import apportion

    assert all(getattr(apportion, name) is not None for name in apportion.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = apportion.nonsense


def test_the_report_needs_no_torch():
    """It reads files; torch would make it seconds slower."""
    code = "import sys, apportion.reporting.page, apportion.reporting.plan_page; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
