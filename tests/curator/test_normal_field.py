"""Normals by position: what they are, that nobody's pieces or threads change them, and that no word is used twice."""

import functools
import math
from collections import Counter
from typing import ClassVar

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR, ECB
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from apportion.curator import mechanisms, normal_field, ziggurat
from apportion.curator.normal_field import NormalField
from apportion.curator.randomness import Randomness, Stream
from pieces import changed

KEY = bytes(range(32))
FIRST_NORMALS = [-0.762375013198544, -0.713805446152219, -0.3223763655008179]
LARGEST, ITS_PLACE = 4.501643035937713, 150_998
THREADS = (1, 2, 7)
WORD = 2.0**64


def by_hand(key, i):
    """Normal i in plain numbers, as docs and `normal_field.py` define it, and how many rounds it took."""
    encrypt = Cipher(AES(key), ECB()).encryptor()

    def words(r, j):
        block = encrypt.update(r.to_bytes(8, "big") + j.to_bytes(8, "big"))
        return int.from_bytes(block[:8], "little"), int.from_bytes(block[8:], "little")

    scale, safe, bottom, height = (column.tolist() for column in ziggurat.build_tables())
    word, r = words(0, i // 2)[i % 2], 0
    while True:
        layer, signed = word % 1024, word - (1 << 64 if word >> 63 else 0)
        x = scale[layer] * signed
        if abs(float(signed)) < safe[layer]:
            return x, r
        r += 1
        decide, word = words(r, i)
        while layer == 0:
            tail = math.sqrt(float(ziggurat.TAIL_START) ** 2 - 2 * ziggurat.portable_log((decide + 1) / WORD))
            if word * tail < float(ziggurat.TAIL_START) * WORD:
                return math.copysign(tail, x), r
            r += 1
            decide, word = words(r, i)
        if bottom[layer] + height[layer] * decide <= math.exp(-0.5 * x * x):
            return x, r


def undecided(tables):
    """Every proposal outside layer 0 needs a second word: the same law, and normals by the thousand whose rounds can be looked at."""
    return tables._replace(safe=np.where(np.arange(ziggurat.LAYERS) == 0, tables.safe, 0.0))


def rejected(tables):
    """Three of four proposals are thrown away: another law, but many rounds."""
    height = np.full(ziggurat.LAYERS, 1 / WORD)
    return undecided(tables)._replace(bottom=np.full(ziggurat.LAYERS, 0.5), height=height)


@pytest.fixture
def tables(monkeypatch, request):
    changed_tables = request.param(ziggurat.build_tables())
    monkeypatch.setattr(ziggurat, "build_tables", lambda: changed_tables)


all_undecided = pytest.mark.parametrize("tables", [undecided], indirect=True)
most_rejected = pytest.mark.parametrize("tables", [rejected], indirect=True)


def test_a_normal_is_what_its_definition_says():
    """The first ones, and those of two million that are beyond the first edge: they come from the tail, some at a second attempt."""
    with changed({"curator.normal_field.BLOCK": 1 << 18, "curator.normal_field.CHUNK": 1 << 16}):
        normals = NormalField(KEY).normals(0, 2_000_000)
    for i in range(3000):
        assert normals[i] == by_hand(KEY, i)[0], i
    beyond = np.flatnonzero(np.abs(normals) > float(ziggurat.TAIL_START)).tolist()
    found = {i: by_hand(KEY, i) for i in beyond}
    assert {i: normals[i] for i in beyond} == {i: value for i, (value, _) in found.items()}
    assert {1, 2} <= {rounds for _, rounds in found.values()}


@most_rejected
def test_so_it_is_in_every_round(tables):
    found = [by_hand(KEY, i) for i in range(7, 1500)]
    assert NormalField(KEY).normals(7, 1493).tolist() == [value for value, _ in found]
    assert set(range(1, 6)) <= {rounds for _, rounds in found}


def test_far_positions_can_be_had_too():
    """The counters of a field have 64 bits, and so have positions."""
    for start in (2**33 - 5, 2**62 + 1):
        assert NormalField(KEY).normals(start, 10).tolist() == [by_hand(KEY, start + k)[0] for k in range(10)]


def test_normals_of_a_key_never_change():
    normals = NormalField(KEY).normals(0, 300_000)
    assert normals[:3].tolist() == FIRST_NORMALS
    assert (int(np.abs(normals).argmax()), float(np.abs(normals).max())) == (ITS_PLACE, LARGEST)


@given(
    start=st.integers(0, 70),
    count=st.integers(0, 400),
    block=st.integers(1, 90),
    chunk=st.integers(1, 40),
    threads=st.sampled_from(THREADS),
)
def test_neither_blocks_nor_threads_change_a_normal(start, count, block, chunk, threads):
    expected = _long()[start : start + count]
    with changed({"curator.normal_field.BLOCK": block, "curator.normal_field.CHUNK": chunk}):
        assert np.array_equal(NormalField(KEY).normals(start, count, threads), expected)
        assert np.array_equal(gathered(NormalField(KEY), start, count, threads), expected)


@most_rejected
@pytest.mark.parametrize("threads", THREADS)
def test_nor_do_they_in_later_rounds(tables, threads):
    whole = NormalField(KEY).normals(0, 3000)
    with changed({"curator.normal_field.BLOCK": 100}):
        assert np.array_equal(NormalField(KEY).normals(1001, 1234, threads), whole[1001:2235])
    assert len(np.unique(np.abs(whole))) == len(whole)


@pytest.mark.usual_pieces
@pytest.mark.parametrize("threads", THREADS)
def test_large_fields_are_the_same_in_any_number_of_threads(threads):
    whole = NormalField(KEY).normals(0, 1_000_001)
    assert np.array_equal(NormalField(KEY).normals(0, 1_000_001, threads), whole)
    assert np.array_equal(gathered(NormalField(KEY), 99_999, 777_777, threads), whole[99_999:][:777_777])


def gathered(field, start, count, threads):
    """What `each_block` hands out, put together; every position must come once."""
    result, times = np.empty(count), np.zeros(count, dtype=int)

    def use(first, normals):
        result[first - start :][: len(normals)] = normals
        times[first - start :][: len(normals)] += 1
        normals[:] = np.nan  # as somebody may who needs them no more

    field.each_block(start, count, use, threads)
    assert (times == 1).all()
    return result


@functools.cache
def _long():
    return NormalField(KEY).normals(0, 500)


# -- no word is used twice --


class Recorded:
    """A cipher that counts which word of which block was used."""

    used: ClassVar = Counter()

    def __init__(self, algorithm, mode):
        self._cipher, self._mode, self._words = Cipher(algorithm, mode).encryptor(), mode, 0
        self._first = int.from_bytes(mode.nonce, "big") if isinstance(mode, CTR) else None

    def encryptor(self):
        return self

    def update_into(self, zeros, buffer):
        assert isinstance(self._mode, CTR)
        for k in range(self._words, self._words + len(zeros) // 8):
            self.used[self._first + k // 2, k % 2] += 1
        self._words += len(zeros) // 8
        return self._cipher.update_into(zeros, buffer)

    def update(self, data):
        if isinstance(self._mode, CTR):  # what is skipped is not used
            self._words += len(data) // 8
        else:
            for k in range(0, len(data), 16):
                block = int.from_bytes(bytes(data[k : k + 16]), "big")
                self.used.update([(block, 0), (block, 1)])
        return self._cipher.update(data)


@given(cuts=st.lists(st.integers(1, 300), min_size=1, max_size=6), block=st.integers(1, 120), chunk=st.integers(1, 50))
def test_no_word_makes_two_normals(cuts, block, chunk):
    """However a release is cut, and into whatever blocks each part."""
    tables = rejected(ziggurat.build_tables())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ziggurat, "build_tables", lambda: tables)
        patch.setattr(normal_field, "Cipher", Recorded)
        patch.setattr(Recorded, "used", Counter())
        with changed({"curator.normal_field.BLOCK": block, "curator.normal_field.CHUNK": chunk}):
            start = 0
            for count in cuts:
                gathered(NormalField(KEY), start, count, 1)
                start += count
        assert set(Recorded.used.values()) == {1}
        first_words = {word for word in Recorded.used if word[0] < 2**64}
        assert first_words == {(i // 2, i % 2) for i in range(start)}


def test_every_release_has_normals_of_its_own():
    """Small and large ones in turn, from one stream: no number twice, and none of the stream's words that are a key elsewhere."""
    stream, served, keys = Randomness.seeded(5).next_draw().noise, [], []
    for count in (7, 300, 300, 3, 21, 20, 300, 40):
        source = stream.normals_of_a_release(count)
        served.append(gathered(source, 0, count, 2))
        if isinstance(source, NormalField):
            keys.append(source.key)
    assert len(keys) == len(set(keys)) == 5
    together = np.abs(np.concatenate(served))
    assert len(np.unique(together)) == len(together)
    words = {word for key in keys for word in np.frombuffer(key, "<u8").tolist()}
    assert len(words) == 20
    assert words.isdisjoint(stream.words(1000).tolist())


def test_the_key_of_a_field_is_the_next_32_bytes_and_shown_nowhere():
    stream, same = Stream(KEY), Stream(KEY)
    stream.words(3), same.words(3)
    source = stream.normals_of_a_release(1000)
    assert source.key == same.words(4).tobytes()
    assert (stream.words(5) == same.words(5)).all()
    assert source.key.hex() not in repr(source)
    assert repr(source.key) not in repr(source)


# -- noise --


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", [1, 20, 21, 333, 2000])
def test_noise_is_the_same_in_any_number_of_threads_and_pieces(dtype, count, monkeypatch):
    exact = torch.linspace(-3, 3, count).to(dtype)

    def noisy(threads, piece, block):
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
        with changed({"curator.mechanisms.PIECE_NUMBERS": piece, "curator.normal_field.BLOCK": block}):
            return mechanisms.add_gaussian_noise(exact.clone(), 2.0, Stream(KEY), 3.0)

    expected = noisy(1, 10_000, 10_000)
    for threads in THREADS:
        for piece in (20, 77, 10_000):
            for block in (33, 64):
                assert torch.equal(noisy(threads, piece, block), expected)
    key, normals = Stream(KEY).words(4).tobytes(), np.empty(count)
    Stream(KEY).normals_of_a_release(count).each_block(
        0, count, lambda at, some: normals.put(range(at, at + len(some)), some)
    )
    if count > 20:
        assert np.array_equal(normals, NormalField(key).normals(0, count))
    by_formula = torch.from_numpy((2.0 * normals + exact.double().numpy()) / 3.0).to(dtype)
    assert torch.equal(expected, by_formula)


@pytest.mark.usual_pieces
@pytest.mark.parametrize(("count", "asked"), [(1000, [1000]), (401_408, [1 << 18, 139_264]), (1 << 19, [1 << 18] * 2)])
def test_smaller_releases_have_the_noise_that_they_always_had(count, asked):
    """Kept results were made with it: the next normals of the stream, asked for in pieces of 2^18."""
    stream, same = Stream(KEY), Stream(KEY)
    for _ in range(2):
        noisy = mechanisms.add_gaussian_noise(torch.zeros(count, dtype=torch.float64), 1.0, stream, 1.0)
        assert np.array_equal(noisy.numpy(), np.concatenate([same.normals(one) for one in asked]))
    assert (stream.words(3) == same.words(3)).all()


def test_an_overflow_of_noise_is_as_silent_as_torch(monkeypatch):
    """Whoever has NumPy raise errors must not learn of a sum by it."""
    with np.errstate(all="raise"):
        for count in (3, 100):
            noisy = mechanisms.add_gaussian_noise(torch.full((count,), 3e38), 1e39, Stream(KEY), 1.0)
            assert noisy.isinf().any()


# -- the law --


@pytest.mark.usual_pieces
@pytest.mark.parametrize("threads", [1, 2])
def test_the_law_of_a_field(threads):
    """Two thousand bins of equal probability, the tails, neighbours, and both halves of a block."""
    normals = NormalField(b"l" * 32).normals(12_345, 2_000_000, threads)
    counts = np.histogram(stats.norm.cdf(normals), bins=2000, range=(0, 1))[0]
    assert stats.chisquare(counts).pvalue > 1e-4
    assert stats.chisquare(np.histogram(stats.norm.cdf(1.01 * normals), bins=2000, range=(0, 1))[0]).pvalue < 1e-4
    beyond = np.abs(normals[np.abs(normals) > 4.0389])
    assert stats.binomtest(len(beyond), len(normals), 2 * stats.norm.sf(4.0389)).pvalue > 1e-4
    assert stats.kstest(stats.norm.sf(beyond) / stats.norm.sf(4.0389), "uniform").pvalue > 1e-4
    assert len(np.unique(np.abs(normals))) == len(normals)
    for lag in (1, 2, 3, 1 << 16, 1 << 18):
        for one, other in ((normals[:-lag], normals[lag:]), (normals[:-lag] ** 2, normals[lag:] ** 2)):
            assert abs(np.corrcoef(one, other)[0, 1]) < 4.5 / math.sqrt(len(one))


@all_undecided
def test_the_law_where_all_are_undecided(tables):
    normals = NormalField(b"u" * 32).normals(0, 100_000)
    assert stats.kstest(normals, "norm").pvalue > 1e-4
    assert normals.var() == pytest.approx(1.0, abs=4 * math.sqrt(2 / len(normals)))
    assert abs(stats.kurtosis(normals)) < 4 * math.sqrt(24 / len(normals))
    for lag in (1, 64):
        assert abs(np.corrcoef(normals[:-lag] ** 2, normals[lag:] ** 2)[0, 1]) < 4.5 / math.sqrt(len(normals))
