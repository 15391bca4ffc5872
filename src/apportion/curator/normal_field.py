"""Normals by position: many for one release, in any number of threads, and the same bits whoever computes which part.

Normal i of a field is a function of the field's 256-bit key K and of i alone. Let E(r, j) be AES-256 under K of the block that has r and
j as big-endian 64-bit numbers, read as two little-endian 64-bit words.

- Its first word is word i mod 2 of E(0, ⌊i/2⌋): the key stream of counter mode from counter 0 on, one word for each normal.
- If that word leaves it undecided (0.4 %, `ziggurat.py`), its rounds r = 1, 2, … have the two words of E(r, i) each.

No word belongs to two normals: E(0, j) has one for each of its two, E(r, i) with r ≥ 1 is of normal i alone. So neither blocks nor
threads are a part of the definition, a part of a release can be computed without the rest, and another implementation, on another
device, can be compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR, ECB

from apportion.curator.threads import share_blocks
from apportion.curator.ziggurat import Floats, Integers, Proposer, Words, settle_proposals

BLOCK = 1 << 18
"""Normals that a thread makes, settles and hands on at a time, at most: so many that Python's share of the work is small."""
CHUNK = 1 << 16
"""Of these, how many are proposed at a time: the buffers stay in the cache."""
_ZEROS = memoryview(bytes(8 * CHUNK))  # encrypting zeros gives the key stream


@dataclass(frozen=True)
class NormalField:
    """2⁶⁴ independent standard normals under one key, of which any part can be had.

    A key is for one release: whoever asks for a position twice gets the same number twice.
    """

    key: bytes = field(repr=False)

    def each_block(self, start: int, count: int, use: Callable[[int, Floats], None], threads: int = 1) -> None:
        """Calls `use(first, normals)` for blocks that cover the positions from `start` on, in several threads and in no order.

        `normals` are those of first, first + 1, …; `use` may write over them, and must not keep them.
        """

        def work(blocks: Iterator[tuple[int, int]]) -> None:
            maker, buffer = _Maker(self.key), np.empty(min(BLOCK, count))
            for first, last in blocks:
                normals = buffer[: last - first]
                maker.fill(first, normals)
                use(first, normals)

        share_blocks(start, count, BLOCK, work, threads)

    def normals(self, start: int, count: int, threads: int = 1) -> Floats:
        """The normals of `count` positions from `start` on."""
        result = np.empty(count)

        def work(blocks: Iterator[tuple[int, int]]) -> None:
            maker = _Maker(self.key)
            for first, last in blocks:
                maker.fill(first, result[first - start : last - start])

        share_blocks(start, count, BLOCK, work, threads)
        return result


class _Maker:
    """The ciphers and buffers of one thread."""

    def __init__(self, key: bytes):
        self._algorithm, self._proposer = AES(key), Proposer(CHUNK)
        self._blocks: Any = Cipher(self._algorithm, ECB()).encryptor()
        self._buffer = np.empty(8 * CHUNK + 15, dtype=np.uint8)  # cryptography wants room for a block more

    def fill(self, start: int, result: Floats) -> None:
        """Put the normals of start, start + 1, … into `result`."""
        key_stream: Any = Cipher(self._algorithm, CTR((start // 2).to_bytes(16, "big"))).encryptor()
        if start % 2:
            key_stream.update(bytes(8))  # the other word of this block belongs to the normal before
        places, layers = [], []
        for begin in range(0, len(result), CHUNK):
            part = result[begin : begin + CHUNK]
            key_stream.update_into(_ZEROS[: 8 * len(part)], self._buffer)
            undecided, their_layers = self._proposer.propose(self._buffer[: 8 * len(part)].view("<u8"), part)
            places.append(begin + undecided)
            layers.append(their_layers)
        settle_proposals(
            result, np.concatenate(places), np.concatenate(layers), lambda r, at: self._pairs(r, start, at)
        )

    def _pairs(self, attempt: int, start: int, places: Integers) -> Words:
        """E(attempt, start + place) for each place: a row of two words."""
        blocks = np.empty((len(places), 2), dtype=">u8")
        blocks[:, 0], blocks[:, 1] = attempt, places + start
        return np.frombuffer(self._blocks.update(blocks.tobytes()), dtype="<u8").reshape(-1, 2)
