"""What every loader returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from apportion.budget import Public

if TYPE_CHECKING:
    import torch

Kind = Literal["image", "table", "characters", "words"]


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training records, which are private, and test records, which are declared public.

    train       (inputs, targets): N inputs of `shape` and N class numbers (int64)
    test        `Public((inputs, targets))`: the benchmark's own test part, published by whoever made the set
    classes     number of classes
    shape       shape of one input, e.g. (1, 28, 28)
    population  the *published* number of training records, a constant that does not follow the rows on disk;
                None for a folder of one's own, where the person who trains has to declare it
    kind        what an input is, so that a default model can be chosen: an image is float32 in [0, 1], channels first;
                a table is a float32 vector in [0, 1]; characters and words are int64 numbers, padded with 0
    writers     for each training record the number of the person who wrote it, where that is known
    source      where the files were read
    vocabulary  for text: numbers lie in 0 … vocabulary-1
    """

    name: str
    train: tuple[torch.Tensor, torch.Tensor] = field(repr=False)
    test: Public = field(repr=False)
    classes: int
    shape: tuple[int, ...]
    population: int | None
    kind: Kind
    writers: torch.Tensor | None = field(default=None, repr=False)
    source: str = ""
    vocabulary: int | None = None
