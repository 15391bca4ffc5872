"""A layer that normalises channels by released constants, and the module by which the curator computes what they are made of."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from apportion import validate
from apportion.errors import InvalidArgument

_SMALLEST = 1e-5
"""Of exact variances, as in group normalisation."""


class ChannelScaling(nn.Module):
    """(x − mean_c)/deviation_c for features (records, channels·positions), with constants that a run asks for before its first step.

    The constants are buffers: they are kept in checkpoints and saved with the weights. Until a run has asked for them (`known`) features
    stay as they are. What is asked, and what it costs, is `apportion.features.ChannelNorm`.

    Args:
        channels, positions: of the features, each at least 1; those of a channel stand beside each other.

    Examples:
        >>> import apportion as ap
        >>> import torch
        >>> layer = ap.features.ChannelScaling(channels=2, positions=1)
        >>> layer.write(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 25.0]))
        >>> layer(torch.tensor([[3.0, 7.0]])).tolist()
        [[1.0, 1.0]]
    """

    mean: Tensor
    deviation: Tensor
    known: Tensor

    def __init__(self, channels: int, positions: int):
        super().__init__()
        fix = "Use those of Extractor.channels and Extractor.positions"
        self.channels = validate.whole("channels", channels, "it is a number of channels", fix)
        self.positions = validate.whole("positions", positions, "it is a number of positions", fix)
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("deviation", torch.ones(channels))
        self.register_buffer("known", torch.zeros((), dtype=torch.bool))

    @property
    def width(self) -> int:
        """How many features a record has."""
        return self.channels * self.positions

    def forward(self, features: Tensor) -> Tensor:
        mean, deviation = (one.repeat_interleave(self.positions) for one in (self.mean, self.deviation))
        return (features - mean) / deviation

    def write(self, mean: Tensor, variance: Tensor) -> None:
        """Take over constants that were released, or that are public."""
        self.mean.copy_(mean)
        self.deviation.copy_(variance.sqrt())
        self.known.fill_(True)

    def forget(self) -> None:
        """Leave features as they are, until a run asks."""
        self.write(torch.zeros_like(self.mean), torch.ones_like(self.deviation))
        self.known.fill_(False)

    def extra_repr(self) -> str:
        return f"channels={self.channels}, positions={self.positions}"


class ChannelMoments(nn.Module):
    """⟨w, m(x)⟩ with m(x) = (mean of each channel, mean square of each channel). Its gradient for w is m(x) itself.

    So the curator, which clips gradients of single records, pools those of a user, and adds noise to their sum, answers for moments too:
    there is no second way out of it.

    Args:
        like: the layer that the moments are for.
    """

    def __init__(self, like: ChannelScaling):
        super().__init__()
        self.channels, self.positions = like.channels, like.positions
        self.readout = nn.Linear(2 * like.channels, 1, bias=False)
        nn.init.zeros_(self.readout.weight)

    def forward(self, features: Tensor) -> Tensor:
        answer: Tensor = self.readout(self.moments(features))
        return answer

    def moments(self, features: Tensor) -> Tensor:
        """m(x), one row a record."""
        parts = features.unflatten(1, (self.channels, self.positions))
        return torch.cat([parts.mean(2), parts.square().mean(2)], dim=1)

    def exact_constants(self, pieces: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
        """Mean and variance of the channels of all records, without noise: for training without privacy. Broken records do not count."""
        total, count = torch.zeros(2 * self.channels, dtype=torch.float64), 0
        for features in pieces:
            found = self.moments(features.double())
            whole = found.isfinite().all(1)
            total, count = total + found[whole].sum(0), count + int(whole.sum())
        mean, square = (total / max(1, count)).split(self.channels)
        return mean, (square - mean.square()).clamp(min=_SMALLEST)


def moment_loss(outputs: Tensor, targets: object) -> Tensor:
    """The output itself, so that the gradient of a record is its m(x). What the record is labelled as has no part in it."""
    return outputs.mean()


def find_scaling(model: nn.Module) -> ChannelScaling | None:
    """The layer of a model, if it has one."""
    found = [layer for layer in model.modules() if isinstance(layer, ChannelScaling)]
    if len(found) > 1:
        reason = (
            "one question is asked, about the features that records have, and there are several layers for its answer"
        )
        raise InvalidArgument("model", f"{len(found)} of ChannelScaling", reason, "Begin the model with one of them")
    return found[0] if found else None
