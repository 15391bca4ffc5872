"""Surnames as characters, film reviews as words.

The alphabet and the vocabulary are fixed in public. Counting which words or letters occur in the training records and
keeping the frequent ones would be a release about these records that nobody paid for. Words are numbered by a hash instead:
two words may share a number, and no word has to be known beforehand.
"""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from zlib import crc32

import numpy as np
import torch

from apportion.data import files, order, tensors
from apportion.data.checksums import NAMES
from apportion.data.entry import DataSet, Entry

Text = tuple[str, int]  # with the number of its class

# Letters of the European alphabets and the marks that occur in names; 0 is padding and 1 is everything else.
ALPHABET = "abcdefghijklmnopqrstuvwxyz '-.,/" + "àáâãäåæçèéêëìíîïðñòóôõöøùúûüýþßāăąćčďđēęěğīįłńňőœřśšťūůűźżž"
CHARACTERS = {letter: number for number, letter in enumerate(ALPHABET, start=2)}

LANGUAGES = tuple(sorted(name.removesuffix(".txt") for name in NAMES))

BUCKETS = 10_000
_WORD = re.compile(r"[a-z0-9']+")
# Without the published test part one review in five is held out by its hash; this many of the 25,000 are left.
TRAIN_ONLY_POPULATION = 19_864


def read_names(entry: Entry, folder: Path) -> DataSet:
    """One file for each language, one name a line. A name is on the same side of the split in every language."""
    records = []
    for label, language in enumerate(LANGUAGES):
        text = files.read_text(files.required(folder, f"{language}.txt"))
        names = (unicodedata.normalize("NFC", line.strip()).lower() for line in text.split("\n"))
        records += [(name, label) for name in names if name]
    records.sort(key=lambda record: order.position(f"{record[0]}\t{record[1]}"))
    train = [record for record in records if not order.held_out(record[0])]
    test = [record for record in records if order.held_out(record[0])]
    parts = [_numbered(part, character_numbers, entry, folder) for part in (train, test)]
    return entry.dataset(parts[0], parts[1], folder)


def character_numbers(name: str) -> list[int]:
    """The number of each letter in the fixed alphabet."""
    return [CHARACTERS.get(letter, 1) for letter in name.lower()]


def read_reviews(entry: Entry, folder: Path) -> DataSet:
    """train.tsv and test.tsv with the columns label, stars and text."""
    records = _reviews(files.required(folder, "train.tsv"))
    test_path = files.locate(folder, "test.tsv")
    if test_path is not None:
        test, population = _reviews(test_path), entry.population
    else:
        warnings.warn(
            f"{folder} has no test.tsv: one training review in five is held out instead, so results do not compare with "
            "published ones. `apportion data fetch imdb` gets the test part where its mirror can be reached.",
            UserWarning,
            stacklevel=3,
        )
        test = [record for record in records if order.held_out(record[0])]
        records = [record for record in records if not order.held_out(record[0])]
        population = TRAIN_ONLY_POPULATION
    parts = [_numbered(part, word_numbers, entry, folder) for part in (records, test)]
    return entry.dataset(parts[0], parts[1], folder, population=population)


def word_numbers(text: str) -> list[int]:
    """The numbers of the lower-case words of a review, from 1 to BUCKETS-1; 0 is padding."""
    return [_bucket(word) for word in _WORD.findall(text.lower().replace("<br />", " "))]


@lru_cache(maxsize=1 << 18)
def _bucket(word: str) -> int:
    return 1 + crc32(word.encode("ascii")) % (BUCKETS - 1)


def _reviews(path: Path) -> list[Text]:
    """(text, label), ordered by hash because the file is sorted by class. Some texts hold other kinds of line ends."""
    records = []
    for number, line in enumerate(files.read_text(path).split("\n"), start=1):
        if line:
            fields = line.split("\t", 2)
            if len(fields) != 3 or fields[0] not in ("0", "1"):
                reason = "a line must be 0 or 1, stars and text, separated by tabs"
                raise files.unfit(f"{path}:{number}", reason, "Correct it")
            records.append((fields[2], int(fields[0])))
    return sorted(records, key=lambda record: (order.position(record[0]), record[1]))


def _numbered(records: list[Text], numbers: Callable[[str], list[int]], entry: Entry, folder: Path) -> tensors.Pair:
    """The numbers of each text, cut to the length of the entry's records or filled up with 0, and its label."""
    table = np.zeros((len(records), *entry.shape), dtype=np.int64)
    for row, (text, _) in enumerate(records):
        kept = numbers(text)[: entry.shape[0]]
        table[row, : len(kept)] = kept
    return tensors.pair(entry, torch.from_numpy(table), [label for _, label in records], folder)
