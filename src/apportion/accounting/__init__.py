"""From events to ε: what a sequence of requests costs. Imports no torch and can be used alone.

    from apportion.accounting import PrivacyLossAccountant, calibrate

Names are imported when they are first used: `dp_accounting` alone takes half a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from apportion.lazy import lazy_names

if TYPE_CHECKING:
    from apportion.accounting.accountant import Accountant, PrivacyLossAccountant, RunningPrice, count_events
    from apportion.accounting.advanced import AdvancedCompositionAccountant
    from apportion.accounting.attacker import advantage, true_positive_rate
    from apportion.accounting.calibration import calibrate, longest_affordable
    from apportion.accounting.central_limit import CentralLimitAccountant
    from apportion.accounting.comparisons import compare_accountants, compare_plans
    from apportion.accounting.concentrated import DisjointEpochsAccountant, TruncatedConcentratedAccountant
    from apportion.accounting.ledger import AdmittedRun, Ledger
    from apportion.accounting.renyi import RenyiAccountant
    from apportion.accounting.schedules import read_schedule, schedule_from_history
    from apportion.accounting.selection import selection_epsilon
    from apportion.accounting.verification import independent_price

__all__ = [
    "Accountant",
    "AdmittedRun",
    "AdvancedCompositionAccountant",
    "CentralLimitAccountant",
    "DisjointEpochsAccountant",
    "Ledger",
    "PrivacyLossAccountant",
    "RenyiAccountant",
    "RunningPrice",
    "TruncatedConcentratedAccountant",
    "advantage",
    "calibrate",
    "compare_accountants",
    "compare_plans",
    "count_events",
    "independent_price",
    "longest_affordable",
    "read_schedule",
    "schedule_from_history",
    "selection_epsilon",
    "true_positive_rate",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "accountant": ("Accountant", "PrivacyLossAccountant", "RunningPrice", "count_events"),
        "advanced": ("AdvancedCompositionAccountant",),
        "attacker": ("advantage", "true_positive_rate"),
        "calibration": ("calibrate", "longest_affordable"),
        "central_limit": ("CentralLimitAccountant",),
        "comparisons": ("compare_accountants", "compare_plans"),
        "concentrated": ("DisjointEpochsAccountant", "TruncatedConcentratedAccountant"),
        "ledger": ("AdmittedRun", "Ledger"),
        "renyi": ("RenyiAccountant",),
        "schedules": ("read_schedule", "schedule_from_history"),
        "selection": ("selection_epsilon",),
        "verification": ("independent_price",),
    },
)
