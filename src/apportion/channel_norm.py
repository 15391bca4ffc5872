"""The paid normalisation of features: one noisy question about all records before the first step, and what is made of its answer.

Let x_i ∈ R^{K×P} be the features of record i, K channels at P positions. Each record contributes one joint vector of its own means and
mean squares,

    m_i = (x̄_i1, …, x̄_iK, s_i1, …, s_iK) ∈ R^{2K},    x̄_ic = Σ_p x_icp / P,    s_ic = Σ_p x_icp² / P,

clipped to the norm C = b·√K, where b is the declared `bound`. The answer is

    m̃ = (Σ_i m_i·min(1, C/‖m_i‖) + N(0, (z·C)²·I)) / N,

with the declared population N, never the number of records. From it follow, as public values, the mean m̃_c and the variance
max(m̃_{K+c} − m̃_c², 4·z·C/N) of every channel: what the noise alone could have made of a variance is not divided by.

*Sensitivity.* A record more or less changes the sum by its own clipped vector, whose norm is at most C, whatever the record is: means and
squares are clipped together, so one question with multiplier z is paid for, and not two. It is asked of everybody (q = 1), so its event is
Event(1, z). It is composed with the steps of the plan exactly: one ε for both.

*Why √K.* A record all of whose channels have mean 0 and mean square 1, as group normalisation aims at, has ‖m_i‖ = √K. On scattering
features of MNIST and Fashion-MNIST ‖m_i‖/√K lies between 0.5 and 1, so b = 1 clips nobody there. Features that were not brought to about
that scale before would be lost in the noise.

Imports no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from apportion.event import Event
from apportion.releases import ClippedSum
from apportion.request import Request
from apportion.validate import Checked, checked, positive

DEVIATIONS = 4.0
"""Below so many standard deviations of its noise a variance is not believed."""


@final
@dataclass(frozen=True)
class ChannelNorm(Checked):
    """Each channel of the features minus its mean, divided by its standard deviation: both by one noisy question, which is paid for.

    A part of the plan: `apportion.plan(..., norm=ChannelNorm())`. What is trained begins with an `apportion.features.ChannelScaling`, into
    which the answer is written before the first step.

    Args:
        multiplier: z of the question. More noise costs less: alone z = 30 costs ε = 0.11 at δ = 10⁻⁵.
        bound: b. The vector of a record is clipped to b·√K, K being the number of channels.

    Source: Tramèr and Boneh, Differentially private learning needs better features (or much more data) (2021), who ask for means and
    squares by two questions, with thresholds from the private data. Here the threshold is declared.
    Guarantee: the question is the event (1, z), charged before a record is read, whatever the records are (the module's text).

    Examples:
        >>> import apportion as ap
        >>> norm = ap.features.ChannelNorm(multiplier=30.0)
        >>> norm.event()
        Event(sample_rate=1.0, noise_multiplier=30.0)
        >>> round(norm.deviation(channels=81, population=60_000), 4)  # of features whose variance is about 1
        0.0045
    """

    prefix = "norm"
    multiplier: float = checked(30.0, positive, "without noise no finite epsilon holds", "Try multiplier=30.0")
    bound: float = checked(1.0, positive, "it bounds what one record can do", "Try bound=1.0")

    def event(self) -> Event:
        """The price."""
        return Event(1.0, self.multiplier)

    def request(self, channels: int, population: float, coins_per_unit: int = 1) -> Request:
        """The question itself: about everybody, divided by the declared population."""
        sums = (ClippedSum(self.bound * math.sqrt(channels)),)
        return Request(1.0, self.multiplier, population, sums, coins_per_unit=coins_per_unit)

    def deviation(self, channels: int, population: float) -> float:
        """The standard deviation of each number of the answer."""
        request = self.request(channels, population)
        return request.standard_deviation(request.sums[0]) / population

    def smallest_variance(self, channels: int, population: float) -> float:
        """Smaller ones could have been made by the noise, and are taken for this one."""
        return DEVIATIONS * self.deviation(channels, population)
