"""What coins and noise look like, with power: every judgement is also shown something 5 % wrong, or dependent, and must reject it.

Seeds are fixed, so nothing here is left to chance; levels are 1e-4, so that a seed had not to be searched for.
"""

import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
import runs
from apportion.curator.curator import Curator
from apportion.curator.gradients.reference import ReferenceGradients
from apportion.curator.randomness import Randomness, Stream, poisson_sample
from apportion.curator.records import as_records
from apportion.releases import FLOAT32_HEADROOM, ClippedSum
from apportion.request import Request

pytestmark = pytest.mark.usual_pieces

LEVEL = 1e-4
SAMPLES = 200_000
MANY = 4_000_000


def looks_normal(values, deviation):
    """Kolmogorov-Smirnov for the shape, chi-squared for the variance, which alone tells 1.00 from 1.02."""
    scaled = values / deviation
    low, high = stats.chi2.ppf([LEVEL / 2, 1 - LEVEL / 2], len(scaled))
    return stats.kstest(scaled, "norm").pvalue > LEVEL and bool(low < np.sum(scaled**2) < high)


def independent(first, second):
    """No value stands in both at one place, and few in both at all (float32 has coincidences: 0.3 % of 100,000); neither the values
    nor their squares (the spread) are correlated, side by side or one place apart."""
    if np.any(first == second) or np.intersect1d(first, second).size > 0.01 * len(first):
        return False
    bound = stats.norm.isf(LEVEL / 8) / np.sqrt(len(first) - 1)
    pairs = [(first, second), (first[1:], second[:-1])]
    pairs += [(one**2, other**2) for one, other in pairs]
    return all(abs(np.corrcoef(one, other)[0, 1]) < bound for one, other in pairs)


def seeded_normals(seed, count=SAMPLES):
    return Randomness.seeded(seed).next_draw().noise.normals(count)


# --- noise as it is added: the curator, and a whole run ------------------------------------------------------------------


class Twins(nn.Module):
    """Two parameters of one shape, both zero."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(500, 200, bias=False), nn.Linear(500, 200, bias=False)
        nn.init.zeros_(self.left.weight)
        nn.init.zeros_(self.right.weight)

    def forward(self, x):
        return self.left(x) + self.right(x)


DATA = (torch.zeros(3, 500), torch.zeros(3, dtype=torch.long))


class Books:
    def charge(self, event):
        pass


def released_noise(randomness, steps=1, threshold=2.0, multiplier=1.5):
    """The noise of `steps` requests in a row, one dict of arrays each: at this rate no record is ever drawn."""
    curator = Curator(as_records(DATA), ReferenceGradients(Twins(), "vmap"), Books(), randomness)
    request = Request(1e-18, multiplier, 4.0, (ClippedSum(threshold),))
    answers = [curator.answer(request, cross_entropy).gradient for _ in range(steps)]
    return [{name: 4.0 * value.flatten().double().numpy() for name, value in answer.items()} for answer in answers]


def trained_noise(seed, steps):
    """The sum of the noise of all steps of a run, and the standard deviation that was paid for: Σ of `steps` equal variances.

    Inputs are zero, hence all gradients; with learning rate 1 the weights are the noise.
    """
    model = Twins()
    run = runs.train(
        model,
        cross_entropy,
        DATA,
        budget=ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record()),
        population=3,
        sample_rate=1.0,
        steps=steps,
        lr=1.0,
        clip=ap.clip.Fixed(0.5),
        seed=seed,
        progress=False,
    )
    deviation = run.history[0].noise_multiplier * 0.5 * (1 + FLOAT32_HEADROOM) / 3 * steps**0.5
    return np.concatenate([p.detach().flatten().double().numpy() for p in model.parameters()]), deviation


NOISE = {
    "stream": lambda: (seeded_normals(3), 1.0),
    "curator": lambda: (np.concatenate(list(released_noise(Randomness.seeded(4))[0].values())), 3.0),
    "run of one step": lambda: trained_noise(5, 1),
    "run of four steps": lambda: trained_noise(6, 4),
}


@pytest.mark.parametrize("source", NOISE)
def test_noise_fits_what_was_paid_for_and_five_percent_more_or_less_does_not(source):
    noise, deviation = NOISE[source]()
    assert len(noise) == SAMPLES
    assert looks_normal(noise, deviation)
    assert not looks_normal(0.95 * noise, deviation)
    assert not looks_normal(1.05 * noise, deviation)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: np.clip(x, -3.5, 3.5),
        lambda x: np.round(x * 4) / 4,
        lambda x: np.abs(x),
        lambda x: x + 0.02,
        lambda x: np.where(np.arange(len(x)) % 20 == 0, 0.0, x),
    ],
    ids=["cut tails", "coarse grid", "one sign", "shifted", "every 20th missing"],
)
def test_noise_of_another_shape_is_rejected(wrong):
    assert not (looks_normal(wrong(seeded_normals(3)), 1.0) and has_normal_tails(wrong(seeded_normals(3, MANY))))


def has_normal_tails(values):
    """Kurtosis, and how many exceed 3, 4 and 4.5 standard deviations, on either side."""
    exceed = all(
        stats.binomtest(int(np.sum(sign * values > bound)), len(values), stats.norm.sf(bound)).pvalue > LEVEL
        for bound in (3.0, 4.0, 4.5)
        for sign in (1, -1)
    )
    return exceed and abs(stats.kurtosis(values)) < stats.norm.isf(LEVEL / 2) * np.sqrt(24 / len(values))


def test_tails_and_bins_of_four_million_normals():
    """Two thousand bins of equal probability see a wrong wedge between two layers, which the variance would not."""
    normals = seeded_normals(7, MANY)
    assert has_normal_tails(normals)
    assert not has_normal_tails(normals[np.abs(normals) < 4.5])
    assert 4.7 < np.abs(normals).max() < 6.5
    beyond = np.abs(normals[np.abs(normals) > 4.04])
    assert stats.kstest(stats.norm.sf(beyond) / stats.norm.sf(4.04), "uniform").pvalue > LEVEL
    assert fills_bins(stats.norm.cdf(normals))
    kept = np.delete(normals, np.flatnonzero((np.abs(normals) > 1) & (np.abs(normals) < 1.01))[::5])
    assert not fills_bins(stats.norm.cdf(kept))  # one in 1,000 left out, in a strip


def fills_bins(uniform):
    counts = np.histogram(uniform, bins=2000, range=(0, 1))[0]
    return stats.chisquare(counts).pvalue > LEVEL


def test_neighbouring_normals_are_independent():
    normals = seeded_normals(8, 2 * SAMPLES)
    assert independent(normals[::2], normals[1::2])
    assert independent(normals[:SAMPLES], normals[SAMPLES:])
    angle = np.arctan2(normals[::2], normals[1::2]) / (2 * np.pi) + 0.5
    assert stats.kstest(angle, "uniform").pvalue > LEVEL  # a pair has no preferred direction


# --- independence: each pair must pass, and what depends must not ----------------------------------------------------------


def of_steps():
    first, second = released_noise(Randomness.seeded(10), steps=2)
    return first["left.weight"], second["left.weight"]


def of_parameters():
    (noise,) = released_noise(Randomness.seeded(11))
    return noise["left.weight"], noise["right.weight"]


def of_purposes(one, other):
    draw = Randomness.seeded(12).next_draw()
    return tuple(getattr(draw, purpose).words(SAMPLES).astype(float) for purpose in (one, other))


def of_streams(one, other):
    return one.next_draw().noise.normals(SAMPLES), other.next_draw().noise.normals(SAMPLES)


# A run that is resumed: tests/training/test_resume.py.
PAIRS = {
    "steps": of_steps,
    "parameters of a step": of_parameters,
    "coins and noise": lambda: of_purposes("coins", "noise"),
    "coins and model": lambda: of_purposes("coins", "model"),
    "noise and model": lambda: of_purposes("noise", "model"),
    "seeds": lambda: of_streams(Randomness.seeded(13), Randomness.seeded(14)),
    "keys one bit apart": lambda: (Stream(bytes(32)).normals(SAMPLES), Stream(bytes(31) + b"\1").normals(SAMPLES)),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_independent(pair):
    assert independent(*PAIRS[pair]())


@pytest.mark.parametrize(
    "dependent",
    [
        lambda x, y: x,
        lambda x, y: -x,
        lambda x, y: 0.05 * x + 0.99875 * y,
        lambda x, y: np.roll(0.05 * x + 0.99875 * y, -1),
        lambda x, y: y * np.abs(x),
        lambda x, y: np.concatenate([y[:-1], x[-1:]]),
        lambda x, y: np.concatenate([x[-4000:], y[4000:]]),
    ],
    ids=[
        "the same",
        "mirrored",
        "5 % in common",
        "one place apart",
        "same spread",
        "one value in its place",
        "2 % elsewhere",
    ],
)
def test_dependence_is_seen(dependent):
    first, second = seeded_normals(15), seeded_normals(16)
    assert independent(first, second)
    assert not independent(first, dependent(first, second))


def test_fresh_runs_share_no_bit_even_across_processes():
    """Fresh keys are not reproducible, so only what cannot happen by chance (2⁻⁴⁰ and less) is asked for."""
    program = "from apportion.curator.randomness import Randomness; print(Randomness.fresh().next_draw().noise.words(1000).tolist())"
    others = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    lists = [process.communicate()[0].strip("[]\n").split(", ") for process in others]
    lists += [[str(word) for word in Randomness.fresh().next_draw().noise.words(1000)] for _ in range(2)]
    assert all(len(words) == 1000 for words in lists)
    assert len(set().union(*lists)) == 4000


# --- coins ---------------------------------------------------------------------------------------------------------------


def membership(records=2000, draws=400, rate=0.3):
    """Who was in which batch: one row a draw."""
    randomness, rows = Randomness.seeded(20), np.zeros((draws, records))
    for row in rows:
        row[poisson_sample(records, (rate,), randomness.next_draw().coins)] = 1
    return rows


def fit(rows, rate):
    """The number of members in all, and the spread of the batch sizes and of the records' turns, are those of Poisson sampling."""
    draws, records = rows.shape
    total = stats.binomtest(int(rows.sum()), rows.size, rate).pvalue
    sizes = np.sum((rows.sum(1) - records * rate) ** 2) / (records * rate * (1 - rate))
    turns = np.sum((rows.sum(0) - draws * rate) ** 2) / (draws * rate * (1 - rate))
    tails = [total]
    for value, freedom in ((sizes, draws), (turns, records)):
        tails.append(2 * min(stats.chi2.cdf(value, freedom), stats.chi2.sf(value, freedom)))
    return min(tails) > LEVEL


def runs_test(tosses):
    """Wald and Wolfowitz: as many changes between neighbours as independent coins have."""
    ones, count = tosses.sum(), len(tosses)
    runs = 1 + np.count_nonzero(np.diff(tosses))
    mean = 2 * ones * (count - ones) / count + 1
    return abs(runs - mean) / np.sqrt((mean - 1) * (mean - 2) / (count - 1)) < stats.norm.isf(LEVEL / 2)


def test_batches_are_independent_coins_over_records_and_steps():
    rows = membership()
    assert fit(rows, 0.3)
    assert not fit(rows, 0.3 * 1.05)
    assert not fit(rows, 0.3 * 0.95)
    assert runs_test(rows.ravel())
    assert runs_test(rows.T.ravel())


def test_samplers_that_are_not_poisson_are_rejected():
    generator = np.random.default_rng(0)
    fixed_size = np.array([generator.permutation(2000) < 600 for _ in range(400)], dtype=float)
    shuffled = np.array([np.roll(np.arange(2000) < 600, 600 * step) for step in range(400)], dtype=float)[
        :, generator.permutation(2000)
    ]
    repeated = np.repeat(membership(draws=200), 2, axis=0)
    sticky = np.repeat(membership(records=1000), 2, axis=1)
    assert not fit(fixed_size, 0.3)
    assert not fit(shuffled, 0.3)
    assert not runs_test(repeated.T.ravel())
    assert not runs_test(sticky.ravel())
