"""Random views of a record, whose gradients are averaged before they are clipped (augmentation multiplicity).

    g_i = (1/K)·Σ_k ∇ℓ(w; a_ik(x_i), y_i),    then clipped, summed and noised like the gradient of any record.

The average is one vector of norm at most C after clipping, so K views cost nothing of the budget. That holds as long as a view is made of
its own record alone: a_ik is drawn from a secret stream that belongs to record i of this draw, whoever else is in the batch. What
mixes two records, as mixup and cutmix do, has no place here: an augmentation is never shown a second one.

Source: De, Berrada, Hayes, Smith and Balle, "Unlocking High-Accuracy Differentially Private Image Classification through Scale"
(arXiv 2204.13650), section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apportion import validate
from apportion.curator.foreign_code import contain_errors
from apportion.curator.reader import restore_generators, seed_generators
from apportion.curator.tree import map_tensors, tensor_leaves
from apportion.errors import InvalidArgument
from apportion.validate import Checked, at_least, checked, whole

Seeds = NDArray[np.uint64]
MIXERS = ("mixup", "cutmix")
MIXES = "it makes one record of two, so that each of them would move what the other contributes"
_GOLDEN, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def uniforms(seeds: Seeds, count: int) -> Tensor:
    """`count` uniform numbers in [0, 1) for each seed, (n, count), in float64: row i is of seed i alone (SplitMix64)."""
    with np.errstate(over="ignore"):
        word = seeds[:, None] + _GOLDEN * np.arange(1, count + 1, dtype=np.uint64)
        word = (word ^ (word >> np.uint64(30))) * _FIRST
        word = (word ^ (word >> np.uint64(27))) * _SECOND
        word = word ^ (word >> np.uint64(31))
    return torch.from_numpy((word >> np.uint64(11)).astype(np.float64) * 2.0**-53)


@runtime_checkable
class Augmentation(Protocol):
    """Changes many images at once, each by random numbers of its own."""

    def change(self, images: Tensor, seeds: Seeds) -> Tensor:
        """Row i of the result is made of row i and of seed i."""
        ...


@final
@dataclass(frozen=True)
class Flip(Checked):
    """Mirrors an image (…, height, width) from left to right with this probability.

    Args:
        chance: probability of a mirrored view.

    Examples:
        >>> import torch, apportion as ap
        >>> ap.Flip(chance=1.0).change(torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([7]).numpy().astype("uint64"))
        tensor([[[[2., 1.]]]])
    """

    chance: float = checked(0.5, at_least(0.0), "it is a probability", "Use chance=0.5")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chance > 1:
            raise InvalidArgument("chance", self.chance, "it is a probability", "Use chance=0.5")

    def change(self, images: Tensor, seeds: Seeds) -> Tensor:
        """The images, some of them mirrored."""
        mirrored = (uniforms(seeds, 1)[:, 0] < self.chance).to(images.device)
        return torch.where(mirrored.reshape(-1, *[1] * (images.dim() - 1)), images.flip(-1), images)


@final
@dataclass(frozen=True)
class Shift(Checked):
    """Moves an image (…, height, width) by up to `pixels` in each direction, each whole number alike; what comes in at the edge is 0,
    or the image mirrored there. The same as padding and cropping at random.

    Args:
        pixels: the largest distance.
        edge: "zeros" or "mirror".

    Examples:
        >>> import torch, apportion as ap
        >>> image = torch.ones(1, 1, 4, 4)
        >>> float(ap.Shift(4).change(image, torch.tensor([3]).numpy().astype("uint64")).sum()) < 16
        True
    """

    pixels: int = checked(4, whole, "it is a number of pixels", "Use pixels=4")
    edge: str = checked("zeros", validate.one_of("zeros", "mirror"), "there is no such edge")

    def change(self, images: Tensor, seeds: Seeds) -> Tensor:
        """The images, each moved by its own numbers of pixels."""
        moves = (uniforms(seeds, 2) * (2 * self.pixels + 1)).floor().long() - self.pixels  # (n, 2)
        height, width = images.shape[-2:]
        rows, outside_rows = self._sources(height, moves[:, 0])
        columns, outside_columns = self._sources(width, moves[:, 1])
        flat = images.reshape(len(images), -1, height, width)
        index = (rows[:, :, None] * width + columns[:, None, :]).flatten(1).unsqueeze(1).to(images.device)
        moved = flat.flatten(2).gather(2, index.expand(-1, flat.shape[1], -1)).reshape(flat.shape)
        if self.edge == "zeros":
            outside = (outside_rows[:, :, None] | outside_columns[:, None, :]).unsqueeze(1).to(images.device)
            moved = moved.masked_fill(outside, 0)
        return moved.reshape(images.shape)

    def _sources(self, size: int, moves: Tensor) -> tuple[Tensor, Tensor]:
        """Where each row or column comes from, and whether that lies outside."""
        place = torch.arange(size) - moves[:, None]
        outside = (place < 0) | (place >= size)
        if self.edge == "mirror":
            folded = place.remainder(2 * size)
            return torch.where(folded < size, folded, 2 * size - 1 - folded), outside
        return place.clamp(0, size - 1), outside


@dataclass(frozen=True)
class Views(Checked):
    """How many views of each record there are, and how they are made. See `apportion.augment`.

    Args:
        count: K. The micro-batch counts views: with K = 8 a micro-batch of 512 has 64 records. Time grows with K, memory does not.
        by: what makes a view, one after the other: `Flip`, `Shift`, or a function of your own, which is given the inputs of one record
            and returns as many numbers of the same kind. While it runs, the generators of torch, NumPy and Python start from a
            secret seed of that view.
    """

    count: int = checked(8, whole, "it is a number of views", "Use count=8")
    by: Sequence[Augmentation | Callable[[Any], Any]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        given = tuple(self.by) if isinstance(self.by, (list, tuple)) else (self.by,)
        object.__setattr__(self, "by", given)
        if not given:
            reason = "without an augmentation all views are the record itself"
            raise InvalidArgument("by", (), reason, "Use by=[apportion.Flip(), apportion.Shift(4)]")
        for one in given:
            name = (getattr(one, "__name__", None) or type(one).__name__).lower()
            if any(mixer in name.replace("_", "") for mixer in MIXERS):
                raise InvalidArgument("by", name, MIXES, "Use augmentations of single records")
            if not callable(one) and not isinstance(one, Augmentation):
                reason = f"it is a {type(one).__name__}, which cannot be called"
                raise InvalidArgument("by", validate.shown(one), reason, "Name a function of one record")

    def require_usable(self, example: Any) -> None:
        """Refuse what does not work for inputs like `example`, those of one record with every value zero."""
        built_in = [type(one).__name__ for one in self.by if isinstance(one, Augmentation)]
        if built_in and not (isinstance(example, Tensor) and example.dim() >= 2):
            reason = f"it changes images, and a record has {_describe(example)}"
            fix = "Use a function of your own, which is given the inputs of one record"
            raise InvalidArgument("by", built_in[0], reason, fix)
        batch = map_tensors(lambda tensor: tensor.unsqueeze(0), example)
        with contain_errors() as attempt:
            found = self.of(batch, np.arange(1, dtype=np.uint64))
        if attempt.failure:
            reason = f"it cannot make a view of a record of zeros ({attempt.text})"
            raise InvalidArgument(
                "by", [_name(one) for one in self.by], reason, "Test it on torch.zeros of a record's shape"
            )
        expected = [(tensor.shape[1:], tensor.dtype) for tensor in tensor_leaves(batch)]
        if [(tensor.shape[1:], tensor.dtype) for tensor in tensor_leaves(found)] != expected:
            reason = "a view has another shape or type than its record, for which the model was tested"
            raise InvalidArgument("by", [_name(one) for one in self.by], reason, "Return the same shape and type")

    def of(self, inputs: Any, seeds: Seeds) -> Any:
        """(b, ...) → (b·K, ...): the views of each record behind each other.

        Args:
            seeds: of each record, (b,): all that its views depend on besides the record.
        """
        count = self.count
        rows = map_tensors(lambda tensor: tensor.repeat_interleave(count, 0), inputs)
        for number, one in enumerate(self.by):
            own = _seeds_of_views(seeds, count, number)
            rows = one.change(rows, own) if isinstance(one, Augmentation) else _one_by_one(one, rows, own)
        return rows

    def describe(self) -> dict[str, Any]:
        """What they are, for files."""
        return {
            "views": self.count,
            "by": [repr(one) if isinstance(one, Augmentation) else _name(one) for one in self.by],
        }


@dataclass(frozen=True, eq=False)
class Augmented:
    """Records, and the views that are made of each. What `apportion.augment` returns; hand it in wherever data is asked for."""

    data: Any
    views: Views


def augment(data: Any, views: int = 8, by: Sequence[Augmentation | Callable[[Any], Any]] = ()) -> Augmented:
    """Train on `views` random views of every record; their gradients are averaged before they are clipped.

    The guarantee and its price stay what they are: a record contributes one vector, and its views depend on nothing but the record and
    a secret stream of its own (De et al., arXiv 2204.13650).

    Args:
        data: as in `apportion.train`.
        views: K, how many there are. A step takes about K times as long.
        by: what makes a view: `apportion.Flip()`, `apportion.Shift(4)`, or functions of the inputs of one record.

    Returns:
        What `train` takes in place of the data.

    Examples:
        >>> import torch, apportion as ap
        >>> digits = torch.rand(100, 1, 8, 8), torch.randint(0, 10, (100,))
        >>> ap.augment(digits, views=4, by=[ap.Shift(1)]).views.count
        4
    """
    return Augmented(data, Views(views, by))


def _seeds_of_views(seeds: Seeds, count: int, number: int) -> Seeds:
    """A seed for each view of each record and each augmentation, (b·K,)."""
    words = (uniforms(seeds, count * (number + 1))[:, count * number :] * 2.0**53).to(torch.int64)
    return words.flatten().numpy().astype(np.uint64) << np.uint64(11)


def _one_by_one(function: Callable[[Any], Any], rows: Any, seeds: Seeds) -> Any:
    """A person's function, shown one view at a time, with generators that start anew for each."""
    made = []
    with restore_generators():
        for i, seed in enumerate(seeds.tolist()):
            seed_generators(seed)
            made.append(function(map_tensors(lambda tensor, i=i: tensor[i].clone(), rows)))
    return map_tensors(lambda *parts: torch.stack(parts), *made) if made else rows


def _name(one: Any) -> str:
    return str(getattr(one, "__name__", type(one).__name__))


def _describe(example: Any) -> str:
    return f"shape {tuple(example.shape)}" if isinstance(example, Tensor) else "several inputs"
