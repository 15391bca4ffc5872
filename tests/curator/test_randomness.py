"""Coins and noise, with power on both sides: the right rate is accepted, 5 % more or less is not."""

import numpy as np
import pytest
import torch
from scipy import stats

from apportion.curator.randomness import Randomness, Stream
from apportion.curator.sampling import poisson_draw

SAMPLES = 200_000


def looks_normal(values, deviation):
    """Kolmogorov-Smirnov at 200,000 samples: tells 1.00 from 0.95 and 1.05 with certainty for all practical purposes."""
    return stats.kstest(values / deviation, "norm").pvalue > 1e-4


def test_key_stream_is_chacha20():
    """RFC 8439, A.1, test vector 1: the zero key at block counter 0."""
    words = Stream(bytes(32)).words(8).tobytes().hex()
    assert words.startswith("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")


def test_normals_are_normal_and_the_test_can_fail():
    normals = Randomness.seeded(3).next_draw().noise.normals(SAMPLES)
    assert looks_normal(normals, 1.0)
    assert not looks_normal(0.95 * normals, 1.0)
    assert not looks_normal(1.05 * normals, 1.0)


def test_normals_of_odd_length_and_across_chunks():
    stream = Randomness.seeded(4).next_draw().noise
    assert len(stream.normals(7)) == 7
    assert len(stream.normals(0)) == 0
    many = Randomness.seeded(5).next_draw().noise.normals((1 << 20) + 3)
    assert len(many) == (1 << 20) + 3
    assert np.isfinite(many).all()
    assert abs(np.corrcoef(many[:1000], many[1 << 19 : (1 << 19) + 1000])[0, 1]) < 0.15


def test_the_two_halves_of_a_pair_are_uncorrelated():
    normals = Randomness.seeded(6).next_draw().noise.normals(SAMPLES)
    half = SAMPLES // 2
    assert abs(np.corrcoef(normals[:half], normals[half:])[0, 1]) < 5 / np.sqrt(half)


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
def test_coins_fall_with_their_rate(rate):
    tosses = 2_000_000
    heads = int(Randomness.seeded(7).next_draw().coins.coins(tosses, rate).sum())
    assert stats.binomtest(heads, tosses, rate).pvalue > 1e-4
    assert stats.binomtest(heads, tosses, rate * 0.95).pvalue < 1e-4
    assert stats.binomtest(heads, tosses, min(1.0, rate * 1.05)).pvalue < 1e-4


def test_rate_one_takes_everyone_and_a_tiny_rate_no_one():
    assert len(poisson_draw(10, 1.0, Randomness.seeded(1).next_draw().coins)) == 10
    assert len(poisson_draw(10, 1e-18, Randomness.seeded(1).next_draw().coins)) == 0


def test_coins_of_different_records_and_draws_are_independent():
    randomness = Randomness.seeded(8)
    draws = np.array([randomness.next_draw().coins.coins(50, 0.5) for _ in range(4000)], dtype=float)
    correlations = np.corrcoef(draws.T)
    np.fill_diagonal(correlations, 0)
    assert abs(correlations).max() < 0.08
    assert abs(np.corrcoef(draws[:-1].ravel(), draws[1:].ravel())[0, 1]) < 0.02


def test_batch_sizes_vary_as_poisson_sampling_does():
    """A fixed-size or shuffled sampler would have no variance, or too little."""
    randomness = Randomness.seeded(9)
    sizes = [len(poisson_draw(100, 0.3, randomness.next_draw().coins)) for _ in range(3000)]
    assert np.mean(sizes) == pytest.approx(30, abs=0.4)
    assert np.var(sizes) == pytest.approx(21, rel=0.12)


def test_purposes_and_draws_have_their_own_streams():
    randomness = Randomness.seeded(0)
    first, second = randomness.next_draw(), randomness.next_draw()
    words = [stream.words(4).tobytes() for stream in (first.coins, first.noise, second.coins, second.noise)]
    assert len(set(words)) == 4


def test_a_seed_repeats_and_is_not_private_fresh_does_neither():
    one, same = Randomness.seeded(11), Randomness.seeded(11)
    assert (one.next_draw().noise.words(8) == same.next_draw().noise.words(8)).all()
    assert not one.private
    fresh, other = Randomness.fresh(), Randomness.fresh()
    assert fresh.private
    assert (fresh.next_draw().noise.words(8) != other.next_draw().noise.words(8)).all()


def test_global_generators_are_neither_used_nor_moved():
    torch.manual_seed(0)
    np.random.seed(0)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    draw = Randomness.fresh().next_draw()
    draw.noise.normals(10)
    draw.coins.coins(10, 0.5)
    assert torch.equal(before, torch.get_rng_state())
    assert (numpy_before == np.random.get_state()[1]).all()
    torch.manual_seed(0)
    assert not np.allclose(draw.noise.normals(4), Randomness.fresh().next_draw().noise.normals(4))
