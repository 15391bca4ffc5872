"""Both directions of one step in closed form, and the exact law of a coin: the two ends of the amplification that is claimed."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.curator.randomness import Stream
from apportion.event import Event


def added(rate, multiplier, epsilon):
    """δ(ε) of N(0, 1) against (1−q)·N(0, 1) + q·N(1/z, 1): a record is added."""
    if math.exp(-epsilon) <= 1 - rate:
        return 0.0
    edge = multiplier * math.log((math.exp(-epsilon) - 1 + rate) / rate) + 1 / (2 * multiplier)
    other = (1 - rate) * norm.cdf(edge) + rate * norm.cdf(edge - 1 / multiplier)
    return norm.cdf(edge) - math.exp(epsilon) * other


def removed(rate, multiplier, epsilon):
    """The same pair the other way round: a record is removed."""
    edge = multiplier * math.log((math.exp(epsilon) - 1 + rate) / rate) + 1 / (2 * multiplier)
    here = (1 - rate) * norm.sf(edge) + rate * norm.sf(edge - 1 / multiplier)
    return here - math.exp(epsilon) * norm.sf(edge)


@pytest.mark.parametrize(("rate", "multiplier"), [(0.02, 0.8), (0.3, 0.7), (0.6, 2.0), (0.95, 1.0)])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.4])
def test_adding_and_removing_a_record_are_both_priced(rate, multiplier, epsilon):
    curve = PrivacyLossAccountant().curve({Event(rate, multiplier): 1}, 1e-6)
    for exact, found in (
        (added(rate, multiplier, epsilon), curve.added.delta(epsilon)),
        (removed(rate, multiplier, epsilon), curve.removed.delta(epsilon)),
    ):
        assert exact <= found + 1e-15
        assert found <= exact * 1.003 + 1e-8
    assert curve.delta(epsilon) >= max(added(rate, multiplier, epsilon), removed(rate, multiplier, epsilon)) - 1e-15


class Fixed(Stream):
    """A stream of given words."""

    def __init__(self, words):
        self._words = np.array(words, dtype=np.uint64)

    def words(self, count):
        return self._words[:count]


@pytest.mark.parametrize("rate", [0.5, 0.3, 1 / 3, 1e-3, 2.0**-20, 1e-9, 1e-15])
def test_a_coin_falls_for_no_more_of_the_words_than_its_rate(rate):
    """⌊q·2⁶⁴⌋ of the 2⁶⁴ words are heads. With 24 or 32 bits a small rate would be rounded up, many times over."""
    border = int(rate * 2**64)
    coins = Fixed([0, border - 1, border, border + 1, 2**64 - 1]).coins(5, rate)
    assert coins.tolist() == [True, True, False, False, False]
