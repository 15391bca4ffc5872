"""Names that are imported when they are first used."""

import sys

import pytest

EXPORTS = {"shape": ("area",), "size": (".",)}
FILES = {
    "__init__.py": f"from apportion.lazy import lazy_names\n__getattr__, __dir__ = lazy_names(__name__, {EXPORTS})\n",
    "shape.py": "def area(): return 1\n",
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
    assert {"area", "size"} <= set(dir(package))
    assert "made_up.shape" not in sys.modules
    assert package.area() == 1
    assert "made_up.size" not in sys.modules
    assert package.size.largest == 3
    assert vars(package)["area"] is package.area


def test_other_names_are_missing(package):
    with pytest.raises(AttributeError, match="module 'made_up' has no attribute 'nonsense'"):
        _ = package.nonsense
    with pytest.raises(ImportError):
        from made_up import nonsense  # noqa: F401
