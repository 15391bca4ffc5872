"""Which words a text has."""

from __future__ import annotations

import pytest
import torch

import apportion as ap

WORDS = torch.tensor([[3, 3, 1, 0], [2, 0, 0, 0], [0, 0, 0, 0]])


def test_each_word_counts_once_padding_does_not_and_vectors_have_one_length():
    found = ap.features.WordCounts(vocabulary=4).build((4,))(WORDS)
    assert (found > 0).tolist() == [[True, False, True, False], [False, True, False, False], [False] * 4]
    assert found.norm(dim=1).tolist() == pytest.approx([32, 32, 0])


def test_a_number_beyond_the_vocabulary_makes_a_record_unusable_and_no_other():
    extractor = ap.features.Extractor(ap.features.WordCounts(vocabulary=4), (4,), norm=None, dtype=torch.int64)
    words = torch.cat([WORDS, torch.tensor([[9, 1, 0, 0]])])
    found, _ = ap.features.extract(extractor, (words, torch.zeros(4, dtype=torch.int64)))
    assert found[3].isnan().all()
    assert torch.equal(found[:3], ap.features.WordCounts(vocabulary=4).build((4,))(WORDS))


def test_images_are_refused():
    with pytest.raises(ap.InvalidArgument, match="rows of word numbers"):
        ap.features.WordCounts().build((1, 8, 8))
