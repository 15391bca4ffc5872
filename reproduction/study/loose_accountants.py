"""Accountants that need more noise than ours for the same ε, to run what was published with them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from apportion.accounting.accountant import Accountant
from apportion.accounting.concentrated import DisjointEpochsAccountant, TruncatedConcentratedAccountant
from apportion.errors import InvalidArgument
from apportion.event import Event


class CoveringTruncatedAccountant(TruncatedConcentratedAccountant):
    """tCDP, where steps with too little noise for its theorem cost infinitely much, so that a plan gets enough of it."""

    def epsilon(self, events: Mapping[Event, int], delta: float) -> float:
        try:
            return super().epsilon(events, delta)
        except InvalidArgument as refusal:
            if refusal.argument != "noise_multiplier":
                raise
            return math.inf


OTHERS: Mapping[str, Accountant] = {"zcdp": DisjointEpochsAccountant(), "tcdp": CoveringTruncatedAccountant()}
"""By the name that a recipe's `calibrated_by` gives them."""
