"""Morlet wavelets and Gaussian low-passes in the Fourier domain, with the parameters that the literature settled on.

Source: Bruna and Mallat, Invariant scattering convolution networks (2013); Andén and Mallat, Deep scattering spectrum (2014), for signals.
Widths, frequencies and padding are those of Andreux et al., Kymatio: scattering transforms in Python (2020), with whose answers ours are
compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Band:
    """Wavelets of one octave, after whose modulus 2^level numbers can be kept of each axis as one.

    Args:
        level: j.
        filters: their Fourier transforms, real, (wavelets, *padded), for inputs at full resolution.
    """

    level: int
    filters: Floats


@dataclass(frozen=True, eq=False)
class Bank:
    """What a scattering transform of inputs of one size consists of.

    Args:
        bands: the wavelets, the finest first.
        padding: how many numbers are put before and behind each axis, by reflection.
        low_pass: of each axis the matrix of each level j: average at scale 2^J, keep one of 2^(J−j), and cut the padding off.
    """

    bands: tuple[Band, ...]
    padding: tuple[tuple[int, int], ...]
    low_pass: tuple[tuple[Floats, ...], ...]


def image_bank(shape: tuple[int, int], scale: int, angles: int) -> Bank:
    """ψ_{j,θ}(u) = 2^{−2j}·ψ(2^{−j}·R_θ·u) for 0 ≤ j < J, where ψ(u) = (e^{iξu} − β)·e^{−|u|²/(2σ²)}; and φ, a Gaussian of width 2^J."""
    step = 2**scale
    padded = [(size + step) // step * step + step for size in shape]
    before = [(wide - size) // 2 for wide, size in zip(padded, shape, strict=True)]
    bands = []
    for level in range(scale):
        sigma, frequency = 0.8 * 2**level, 0.75 * math.pi / 2**level
        turns = [(int(angles / 2 - 1) - number) * math.pi / angles for number in range(angles)]
        waves = [_morlet(padded, sigma, turn, frequency, 4 / angles) for turn in turns]
        bands.append(Band(level, np.stack(waves)))
    low_pass = []
    for wide in padded:
        average = np.fft.fft(_gaussian_line(wide, 0.8 * 2 ** (scale - 1))).real
        kept = slice(1, wide // step - 1)
        low_pass.append(tuple(_averaging_matrix(fold_filter(average, 2**j), step >> j, kept) for j in range(scale)))
    padding = tuple((one, wide - size - one) for one, wide, size in zip(before, padded, shape, strict=True))
    return Bank(tuple(bands), padding, tuple(low_pass))


def signal_bank(length: int, scale: int) -> Bank:
    """ψ̂_n(ω) = e^{−(ω−ξ_n)²/(2σ_n²)} − β·e^{−ω²/(2σ_n²)} with ξ_n = 0.35·2^{−n}, one wavelet an octave; and φ̂, of width 0.1·2^{−J}."""
    narrowest = _LOW_PASS_WIDTH / 2**scale
    padded = _padded_length(length, narrowest)
    before = (padded - length) // 2
    frequencies, widths = [_HIGHEST], [_HIGHEST * _WIDTH]
    while widths[-1] > 2 * narrowest:
        frequencies.append(frequencies[-1] / 2)
        widths.append(widths[-1] / 2)
    levels = [_thinning(one, width) for one, width in zip(frequencies, widths, strict=True)]
    waves = [_signal_filter(padded, width, one) for one, width in zip(frequencies, widths, strict=True)]
    bands = tuple(
        Band(level, np.stack([wave for wave, own in zip(waves, levels, strict=True) if own == level]))
        for level in sorted(set(levels))
    )
    average = _signal_filter(padded, narrowest)
    matrices = [
        _averaging_matrix(fold_filter(average, 2**level), 2 ** (scale - level), _kept(before, length, scale))
        for level in range(min(max(levels), scale) + 1)
    ]
    return Bank(bands, ((before, padded - length - before),), (tuple(matrices),))


_LOW_PASS_WIDTH, _HIGHEST = 0.1, 0.35
"""In cycles a number: the width of a low-pass that keeps all, and the frequency of the finest wavelet."""
_WIDTH = 1 / 3 / math.sqrt(math.log(2))
"""σ/ξ of wavelets an octave apart whose neighbours meet at √½ of their height."""
_NEGLIGIBLE, _TAIL = 1e-7, 1e-3
_REACH = 5
"""A wavelet has no frequencies further than so many σ from its own."""


def _thinning(frequency: float, width: float) -> int:
    """The largest j for which one number of 2^j says all."""
    return math.floor(-math.log2(min(frequency + _REACH * width, 0.5))) - 1


def _kept(before: int, length: int, scale: int) -> slice:
    """Where the signal is among the numbers that are left of the padded one."""
    start, end = before, before + length
    for _ in range(scale):
        start, end = (start + 1) // 2, (end + 1) // 2
    return slice(start, end)


def _padded_length(length: int, width: float) -> int:
    """A power of two that leaves room for three low-passes on each side, or as much as reflection can fill."""
    impulse = np.abs(np.fft.ifft(_signal_filter(length, width)))[: length // 2]
    tails = np.cumsum(impulse[::-1])[::-1]
    short = np.flatnonzero(tails <= _TAIL)
    reach = short[0] + 1 if len(short) else length // 2
    return int(2 ** min(np.ceil(np.log2(length + 6 * reach)), np.floor(np.log2(3 * length - 2))))


def _signal_filter(size: int, width: float, frequency: float = 0.0) -> Floats:
    """The Fourier transform of a Gaussian, or of a Morlet wavelet, whose absolute values in time add up to 1."""
    periods = min(math.ceil(math.sqrt(-2 * width**2 * math.log(_NEGLIGIBLE)) + 1), 5)
    places = np.arange((1 - periods) * size, periods * size) / size
    smooth, wave = (
        np.exp(-((places - centre) ** 2) / (2 * width**2)).reshape(2 * periods - 1, size).sum(0)
        for centre in (0.0, frequency)
    )
    found = wave - wave[0] / smooth[0] * smooth if frequency else smooth
    return np.asarray(found / np.abs(np.fft.ifft(found)).sum())


def fold_filter(transform: Floats, factor: int) -> Floats:
    """The filter for inputs of which one number of `factor` is left on every axis: frequencies that these do not have are cut off."""
    for axis, size in enumerate(transform.shape):
        kept, start = np.ones(size), size // (2 * factor)
        kept[start : start + size - size // factor] = 0
        turned = np.moveaxis(transform, axis, -1) * kept
        transform = np.moveaxis(turned.reshape(*turned.shape[:-1], factor, size // factor).sum(-2), -1, axis)
    return transform


def _averaging_matrix(transform: Floats, factor: int, kept: slice) -> Floats:
    """Rows `kept` of the matrix that convolves by `transform` and keeps one number of `factor`."""
    size = len(transform)
    impulse = np.fft.ifft(transform).real
    rows = np.stack([np.roll(impulse[::-1], 1 + place) for place in range(0, size, factor)])
    return rows[kept]


def _gaussian_line(size: int, sigma: float) -> Floats:
    """e^{−u²/(2σ²)}/(√(2π)·σ), as often as it wraps around."""
    places = np.arange(-2 * size, 3 * size, dtype=np.float64)
    values = np.exp(-(places**2) / (2 * sigma**2)) / (math.sqrt(2 * math.pi) * sigma)
    return np.asarray(values.reshape(5, size).sum(0))


def _morlet(padded: list[int], sigma: float, turn: float, frequency: float, slant: float) -> Floats:
    """The Fourier transform of one wavelet, which is real: (e^{iξu} − β) times a Gaussian that is longer by 1/slant across."""
    rows, columns = (np.arange(-2 * size, 3 * size, dtype=np.float64) for size in padded)
    y, x = np.meshgrid(rows, columns, indexing="ij")
    along, across = y * math.cos(turn) + x * math.sin(turn), x * math.cos(turn) - y * math.sin(turn)
    envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2)) * slant / (2 * math.pi * sigma**2)
    wave, smooth = (_wrap(part, padded) for part in (envelope * np.exp(1j * frequency * along), envelope))
    return np.asarray(np.fft.fft2(wave - wave.sum() / smooth.sum() * smooth).real)


def _wrap(values: NDArray[Any], padded: list[int]) -> NDArray[Any]:
    rows, columns = padded
    return np.asarray(values.reshape(5, rows, 5, columns).sum((0, 2)))
