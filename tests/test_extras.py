"""A missing extra is one sentence with the command that installs it."""

import sys

import pytest

from apportion.errors import MissingExtra
from apportion.extras import require_extra


def test_what_is_installed_is_not_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "this", raising=False)
    require_extra("report", "json", "this")  # `this` prints a poem when it is imported
    assert "this" not in sys.modules


def test_what_is_missing_is_named_with_the_command():
    with pytest.raises(MissingExtra, match=r"^not_there is not installed\. .*: pip install \"apportion\[report\]\"$"):
        require_extra("report", "json", "not_there")
    with pytest.raises(ImportError, match=r"^not_there and nor_this are not installed\."):
        require_extra("report", "not_there", "nor_this")
