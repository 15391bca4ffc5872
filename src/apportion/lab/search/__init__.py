"""The search for clip thresholds on public data: epoch by epoch, the threshold with which one more epoch of training scores best."""

from apportion.lab.search.fit import Fit, fit_decay
from apportion.lab.search.run import search
from apportion.lab.search.settings import SearchSettings
from apportion.lab.search.trace import Trace

__all__ = ["Fit", "SearchSettings", "Trace", "fit_decay", "search"]
