"""The study room: a table or a figure of a paper as one file, run cell by cell, kept, and run again only where it changed."""

from __future__ import annotations

from reproduction.study.run_study import recheck, run_study
from reproduction.study.study import Study, is_study, study
from reproduction.study.study_results import StudyResults

__all__ = ["Study", "StudyResults", "is_study", "recheck", "run_study", "study"]
