"""The referee: every method is tuned with the same number of trials, and then judged beside a fixed clip on data that had no part in it."""

from __future__ import annotations

from reproduction.referee.design import Design, Judge, Method, Trial, read_designs
from reproduction.referee.trials import KeptTrials, run_trials

__all__ = ["Design", "Judge", "KeptTrials", "Method", "Trial", "read_designs", "run_trials"]
