"""The table of docs/statistics.md: which method is best for a count, and which for a mean."""

import re
from pathlib import Path

import numpy as np
import pytest

import apportion as ap
from apportion.statistics import Adaptive, Partition, Sample

PAGE = Path(__file__).parents[2] / "docs" / "statistics.md"
PEOPLE, SHARES = {"a": (0.1, 0.34), "b": (0.3, 0.43), "c": (1.0, 0.23)}, [0.34, 0.43, 0.23]
METHODS = (None, Sample("max"), Sample("mean"), Partition("utility"), Adaptive(population=1000))


def errors():
    """Of a count of values up to ½ and of a mean: root mean squares by method."""
    plain = ap.Budget(epsilon=0.1, delta=1e-6, unit=ap.Record())
    several = ap.Budget.of_groups(PEOPLE, delta=1e-6, unit=ap.Record())
    generator, found = np.random.default_rng(0), np.zeros((2, len(METHODS), 100))
    for seed in range(100):
        values, labels = generator.random(1000), generator.choice(list(PEOPLE), 1000, p=SHARES)
        for place, method in enumerate(METHODS):
            terms = {"budget": several, "labels": labels, "method": method} if method else {"budget": plain}
            count = ap.statistics.count(values, bounds=(0, 0.5), seed=seed, **terms).value
            mean = ap.statistics.mean(values, bounds=(0, 1), seed=seed, **terms).value
            found[:, place, seed] = count - (values <= 0.5).sum(), mean - values.mean()
    return np.sqrt((found**2).mean(axis=2))


def test_the_table_is_what_comes_out():
    count, mean = errors()
    assert count.argmin() == 4
    assert mean[4] < 1.05 * mean.min() < 0.8 * mean[0]
    for name, measured in (("count", count), ("mean", mean)):
        row = re.search(rf"^\| {name} of .*?\|(.+)\|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert [float(cell) for cell in row.group(1).split("|")] == pytest.approx(measured, rel=0.02)
