"""The scattering transform: wavelets, their modulus, wavelets again, and local averages. Features without training."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

from apportion.errors import InvalidArgument
from apportion.features.morlet_filters import Band, Bank, fold_filter, image_bank, signal_bank
from apportion.validate import Checked, checked, whole


@dataclass(frozen=True)
class Scatter(Checked):
    """S₀ = x ⋆ φ, S₁ = |x ⋆ ψ₁| ⋆ φ and S₂ = ||x ⋆ ψ₁| ⋆ ψ₂| ⋆ φ: local averages of what wavelets find at each angle and scale.

    The wavelets ψ are Morlet's, at `angles` angles and the scales 2^0 … 2^(J−1); ψ₂ is coarser than ψ₁, since the modulus leaves nothing
    finer. φ is a Gaussian of width 2^J, after which one number of 2^J is kept on each axis. Small shifts and deformations change little of
    it. An image of 28 × 28 pixels gives 1 + 16 + 64 = 81 channels of 7 × 7 numbers at J = 2 and 8 angles.

    Args:
        depth: 1 for S₀ and S₁, 2 for all three.
        angles: L, of images; signals have one direction.
        scale: J.

    Inputs: images (channels, height, width) or signals (channels, length) of any size from 2^J; each channel is transformed by itself.

    Source: Bruna and Mallat, Invariant scattering convolution networks (2013); for private training Tramèr and Boneh, Differentially
    private learning needs better features (2021).
    Guarantee: it is a fixed formula of one record, so it costs nothing.

    Examples:
        >>> import apportion as ap
        >>> import torch
        >>> tuple(ap.features.Scatter().build((1, 28, 28))(torch.zeros(5, 1, 28, 28)).shape)
        (5, 81, 7, 7)
    """

    prefix = "features"
    depth: int = checked(2, whole, "it is how many wavelets follow each other", "Use 1 or 2")
    angles: int = checked(8, whole, "it is a number of angles", "Try angles=8")
    scale: int = checked(2, whole, "averages are over 2^scale numbers", "Try scale=2")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.depth > 2:
            raise InvalidArgument("features.depth", self.depth, "only wavelets of wavelets are built", "Use 1 or 2")

    @property
    def public(self) -> str:
        """Where its numbers come from."""
        return "a formula; nothing in it was learned"

    def build(self, shape: tuple[int, ...]) -> nn.Module:
        """The transform of inputs of this shape: (records, channels, …) → (records, features, …)."""
        if len(shape) not in (2, 3) or min(shape[1:]) < 2**self.scale:
            reason = f"it needs images (channels, height, width) or signals (channels, length), at least {2**self.scale} numbers wide"
            raise InvalidArgument("features", f"Scatter on inputs of shape {shape}", reason, "Use a smaller scale")
        sizes = shape[1:]
        bank = (
            image_bank((sizes[0], sizes[1]), self.scale, self.angles)
            if len(sizes) == 2
            else signal_bank(sizes[0], self.scale)
        )
        return _Scattering(bank, self.depth)


class _Scattering(nn.Module):
    """Convolutions by products in the Fourier domain; averages, which are separable, by small matrices."""

    def __init__(self, bank: Bank, depth: int):
        super().__init__()
        self._depth, self._levels = depth, tuple(band.level for band in bank.bands)
        self._axes = tuple(range(-len(bank.padding), 0))
        for axis, (before, behind) in enumerate(bank.padding):
            size = bank.bands[0].filters.shape[1 + axis] - before - behind
            self._keep(f"places_{axis}", np.pad(np.arange(size), (before, behind), mode="reflect"))
            for level, matrix in enumerate(bank.low_pass[axis]):
                self._keep(f"low_pass_{axis}_{level}", matrix.astype(np.float32))
        for number, band in enumerate(bank.bands):
            self._keep(f"wavelets_{number}", _cut(band.filters, 2**band.level))
            for earlier in bank.bands[:number]:
                if earlier.level < band.level:
                    self._keep(f"wavelets_{number}_at_{earlier.level}", _thinned(band, earlier.level))

    def _keep(self, name: str, values: np.ndarray) -> None:
        self.register_buffer(name, torch.from_numpy(np.ascontiguousarray(values)))

    def forward(self, inputs: Tensor) -> Tensor:
        for axis, place in enumerate(self._axes):
            inputs = inputs.index_select(place, self.get_buffer(f"places_{axis}"))
        spectrum = torch.fft.fftn(inputs, dim=self._axes).unsqueeze(2)
        first, second = [self._average(inputs, 0).unsqueeze(2)], []
        for number, level in enumerate(self._levels):
            found = self._modulus(spectrum, f"wavelets_{number}")
            first.append(self._average(found, level))
            if self._depth == 2 and number + 1 < len(self._levels):
                second.append(self._follow(found, number))
        return torch.cat([*first, *second], 2).flatten(1, 2)

    def _follow(self, found: Tensor, number: int) -> Tensor:
        """S₂ of all pairs that begin with the wavelets of one band, (records, channels, pairs, …)."""
        spectrum = torch.fft.fftn(found, dim=self._axes).unsqueeze(3)
        own = self._levels[number]
        deeper = [
            self._average(self._modulus(spectrum, f"wavelets_{later}_at_{own}"), level)
            for later, level in enumerate(self._levels)
            if level > own
        ]
        return torch.cat(deeper, 3).flatten(2, 3)

    def _modulus(self, spectrum: Tensor, wavelets: str) -> Tensor:
        """|x ⋆ ψ|, thinned out: in the Fourier domain a mean over bands of frequencies, which `wavelets` holds one by one."""
        filters = self.get_buffer(wavelets)
        pieces = tuple(filters.shape[: len(self._axes)])
        parts, total = torch.view_as_real(spectrum), None
        for corner in product(*(range(count) for count in pieces)):
            band = parts
            for axis, piece, count in zip(self._axes, corner, pieces, strict=True):
                size = spectrum.shape[axis] // count
                band = band.narrow(axis - 1, piece * size, size)
            total = band * filters[corner] if total is None else torch.addcmul(total, band, filters[corner])
        assert total is not None
        real, imaginary = torch.view_as_real(torch.fft.ifftn(torch.view_as_complex(total), dim=self._axes)).unbind(-1)
        return torch.addcmul(real.square(), imaginary, imaginary).sqrt()  # four times as fast as abs

    def _average(self, values: Tensor, level: int) -> Tensor:
        *rows, columns = (self.get_buffer(f"low_pass_{axis}_{level}") for axis in range(len(self._axes)))
        return (rows[0] @ values if rows else values) @ columns.mT


def _thinned(band: Band, level: int) -> np.ndarray:
    """The wavelets of a band for inputs of which one number of 2^level is left."""
    filters = np.stack([fold_filter(one, 2**level) for one in band.filters])
    return _cut(filters, 2 ** (band.level - level))


def _cut(filters: np.ndarray, factor: int) -> np.ndarray:
    """(wavelets, *sizes) → (factor on each axis, wavelets, *sizes/factor, 2): bands of frequencies, divided so that their sum is a mean.
    Each number stands there twice, for the real and the imaginary part."""
    sizes = filters.shape[1:]
    for axis in range(len(sizes)):
        filters = np.moveaxis(np.stack(np.split(filters, factor, axis=1 + 2 * axis)), 0, axis)
    return np.repeat(filters[..., None], 2, axis=-1).astype(np.float32) / np.float32(factor ** len(sizes))
