"""The study room: a table or a figure of a paper as one file, run cell by cell, kept, and run again only where it changed."""

from __future__ import annotations

from reproduction.study.running import recheck, run_study
from reproduction.study.study import Study, open_study, read_study, study_names
from reproduction.study.study_results import StudyResults

__all__ = ["Study", "StudyResults", "open_study", "read_study", "recheck", "run_study", "study_names"]
