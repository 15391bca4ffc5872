"""Hyper-parameter search that pays for what it sees: free on public data, charged as a whole on private data."""

from apportion.tuning.private_search import SearchPlan, plan_search
from apportion.tuning.tune import tune
from apportion.tuning.tuned import Tuned

__all__ = ["SearchPlan", "Tuned", "plan_search", "tune"]
