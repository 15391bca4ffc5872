"""PATE (Papernot et al. 2017, 2018): teachers learn from disjoint parts of the private records, a student from their noisy votes.

    records ──hash──► parts ──fit──► teachers ──► votes on public inputs ──noise──► labels ──► student

`partition.py` says who teaches whom, `teaching.py` fits and asks, `ballot_box.py` holds the votes and hands out noisy answers, each
charged first under `group_filter.py`: one account for each group of people. `variants.py` are the three ways to use different budgets
(Boenisch et al. 2023). The function itself is `apportion.pate`.
"""

from typing import TYPE_CHECKING

from apportion.lazy import lazy_names

if TYPE_CHECKING:
    from apportion.teachers.aggregation import ConfidentGNMax, GNMax
    from apportion.teachers.taught import Taught
    from apportion.teachers.teaching import Fit
    from apportion.teachers.variants import Upsampling, Vanishing, Weighting

__all__ = ["ConfidentGNMax", "Fit", "GNMax", "Taught", "Upsampling", "Vanishing", "Weighting"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "aggregation": ("ConfidentGNMax", "GNMax"),
        "taught": ("Taught",),
        "teaching": ("Fit",),
        "variants": ("Upsampling", "Vanishing", "Weighting"),
    },
)
