"""docs/methods.md explains every strategy, and its table of calibrated multipliers is true."""

import dataclasses
import re
from pathlib import Path

import pytest

from apportion import clip, noise
from apportion.budget import Budget, Record
from apportion.sampling import Sampling
from apportion.strategies import update
from runs import make_plan

PAGE = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
PARTS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")}
ROWS = {
    name: [float(number) for number in numbers.split(" | ")]
    for name, numbers in re.findall(r"^\| `(\w+)` \| ([\d.]+ \| [\d.]+ \| [\d.]+) \|$", PAGE, flags=re.MULTILINE)
}


@pytest.mark.parametrize(("part", "role"), [("Clip", clip), ("Noise", noise), ("Update", update)])
def test_every_strategy_has_a_section(part, role):
    headings = re.findall(r"^### (.+)$", PARTS[part], flags=re.MULTILINE)
    explained = {name for heading in headings for name in heading.split(", ")}
    assert explained == {name for name in role.__all__ if dataclasses.is_dataclass(getattr(role, name))}


def test_every_schedule_has_a_row():
    schedules = {name for name in noise.__all__ if hasattr(getattr(noise, name), "relative")} - {"NoiseSchedule"}
    assert set(ROWS) == schedules


@pytest.mark.parametrize("name", ["Constant", "TimeDecay", "ExponentialDecay", "StepDecay", "PolynomialDecay"])
def test_the_row_is_true(name):
    """Those that change by epoch; calibrating thousands of different multipliers takes too long for a row of a table."""
    sampling = Sampling.declare(population=60_000, batch_size=256, epochs=20)
    budget = Budget(epsilon=2.0, delta=1e-5, unit=Record())
    plan = make_plan(budget, sampling, clip.Fixed(1.0), getattr(noise, name)())
    found = [plan.multipliers[0], plan.multipliers[plan.steps // 2], plan.multipliers[-1]]
    assert found == pytest.approx(ROWS[name], abs=2e-3)
