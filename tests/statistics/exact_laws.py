"""The law of what a question releases, computed from what it executes: samples, contributions and the scale of the noise."""

import itertools
import math
from fractions import Fraction

import numpy as np

from apportion.statistics import noisy_sums


class Constant:
    """A stream of one word, again and again."""

    def __init__(self, word):
        self.word = word

    def words(self, count):
        return np.full(count, self.word, dtype=np.uint64)


def executed_rates(part, roster):
    """P[record is in the sample], exactly: by bisection for the largest word with which its coin falls."""
    low, high = np.full(len(roster.level), -1, dtype=object), np.full(len(roster.level), 2**64 - 1, dtype=object)
    for _ in range(65):
        middle = [(a + b + 1) // 2 for a, b in zip(low, high, strict=True)]
        for i, word in enumerate(middle):
            falls = word >= 0 and noisy_sums.draw_sample(part, roster, Constant(word))[i]
            low[i], high[i] = (word, high[i]) if falls else (low[i], max(low[i], word - 1))
    return [Fraction(word + 1, 2**64) for word in low]


def observe(monkeypatch, ask, records):
    """What `ask()` executes for each part: the rate of each record, its contribution, and the scale of the noise."""
    parts, sums, scales, mask = [], [], [], np.zeros(records, dtype=bool)
    draw_sample, release_sum = noisy_sums.draw_sample, noisy_sums.release_sum

    def choose(part, roster, coins):
        parts.append((part, roster))
        return mask.copy()

    def release(*arguments):
        sums.append(release_sum(*arguments))
        return sums[-1]

    def no_noise(scale, stream):
        scales.append(scale)
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(noisy_sums, "draw_sample", choose)
        patch.setattr(noisy_sums, "release_sum", release)
        patch.setattr(noisy_sums, "draw_discrete_laplace", no_noise)
        ask()
        count, dimensions = len(parts), len(sums[0])
        executed = parts.copy()
        contributions = [[None] * records for _ in range(count)]
        for i in range(records):
            mask[:] = np.arange(records) == i
            ask()
            for k, vector in enumerate(sums[-count:]):
                contributions[k][i] = tuple(vector)
        used = [set(scales[k * dimensions : (k + 1) * dimensions]) for k in range(count)]
    assert draw_sample is noisy_sums.draw_sample
    assert all(len(one) == 1 for one in used)
    return [(executed_rates(*executed[k]), contributions[k], next(iter(used[k]))) for k in range(count)]


def sums_law(rates, contributions):
    """{sum: probability} over all coins."""
    law = {}
    for coins in itertools.product((False, True), repeat=len(rates)):
        probability = math.prod(rate if coin else 1 - rate for rate, coin in zip(rates, coins, strict=True))
        chosen = [vector for vector, coin in zip(contributions, coins, strict=True) if coin]
        total = tuple(map(sum, zip(*chosen, strict=True))) if chosen else (0,) * len(contributions[0])
        law[total] = law.get(total, Fraction(0)) + probability
    return {total: float(probability) for total, probability in law.items() if probability}


def largest_loss(one, two):
    """max over outcomes of |ln P/P′| for two data sets, the parts of each as `observe` gave them; parts are independent."""
    assert len(one) == len(two)
    return math.fsum(_largest_of_part(*parts) for parts in zip(one, two, strict=True))


def _largest_of_part(one, two):
    laws = [(sums_law(rates, contributions), float(scale)) for rates, contributions, scale in (one, two)]
    if laws[0][1] != laws[1][1]:
        return math.inf  # the ratio of two tails of different scales has no bound
    totals = [total for law, _ in laws for total in law]
    axes = [sorted({total[axis] for total in totals}) for axis in range(len(totals[0]))]
    outcomes = itertools.product(*([axis[0] - 1, *axis, axis[-1] + 1] for axis in axes))
    return max(abs(_log_mass(*laws[0], outcome) - _log_mass(*laws[1], outcome)) for outcome in outcomes)


def _log_mass(law, scale, outcome):
    """ln Σ_s P[s]·Π_axis DLap(outcome − s)."""
    normaliser = len(outcome) * math.log(math.tanh(0.5 / scale))
    terms = [
        math.log(probability) - sum(abs(y - s) for y, s in zip(outcome, total, strict=True)) / scale
        for total, probability in law.items()
    ]
    return normaliser + float(np.logaddexp.reduce(terms))
