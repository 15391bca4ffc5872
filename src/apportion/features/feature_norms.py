"""How the features of a record are brought to one scale before a linear layer learns from them: by the record itself, which is free, or by
all records, which is paid for (`apportion.channel_norm`)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from apportion.channel_norm import ChannelNorm
from apportion.models.channel_scaling import ChannelScaling
from apportion.validate import Checked, checked, whole

__all__ = ["ChannelNorm", "ChannelScaling", "GroupNorm"]


@dataclass(frozen=True)
class GroupNorm(Checked):
    """(x − mean)/√(variance + 10⁻⁵) over each group of channels of one record, with nothing that is learned.

    Args:
        groups: of channels, at most; as many as divide the channels evenly. Features without positions, such as the pooled ones of a
            network, are one group.

    Source: Wu and He, Group normalization (2018); for scattering features Tramèr and Boneh (2021), with 27 groups of 81 channels.
    Guarantee: a record is normalised by its own numbers, so it costs nothing.

    Examples:
        >>> import apportion as ap
        >>> import torch
        >>> ap.features.GroupNorm(groups=1).apply(torch.tensor([[1.0, 3.0], [10.0, 30.0]])).round(decimals=2).tolist()
        [[-1.0, 1.0], [-1.0, 1.0]]
    """

    prefix = "features.norm"
    groups: int = checked(27, whole, "it is a number of groups", "Try groups=27")

    def apply(self, features: Tensor) -> Tensor:
        """(records, channels, …), normalised."""
        channels = features.shape[1]
        most = self.groups if features.dim() > 2 else 1
        groups = next(count for count in range(min(most, channels), 0, -1) if channels % count == 0)
        return functional.group_norm(features, groups)
