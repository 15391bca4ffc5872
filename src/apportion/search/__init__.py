"""The search for clip thresholds on public data: epoch by epoch, the threshold with which one more epoch of training scores best."""

from apportion.search.search import search
from apportion.search.search_settings import SearchSettings
from apportion.search.trace import Fit, Trace, fit_decay

__all__ = ["Fit", "SearchSettings", "Trace", "fit_decay", "search"]
