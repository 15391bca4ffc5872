"""Names that are imported when they are first used."""

import importlib
import sys

import pytest

EXPORTS = {"shape": ("area", "shape"), "size": (".",)}
FILES = {
    "__init__.py": f"from apportion.lazy import lazy_names\n__getattr__, __dir__ = lazy_names(__name__, {EXPORTS})\n",
    "shape.py": "def area(): return 1\ndef shape(): return 'round'\n",
    "size.py": "largest = 3\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "made_up"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import made_up

    yield made_up
    for name in [name for name in sys.modules if name.partition(".")[0] == "made_up"]:
        del sys.modules[name]


def test_nothing_is_imported_before_it_is_used(package):
    assert {"area", "shape", "size"} <= set(dir(package))
    assert "made_up.shape" not in sys.modules
    assert package.area() == 1
    assert "made_up.size" not in sys.modules
    assert package.size.largest == 3
    assert vars(package)["area"] is package.area


def test_an_exported_function_wins_over_the_module_of_its_name(package):
    importlib.import_module("made_up.shape")
    assert sys.modules["made_up.shape"].area() == 1
    assert package.shape() == "round"
    from made_up.shape import area

    assert package.area is area
    assert package.shape() == "round"


def test_other_names_are_missing(package):
    with pytest.raises(AttributeError, match="module 'made_up' has no attribute 'nonsense'"):
        _ = package.nonsense
    with pytest.raises(ImportError):
        from made_up import nonsense  # noqa: F401
