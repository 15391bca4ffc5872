"""Public features of private records: computed once, from each record alone, so that a small model learns from them at no privacy cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from apportion.lazy import lazy_names

if TYPE_CHECKING:
    from apportion.features.colours import Opponent
    from apportion.features.extraction import extract
    from apportion.features.extractor import Extractor, FeatureMap
    from apportion.features.feature_head import linear_head
    from apportion.features.feature_norms import ChannelNorm, ChannelScaling, GroupNorm
    from apportion.features.mirroring import Mirror
    from apportion.features.pretrained import Pretrained
    from apportion.features.random_layer import RandomLayer
    from apportion.features.scatter import Scatter
    from apportion.features.whitening import Whiten
    from apportion.features.word_counts import WordCounts

__all__ = [
    "ChannelNorm",
    "ChannelScaling",
    "Extractor",
    "FeatureMap",
    "GroupNorm",
    "Mirror",
    "Opponent",
    "Pretrained",
    "RandomLayer",
    "Scatter",
    "Whiten",
    "WordCounts",
    "extract",
    "linear_head",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "colours": ("Opponent",),
        "extraction": ("extract",),
        "extractor": ("Extractor", "FeatureMap"),
        "feature_head": ("linear_head",),
        "feature_norms": ("ChannelNorm", "ChannelScaling", "GroupNorm"),
        "mirroring": ("Mirror",),
        "pretrained": ("Pretrained",),
        "random_layer": ("RandomLayer",),
        "scatter": ("Scatter",),
        "whitening": ("Whiten",),
        "word_counts": ("WordCounts",),
    },
)
