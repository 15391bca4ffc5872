"""Where random bits come from: AES-256 in counter mode, a key stream under a 256-bit key.

torch's and NumPy's generators are predictable from their output, so neither the coins of a Poisson draw nor the noise may
come from them: whoever predicts the coins undoes the amplification, whoever predicts the noise subtracts it.

One `Randomness` has one key. Each draw has its own number and each purpose its own name, and every (purpose, number) has its
own stream with the derived key BLAKE2b_key(purpose, number). A number is handed out once, so no bit is ever used twice, and
neither micro-batches nor the number of records can shift the noise.

Noise is a float64 Gaussian (`ziggurat.py`). Few normals are made one after the other from the words of the stream; many, for a large
parameter, are made by position under a key of their own, the next 32 bytes of the stream (`normal_field.py`). Attacks on the low
bits of floating-point noise are out of scope here; docs/promise.md says so.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from apportion import validate
from apportion.curator.normal_field import NormalField
from apportion.curator.ziggurat import Floats, Proposer, Words, resolve_proposals
from apportion.errors import WrongOrder

KEY_BYTES = 32
PURPOSES = ("coins", "noise", "model", "views")
"""What a draw tosses for, each from a stream of its own."""
KEY_STREAM = "AES-256 key stream in counter mode"
FIELD_FROM_NUMBERS = 1 << 19
"""A release of more numbers than this has a field of normals, so that threads can share the work."""
NOISE_CHUNK_NUMBERS = 1 << 18
"""Normals of a smaller one that are asked for at a time: they stay in the caches."""
_CHUNK = 1 << 15  # normals made at a time: the buffers stay in the cache, and memory does not grow with the model
_SPARE = 1 << 10  # normals made beside what was asked for: the small parameters of a model then cost nothing
_FROM_ZERO = CTR(bytes(16))
_NONE: Floats = np.empty(0)
_ZEROS = memoryview(bytes(8 * _CHUNK))  # encrypting zeros gives the key stream


class NormalSource(Protocol):
    """Where the normals of one release come from."""

    def each_block(self, start: int, count: int, use: Callable[[int, Floats], None], threads: int = 1) -> None:
        """Calls `use(first, normals)` for blocks that cover `count` positions from `start` on. `use` may write over `normals`."""


class Stream:
    """An endless sequence of uniform 64-bit words, and what is made of them."""

    def __init__(self, key: bytes):
        self._key = key
        self._cipher: Any = None  # made for the first word: most draws have no use for some of their streams
        self._spare: Floats = _NONE

    def __reduce__(self) -> NoReturn:
        raise TypeError("a stream can be neither copied nor pickled: two would give the same bits")

    def _key_stream(self) -> Any:
        if self._cipher is None:
            self._cipher, self._key = Cipher(AES(self._key), _FROM_ZERO).encryptor(), b""
        return self._cipher

    def words(self, count: int) -> Words:
        """The next `count` uniform 64-bit words."""
        zeros = _ZEROS[: 8 * count] if count <= _CHUNK else bytes(8 * count)
        return np.frombuffer(self._key_stream().update(zeros), dtype="<u8")

    def coins(self, count: int, probability: float) -> NDArray[np.bool_]:
        """`count` independent coins, each true with probability ⌊q·2⁶⁴⌋/2⁶⁴: never more than q."""
        if probability >= 1:
            return np.ones(count, dtype=bool)
        return self.words(count) < np.uint64(int(probability * 2**64))  # exact: scaling by 2⁶⁴ does not round

    def group_coins(self, groups: NDArray[np.int64], probabilities: Sequence[float]) -> NDArray[np.bool_]:
        """One coin for each entry of `groups`, with the probability of its group."""
        certain = np.array([probability >= 1 for probability in probabilities])
        bounds = np.array([0 if one >= 1 else int(one * 2**64) for one in probabilities], dtype=np.uint64)
        tossed: NDArray[np.bool_] = self.words(len(groups)) < bounds[groups]
        return tossed | certain[groups] if certain.any() else tossed

    def normals(self, count: int) -> Floats:
        """`count` independent standard normals."""
        if count > len(self._spare):
            fresh = self._fresh_normals(count + _SPARE)
            served, self._spare = fresh[:count], fresh[count:].copy()
        else:
            served, self._spare = self._spare[:count], self._spare[count:]
        return served

    def normals_of_a_release(self, count: int) -> NormalSource:
        """`count` independent standard normals, in blocks: by position if they are many, and otherwise the next ones of `normals`."""
        return NormalField(self.words(KEY_BYTES // 8).tobytes()) if count > FIELD_FROM_NUMBERS else _InOrder(self)

    def exponentials(self, count: int) -> Floats:
        """`count` independent standard exponentials: −ln(1 − u), u = (word + ½)·2⁻⁶⁴, cut at 36.7, which has probability 2⁻⁵³."""
        uniform = (self.words(count).astype(np.float64) + 0.5) * 2.0**-64
        result: Floats = -np.log1p(-np.minimum(uniform, 1 - 2.0**-53))
        return result

    def laplaces(self, count: int) -> Floats:
        """`count` independent standard Laplace variables: differences of two exponentials."""
        result: Floats = self.exponentials(count) - self.exponentials(count)
        return result

    def _fresh_normals(self, count: int) -> Floats:
        """One word each; the few words that did not settle their normal are followed by others, after all of these."""
        result, size = np.empty(count), min(_CHUNK, count)
        proposer = Proposer(size)
        buffer = np.empty(8 * size + 15, dtype=np.uint8)  # cryptography wants room for a block more
        places, layers = [], []
        for start in range(0, count, _CHUNK):
            part = result[start : start + _CHUNK]
            self._key_stream().update_into(_ZEROS[: 8 * len(part)], buffer)
            undecided, their_layers = proposer.propose(buffer[: 8 * len(part)].view("<u8"), part)
            places.append(start + undecided)
            layers.append(their_layers)
        resolve_proposals(result, np.concatenate(places), np.concatenate(layers), self.words)
        return result


@dataclass(frozen=True)
class _InOrder:
    """The next normals of a stream. They are made in this thread, and each is served once: positions must be asked for in order."""

    stream: Stream

    def each_block(self, start: int, count: int, use: Callable[[int, Floats], None], threads: int = 1) -> None:
        for first in range(start, start + count, NOISE_CHUNK_NUMBERS):
            use(first, self.stream.normals(min(NOISE_CHUNK_NUMBERS, start + count - first)))


@dataclass(frozen=True)
class DrawStreams:
    """The random bits of one request: who is in the batch, the noise on its answer, what the model tosses itself (dropout), and the views
    of records.

    All four are fresh together. The model's own randomness must be secret too: one record more shifts the masks of all others,
    and only masks that nobody can predict make that harmless.
    """

    coins: Stream
    noise: Stream
    model: Stream
    views: Stream
    process: int = field(default_factory=lambda: os.getpid(), kw_only=True)
    """Where they were made. `os.getpid` is looked up at every draw, so that a test can say who asks."""


def require_same_process(process: int) -> None:
    """Refuse a copy, made by fork, of the process with this number."""
    if os.getpid() != process:
        raise WrongOrder("the process was forked during a private run: parent and child would add the same noise")


class Randomness:
    """The key of a run and the number of the next draw."""

    def __init__(self, key: bytes, *, private: bool):
        self._key = key
        self._process = os.getpid()
        self._next_draw = 0
        self.private = private

    @classmethod
    def fresh(cls) -> Randomness:
        """A key from the operating system. It is stored nowhere and cannot be had again."""
        return cls(os.urandom(KEY_BYTES), private=True)

    @classmethod
    def seeded(cls, seed: int, rank: int = 0) -> Randomness:
        """A reproducible key for tests and experiments, another one for each rank. Whoever knows the seed knows the noise: the run is not
        private."""
        whole = validate.whole("seed", seed, "it names a reproducible run", "Use seed=0, or leave it out", least=0)
        return cls(
            hashlib.blake2b(f"seed {whole}{f' rank {rank}' if rank else ''}".encode(), digest_size=KEY_BYTES).digest(),
            private=False,
        )

    @classmethod
    def choose(cls, seed: int | None, rank: int = 0) -> Randomness:
        """`fresh`, or `seeded` if there is a seed. Equal keys of two ranks would draw dependent batches and add dependent noise."""
        return cls.fresh() if seed is None else cls.seeded(seed, rank)

    def next_draw(self) -> DrawStreams:
        """Streams that no other draw has had or will have."""
        require_same_process(self._process)
        number = self._next_draw
        self._next_draw += 1
        return DrawStreams(*(self._stream(purpose, number) for purpose in PURPOSES))

    def _stream(self, purpose: str, number: int) -> Stream:
        message = f"{purpose} {number}".encode()
        return Stream(hashlib.blake2b(message, key=self._key, digest_size=KEY_BYTES, person=b"apportion").digest())


def poisson_sample(
    records: int, rates: Sequence[float], coins: Stream, groups: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Indices of the records, or of the users, that join a batch; possibly none, possibly all.

    Each tosses its own coin with the probability q_p of its group, independently of all others and of every other draw. The
    amplification that the accountant claims holds for exactly this: shuffled or fixed-size batches would have a larger price.

    Args:
        rates: q_p of each group; q alone if all are alike.
        groups: the group of each, numbered from 0; `None` if all are alike.
    """
    if groups is None:
        (rate,) = rates
        return np.flatnonzero(coins.coins(records, rate))
    return np.flatnonzero(coins.group_coins(groups, rates))
