"""Which words a text has, wherever they stand."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from apportion.errors import InvalidArgument
from apportion.validate import Checked, checked, whole

_LENGTH = 32.0
"""Of every vector: about that of other normalised features, so that one learning rate serves all of them."""


@dataclass(frozen=True)
class WordCounts(Checked):
    """x_j = 32/√n if the word with number j is among the n different words of a text, else 0.

    A text is a row of numbers, as of the data set imdb: 0 is padding, the words have the numbers from 1. How often a word occurs was
    tried too (log(1 + count)) and is no better.

    Args:
        vocabulary: the largest number, declared.

    Source: the bag of words with binary weights, as in Wang and Manning, Baselines and bigrams (2012).
    Guarantee: it is a fixed formula of one record, so it costs nothing. Which word has which number must be public: fixed beforehand, or by
    a hash, never by how often words occur in the private texts.

    Examples:
        >>> import apportion as ap
        >>> import torch
        >>> found = ap.features.WordCounts(vocabulary=5).build((4,))(torch.tensor([[2, 5, 2, 0]]))
        >>> found.round(decimals=1).tolist()
        [[0.0, 22.6, 0.0, 0.0, 22.6]]
    """

    prefix = "features"
    vocabulary: int = checked(10_000, whole, "it is the largest number of a word", "Declare it")

    @property
    def public(self) -> str:
        """Where its numbers come from."""
        return "a formula; nothing in it was learned"

    def build(self, shape: tuple[int, ...]) -> nn.Module:
        """(records, words) → (records, vocabulary)."""
        if len(shape) != 1:
            reason = "it needs texts as rows of word numbers"
            raise InvalidArgument("features", f"WordCounts on inputs of shape {shape}", reason, "Use it for texts")
        return _WordCounts(self.vocabulary)


class _WordCounts(nn.Module):
    def __init__(self, vocabulary: int):
        super().__init__()
        self._vocabulary = vocabulary

    def forward(self, words: Tensor) -> Tensor:
        there = torch.zeros(len(words), self._vocabulary + 1).scatter(1, words, 1.0)[:, 1:]
        return there * (_LENGTH / there.sum(1, keepdim=True).clamp(min=1).sqrt())
