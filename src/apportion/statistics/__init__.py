"""Private statistics of a column: to find bounds, class weights and sizes before training, each charged to the ledger of the data set.

    ap.statistics.quantile(incomes, 0.95, bounds=(0, 1e6), budget=budget, storage="patients.sqlite")

The functions of this room are a curator of their own: they read private values, charge, draw noise, and hand out `Statistic`s only.
"""

from apportion.statistics.personal import Adaptive, Exponential, Method, Part, Partition, Sample
from apportion.statistics.questions import count, histogram, mean, quantile
from apportion.statistics.statistic import Statistic, class_weights
from apportion.statistics.thresholded import categories

__all__ = [
    "Adaptive",
    "Exponential",
    "Method",
    "Part",
    "Partition",
    "Sample",
    "Statistic",
    "categories",
    "class_weights",
    "count",
    "histogram",
    "mean",
    "quantile",
]
