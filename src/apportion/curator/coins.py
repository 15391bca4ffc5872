"""Who joins a batch: Poisson sampling, and nothing else is offered as private.

Each record tosses its own coin with probability q, independently of all others and of every other draw. The amplification that
the accountant claims holds for exactly this. Shuffled or fixed-size batches would need another, larger price.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from apportion.curator.randomness import Stream


def poisson_draw(records: int, sample_rate: float, coins: Stream) -> NDArray[np.int64]:
    """Indices of the records whose coin fell true; possibly none, possibly all."""
    return np.flatnonzero(coins.coins(records, sample_rate))
