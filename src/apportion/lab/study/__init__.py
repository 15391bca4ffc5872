"""The study room: a table or a figure of a paper as one file, run cell by cell, kept, and run again only where it changed."""

from __future__ import annotations

from apportion.lab.study.results import StudyResults
from apportion.lab.study.run import recheck, run_study
from apportion.lab.study.study import Study, is_study, study

__all__ = ["Study", "StudyResults", "is_study", "recheck", "run_study", "study"]
