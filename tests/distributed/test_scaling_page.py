"""The figures of docs/scaling.md are those of the kept measurements."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_figures_of_the_results():
    spec = importlib.util.spec_from_file_location("scaling_page", ROOT / "benchmarks" / "scaling_page.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    page = module.PAGE.read_text(encoding="utf-8")
    assert module.filled(page, *module.read()) == page
    assert "first bottleneck is: noise" in page
