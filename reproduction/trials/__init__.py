"""Equal effort: every method of a design is tuned with the same number of trials, on data that it is not judged on."""

from __future__ import annotations

from reproduction.trials.design import Block, Design, Judge, Method, Trial, read_designs
from reproduction.trials.kept import KeptTrials, run_trials
from reproduction.trials.stages import Stage, find_winner, missing_trials

__all__ = [
    "Block",
    "Design",
    "Judge",
    "KeptTrials",
    "Method",
    "Stage",
    "Trial",
    "find_winner",
    "missing_trials",
    "read_designs",
    "run_trials",
]
