"""Small models of many kinds, each with a batch of records and the loss of one record.

`ZOO` maps a name to a `Specimen`. Records differ in size by design, so that some are clipped and others are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Specimen:
    """How to build a model and `size` records for it.

    Args:
        model: builds it.
        records: from a number of records to (inputs, targets), in float32.
        loss: loss_fn(outputs, targets), a mean over the batch.
    """

    model: Callable[[], nn.Module]
    records: Callable[[int], tuple[Any, Any]]
    loss: Callable[[Any, Any], Tensor] = functional.cross_entropy


def numbers(*shape: int, classes: int = 3) -> Callable[[int], tuple[Tensor, Tensor]]:
    return lambda size: (torch.randn(size, *shape), torch.randint(0, classes, (size,)))


def tokens(length: int, words: int = 11, classes: int = 3) -> Callable[[int], tuple[Tensor, Tensor]]:
    return lambda size: (torch.randint(0, words, (size, length)), torch.randint(0, classes, (size,)))


def text(length: int, words: int = 11) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Every token is to be followed by the next one."""

    def records(size: int) -> tuple[Tensor, Tensor]:
        whole = torch.randint(0, words, (size, length + 1))
        return whole[:, :-1].clone(), whole[:, 1:].clone()

    return records


def itself(*shape: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Inputs that are their own targets."""

    def records(size: int) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(size, *shape)
        return inputs, inputs.clone()

    return records


def over_positions(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.transpose(1, 2), targets)


class Mean(nn.Module):
    def __init__(self, dimension: int):
        super().__init__()
        self.dimension = dimension

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(self.dimension)


class Transposed(nn.Module):
    """The last two dimensions exchanged."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class Added(nn.Module):
    """x + f(x)."""

    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.inner = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Recurrent(nn.Module):
    """Embedding, a recurrent layer, the last state."""

    def __init__(self, layer: nn.Module, size: int):
        super().__init__()
        self.words, self.layer, self.output = nn.Embedding(11, 5), layer, nn.Linear(size, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(self.layer(self.words(ids))[0][:, -1])


class Cells(nn.Module):
    """A recurrent cell in a loop that the model writes itself."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.output = nn.GRUCell(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], 4)
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return self.output(state)


class Dilated(nn.Module):
    """A causal convolution: padded on the left only."""

    def __init__(self, channels: int, dilation: int):
        super().__init__()
        self.layer, self.left = nn.Conv1d(channels, channels, 3, dilation=dilation), 2 * dilation

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.layer(functional.pad(x, (self.left, 0))))


class Squeezed(nn.Module):
    """Squeeze and excitation: channels weighted by what the whole image says."""

    def __init__(self, channels: int):
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(channels, 2), nn.ReLU(), nn.Linear(2, channels), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x.mean((2, 3)))[:, :, None, None]


class Attending(nn.Module):
    """A learned classifier on top of self-attention over a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.output = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.attention(x, x, x, need_weights=False)[0].mean(1))


class Decoder(nn.Module):
    """A language model: causal self-attention, every position predicts the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 6), nn.Embedding(7, 6)
        self.block = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True, norm_first=True)
        self.output = nn.Linear(6, 11)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).triu(1)
        return self.output(self.block(self.words(ids) + self.places(places), src_mask=mask))


class HandWrittenAttention(nn.Module):
    """`scaled_dot_product_attention` between linear layers, as small GPTs have it."""

    def __init__(self) -> None:
        super().__init__()
        self.together, self.output, self.head = nn.Linear(6, 18), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(2, (2, 3)).transpose(1, 2) for part in self.together(x).split(6, 2))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(self.output(mixed.transpose(1, 2).flatten(2)).mean(1))


class Translator(nn.Module):
    """A transformer with encoder and decoder, on a pair of sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.transformer = nn.Transformer(6, 2, 1, 1, 8, dropout=0.0, batch_first=True)
        self.output = nn.Linear(6, 11)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        return self.output(self.transformer(self.words(source), self.words(target), tgt_mask=mask))


class Mixer(nn.Module):
    """Linear layers over channels and over places in turn, normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.places = Added(nn.LayerNorm(4), Transposed(), nn.Linear(5, 5), nn.GELU(), Transposed())
        self.channels = Added(nn.RMSNorm(4), nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
        self.output = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.channels(self.places(x)).mean(1))


class UNet(nn.Module):
    """Down, up, and past it: one number for every pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.down = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.up, self.end = nn.ConvTranspose2d(4, 3, 2, stride=2), nn.Conv2d(6, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        start = torch.relu(self.start(x))
        return self.end(torch.cat([start, torch.relu(self.up(torch.relu(self.down(start))))], 1))


class OneLayerTwice(nn.Module):
    """A tied autoencoder: the same layer on the way in and on the way out."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x)))


class TiedText(nn.Module):
    """The table of words is also the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.middle, self.output = nn.Embedding(11, 5), nn.Linear(5, 5), nn.Linear(5, 11, bias=False)
        self.output.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(torch.tanh(self.middle(self.words(ids))))


class Adapted(nn.Module):
    """A frozen layer and a trained one of low rank beside it."""

    def __init__(self, size_in: int, size_out: int):
        super().__init__()
        self.base = nn.Linear(size_in, size_out).requires_grad_(False)
        self.down, self.up = nn.Linear(size_in, 2, bias=False), nn.Linear(2, size_out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2.0 * self.up(self.down(x))


class Siamese(nn.Module):
    """Two inputs through one tower."""

    def __init__(self) -> None:
        super().__init__()
        self.tower, self.output = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), nn.Linear(3, 2)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.output((self.tower(left) - self.tower(right)).square())


class Tabular(nn.Module):
    """Named inputs of different kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.place, self.numbers, self.output = nn.Embedding(6, 3), nn.Linear(4, 3), nn.Linear(6, 3)

    def forward(self, *, place: Tensor, numbers: Tensor) -> Tensor:
        return self.output(torch.cat([self.place(place), torch.tanh(self.numbers(numbers))], 1))


class TwoHeads(nn.Module):
    """Two answers: a class and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.label, self.amount = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.body(x))
        return self.label(hidden), self.amount(hidden).squeeze(1)


def of_two_heads(outputs: tuple[Tensor, Tensor], targets: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(outputs[0], targets[0]) + functional.mse_loss(outputs[1], targets[1])


class Gated(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(4, 8, bias=False), nn.Linear(4, 8, bias=False)
        self.down, self.norm, self.output = nn.Linear(8, 4, bias=False), nn.RMSNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        normal = self.norm(x)
        return self.output((x + self.down(functional.silu(self.gate(normal)) * self.up(normal))).mean(1))


class Variational(nn.Module):
    """An autoencoder that returns what its loss needs by name; its sample is the mean, so that it can be compared."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.mean, self.spread = nn.Linear(5, 6), nn.Linear(6, 2), nn.Linear(6, 2)
        self.decoder = nn.Sequential(nn.Linear(2, 6), nn.Softplus(), nn.Linear(6, 5))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = torch.tanh(self.encoder(x))
        mean, spread = self.mean(hidden), self.spread(hidden)
        return {"decoded": self.decoder(mean), "mean": mean, "spread": spread}


def evidence(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
    apart = 0.5 * (outputs["mean"].square() + outputs["spread"].exp() - outputs["spread"] - 1).sum(1).mean()
    return functional.mse_loss(outputs["decoded"], targets) + apart


def separable(channels: int, out: int) -> nn.Sequential:
    """By channel, then across channels."""
    return nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, groups=channels), nn.Conv2d(channels, out, 1))


def residual(channels: int) -> Added:
    return Added(
        nn.GroupNorm(2, channels),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1, bias=False),
        nn.GroupNorm(2, channels),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1, bias=False),
    )


def encoder(norm_first: bool) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


ZOO: dict[str, Specimen] = {
    "logistic regression": Specimen(lambda: nn.Linear(5, 3), numbers(5)),
    "multilayer perceptron": Specimen(
        lambda: nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)), numbers(5)
    ),
    "normalised perceptron": Specimen(
        lambda: nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.GELU(), nn.RMSNorm(6), nn.Linear(6, 3)), numbers(5)
    ),
    "convolutions with pooling": Specimen(
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Conv2d(3, 4, 3),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(16, 3),
        ),
        numbers(1, 8, 8),
    ),
    "strides, groups, gaps": Specimen(
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2),
            nn.ReLU(),
            nn.Conv2d(4, 6, 3, groups=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(6, 2, 2, dilation=2),
            nn.Flatten(),
            nn.Linear(2, 3),
        ),
        numbers(2, 7, 7),
    ),
    "in-place activations": Specimen(
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3),
            nn.ReLU(inplace=True),
            nn.Conv2d(3, 3, 3),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(12, 3),
        ),
        numbers(1, 6, 6),
    ),
    "convolutions over text": Specimen(
        lambda: nn.Sequential(
            nn.Embedding(11, 4, padding_idx=0),
            Transposed(),
            nn.Conv1d(4, 5, 3, padding="same"),
            nn.ReLU(),
            nn.AdaptiveMaxPool1d(1),
            nn.Flatten(),
            nn.Linear(5, 3),
        ),
        tokens(7),
    ),
    "convolutions in space": Specimen(
        lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)), numbers(1, 3, 3, 3)
    ),
    "convolutional autoencoder": Specimen(
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3, stride=2, padding=1),
            nn.Tanh(),
            nn.ConvTranspose2d(3, 1, 3, stride=2, padding=1, output_padding=1),
        ),
        itself(1, 6, 6),
        functional.mse_loss,
    ),
    "generator": Specimen(
        lambda: nn.Sequential(
            nn.Linear(4, 16),
            nn.Unflatten(1, (4, 2, 2)),
            nn.ConvTranspose2d(4, 3, 4, stride=2, padding=1),
            nn.GroupNorm(3, 3),
            nn.ReLU(),
            nn.ConvTranspose2d(3, 1, 3, stride=1, padding=1),
            nn.Tanh(),
        ),
        lambda size: (torch.randn(size, 4), torch.rand(size, 1, 4, 4)),
        functional.mse_loss,
    ),
    "residual network": Specimen(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            residual(4),
            residual(4),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 3),
        ),
        numbers(1, 5, 5),
    ),
    "separable convolutions": Specimen(
        lambda: nn.Sequential(separable(2, 4), nn.Hardswish(), separable(4, 3), nn.Flatten(), nn.Linear(48, 3)),
        numbers(2, 4, 4),
    ),
    "squeeze and excitation": Specimen(
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), Squeezed(4), nn.Flatten(), nn.Linear(36, 3)), numbers(1, 5, 5)
    ),
    "instance norm": Specimen(
        lambda: nn.Sequential(
            nn.ReflectionPad2d(1),
            nn.Conv2d(2, 3, 3),
            nn.InstanceNorm2d(3, affine=True),
            nn.ReLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(3, 2, 3, padding=1, padding_mode="reflect"),
        ),
        lambda size: (torch.randn(size, 2, 4, 4), torch.randn(size, 2, 8, 8)),
        functional.mse_loss,
    ),
    "dilated sequence network": Specimen(
        lambda: nn.Sequential(Dilated(3, 1), Dilated(3, 2), nn.Flatten(), nn.Linear(24, 3)), numbers(3, 8)
    ),
    "U-Net": Specimen(UNet, itself(1, 4, 4), functional.mse_loss),
    "mean of embeddings": Specimen(
        lambda: nn.Sequential(nn.Embedding(11, 4, padding_idx=0), Mean(1), nn.Linear(4, 3)), tokens(6)
    ),
    "bag of embeddings": Specimen(
        lambda: nn.Sequential(nn.EmbeddingBag(11, 4, mode="mean", padding_idx=0), nn.Linear(4, 3)), tokens(6)
    ),
    "RNN": Specimen(lambda: Recurrent(nn.RNN(5, 4, batch_first=True), 4), tokens(6)),
    "LSTM": Specimen(lambda: Recurrent(nn.LSTM(5, 4, batch_first=True), 4), tokens(6)),
    "GRU": Specimen(lambda: Recurrent(nn.GRU(5, 4, batch_first=True), 4), tokens(6)),
    "stacked LSTM, two ways": Specimen(
        lambda: Recurrent(nn.LSTM(5, 4, 2, batch_first=True, bidirectional=True), 8), tokens(5)
    ),
    "loop of cells": Specimen(Cells, numbers(4, 3)),
    "attention": Specimen(Attending, numbers(5, 6)),
    "attention by hand": Specimen(HandWrittenAttention, numbers(5, 6)),
    "transformer encoder": Specimen(
        lambda: nn.Sequential(nn.Embedding(11, 6), encoder(False), Mean(1), nn.Linear(6, 3)), tokens(5)
    ),
    "transformer encoder, norm first": Specimen(
        lambda: nn.Sequential(encoder(True), Mean(1), nn.Linear(6, 3)), numbers(4, 6)
    ),
    "language model": Specimen(Decoder, text(7), over_positions),
    "translator": Specimen(
        Translator,
        lambda size: (
            (torch.randint(0, 11, (size, 4)), torch.randint(0, 11, (size, 5))),
            torch.randint(0, 11, (size, 5)),
        ),
        over_positions,
    ),
    "mixer": Specimen(Mixer, numbers(5, 4)),
    "gated linear unit": Specimen(Gated, numbers(3, 4)),
    "one layer twice": Specimen(OneLayerTwice, itself(5), functional.mse_loss),
    "tied words": Specimen(TiedText, text(4), over_positions),
    "adapters on a frozen base": Specimen(lambda: nn.Sequential(Adapted(5, 6), nn.ReLU(), Adapted(6, 3)), numbers(5)),
    "adapters over positions": Specimen(
        lambda: nn.Sequential(
            nn.Embedding(11, 6).requires_grad_(False),
            Adapted(6, 6),
            nn.LayerNorm(6),
            Mean(1),
            nn.Linear(6, 3),
        ),
        tokens(5),
    ),
    "siamese": Specimen(
        Siamese,
        lambda size: ((torch.randn(size, 4), torch.randn(size, 4)), torch.randint(0, 2, (size,))),
    ),
    "named inputs": Specimen(
        Tabular,
        lambda size: (
            {"place": torch.randint(0, 6, (size,)), "numbers": torch.randn(size, 4)},
            torch.randint(0, 3, (size,)),
        ),
    ),
    "two heads": Specimen(
        TwoHeads,
        lambda size: (torch.randn(size, 4), (torch.randint(0, 3, (size,)), torch.randn(size))),
        of_two_heads,
    ),
    "variational autoencoder": Specimen(Variational, itself(5), evidence),
}
