"""Bits, coins and the machinery of normals. What the noise of a run looks like: test_noise_statistics.py."""

import math
import os

import numpy as np
import pytest
import torch
from scipy import special, stats

from apportion.curator import randomness, ziggurat
from apportion.curator.randomness import Randomness, Stream, poisson_sample
from apportion.errors import WrongOrder

FIRST_NORMALS = [-0.762375013198544, -1.5650105654843942, -0.3223763655008179]
LARGEST_NORMAL = 4.504524622887283  # from the tail


def test_key_stream_is_aes_256_in_counter_mode():
    """The zero key at counters 0 and 1: GCM specification (McGrew and Viega), test case 13, H and tag."""
    words = Stream(bytes(32)).words(4).tobytes().hex()
    assert words == "dc95c078a2408989ad48a21492842087530f8afbc74536b9a963b4f1c4cb738b"


def test_words_go_on_where_they_stopped():
    whole, pieces = Stream(bytes(32)).words(100), Stream(bytes(32))
    assert (whole == np.concatenate([pieces.words(count) for count in (1, 2, 0, 30, 67)])).all()


def test_the_layers_cover_the_normal_curve_exactly():
    """Each box has area A, starts where the curve leaves it, the last ends at f(0) = 1; box and tail of layer 0 have area A, too."""
    table, right, area = ziggurat.build_tables(), float(ziggurat.TAIL_START), float(ziggurat.AREA)
    widths, heights = table.scale * 2.0**63, table.height * 2.0**64
    assert len(widths) == ziggurat.LAYERS
    assert widths * heights == pytest.approx(np.full(ziggurat.LAYERS, area), rel=1e-14)
    assert np.exp(-(widths[1:] ** 2) / 2) == pytest.approx(table.bottom[1:], rel=1e-14)
    assert table.bottom[1:-1] + heights[1:-1] == pytest.approx(table.bottom[2:], rel=1e-14)
    assert table.bottom[-1] + heights[-1] == pytest.approx(1.0, rel=1e-15)
    tail = math.sqrt(math.pi / 2) * special.erfc(right / math.sqrt(2))
    assert right * math.exp(-right * right / 2) + tail == pytest.approx(area, rel=1e-13)
    assert table.safe * 2.0**-63 == pytest.approx(np.append(widths[1:], 0) / widths, rel=1e-14)


def test_the_tail_reaches_ten_standard_deviations():
    assert ziggurat._sample_tail(lambda count: np.zeros(count, dtype="<u8")) == pytest.approx(10.25, abs=0.01)


def test_the_logarithm_of_the_tail():
    values = np.concatenate([2.0 ** -np.linspace(0.001, 64, 5000), 1 - 2.0 ** -np.arange(2, 53)])
    ours = np.array([ziggurat.portable_log(value) for value in values.tolist()])
    assert ours == pytest.approx(np.log(values), rel=1e-15)
    assert ziggurat.portable_log(1.0) == 0.0


@pytest.mark.parametrize("sizes", [[7, 0, 2, 1030, 5], [40_000, 32], [100_001, 3, 100_000]])
def test_normals_do_not_depend_on_the_pieces_they_are_made_in(sizes, monkeypatch):
    def draw(chunk):
        monkeypatch.setattr(randomness, "_CHUNK", chunk)
        stream = Stream(bytes(range(32)))
        return [stream.normals(size) for size in sizes], stream.words(3)

    (usual, words), (other, other_words) = draw(1 << 15), draw(1000)
    assert [len(part) for part in usual] == sizes
    assert all((one == two).all() for one, two in zip(usual, other, strict=True))
    assert (words == other_words).all()
    every = np.concatenate(usual)
    assert np.isfinite(every).all()
    assert len(np.unique(every)) == len(every)


@pytest.mark.usual_pieces
def test_normals_of_a_key_never_change():
    """A resumed run adds the same noise, also with a later version of this library or on another machine."""
    first = Stream(bytes(range(32))).normals(200_000)
    assert first[:3].tolist() == FIRST_NORMALS
    assert float(np.abs(first).max()) == LARGEST_NORMAL


def test_a_normal_handed_out_does_not_change_later():
    stream = Stream(bytes(32))
    first = stream.normals(5)
    before = first.copy()
    rest = stream.normals(2000)
    rest[:] = 0
    stream.normals(5)[:] = 0
    assert (first == before).all()


def test_a_forked_process_gets_no_bits():
    source = Randomness.seeded(1)
    child = os.fork()
    if child == 0:
        try:
            source.next_draw()
        except WrongOrder:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
def test_coins_fall_with_their_rate(rate):
    tosses = 2_000_000
    heads = int(Randomness.seeded(7).next_draw().coins.coins(tosses, rate).sum())
    assert stats.binomtest(heads, tosses, rate).pvalue > 1e-4
    assert stats.binomtest(heads, tosses, rate * 0.95).pvalue < 1e-4
    assert stats.binomtest(heads, tosses, min(1.0, rate * 1.05)).pvalue < 1e-4


def test_rate_one_takes_everyone_and_a_tiny_rate_no_one():
    assert len(poisson_sample(10, (1.0,), Randomness.seeded(1).next_draw().coins)) == 10
    assert len(poisson_sample(10, (1e-18,), Randomness.seeded(1).next_draw().coins)) == 0


def test_coins_of_different_records_and_draws_are_independent():
    source = Randomness.seeded(8)
    draws = np.array([source.next_draw().coins.coins(50, 0.5) for _ in range(4000)], dtype=float)
    correlations = np.corrcoef(draws.T)
    np.fill_diagonal(correlations, 0)
    assert abs(correlations).max() < 0.08
    assert abs(np.corrcoef(draws[:-1].ravel(), draws[1:].ravel())[0, 1]) < 0.02


def test_batch_sizes_vary_as_poisson_sampling_does():
    """A fixed-size or shuffled sampler would have no variance, or too little."""
    source = Randomness.seeded(9)
    sizes = [len(poisson_sample(100, (0.3,), source.next_draw().coins)) for _ in range(3000)]
    assert np.mean(sizes) == pytest.approx(30, abs=0.4)
    assert np.var(sizes) == pytest.approx(21, rel=0.12)


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
