"""The people role: what groups with different budgets get, in sampling rates and thresholds. Public, and fixed before a run."""

from __future__ import annotations

from apportion.strategies.people.grouping import Grouping, group_by_epsilon
from apportion.strategies.people.individual import IndividualEstimate, IndividualFilter
from apportion.strategies.people.sample import Sample
from apportion.strategies.people.scale import Scale
from apportion.strategies.people.uniform import Uniform
from apportion.strategies.roles import People

__all__ = [
    "Grouping",
    "IndividualEstimate",
    "IndividualFilter",
    "People",
    "Sample",
    "Scale",
    "Uniform",
    "group_by_epsilon",
]
