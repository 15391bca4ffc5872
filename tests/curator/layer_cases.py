"""Layers of every family with drawn shapes and options, each in a model whose inputs and outputs have records in front.

`FAMILIES` maps a name to a function of a hypothesis `draw`: it returns the model, and from a number of records to inputs for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

Draw = Callable[..., Any]
Family = Callable[[Draw], tuple[nn.Module, Callable[[int], Any]]]
WORDS = 5


class Calls(nn.Module):
    """Layers, and how they are called. A function instead of a class for every way in which a model may use its layers."""

    def __init__(self, call: Callable[..., Tensor], *layers: nn.Module):
        super().__init__()
        self.layers, self._call = nn.ModuleList(layers), call

    def forward(self, *inputs: Tensor) -> Tensor:
        return self._call(*self.layers, *inputs)


def small(draw: Draw, low: int = 1, high: int = 4) -> int:
    return draw(st.integers(low, high))


def flag(draw: Draw) -> bool:
    return draw(st.booleans())


def numbers(*shape: int) -> Callable[[int], Tensor]:
    return lambda size: torch.randn(size, *shape)


def tokens(*shape: int) -> Callable[[int], Tensor]:
    """Few words, so that records repeat them."""
    return lambda size: torch.randint(0, WORDS, (size, *shape))


def linear(draw: Draw) -> Any:
    places = draw(st.lists(st.integers(1, 4), max_size=3))
    # Never one number alone: where many terms happen to cancel in it, float32 is not exact to 10⁻⁴, and clipping has its margin.
    size_in, size_out = draw(st.sampled_from([(1, 4), (3, 2), (2, 5), (16, 16)]))
    return nn.Linear(size_in, size_out, bias=flag(draw)), numbers(*places, size_in)


def convolution(dimensions: int) -> Family:
    def family(draw: Draw) -> Any:
        groups = small(draw, high=2)
        kernel = [small(draw, high=3) for _ in range(dimensions)]
        stride = [small(draw, high=2) for _ in range(dimensions)]
        dilation = [small(draw, high=2) for _ in range(dimensions)]
        padding: Any = [small(draw, 0, 2) for _ in range(dimensions)]
        mode = draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))
        if flag(draw):
            padding, stride = draw(st.sampled_from(["same", "valid"])), [1] * dimensions
        layer = [nn.Conv1d, nn.Conv2d, nn.Conv3d][dimensions - 1](
            groups * small(draw, high=2),
            groups * small(draw, 2, 3),
            kernel,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            bias=flag(draw),
            padding_mode=mode,
        )
        return layer, numbers(layer.in_channels, *[small(draw, 5, 7) for _ in range(dimensions)])

    return family


def few_pixels(draw: Draw) -> Any:
    """Many channels on few pixels, where the Gram matrix of the pixels is the cheaper way."""
    size, kernel = small(draw, 3, 4), small(draw, 2, 3)
    layer = nn.Conv2d(40, 40, kernel, stride=small(draw, high=2), padding=small(draw, 0, 1), dilation=1)
    return layer, numbers(40, size, size)


def transposed(dimensions: int) -> Family:
    def family(draw: Draw) -> Any:
        groups = small(draw, high=2)
        stride = [small(draw, high=3) for _ in range(dimensions)]
        layer = [nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d][dimensions - 1](
            groups * small(draw, high=2),
            groups * small(draw, high=2),
            [small(draw, 2, 3) for _ in range(dimensions)],
            stride=stride,
            padding=[small(draw, 0, 1) for _ in range(dimensions)],
            output_padding=[small(draw, 0, step - 1) for step in stride],
            dilation=small(draw, high=2),
            groups=groups,
            bias=flag(draw),
        )
        return layer, numbers(layer.in_channels, *[small(draw, 2, 4) for _ in range(dimensions)])

    return family


def embedding(draw: Draw) -> Any:
    places = draw(st.lists(st.integers(1, 5), max_size=2))
    return nn.Embedding(WORDS, small(draw), padding_idx=draw(st.sampled_from([None, 0, -1]))), tokens(*places)


def bag(draw: Draw) -> Any:
    mode, places = draw(st.sampled_from(["sum", "mean"])), small(draw, high=6)
    layer = nn.EmbeddingBag(WORDS, small(draw), mode=mode, padding_idx=draw(st.sampled_from([None, 0])))
    if mode == "mean" or flag(draw):
        return layer, tokens(places)
    weighted = Calls(lambda layer, ids, weights: layer(ids, per_sample_weights=weights), layer)
    return weighted, lambda size: (tokens(places)(size), torch.randn(size, places))


def over_last(kind: type[nn.Module]) -> Family:
    def family(draw: Draw) -> Any:
        shape = draw(st.lists(st.integers(2, 4), min_size=1, max_size=2))
        places = draw(st.lists(st.integers(1, 3), max_size=2))
        options = {"bias": flag(draw)} if kind is nn.LayerNorm else {}
        return kind(shape, **options), numbers(*places, *shape)

    return family


def group_norm(draw: Draw) -> Any:
    groups, each = small(draw, high=3), small(draw, 2, 3)
    places = draw(st.lists(st.integers(1, 4), max_size=3))
    return nn.GroupNorm(groups, groups * each), numbers(groups * each, *places)


def instance_norm(draw: Draw) -> Any:
    places = draw(st.lists(st.integers(2, 4), min_size=1, max_size=3))
    channels = small(draw)
    kind = [nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d][len(places) - 1]
    return kind(channels, affine=True), numbers(channels, *places)


def recurrent(kind: type[nn.RNNBase]) -> Family:
    def family(draw: Draw) -> Any:
        size_in, hidden = draw(st.sampled_from([(1, 1), (3, 4), (12, 12)]))
        options: dict[str, Any] = {"proj_size": small(draw, 0, hidden - 1)} if kind is nn.LSTM else {}
        if kind is nn.RNN:
            options = {"nonlinearity": draw(st.sampled_from(["tanh", "relu"]))}
        options |= {"bias": flag(draw), "batch_first": flag(draw), "bidirectional": flag(draw)}
        layer = kind(size_in, hidden, small(draw, high=2), **options)

        def call(layer: nn.RNNBase, x: Tensor) -> Tensor:
            return layer(x)[0] if layer.batch_first else layer(x.transpose(0, 1))[0].transpose(0, 1)

        return Calls(call, layer), numbers(draw(st.sampled_from([1, 2, 5, 60])), size_in)

    return family


def attention(draw: Draw) -> Any:
    heads, first, length, memory = small(draw, high=2), flag(draw), small(draw, high=5), small(draw, high=5)
    size = 2 * heads
    key_size, value_size = (small(draw), small(draw)) if flag(draw) else (size, size)
    itself, causal, needs = flag(draw) and key_size == value_size == size, flag(draw), flag(draw)
    options = {"bias": flag(draw), "add_bias_kv": flag(draw), "add_zero_attn": flag(draw)}
    layer = nn.MultiheadAttention(size, heads, kdim=key_size, vdim=value_size, batch_first=first, **options)

    def call(layer: nn.MultiheadAttention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (q, q, q) if itself else (q, k, v)
        mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).triu(1) if causal else None
        if first:
            return layer(q, k, v, attn_mask=mask, need_weights=needs)[0]
        q, k, v = (q.transpose(0, 1),) * 3 if itself else (x.transpose(0, 1) for x in (q, k, v))
        return layer(q, k, v, attn_mask=mask, need_weights=needs)[0].transpose(0, 1)

    shapes = [(length, size), (memory, key_size), (memory, value_size)]
    return Calls(call, layer), lambda n: tuple(torch.randn(n, *shape) for shape in shapes)


def dot_product_attention(draw: Draw) -> Any:
    size, length, causal = 2 * small(draw), small(draw, high=6), flag(draw)

    def call(projections: nn.Linear, output: nn.Linear, x: Tensor) -> Tensor:
        q, k, v = projections(x).unflatten(2, (2, -1)).transpose(1, 2).chunk(3, -1)
        return output(functional.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2))

    return Calls(call, nn.Linear(size, 3 * size), nn.Linear(size, size)), numbers(length, size)


def tied(draw: Draw) -> Any:
    """A language model whose output layer has the embedding's weights."""
    size, length = small(draw, 2), small(draw, high=5)
    table, output = nn.Embedding(WORDS, size), nn.Linear(size, WORDS, bias=flag(draw))
    output.weight = table.weight
    return Calls(lambda table, output, ids: output(torch.tanh(table(ids))), table, output), tokens(length)


def used_again(draw: Draw) -> Any:
    """One layer at several depths."""
    times, places = small(draw, 2), draw(st.lists(st.integers(1, 3), max_size=1))

    def call(layer: nn.Module, x: Tensor) -> Tensor:
        for _ in range(times):
            x = torch.tanh(layer(x)) + x
        return x

    return Calls(call, nn.Linear(3, 3, bias=flag(draw))), numbers(*places, 3)


def adapter(draw: Draw) -> Any:
    """LoRA: a frozen layer, beside it a trained product of two narrow ones."""
    rank, scale, places = small(draw, high=2), draw(st.sampled_from([0.5, 2.0])), small(draw, high=5)
    frozen = nn.Linear(6, 5).requires_grad_(False)
    down, up = nn.Linear(6, rank, bias=False), nn.Linear(rank, 5, bias=False)
    call = lambda frozen, down, up, x: frozen(x) + scale * up(down(x))  # noqa: E731
    return Calls(call, frozen, down, up), numbers(places, 6)


def parametrized(draw: Draw) -> Any:
    """No rule: run record by record. Between layers that have one."""
    return (
        nn.Sequential(nn.Linear(3, 4), parametrizations.weight_norm(nn.Linear(4, 3)), nn.Tanh(), nn.Linear(3, 2)),
        numbers(*draw(st.lists(st.integers(1, 3), max_size=1)), 3),
    )


FAMILIES: dict[str, Family] = {
    "linear": linear,
    "convolution, 1 dimension": convolution(1),
    "convolution, 2 dimensions": convolution(2),
    "convolution, 3 dimensions": convolution(3),
    "convolution of few pixels": few_pixels,
    "transposed convolution, 1 dimension": transposed(1),
    "transposed convolution, 2 dimensions": transposed(2),
    "transposed convolution, 3 dimensions": transposed(3),
    "embedding": embedding,
    "bag": bag,
    "layer norm": over_last(nn.LayerNorm),
    "root mean square norm": over_last(nn.RMSNorm),
    "group norm": group_norm,
    "instance norm": instance_norm,
    "recurrent": recurrent(nn.RNN),
    "LSTM": recurrent(nn.LSTM),
    "GRU": recurrent(nn.GRU),
    "attention": attention,
    "scaled dot product attention": dot_product_attention,
    "tied weights": tied,
    "a layer used again": used_again,
    "adapter": adapter,
    "parametrized": parametrized,
}
