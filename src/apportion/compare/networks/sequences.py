"""Models for texts, as characters and as words."""

from __future__ import annotations

from torch import Tensor, nn

from apportion.compare.networks.activations import Activation
from apportion.data import DataSet


class CharacterModel(nn.Module):
    """Embedding, one LSTM, and a linear layer on its last state."""

    def __init__(self, vocabulary: int, classes: int, width: int = 32, hidden: int = 64):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.recurrent = nn.LSTM(width, hidden, batch_first=True)
        self.output = nn.Linear(hidden, classes)

    def forward(self, characters: Tensor) -> Tensor:
        states, _ = self.recurrent(self.embedding(characters))
        logits: Tensor = self.output(states[:, -1])
        return logits


class WordModel(nn.Module):
    """The mean of the word embeddings of a text, then one hidden layer. Padding (word 0) does not count."""

    def __init__(self, vocabulary: int, classes: int, activation: Activation = nn.Tanh, width: int = 16):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.hidden = nn.Linear(width, width)
        self.activation = activation()
        self.output = nn.Linear(width, classes)

    def forward(self, words: Tensor) -> Tensor:
        present = (words != 0).unsqueeze(-1).to(self.embedding.weight.dtype)
        mean = (self.embedding(words) * present).sum(1) / present.sum(1).clamp(min=1)
        logits: Tensor = self.output(self.activation(self.hidden(mean)))
        return logits


def lstm(data: DataSet) -> nn.Module:
    """For texts as characters."""
    return CharacterModel(_vocabulary(data), data.classes)


def name_lstm(data: DataSet) -> nn.Module:
    """For surnames: 107,602 parameters on the data set names. That of Du et al. is not published; these are the usual sizes."""
    return CharacterModel(_vocabulary(data), data.classes, width=64, hidden=128)


def embedding(data: DataSet, activation: Activation) -> nn.Module:
    """For texts as words: 160,306 parameters on IMDB. That of Du et al. is not published."""
    return WordModel(_vocabulary(data), data.classes, activation)


def _vocabulary(data: DataSet) -> int:
    assert data.vocabulary is not None  # every text has one; other data was refused by its kind
    return data.vocabulary
