"""What a rule says of an operation is true: whoever is followed through it stays apart, and whoever meets others is refused.

Each program is run twice. Without values, where the rules say at which place its records are; and with values, where one record after the
other is changed, exchanged and moved to another place in the batch: nothing but its own rows may change, and they must move along.
"""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn import functional

from apportion.models.record_rules import apply_rule
from apportion.models.record_tracer import Place, RecordsMayMix, RecordTracer, TracedTensor

B = 7
CPU = torch.device("cpu")
torch.manual_seed(0)
MATRIX, TABLE, BATCHED = torch.randn(4, 4).double(), torch.randn(11, 3).double(), torch.randn(B, 4).double()


def values(*shapes, integer=False):
    torch.manual_seed(1)
    made = [torch.randn(shape).double() for shape in shapes]
    return [torch.randint(0, 3, tensor.shape) for tensor in made] if integer else made


def followed(program, inputs):
    """The place of the result of a program, whose inputs have records in front."""
    tracer = RecordTracer(B, apply_rule, CPU)
    with tracer.run():
        result = program(*(tracer.trace_batch(tensor[0]) for tensor in inputs))
    assert isinstance(result, TracedTensor)
    return result.place


def rows_of(result, place):
    """(B, everything of one record)."""
    if place is None:
        return None
    outer = result.shape[place.dim] // (B * place.inner)
    split = result.unflatten(place.dim, (outer, B, place.inner))
    return split.movedim(place.dim + 1, 0).flatten(1)


def true_of(program, inputs, place):
    """Whether the rows at this place are those of the records, and of nobody else, wherever they stand."""
    before = rows_of(program(*inputs), place)
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    if not torch.allclose(
        rows_of(program(*(tensor[order] for tensor in inputs)), place), before[order], equal_nan=True
    ):
        return False
    for record in range(B):
        others = [tensor.clone() for tensor in inputs]
        for tensor in others:
            tensor[record] = tensor[record] + 1 if tensor.is_floating_point() else (tensor[record] + 1) % 3
        after = rows_of(program(*others), place)
        rest = [one for one in range(B) if one != record]
        if not torch.allclose(after[rest], before[rest], equal_nan=True):
            return False
    return True


def centred_if_many(x: torch.Tensor) -> torch.Tensor:
    if x.size(0) == 37:
        return x - x.mean(0)
    return x * 2


def weights(*shape):
    torch.manual_seed(sum(shape))
    return torch.randn(shape).double()


def written(x, key, value):
    y = x.clone()
    y[key] = value
    return y


def exchanged(x, other):
    x.data = other
    return x


def through_one_order(x, zeros):
    zeros.view(x.shape[0], 4).copy_(x)
    return zeros.view(4, x.shape[0])


APART = {
    "arithmetic": (lambda x: (x * 2 + 1).exp().tanh(), (B, 4)),
    "broadcast a vector": (lambda x: x + weights(4), (B, 4)),
    "broadcast over a later dimension": (lambda x: x[:, :, None] * x[:, None, :], (B, 4)),
    "constant on the left": (lambda x: weights(3, 1, 1) * x, (B, 4)),
    "where": (lambda x: torch.where(x > 0, x, weights(4)), (B, 4)),
    "masked fill": (lambda x: x.masked_fill(x > 0, 0.0), (B, 4)),
    "clamp": (lambda x: x.clamp(-1, 1), (B, 4)),
    "sum over features": (lambda x: x.sum(1), (B, 4)),
    "sum over all but records": (lambda x: x.sum((1, 2)), (B, 3, 4)),
    "sum, kept": (lambda x: x.sum(-1, keepdim=True), (B, 3, 4)),
    "max": (lambda x: x.max(1)[0], (B, 4)),
    "max of two": (lambda x: torch.max(x, x.flip(1)), (B, 4)),
    "argmax": (lambda x: x.argmax(1), (B, 4)),
    "variance": (lambda x: x.var(1), (B, 4)),
    "norm": (lambda x: x.norm(dim=1), (B, 4)),
    "softmax": (lambda x: x.softmax(-1), (B, 4)),
    "log softmax of time": (lambda x: x.log_softmax(1), (B, 3, 4)),
    "logsumexp": (lambda x: x.logsumexp(1), (B, 4)),
    "cumsum over time": (lambda x: x.cumsum(1), (B, 4)),
    "cumprod": (lambda x: x.cumprod(1), (B, 4)),
    "sort features": (lambda x: x.sort(1)[0], (B, 4)),
    "topk of features": (lambda x: x.topk(2, 1)[0], (B, 4)),
    "median": (lambda x: x.median(1)[0], (B, 5)),
    "transpose": (lambda x: x.transpose(0, 1), (B, 4)),
    "transpose, sum over time": (lambda x: x.transpose(0, 1).sum(0), (B, 4)),
    "permute": (lambda x: x.permute(2, 0, 1), (B, 3, 4)),
    "flatten": (lambda x: x.flatten(1), (B, 3, 4)),
    "flatten with records": (lambda x: x.flatten(0, 1), (B, 3, 4)),
    "flatten with time in front": (lambda x: x.transpose(0, 1).reshape(-1, 4), (B, 3, 4)),
    "flatten everything": (lambda x: x.flatten(), (B, 3)),
    "flatten and back": (lambda x: (x.view(-1, 4) @ MATRIX).view(-1, 3, 4), (B, 3, 4)),
    "unflatten": (lambda x: x.unflatten(1, (2, 2)), (B, 4)),
    "select a feature": (lambda x: x[:, 1], (B, 4)),
    "slice features": (lambda x: x[:, 1:3], (B, 4)),
    "split features": (lambda x: x.split(2, 1)[1], (B, 4)),
    "chunk features": (lambda x: x.chunk(2, 1)[0], (B, 4)),
    "unbind time": (lambda x: x.unbind(1)[2], (B, 3, 4)),
    "squeeze": (lambda x: x[:, :1].squeeze(1), (B, 4)),
    "unsqueeze in front": (lambda x: x.unsqueeze(0), (B, 4)),
    "expand in front": (lambda x: x.expand(3, -1, -1), (B, 4)),
    "repeat in front": (lambda x: x.repeat(3, 1), (B, 4)),
    "repeat and fold": (lambda x: x.repeat(3, 1).view(3, -1, 4).sum(0), (B, 4)),
    "repeat interleaved": (lambda x: x.unsqueeze(1).expand(-1, 3, -1).reshape(-1, 4), (B, 4)),
    "cat features": (lambda x: torch.cat([x, x * 2], 1), (B, 4)),
    "cat records": (lambda x: torch.cat([x, x * 2]), (B, 4)),
    "cat records and split": (lambda x: torch.cat([x, x * 2]).split(x.shape[0])[1], (B, 4)),
    "two towers": (lambda x, y: torch.cat([x, y]).chunk(2)[0], (B, 4), (B, 4)),
    "stack": (lambda x: torch.stack([x, x * 2], 1), (B, 4)),
    "stack in front": (lambda x: torch.stack([x, x * 2]), (B, 4)),
    "pad": (lambda x: functional.pad(x, (1, 1)), (B, 4)),
    "flip": (lambda x: x.flip(1), (B, 4)),
    "roll": (lambda x: x.roll(1, 1), (B, 4)),
    "diagonal": (lambda x: x.diagonal(dim1=1, dim2=2), (B, 3, 3)),
    "triangle": (lambda x: x.triu(), (B, 3, 3)),
    "unfold": (lambda x: x.unfold(1, 2, 1), (B, 4)),
    "matrix on the right": (lambda x: x @ MATRIX, (B, 4)),
    "matrix on the left": (lambda x: MATRIX @ x.t(), (B, 4)),
    "linear over time": (lambda x: functional.linear(x, MATRIX, weights(4)), (B, 3, 4)),
    "batched product": (lambda x, y: x @ y.mT, (B, 3, 4), (B, 2, 4)),
    "batched product with one matrix": (lambda x: x @ MATRIX, (B, 3, 4)),
    "einsum": (lambda x, y: torch.einsum("btf,bsf->bts", x, y), (B, 3, 4), (B, 2, 4)),
    "matrix and vector": (lambda x: x @ weights(4), (B, 4)),
    "convolution": (lambda x: functional.conv2d(x, weights(3, 2, 3, 3)), (B, 2, 5, 5)),
    "convolution in groups": (lambda x: functional.conv1d(x, weights(4, 1, 3), groups=2), (B, 2, 5)),
    "transposed convolution": (lambda x: functional.conv_transpose2d(x, weights(2, 3, 3, 3)), (B, 2, 4, 4)),
    "a kernel for each record": (
        lambda x, k: functional.conv1d(x.reshape(1, -1, 6), k.reshape(-1, 2, 3), groups=x.shape[0]).view(-1, 3, 4),
        (B, 2, 6),
        (B, 3, 2, 3),
    ),
    "max pool": (lambda x: functional.max_pool2d(x, 2), (B, 2, 4, 4)),
    "average pool": (lambda x: functional.avg_pool2d(x, 2), (B, 2, 4, 4)),
    "adaptive pool": (lambda x: functional.adaptive_avg_pool2d(x, 2), (B, 2, 4, 4)),
    "global pool": (lambda x: functional.adaptive_avg_pool2d(x, 1), (B, 2, 4, 4)),
    "pool over time": (lambda x: functional.max_pool1d(x, 2), (B, 2, 4)),
    "upsample": (lambda x: functional.interpolate(x, scale_factor=2), (B, 2, 4, 4)),
    "upsample bilinear": (lambda x: functional.interpolate(x, size=(5, 5), mode="bilinear"), (B, 2, 4, 4)),
    "reflect": (lambda x: functional.pad(x, (1, 1), mode="reflect"), (B, 2, 4)),
    "pixel shuffle": (lambda x: functional.pixel_shuffle(x, 2), (B, 4, 3, 3)),
    "layer norm": (lambda x: functional.layer_norm(x, (4,)), (B, 3, 4)),
    "group norm": (lambda x: functional.group_norm(x, 2), (B, 4, 3)),
    "instance norm": (lambda x: functional.instance_norm(x, weight=weights(2), bias=weights(2)), (B, 2, 5)),
    "rms norm": (lambda x: functional.rms_norm(x, (4,)), (B, 4)),
    "normalise": (lambda x: functional.normalize(x), (B, 4)),
    "cosine": (lambda x, y: functional.cosine_similarity(x, y), (B, 4), (B, 4)),
    "cdist within a record": (lambda x, y: torch.cdist(x, y), (B, 3, 4), (B, 2, 4)),
    "attention": (lambda x: functional.scaled_dot_product_attention(x, x, x), (B, 2, 3, 4)),
    "causal attention": (lambda x: functional.scaled_dot_product_attention(x, x, x, is_causal=True), (B, 2, 3, 4)),
    "gather features": (lambda x: x.gather(1, (x > 0).long()), (B, 4)),
    "scatter features": (lambda x: torch.zeros_like(x).scatter_add(1, (x > 0).long(), x), (B, 4)),
    "rows of a table": (lambda x: TABLE[(x > 0).long()], (B, 4)),
    "embedding": (lambda x: functional.embedding((x > 0).long(), TABLE, padding_idx=0), (B, 4)),
    "index of features": (lambda x: x[:, torch.tensor([0, 2, 2])], (B, 4)),
    "index select features": (lambda x: x.index_select(1, torch.tensor([3, 0])), (B, 4)),
    "its own row": (lambda x: x[torch.arange(x.shape[0]), x.argmax(1)], (B, 4)),
    "its own step": (lambda x: x[torch.arange(x.shape[0]), x.sum(2).argmax(1)], (B, 3, 4)),
    "its own rows, by pairs": (
        lambda x: x[torch.arange(x.shape[0])[:, None], (x > 0).long()],
        (B, 4),
    ),
    "one-hot": (lambda x: functional.one_hot((x > 0).long(), 3), (B, 4)),
    "zeros of a batch": (lambda x: torch.zeros(x.shape[0], 4).double() + x, (B, 4)),
    "zeros like time": (lambda x: torch.cat([x.new_zeros(x.shape[0], 1, 4), x], 1), (B, 3, 4)),
    "expanded parameter": (lambda x: torch.cat([weights(1, 1, 4).expand(x.shape[0], -1, -1), x], 1), (B, 3, 4)),
    "repeated parameter": (lambda x: torch.cat([weights(1, 1, 4).repeat(x.shape[0], 1, 1), x], 1), (B, 3, 4)),
    "write a column": (lambda x: written(x, (slice(None), 1), 0.0), (B, 4)),
    "write by mask": (lambda x: written(x, x > 0, 0.0), (B, 4)),
    "fill step by step": (lambda x: torch.stack([x[:, step] * step for step in range(3)], 1), (B, 3, 4)),
    "in place": (lambda x: x.clone().mul_(2).add_(1).relu_(), (B, 4)),
    "Fourier": (lambda x: torch.fft.rfft(x, dim=1).abs(), (B, 4)),
    "inverse": (lambda x: torch.linalg.inv(x + 9 * torch.eye(3).double()), (B, 3, 3)),
    "turned in place": (lambda x: x.clone().unsqueeze_(1).transpose_(0, 2).squeeze_(1), (B, 4)),
    "affine grid": (lambda x: functional.affine_grid(x, (x.shape[0], 1, 4, 4), align_corners=False), (B, 2, 3)),
    "transposed in a decomposition": (lambda x: torch.ops.aten.mT(x), (B, 2, 3)),
    "grid sample": (lambda x: functional.grid_sample(x, x[:, :2].movedim(1, -1), align_corners=False), (B, 2, 4, 4)),
    "leaky": (lambda x: functional.leaky_relu(functional.gelu(x)), (B, 4)),
    "prelu": (lambda x: functional.prelu(x, weights(1)), (B, 4)),
    "glu": (lambda x: functional.glu(x, 1), (B, 4)),
    "hardswish": (lambda x: functional.hardswish(x), (B, 4)),
    "cross entropy, none": (
        lambda x: functional.cross_entropy(x, (x[:, 0] > 0).long(), reduction="none"),
        (B, 4),
    ),
    "mean squared error, none": (lambda x: functional.mse_loss(x, x * 2, reduction="none").sum(1), (B, 4)),
    "vmap": (lambda x: torch.func.vmap(lambda row: row.sort()[0] @ MATRIX)(x), (B, 4)),
    "vmap over weights": (
        lambda x: torch.func.vmap(lambda w, row: row @ w)(MATRIX.expand(x.shape[0], 4, 4), x),
        (B, 4),
    ),
}

TOGETHER = {
    "mean over records": (lambda x: x - x.mean(0), (B, 4)),
    "sum of everything": (lambda x: x * x.sum(), (B, 4)),
    "softmax over records": (lambda x: x.softmax(0), (B, 4)),
    "cumsum over records": (lambda x: x.cumsum(0), (B, 4)),
    "max over records": (lambda x: x / x.max(0)[0], (B, 4)),
    "norm of the batch": (lambda x: x / x.norm(), (B, 4)),
    "variance over records": (lambda x: x / x.std(0), (B, 4)),
    "sorted by a feature": (lambda x: x[x[:, 0].argsort()], (B, 4)),
    "sorted and back": (lambda x: x[(i := x[:, 0].argsort())].tanh()[i.argsort()], (B, 4)),
    "sort records": (lambda x: x.sort(0)[0], (B, 4)),
    "top records": (lambda x: x * x[:, :1].topk(3, 0)[0].sum(), (B, 4)),
    "flip records": (lambda x: x + x.flip(0), (B, 4)),
    "roll records": (lambda x: x + x.roll(1, 0), (B, 4)),
    "the first record": (lambda x: x - x[0], (B, 4)),
    "the first records": (lambda x: x[:3], (B, 4)),
    "all but the first": (lambda x: x[1:] - x[:-1], (B, 4)),
    "every second": (lambda x: x[::2], (B, 4)),
    "split records": (lambda x: x.split(3)[0], (B, 4)),
    "unbind records": (lambda x: torch.stack(x.unbind(0)), (B, 4)),
    "record by record": (lambda x: torch.stack([x[i] for i in range(x.shape[0])]), (B, 4)),
    "index select records": (lambda x: x.index_select(0, torch.tensor([1, 0, 2, 3, 4, 5, 6])), (B, 4)),
    "gather records": (lambda x: x.gather(0, torch.zeros_like(x).long()), (B, 4)),
    "scatter records": (lambda x: torch.zeros_like(x).scatter_add(0, (x > 0).long(), x), (B, 4)),
    "add by index": (lambda x: torch.zeros(3, 4).double().index_add(0, (x[:, 0] > 0).long(), x), (B, 4)),
    "put by index": (
        lambda x: torch.zeros(3, 4).double().index_put(((x[:, 0] > 0).long(),), x, accumulate=True),
        (B, 4),
    ),
    "masked select": (lambda x: x[x > 0], (B, 4)),
    "records by mask": (lambda x: x[x[:, 0] > 0], (B, 4)),
    "nonzero": (lambda x: x.nonzero(), (B, 4)),
    "similarities": (lambda x: x @ x.t(), (B, 4)),
    "contrastive": (lambda x: (x @ x.t()).softmax(1) @ x, (B, 4)),
    "attention over records": (lambda x: functional.scaled_dot_product_attention(x, x, x), (B, 4)),
    "attention with time and records exchanged": (
        lambda x: functional.scaled_dot_product_attention(*[x.transpose(0, 2)] * 3).transpose(0, 2),
        (B, 2, 3, 4),
    ),
    "every record with every other": (lambda x: x[:, None] - x[None], (B, 4)),
    "product with the transposed": (lambda x: x.t() @ x, (B, 4)),
    "distances": (lambda x: torch.cdist(x, x), (B, 4)),
    "its place": (lambda x: x * torch.arange(x.shape[0])[:, None], (B, 4)),
    "its place, embedded": (
        lambda x: x + functional.embedding(torch.arange(x.shape[0]), torch.ones(B, 4).double()),
        (B, 4),
    ),
    "a constant for each place": (lambda x: x + BATCHED, (B, 4)),
    "a bias for each place": (lambda x: torch.baddbmm(BATCHED[:, None], x[:, None], MATRIX.expand(B, 4, 4)), (B, 4)),
    "the other half": (lambda x: torch.cat([x, x.flip(0)], 1), (B, 4)),
    "reshaped across records": (lambda x: x.reshape(3, -1, 4), (B, 3, 4)),
    "reshaped around records": (lambda x: x.transpose(0, 1).reshape(3, x.shape[0], 2), (B, 2, 3)),
    "time taken for records": (lambda x: x.reshape(3, x.shape[0], 4).transpose(0, 1), (B, 3, 4)),
    "records taken for time": (lambda x: x.view(3, -1, 4).transpose(0, 1), (B, 3, 4)),
    "batch norm": (lambda x: functional.batch_norm(x, None, None, training=True), (B, 4)),
    "batch norm of images": (lambda x: functional.batch_norm(x, None, None, training=True), (B, 2, 3, 3)),
    "layer norm over records": (lambda x: functional.layer_norm(x.t(), (x.shape[0],)).t(), (B, 4)),
    "convolution over records": (lambda x: functional.conv1d(x.t()[None], weights(4, 4, 3), padding=1)[0].t(), (B, 4)),
    "records taken for channels": (lambda x: functional.conv1d(x[None], torch.ones(B, B, 1).double())[0], (B, 4)),
    "pool over records": (lambda x: functional.max_pool1d(x.t()[None], 1, stride=1)[0].t().cumsum(0), (B, 4)),
    "Fourier over records": (lambda x: torch.fft.fft(x, dim=0).abs(), (B, 4)),
    "pad with rows": (lambda x: functional.pad(x, (0, 0, 1, 0)), (B, 4)),
    "rows of nobody": (lambda x: torch.cat([weights(1, 4), x]), (B, 4)),
    "squeeze": (lambda x: x.squeeze(), (B, 4)),
    "unfold over records": (lambda x: x.unfold(0, 2, 1), (B, 4)),
    "triangle over records": (lambda x: x.triu(), (B, 4)),
    "diagonal over records": (lambda x: x[:, :3].diagonal(), (B, 4)),
    "einsum over records": (lambda x: torch.einsum("bf,bg->fg", x, x), (B, 4)),
    "mean squared error": (lambda x: functional.mse_loss(x, x * 2), (B, 4)),
    "cross entropy": (lambda x: functional.cross_entropy(x, (x[:, 0] > 0).long()), (B, 4)),
    "a value": (lambda x: x * float(x.sum()), (B, 4)),
    "a branch": (lambda x: x if x.sum() > 0 else -x, (B, 4)),
    "a list": (lambda x: x * x.tolist()[0][0], (B, 4)),
    "an array": (lambda x: x + torch.from_numpy(x.numpy()), (B, 4)),
    "a branch on chance": (lambda x: x if torch.rand(()) > 0.5 else x - x.mean(0), (B, 4)),
    "written into the table": (lambda x: TABLE.clone().index_add_(0, (x[:, 0] > 0).long(), x[:, :3]), (B, 4)),
    "written where others are": (lambda x: torch.zeros_like(x).copy_(x[0]), (B, 4)),
    "expanded over records": (lambda x: x.unsqueeze(0).expand(x.shape[0], -1, -1), (B, 4)),
    "as strided": (lambda x: x.as_strided((B, 4), (1, B)), (B, 4)),
    "its own row of another": (lambda x: x[torch.arange(x.shape[0]).flip(0), x.argmax(1)], (B, 4)),
    "the number of its number": (lambda x: x * torch.arange(x.shape[0])[torch.arange(x.shape[0])][:, None], (B, 4)),
    "numbers put where they belong": (
        lambda x: x * torch.zeros_like(x[:, 0]).long().index_put((n := torch.arange(x.shape[0]),), n)[:, None],
        (B, 4),
    ),
    "another tensor in its place": (
        lambda x: exchanged(torch.stack([x, x * 2], 1).view(-1, 4), torch.cat([x, x * 2])).view(x.shape[0], 2, 4),
        (B, 4),
    ),
    "zeros of two orders, written through one": (
        lambda x: through_one_order(x, torch.zeros(4 * x.shape[0]).double()),
        (B, 4),
    ),
    "written over by a constant": (lambda x: x.as_strided_scatter(BATCHED, x.shape, (4, 1)), (B, 4)),
    "a cross product without a dimension": (lambda x: torch.cross(x[:, :3], x[:, 1:]), (B, 4)),
    "a gradient for each place": (
        lambda x: torch.autograd.grad(functional.layer_norm(x.requires_grad_(), (4,)), x, BATCHED)[0],
        (B, 4),
    ),
    "a branch on a number of a generator": (lambda x: x if torch.randperm(1000)[0] else x - x.mean(0), (B, 4)),
    "a branch on chance that is written": (
        lambda x: x if torch.zeros(()).uniform_() > 0.001 else x - x.mean(0),
        (B, 4),
    ),
}

COUNTED = {
    "some rows of a table": (lambda x: x * TABLE[: x.shape[0]].sum(), (B, 4)),
    "a row of a table": (lambda x: x[:, :3] * TABLE[x.shape[0]], (B, 4)),
    "some rows of a weight": (lambda x, w: x * w[: x.shape[0]].sum(), (B, 4)),
    "the other rows of a weight": (lambda x, w: x * w[x.shape[0] :].sum(), (B, 4)),
    "rows of a weight, expanded": (lambda x, w: x + w[: x.shape[0]].expand(x.shape[0], 4), (B, 4)),
    "a weight for each pair": (lambda x, w: x * w[0, :1].expand(x.shape[0], x.shape[0]).sum(1, keepdim=True), (B, 4)),
    "ones for each pair": (lambda x: x / torch.ones(x.shape[0], x.shape[0]).sum(), (B, 4)),
    "the last number": (lambda x: x / torch.arange(2 * x.shape[0])[-1], (B, 4)),
    "the trace": (lambda x: x / torch.eye(x.shape[0]).trace(), (B, 4)),
    "so many features": (lambda x: x[:, : x.shape[0]].sum(1), (B, 20)),
    "the features after so many": (lambda x: x[:, x.shape[0] :].sum(1), (B, 20)),
    "that feature": (lambda x: x[:, x.shape[0]], (B, 20)),
    "the rest of the features": (lambda x: x.split(x.shape[0], 1)[-1].sum(1), (B, 20)),
    "the best features": (lambda x: x.topk(x.shape[0], 1)[0].sum(1), (B, 20)),
    "features moved so far": (lambda x: x.roll(x.shape[0], 1), (B, 20)),
    "so much padding": (lambda x: functional.pad(x, (0, x.shape[0]), value=1.0).mean(1), (B, 4)),
    "pooled to so many": (lambda x: functional.adaptive_avg_pool1d(x[:, None], x.shape[0]).mean((1, 2)), (B, 20)),
    "with such a stride": (
        lambda x: functional.conv1d(x[:, None], weights(1, 1, 1), stride=x.shape[0]).sum((1, 2)),
        (B, 20),
    ),
    "random numbers below it": (lambda x: x * torch.randint(0, x.shape[0], (x.shape[0], 1)), (B, 4)),
    "a class to be ignored": (
        lambda x: functional.cross_entropy(x, (x[:, 0] > 0).long(), ignore_index=x.shape[0], reduction="none"),
        (B, 4),
    ),
}
"""What keeps records apart and yet depends on how many there are, though two numbers of records take the same path."""


@pytest.mark.parametrize("name", APART)
def test_what_keeps_records_apart_is_followed_to_the_right_place(name):
    program, *shapes = APART[name]
    inputs = values(*shapes)
    place = followed(program, inputs)
    assert place is not None
    assert true_of(program, inputs, place)


@pytest.mark.parametrize("name", TOGETHER)
def test_what_lets_records_meet_is_refused(name):
    program, *shapes = TOGETHER[name]
    with pytest.raises((RecordsMayMix, RuntimeError, TypeError, IndexError)):
        followed(program, values(*shapes))


@pytest.mark.parametrize("name", COUNTED)
def test_what_depends_on_the_number_of_records_is_refused(name):
    program, *shapes = COUNTED[name]
    tracer = RecordTracer(B, apply_rule, CPU)
    given = [tracer.trace_batch(torch.zeros(shape[1:]).double()) for shape in shapes]
    if program.__code__.co_argcount > len(given):
        given.append(tracer.make_traced((40, 4), None, MATRIX))
    with pytest.raises(RecordsMayMix), tracer.run():
        program(*given)


def test_a_weight_with_as_many_rows_as_records_is_not_taken_for_records():
    for spread in (lambda w: w.expand(3, B, 4), lambda w: w.repeat(B, 1)):
        tracer = RecordTracer(B, apply_rule, CPU)
        with pytest.raises(RecordsMayMix, match="constant has a row"), tracer.run():
            spread(tracer.make_traced((B, 4), None, MATRIX))


@pytest.mark.parametrize("name", APART)
def test_the_gradient_of_what_keeps_records_apart_stays_apart_too(name):
    program, *shapes = APART[name]
    inputs = values(*shapes)
    try:
        differentiable = program(*(tensor.requires_grad_() for tensor in values(*shapes))).requires_grad
    except RuntimeError:
        differentiable = False
    if not differentiable:
        pytest.skip("it has no gradient")

    def gradient(*given):
        leaves = [tensor.detach().requires_grad_() for tensor in given]
        result = program(*leaves)
        torch.autograd.backward([result], [torch.ones_like(result)])
        return leaves[0].grad

    tracer = RecordTracer(B, apply_rule, CPU)
    with tracer.run():
        place = gradient(*(tracer.trace_batch(tensor[0]) for tensor in inputs)).place
    assert place == Place(0)
    assert true_of(gradient, inputs, place)


def test_a_mixing_backward_pass_of_a_function_of_its_own_is_refused():
    class Centred(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            return gradient - gradient.mean(0)

    tracer = RecordTracer(B, apply_rule, CPU)
    with pytest.raises(RecordsMayMix, match="mean"), tracer.run():
        x = tracer.trace_batch(torch.zeros(4)).requires_grad_()
        y = Centred.apply(x)
        torch.autograd.backward([y], [torch.ones_like(y)])


def test_a_model_cannot_catch_a_refusal_and_go_on():
    def sly(x):
        try:
            return x - x.mean(0)
        except Exception:
            return x

    with pytest.raises(RecordsMayMix, match="mean"):
        followed(sly, values((B, 4)))


def test_random_numbers_of_python_are_noticed():
    import random

    with pytest.raises(RecordsMayMix, match="random numbers"):
        followed(lambda x: x * random.random(), values((B, 4)))


def path_of(program, records, shape=(4,)):
    tracer = RecordTracer(records, apply_rule, CPU)
    x = tracer.trace_batch(torch.zeros(shape))
    with tracer.run():
        program(x)
    return tracer.path


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x / x.shape[0],
        lambda x: x * len(x),
        lambda x: x if x.shape[0] > 9 else -x,
        lambda x: x.tanh() if len(x) % 4 else x,
        lambda x: functional.dropout(x, 1 / x.shape[0]),
        lambda x: x.add(x, alpha=x.numel()),
        lambda x: sum([x] * x.shape[0]),
    ],
)
def test_what_depends_on_the_number_of_records_takes_different_paths(program):
    small, large = path_of(program, 7), path_of(program, 11)
    three = path_of(program, 13)
    assert (
        small.find_difference(large)
        or large.find_difference(small)
        or small.find_difference(three)
        or small.looks_at_count
    )


@pytest.mark.parametrize(
    ("program", "looks"),
    [
        (lambda x: x.view(x.shape[0], -1), False),
        (lambda x: x.view(x.size(0) * 2, 2).view(x.size(0), 4), False),
        (lambda x: x if x.shape[0] > 0 else -x, False),
        (lambda x: x + torch.zeros(x.shape), False),
        (lambda x: x if x.shape == x.tanh().shape else -x, False),
        (lambda x: x if x.shape[1] == 4 else -x, False),
        (lambda x: x.view(len(x), -1), True),
        (lambda x: x if x.shape[0] > 3 else -x, True),
        (lambda x: x if x.shape[0] == 37 else -x, True),
        (lambda x: x if x.size(0) % 37 else -x, True),
        (lambda x: -x if x.shape[0] in {37: 1} else x, True),
        (lambda x: -x if str(x.shape[0]) == "37" else x, True),
        (lambda x: -x if x.numel() > 1000 else x, True),
        (lambda x: -x if x.shape[0] - 37 == 0 else x, True),
        (lambda x: -x if int(x.shape[0]) == 37 else x, True),
        (lambda x: -x if min(x.shape[0], 37) == 37 else x, True),
        (lambda x: -x if x.shape[0] == 37.0 else x, True),
        (lambda x: -x if x.shape.numel() > 1000 else x, True),
        (lambda x: -x if x.shape[:1].numel() == 37 else x, True),
        (lambda x: -x if "37" in str(x.shape) else x, True),
        (lambda x: -x if x.nbytes > 1000 else x, True),
        (lambda x: -x if x.t().contiguous().stride(0) == 37 else x, True),
        (lambda x: -x if x.is_same_size(torch.ones(37, 4)) else x, True),
        (lambda x: -x if x.shape[0].real == 37 else x, True),
        (lambda x: -x if abs(x.shape[0]) == 37 else x, True),
        (lambda x: -x if x.shape[0].to_bytes(2, "big")[1] == 37 else x, True),
        (lambda x: -x if 1 & x.shape[0] else x, True),
        (lambda x: -x if torch.ops.aten.sym_size.int(x, 0) == 37 else x, True),
        (lambda x: x.view(x.shape[:1].numel(), x.shape[1:].numel()), False),
    ],
)
def test_a_look_at_the_number_of_records_is_noticed_where_it_could_matter(program, looks):
    assert path_of(program, 7).looks_at_count is looks


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_what_is_written_in_torchscript_may_look_at_the_number_of_records():
    scripted = torch.jit.script(centred_if_many)
    assert path_of(scripted, 7).looks_at_count
    assert scripted(torch.ones(37, 4)).sum() == 0  # nothing of the watch is left


def test_what_the_profiler_is_told_is_no_difference():
    def profiled(x):
        with torch.profiler.record_function("a part"):
            return x * 2

    assert path_of(profiled, 7).find_difference(path_of(profiled, 11)) is None


def test_a_run_with_another_number_of_records_is_compared_with_what_is_known():
    def branches(x):
        return (x @ torch.ones(4, 4)).view(len(x), -1) if len(x) != 12 else (x - x.mean(0)).view(len(x), -1)

    known = path_of(branches, 7)
    for records, same in ((8, True), (12, False), (16, True)):
        tracer = RecordTracer(records, apply_rule, CPU, known)
        x = tracer.trace_batch(torch.zeros(4))
        if same:
            with tracer.run():
                branches(x)
        else:
            with pytest.raises(RecordsMayMix, match="number of records"), tracer.run():
                branches(x)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x.t().t() if len(x) != 12 else x.t()).softmax(1),
        lambda x: (x.tanh(), x.exp())[len(x) == 12] * 2,
        lambda x: torch.cat([x] * (2 if len(x) != 12 else 3), 1).sum(1),
        lambda x: x * (torch.ones(4) * 2, torch.ones(4) * 3)[len(x) == 12],
    ],
)
def test_the_same_operations_on_other_tensors_are_another_path(program):
    known = path_of(program, 7)
    assert known.find_difference(path_of(program, 11)) is None
    for records in (8, 12):
        tracer = RecordTracer(records, apply_rule, CPU, known)
        x = tracer.trace_batch(torch.zeros(4))
        refused = pytest.raises(RecordsMayMix, match="number of records") if records == 12 else contextlib.nullcontext()
        with refused, tracer.run():
            program(x)


@pytest.mark.parametrize(("count", "same"), [(8, True), (12, False)])
def test_a_run_again_has_the_same_weights_and_needs_no_targets(count, same):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

        def forward(self, x):
            return self.layers[len(x) == 12](x)

    def run(records, known, targets):
        model, tracer = Two(), RecordTracer(records, apply_rule, CPU, known)
        x, *_ = (tracer.trace_batch(torch.zeros(4)) for _ in range(1 + targets))
        tracer.hide_weights(model)
        with tracer.run():
            model(x)
        return tracer.path

    known = run(7, None, targets=1)
    with contextlib.nullcontext() if same else pytest.raises(RecordsMayMix, match="number of records"):
        run(count, known, targets=0)


def test_an_operation_that_torch_takes_apart_is_compared_part_by_part():
    def loss(x):
        return functional.cross_entropy(x.view(len(x), -1), (x[:, 0] > 0).long(), reduction="none")

    known = path_of(loss, 7)
    assert any(operation.taken_apart for operation in known.operations)
    tracer = RecordTracer(12, apply_rule, CPU, known)
    x = tracer.trace_batch(torch.zeros(4))
    with tracer.run():
        loss(x)
    assert len(tracer.path.operations) == len(known.operations)


def test_a_backward_pass_that_looks_at_the_number_of_records_is_refused():
    """Two numbers of records take the same path, and a run with another one has no backward pass."""

    class Centred(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            return gradient - gradient.mean(0) if len(gradient) == 37 else gradient * 1

    tracer = RecordTracer(B, apply_rule, CPU)
    with pytest.raises(RecordsMayMix, match="backward"), tracer.run():
        x = tracer.trace_batch(torch.zeros(4)).requires_grad_()
        y = Centred.apply(x)
        torch.autograd.backward([y], [torch.ones_like(y)])


def test_kernels_without_a_rule_are_refused():
    layer = nn.LSTM(4, 3, batch_first=True)
    with pytest.raises(RecordsMayMix, match="not known"):
        followed(lambda x: layer(x)[0], [torch.zeros(B, 5, 4)])


def test_weights_have_no_values_while_records_are_followed():
    """A branch on a weight is taken one way at the beginning of a run and another way later."""

    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.layer = nn.Parameter(torch.zeros(())), nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(x) if self.gate < 0.5 else self.layer(x - x.mean(0))

    model, tracer = Gated(), RecordTracer(B, apply_rule, CPU)
    tracer.hide_weights(model)
    with pytest.raises(RecordsMayMix, match="weights"), tracer.run():
        model(tracer.trace_batch(torch.zeros(4)))
