"""Finds privacy bugs: in the library, in a model, in a strategy. Everything here tries to disprove a guarantee."""

from apportion.audit.check_strategy import StrategyReport, check_strategy
from apportion.audit.replay import replay
from apportion.audit.replay_report import Finding, ReplayReport
from apportion.audit.statistical import audit
from apportion.audit.verdict import AuditResult
from apportion.errors import PrivacyViolation

__all__ = [
    "AuditResult",
    "Finding",
    "PrivacyViolation",
    "ReplayReport",
    "StrategyReport",
    "audit",
    "check_strategy",
    "replay",
]
