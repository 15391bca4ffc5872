"""Operations that a module may use, each as a function of one record, with a way to draw records; for `test_batching_rules.py`.

The first argument of a function stands for the trained parameter. Everything is float64, so that a difference is a fault and not
rounding. Values are drawn twice, at random and from few whole numbers, because rules differ where elements are equal or zero.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812


@dataclass(frozen=True)
class Case:
    """`function(*draw())` is the output of one record. `raises`: vmap has no rule, and says so."""

    name: str
    function: Callable[..., Any]
    draw: Callable[[], tuple[Any, ...]]
    raises: bool = False


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def whole(*shape: int) -> Tensor:
    return torch.randint(-1, 2, shape).double()


def positive(*shape: int) -> Tensor:
    return torch.rand(shape, dtype=torch.float64) + 0.1


def index(below: int, *shape: int) -> Tensor:
    return torch.randint(below, shape)


def distinct(below: int, count: int) -> Tensor:
    return torch.randperm(below)[:count]


def definite(size: int) -> Tensor:
    factor = normal(size, size)
    return factor @ factor.T + size * torch.eye(size, dtype=torch.float64)


def mask(*shape: int) -> Tensor:
    return torch.rand(shape) > 0.4


def _embeddings():
    for options in (
        {},
        {"padding_idx": 1},
        {"padding_idx": 0},
        {"padding_idx": -1},
        {"scale_grad_by_freq": True},
        {"padding_idx": 2, "scale_grad_by_freq": True},
    ):
        yield Case(
            f"embedding {options}",
            lambda w, i, o=options: F.embedding(i, w, **o),
            lambda: (normal(5, 2), index(5, 2, 3)),
        )
    yield Case("torch.embedding", lambda w, i: torch.embedding(w, i, 3), lambda: (normal(5, 2), index(5, 4)))
    yield Case("aten.embedding", lambda w, i: torch.ops.aten.embedding(w, i, 3), lambda: (normal(5, 2), index(5, 4)))
    yield Case("aten.embedding.default", torch.ops.aten.embedding.default, lambda: (normal(5, 2), index(5, 4), 3))
    yield Case(
        "embedding by keyword",
        lambda w, i: F.embedding(input=i, weight=w, padding_idx=4),
        lambda: (normal(5, 2), index(5, 4)),
    )
    yield Case(
        "sparse embedding",
        lambda w, i: F.embedding(i, w, sparse=True),
        lambda: (normal(5, 2), index(5, 3)),
        raises=True,
    )
    yield Case(
        "sparse embedding with padding",
        lambda w, i: F.embedding(i, w, padding_idx=1, sparse=True),
        lambda: (normal(5, 2), index(5, 3)),
        raises=True,
    )
    yield Case(
        "renormed embedding",
        lambda w, i: F.embedding(i, w, max_norm=0.5),
        lambda: (normal(5, 2), index(5, 3)),
        raises=True,
    )
    for mode, options in itertools.product(
        ("sum", "mean", "max"), ({}, {"padding_idx": 1}, {"scale_grad_by_freq": True})
    ):
        if mode == "max" and options:
            continue
        yield Case(
            f"embedding_bag {mode} {options}",
            lambda w, i, m=mode, o=options: F.embedding_bag(i, w, mode=m, **o),
            lambda: (normal(5, 2), index(5, 2, 3)),
        )
        yield Case(
            f"embedding_bag with offsets {mode} {options}",
            lambda w, i, f, m=mode, o=options: F.embedding_bag(i, w, f, mode=m, **o),
            lambda: (normal(5, 2), index(5, 6), torch.tensor([0, int(index(5)) + 1])),
        )
    yield Case(
        "embedding_bag with weights",
        lambda w, i, s: F.embedding_bag(i, w, mode="sum", per_sample_weights=s, padding_idx=1),
        lambda: (normal(5, 2), index(5, 2, 3), normal(2, 3)),
    )


def _layers():
    yield Case("linear", F.linear, lambda: (normal(4, 3), normal(2, 3), normal(2)))
    yield Case(
        "bilinear",
        lambda w, a, b, c: F.bilinear(a, b, w, c),
        lambda: (normal(2, 3, 4), normal(5, 3), normal(5, 4), normal(2)),
    )
    for n in (1, 2, 3):
        conv, back = getattr(F, f"conv{n}d"), getattr(F, f"conv_transpose{n}d")
        space = (5,) * n
        yield Case(
            f"conv{n}d",
            lambda w, x, b, conv=conv: conv(x, w, b, stride=2, padding=1, dilation=2, groups=2),
            lambda s=space, n=n: (normal(4, 1, *(2,) * n), normal(1, 2, *s), normal(4)),
        )
        yield Case(
            f"conv_transpose{n}d",
            lambda w, x, b, back=back: back(x, w, b, stride=2, padding=1, output_padding=1),
            lambda s=space, n=n: (normal(2, 3, *(2,) * n), normal(1, 2, *s), normal(3)),
        )
        pool, lp = getattr(F, f"max_pool{n}d"), getattr(F, f"lp_pool{n}d")
        yield Case(
            f"max_pool{n}d", lambda x, f=pool: f(x, 2, 1, return_indices=True), lambda s=space: (whole(1, 2, *s),)
        )
        yield Case(
            f"avg_pool{n}d", lambda x, n=n: getattr(F, f"avg_pool{n}d")(x, 2, 1), lambda s=space: (normal(1, 2, *s),)
        )
        yield Case(f"lp_pool{n}d", lambda x, f=lp: f(x, 2, 2), lambda s=space: (positive(1, 2, *s),))
        for kind in ("avg", "max"):
            adaptive = getattr(F, f"adaptive_{kind}_pool{n}d")
            yield Case(f"adaptive_{kind}_pool{n}d", lambda x, f=adaptive: f(x, 2), lambda s=space: (normal(1, 2, *s),))
        unpool = getattr(F, f"max_unpool{n}d")
        yield Case(
            f"max_unpool{n}d",
            lambda x, pool=pool, unpool=unpool: unpool(*pool(x, 2, return_indices=True), 2),
            lambda n=n: (normal(1, 2, *(4,) * n),),
        )
    yield Case("layer_norm", lambda w, x, b: F.layer_norm(x, (3,), w, b), lambda: (normal(3), normal(2, 3), normal(3)))
    yield Case("rms_norm", lambda w, x: F.rms_norm(x, (3,), w), lambda: (normal(3), normal(2, 3)))
    yield Case("group_norm", lambda w, x, b: F.group_norm(x, 2, w, b), lambda: (normal(4), normal(1, 4, 3), normal(4)))
    yield Case(
        "instance_norm",
        lambda w, x, b: F.instance_norm(x, weight=w, bias=b),
        lambda: (normal(4), normal(1, 4, 3), normal(4)),
    )
    yield Case(
        "batch_norm in evaluation",
        lambda w, x, m, v: F.batch_norm(x, m.detach(), v.detach(), w),
        lambda: (normal(4), normal(2, 4, 3), normal(4), positive(4)),
    )
    yield Case(
        "batch_norm within a record",
        lambda w, x: F.batch_norm(x, None, None, w, training=True),
        lambda: (normal(4), normal(2, 4)),
    )
    yield Case("prelu", lambda w, x: F.prelu(x, w), lambda: (normal(3), normal(2, 3)))
    yield Case("rrelu in evaluation", F.rrelu, lambda: (normal(2, 3),), raises=True)
    yield Case("local_response_norm", lambda x: F.local_response_norm(x, 2), lambda: (normal(1, 4, 3),))
    yield Case("glu", F.glu, lambda: (normal(2, 4),))
    yield Case(
        "hardswish and co",
        lambda x: [f(x) for f in (F.hardswish, F.hardtanh, F.softplus, F.elu, F.gelu, F.mish)],
        lambda: (normal(5),),
    )
    yield Case(
        "softmin and co",
        lambda x: [f(x, dim=0) for f in (F.softmin, F.softmax, F.log_softmax)],
        lambda: (normal(4, 2),),
    )
    for mode in ("nearest", "bilinear", "bicubic", "area", "nearest-exact"):
        yield Case(
            f"interpolate {mode}",
            lambda x, m=mode: F.interpolate(x, size=(5, 3), mode=m),
            lambda: (normal(1, 2, 3, 4),),
        )
    for mode, padding in itertools.product(("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")):
        yield Case(
            f"grid_sample {mode} {padding}",
            lambda x, g, m=mode, p=padding: F.grid_sample(x, g, m, p, align_corners=False),
            lambda: (normal(1, 2, 3, 4), normal(1, 2, 2, 2)),
        )
    yield Case("affine_grid", lambda t: F.affine_grid(t, [1, 2, 3, 4], align_corners=False), lambda: (normal(1, 2, 3),))
    yield Case(
        "pixel_shuffle", lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2) * x, lambda: (normal(1, 4, 2, 2),)
    )
    yield Case("unfold and fold", lambda x: F.fold(F.unfold(x, 2) ** 2, (4, 4), 2), lambda: (normal(1, 2, 4, 4),))
    for mode in ("constant", "reflect", "replicate", "circular"):
        yield Case(f"pad {mode}", lambda x, m=mode: F.pad(x, (1, 2), m), lambda: (normal(1, 2, 4),))
    yield Case("gru_cell", torch.gru_cell, lambda: (normal(1, 3), normal(1, 2), normal(6, 3), normal(6, 2)))
    yield Case("rnn_tanh_cell", torch.rnn_tanh_cell, lambda: (normal(1, 3), normal(1, 2), normal(2, 3), normal(2, 2)))
    yield Case(
        "weight_norm",
        lambda v, g, x: F.linear(x, torch._weight_norm(v, g, 0)),
        lambda: (normal(3, 2), normal(3, 1), normal(2)),
    )
    yield Case("one parameter twice", lambda w, x: torch.tanh(x @ w) @ w, lambda: (normal(3, 3), normal(2, 3)))
    yield Case("a parameter without gradient", lambda w, x: x * w.detach(), lambda: (normal(3), normal(3)))


def _attention():
    heads = lambda: (normal(1, 2, 4, 3), normal(1, 2, 5, 3), normal(1, 2, 5, 3))  # noqa: E731
    yield Case("attention", F.scaled_dot_product_attention, heads)
    yield Case("causal attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), heads)
    yield Case("scaled attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3), heads)
    yield Case("attention with a mask", F.scaled_dot_product_attention, lambda: (*heads(), mask(4, 5)))
    yield Case(
        "attention with a mask for each head", F.scaled_dot_product_attention, lambda: (*heads(), mask(1, 2, 4, 5))
    )
    hidden = torch.tensor([[False], [True], [True], [True]])
    yield Case(
        "attention with a row of nothing", F.scaled_dot_product_attention, lambda: (*heads(), mask(4, 5) & hidden)
    )
    yield Case(
        "attention with weights added",
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m.detach()),
        lambda: (*heads(), normal(4, 5)),
    )
    yield Case(
        "grouped attention",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        lambda: (normal(1, 4, 4, 3), normal(1, 2, 5, 3), normal(1, 2, 5, 3)),
    )

    def attend(weight, x, bias, out, padding):
        return F.multi_head_attention_forward(
            x, x, x, 4, 2, weight, bias, None, None, False, 0.0, out, None, key_padding_mask=padding
        )

    yield Case(
        "multi_head_attention",
        attend,
        lambda: (
            normal(12, 4),
            normal(3, 1, 4),
            normal(12),
            normal(4, 4),
            torch.tensor([[False, False, bool(index(2))]]),
        ),
    )


def _losses():
    for reduction in ("mean", "sum", "none"):
        for options in ({}, {"ignore_index": 1}, {"label_smoothing": 0.1}, {"ignore_index": 1, "label_smoothing": 0.1}):
            for extra in ((), (3,), (2, 2)):
                yield Case(
                    f"cross_entropy {reduction} {options} {extra}",
                    lambda x, t, w, r=reduction, o=options: F.cross_entropy(x, t, w.detach(), reduction=r, **o),
                    lambda e=extra: (normal(2, 5, *e), index(5, 2, *e), positive(5)),
                )
        yield Case(
            f"cross_entropy of probabilities {reduction}",
            lambda x, t, w, r=reduction: F.cross_entropy(x, t.softmax(1), w.detach(), reduction=r, label_smoothing=0.1),
            lambda: (normal(2, 5, 3), normal(2, 5, 3), positive(5)),
        )
        yield Case(
            f"nll_loss {reduction}",
            lambda x, t, w, r=reduction: F.nll_loss(x, t, w.detach(), ignore_index=1, reduction=r),
            lambda: (normal(2, 5, 2, 2), index(5, 2, 2, 2), positive(5)),
        )
        yield Case(
            f"nothing but ignored targets {reduction}",
            lambda x, t, r=reduction: F.cross_entropy(x, t.clamp(max=1), ignore_index=1, reduction=r),
            lambda: (normal(2, 5), index(3, 2)),
        )
        for name in (
            "mse_loss",
            "l1_loss",
            "smooth_l1_loss",
            "huber_loss",
            "poisson_nll_loss",
            "kl_div",
            "soft_margin_loss",
        ):
            yield Case(
                f"{name} {reduction}",
                lambda x, t, r=reduction, n=name: getattr(F, n)(x, t.detach(), reduction=r),
                lambda: (normal(2, 3), normal(2, 3)),
            )
        yield Case(
            f"binary_cross_entropy_with_logits {reduction}",
            lambda x, t, w, p, r=reduction: F.binary_cross_entropy_with_logits(
                x, t.detach(), w.detach(), pos_weight=p.detach(), reduction=r
            ),
            lambda: (normal(2, 3), positive(2, 3), positive(3), positive(3)),
        )
        yield Case(
            f"multi_margin_loss {reduction}",
            lambda x, t, w, r=reduction: F.multi_margin_loss(x, t, weight=w.detach(), reduction=r),
            lambda: (normal(2, 3), index(3, 2), positive(3)),
        )
        yield Case(
            f"multilabel_margin_loss {reduction}",
            lambda x, t, r=reduction: F.multilabel_margin_loss(x, t, reduction=r),
            lambda: (normal(2, 3), torch.cat([index(3, 2, 1), torch.full((2, 2), -1)], 1)),
        )
        yield Case(
            f"cosine_embedding_loss {reduction}",
            lambda x, y, t, r=reduction: F.cosine_embedding_loss(x, y, t, reduction=r),
            lambda: (normal(2, 3), normal(2, 3), normal(2).sign()),
        )
        yield Case(
            f"triplet_margin_loss {reduction}",
            lambda a, p, n, r=reduction: F.triplet_margin_loss(a, p, n, swap=True, reduction=r),
            lambda: (normal(2, 3), normal(2, 3), normal(2, 3)),
        )
        yield Case(
            f"ctc_loss {reduction}",
            lambda x, t, n, m, r=reduction: F.ctc_loss(x.log_softmax(-1), t, n, m, reduction=r, zero_infinity=True),
            lambda: (normal(6, 2, 4), index(3, 2, 3) + 1, torch.tensor([6, 5]), torch.tensor([2, int(index(3)) + 1])),
        )
    if hasattr(F, "linear_cross_entropy"):
        from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions as Options

        yield Case(
            "linear_cross_entropy in chunks",
            lambda w, x, t: F.linear_cross_entropy(x, w, t, options=Options(batch_chunk_size=2)),
            lambda: (normal(5, 3), normal(4, 3), index(5, 4)),
        )


def _reductions():
    for numbers in (normal, whole):
        kind = numbers.__name__
        for name in (
            "max",
            "min",
            "median",
            "nanmedian",
            "amax",
            "amin",
            "prod",
            "sum",
            "mean",
            "std",
            "var",
            "logsumexp",
            "norm",
        ):
            function = getattr(torch, name)
            if name not in ("amax", "amin", "logsumexp"):
                yield Case(f"{name} of everything, {kind}", function, lambda n=numbers: (n(4, 3),))
            if name != "norm":
                yield Case(
                    f"{name} along one dimension, {kind}", lambda x, f=function: f(x, 0), lambda n=numbers: (n(4, 3),)
                )
        yield Case(f"method max, {kind}", lambda x: x.max() * 2, lambda n=numbers: (n(4, 3),))
        yield Case(f"operator max, {kind}", lambda x: torch.ops.aten.max(x), lambda n=numbers: (n(4, 3),))
        yield Case(
            f"operator max.default, {kind}", lambda x: torch.ops.aten.max.default(x), lambda n=numbers: (n(4, 3),)
        )
        yield Case(f"maximum, {kind}", torch.max, lambda n=numbers: (n(4, 3), n(4, 3)))
        for name in (
            "cumsum",
            "cumprod",
            "cummax",
            "cummin",
            "logcumsumexp",
            "sort",
            "topk",
            "kthvalue",
            "mode",
            "softmax",
        ):
            argument = 1 if name in ("topk", "kthvalue") else 0
            yield Case(
                f"{name}, {kind}",
                lambda x, name=name, a=argument: getattr(torch, name)(x, a),
                lambda n=numbers: (n(4, 3),),
            )
        for p in (0.0, 1.0, 2.0, 3.0, float("inf")):
            yield Case(
                f"cdist {p}, {kind}", lambda x, y, p=p: torch.cdist(x, y, p), lambda n=numbers: (n(4, 2), n(3, 2))
            )
            yield Case(f"pdist {p}, {kind}", lambda x, p=p: F.pdist(x, p), lambda n=numbers: (n(4, 2),))
            yield Case(
                f"vector_norm {p}, {kind}", lambda x, p=p: torch.linalg.vector_norm(x, p), lambda n=numbers: (n(4, 2),)
            )
        yield Case(f"cosine_similarity, {kind}", F.cosine_similarity, lambda n=numbers: (n(4, 3), n(4, 3)))
        yield Case(f"renorm, {kind}", lambda x: x.renorm(2, 0, 0.5), lambda n=numbers: (n(4, 3),))
    yield Case("maximum of what is not a number", torch.max, lambda: (whole(4, 3).log(),))
    yield Case("quantile", lambda x: torch.quantile(x, 0.3, 0), lambda: (normal(4, 3),))


def _indexing():
    where = lambda: (normal(4, 3), index(4, 2))  # noqa: E731
    yield Case("x[i]", lambda x, i: x[i], where)
    yield Case("x[:, i]", lambda x, i: x[:, i], lambda: (normal(3, 4), index(4, 2)))
    yield Case("x[i, j]", lambda x, i, j: x[i, j], lambda: (normal(4, 3), index(4, 2), index(3, 2)))
    yield Case("x[i, :, j]", lambda x, i, j: x[i, :, j], lambda: (normal(4, 3, 5), index(4, 2, 1), index(5, 3)))
    yield Case("x[mask]", lambda x: x[torch.tensor([True, False, True])], lambda: (normal(3, 2),))
    yield Case("x[own mask]", lambda x, m: x[m], lambda: (normal(3, 2), mask(3)), raises=True)
    for accumulate in (False, True):
        yield Case(
            f"index_put {accumulate}",
            lambda x, i, v, a=accumulate: torch.index_put(x, (i,), v, accumulate=a),
            lambda: (normal(4, 3), distinct(4, 2), normal(2, 3)),
        )
    for dim, size in ((0, 4), (-1, 3)):
        rows = (2, 3) if dim == 0 else (4, 2)
        yield Case(
            f"index_select {dim}", lambda x, i, d=dim: x.index_select(d, i), lambda s=size: (normal(4, 3), index(s, 2))
        )
        yield Case(f"gather {dim}", lambda x, i, d=dim: x.gather(d, i), lambda s=size: (normal(4, 3), index(s, 2, 2)))
        yield Case(
            f"index_add {dim}",
            lambda x, i, v, d=dim: x.index_add(d, i, v, alpha=2),
            lambda s=size, r=rows: (normal(4, 3), index(s, 2), normal(*r)),
        )
        yield Case(
            f"index_copy {dim}",
            lambda x, i, v, d=dim: x.index_copy(d, i, v),
            lambda s=size, r=rows: (normal(4, 3), distinct(s, 2), normal(*r)),
        )
        yield Case(
            f"index_fill {dim}",
            lambda v, x, i, d=dim: x.index_fill(d, i, v),
            lambda s=size: (normal(), normal(4, 3), index(s, 2)),
        )
        for reduce, itself in itertools.product(("sum", "prod", "mean", "amax", "amin"), (True, False)):
            for numbers in (normal, whole):
                yield Case(
                    f"scatter_reduce {dim} {reduce} {itself}, {numbers.__name__}",
                    lambda x, i, v, d=dim, r=reduce, s=itself: x.scatter_reduce(d, i, v, r, include_self=s),
                    lambda s=size, n=numbers: (n(4, 3), index(s, 2, 2), n(2, 2)),
                )
        yield Case(
            f"select_scatter {dim}",
            lambda v, x, d=dim: torch.select_scatter(x, v, d, -1),
            lambda s=size: (normal(7 - s), normal(4, 3)),
        )
    yield Case(
        "index_fill of a constant",
        lambda v, i: torch.zeros(4, dtype=torch.float64).index_fill(0, i, v),
        lambda: (normal(), index(4, 1)),
    )
    yield Case("index_fill of a scalar", lambda v, i: v.index_fill(0, i, 2 * v), lambda: (normal(), index(1, 1)))
    yield Case(
        "select_scatter as a method",
        lambda v, x: x.select_scatter(v, dim=0, index=1),
        lambda: (normal(3), normal(4, 3)),
    )
    yield Case("slice_scatter", lambda v, x: torch.slice_scatter(x, v, 0, 1, 3), lambda: (normal(2, 3), normal(4, 3)))
    yield Case("diagonal_scatter", lambda v, x: torch.diagonal_scatter(x, v), lambda: (normal(3), normal(4, 3)))
    yield Case("take", lambda x, i: x.take(i), lambda: (normal(4, 3), index(12, 2, 2)))
    yield Case("take_along_dim", lambda x, i: x.take_along_dim(i, 0), lambda: (normal(4, 3), index(4, 2, 3)))
    yield Case("masked_fill", lambda v, x, m: x.masked_fill(m, v), lambda: (normal(), normal(4, 3), mask(4, 1)))
    yield Case(
        "masked_scatter", lambda v, x, m: x.masked_scatter(m, v), lambda: (normal(4, 3), normal(4, 3), mask(4, 3))
    )
    yield Case("masked_select", lambda x, m: x.masked_select(m), lambda: (normal(4), mask(4)), raises=True)
    yield Case("where", lambda v, x, m: torch.where(m, x, v), lambda: (normal(), normal(4, 3), mask(3)))
    yield Case("clamp", torch.clamp, lambda: (normal(4, 3), -positive(3), positive()))
    yield Case(
        "searchsorted", lambda x, s: x * torch.searchsorted(s.sort().values, x.detach()), lambda: (normal(4), normal(3))
    )
    yield Case(
        "bucketize", lambda x, s: x * torch.bucketize(x.detach(), s.sort().values), lambda: (normal(4), normal(3))
    )
    yield Case("unique", lambda x: torch.unique(x), lambda: (whole(4),), raises=True)
    yield Case("nonzero", lambda x: torch.nonzero(x), lambda: (whole(4),), raises=True)


def _in_place(change: Callable[..., Any]) -> Callable[..., Tensor]:
    def function(value: Tensor, x: Tensor, *rest: Any) -> Tensor:
        changed = x * 1.0
        change(changed, value, *rest)
        return changed

    return function


def _set(*key: Any) -> Callable[..., Tensor]:
    return _in_place(lambda x, v: x.__setitem__(key, v))


def _writing():
    yield Case("x[1] = v", _set(1), lambda: (normal(3), normal(4, 3)))
    yield Case("x[1:3] = v", _set(slice(1, 3)), lambda: (normal(3), normal(4, 3)))
    yield Case("x[:, 0] = v", _set(slice(None), 0), lambda: (normal(), normal(4, 3)))
    yield Case(
        "x[i] = v", _in_place(lambda x, v, i: x.__setitem__(i, v)), lambda: (normal(2, 3), normal(4, 3), distinct(4, 2))
    )
    yield Case(
        "x[i] += v", _in_place(lambda x, v, i: x[i].add_(v)), lambda: (normal(2, 3), normal(4, 3), distinct(4, 2))
    )
    yield Case("x[0] *= v", _in_place(lambda x, v: x[0].mul_(v)), lambda: (normal(3), normal(4, 3)))
    yield Case("diagonal().add_", _in_place(lambda x, v: x.diagonal().add_(v)), lambda: (normal(3), normal(3, 3)))
    yield Case("t().mul_", _in_place(lambda x, v: x.t().mul_(v)), lambda: (normal(4), normal(4, 3)))
    yield Case("view().sub_", _in_place(lambda x, v: x.view(-1).sub_(v)), lambda: (normal(12), normal(4, 3)))
    yield Case(
        "index_put_",
        _in_place(lambda x, v, i: x.index_put_((i,), v, accumulate=True)),
        lambda: (normal(3), normal(4, 3), index(4, 2)),
    )
    yield Case(
        "index_add_",
        _in_place(lambda x, v, i: x.index_add_(0, i, v)),
        lambda: (normal(2, 3), normal(4, 3), index(4, 2)),
    )
    yield Case(
        "index_fill_", _in_place(lambda x, v, i: x.index_fill_(0, i, v)), lambda: (normal(), normal(4, 3), index(4, 2))
    )
    yield Case(
        "scatter_add_",
        _in_place(lambda x, v, i: x.scatter_add_(0, i, v)),
        lambda: (normal(2, 2), normal(4, 3), index(4, 2, 2)),
    )
    yield Case(
        "masked_fill_", _in_place(lambda x, v, m: x.masked_fill_(m, v)), lambda: (normal(), normal(4, 3), mask(4, 3))
    )
    yield Case(
        "fill_diagonal_", _in_place(lambda x, v: x.fill_diagonal_(2.0).mul_(v)), lambda: (normal(3), normal(3, 3))
    )
    yield Case("addmm_", _in_place(lambda x, v, y: x.addmm_(v, y)), lambda: (normal(4, 2), normal(4, 3), normal(2, 3)))
    yield Case(
        "addbmm_", _in_place(lambda x, v, y: x.addbmm_(v, y)), lambda: (normal(2, 4, 2), normal(4, 3), normal(2, 2, 3))
    )
    yield Case(
        "clamp_ and relu_",
        _in_place(lambda x, v: x.mul_(v).clamp_(-1, 1).add_(0.3).relu_()),
        lambda: (normal(3), normal(4, 3)),
    )
    yield Case("squeeze_", lambda v, x: (v * x).squeeze_().sum(0), lambda: (normal(1, 4, 1), normal(1, 4, 1)))
    yield Case(
        "squeeze_ of one dimension", lambda v, x: (v * x).squeeze_(0), lambda: (normal(1, 4, 1), normal(1, 4, 1))
    )
    yield Case(
        "unsqueeze_ and transpose_",
        lambda v, x: (v * x).unsqueeze_(0).transpose_(0, 1).t_(),
        lambda: (normal(4), normal(4)),
    )
    yield Case(
        "writing into a constant",
        lambda v: torch.zeros(3, dtype=torch.float64).add_(v),
        lambda: (normal(3),),
        raises=True,
    )
    yield Case(
        "out=", lambda v, x: torch.add(v, x, out=torch.empty_like(x)), lambda: (normal(3), normal(3)), raises=True
    )


def _shapes():
    for shape in ((), (4,), (2, 3)):
        yield Case(f"roll {shape}", lambda x: torch.roll(x, 1) * 2, lambda s=shape: (normal(*s),))
        yield Case(f"method roll {shape}", lambda x: x.roll(shifts=1), lambda s=shape: (normal(*s),))
        yield Case(
            f"squeeze and co {shape}",
            lambda x: [x.squeeze(), x.flatten(), x.reshape(-1), x.unsqueeze(0)],
            lambda s=shape: (normal(*s),),
        )
        yield Case(
            f"repeat and co {shape}",
            lambda x: [x.repeat(2, 1, 1), x.expand(2, 2, 3), x.tile(2)],
            lambda s=shape: (normal(*s) if s != (4,) else normal(3),),
        )
    yield Case("roll along one dimension", lambda x: x.roll(1, 0), lambda: (normal(4, 3),))
    yield Case("flip and rot90", lambda x: [x.flip(0), x.flip((0, 1)), x.rot90(), x.fliplr()], lambda: (normal(4, 3),))
    yield Case("tril and triu", lambda x: [x.tril(), x.triu(1), x.diag(), x.diag_embed()], lambda: (normal(4, 4),))
    yield Case("repeat_interleave", lambda x: x.repeat_interleave(2, 0), lambda: (normal(4, 3),))
    yield Case(
        "stack and cat", lambda w, x: [torch.stack([w, x]), torch.cat([w, x], 1)], lambda: (normal(4, 3), normal(4, 3))
    )
    yield Case("split and chunk", lambda x: [*x.split(2), *x.chunk(3, 1), *x.unbind()], lambda: (normal(4, 3),))
    yield Case(
        "as_strided", lambda w, x: x * w.as_strided((2, 2), (1, 2)), lambda: (normal(4, 3), normal()), raises=True
    )
    yield Case("unfold as a method", lambda x: x.unfold(0, 2, 1), lambda: (normal(4, 3),))
    yield Case("einsum", lambda w, x: torch.einsum("ij,kj->ik", w, x), lambda: (normal(4, 3), normal(2, 3)))
    yield Case("tensordot", lambda w, x: torch.tensordot(w, x, 1), lambda: (normal(4, 3), normal(3, 2)))
    yield Case(
        "kron and cross",
        lambda w, x: [torch.kron(w, x), torch.cross(w, x, 1), torch.outer(w[0], x[0])],
        lambda: (normal(2, 3), normal(2, 3)),
    )
    yield Case(
        "channels last",
        lambda x, w: F.conv2d(x.to(memory_format=torch.channels_last), w),
        lambda: (normal(1, 2, 3, 3), normal(2, 2, 2, 2)),
        raises=True,
    )
    yield Case("transposed inputs", lambda x, w: (x.t() @ w.t()).t().contiguous(), lambda: (normal(4, 3), normal(2, 4)))
    yield Case("nothing", lambda w, x: (w[:0] * x[:0]).sum() + w.sum(), lambda: (normal(3), normal(3)))
    yield Case(
        "asking for no gradient", lambda w, x: torch.no_grad()(lambda: w * x)() + w, lambda: (normal(3), normal(3))
    )


def _algebra():
    L = torch.linalg
    yield Case("det and slogdet", lambda x: [L.det(x), *L.slogdet(x)], lambda: (normal(3, 3),))
    yield Case("inv and pinv", lambda x: [L.inv(x), L.pinv(x)], lambda: (definite(3),))
    yield Case(
        "solve and lstsq", lambda x, y: [L.solve(x, y), L.lstsq(x, y).solution], lambda: (definite(3), normal(3, 2))
    )
    yield Case(
        "solve_triangular", lambda x, y: L.solve_triangular(x, y, upper=True), lambda: (definite(3), normal(3, 2))
    )
    yield Case("cholesky", lambda x: L.cholesky(x @ x.T + torch.eye(3, dtype=x.dtype)), lambda: (normal(3, 3),))
    yield Case("qr", lambda x: L.qr(x), lambda: (normal(3, 3),))
    yield Case("svd", lambda x: L.svdvals(x), lambda: (normal(4, 3),))
    yield Case(
        "a matrix of low rank",
        lambda x: (lambda u, s, v: (u * s) @ v)(*L.svd(x, full_matrices=False)),
        lambda: (normal(4, 3),),
    )
    yield Case("eigh", lambda x: (lambda values, vectors: [values, vectors**2])(*L.eigh(x)), lambda: (definite(3),))
    yield Case(
        "matrix_exp and matrix_power", lambda x: [L.matrix_exp(x), L.matrix_power(x, 3)], lambda: (normal(3, 3),)
    )
    yield Case(
        "matrix_norm",
        lambda x: [L.matrix_norm(x, p) for p in ("fro", "nuc", 2, 1, float("inf"))],
        lambda: (normal(3, 3),),
    )
    yield Case("householder", lambda x, t: L.householder_product(x, t), lambda: (normal(3, 2), normal(2)))
    yield Case(
        "fft",
        lambda x: [torch.fft.fft(x).abs(), torch.fft.rfft2(x).real, torch.fft.fftshift(x)],
        lambda: (normal(3, 4),),
    )
    yield Case(
        "stft", lambda x, w: torch.stft(x, 4, window=w, return_complex=True).abs(), lambda: (normal(1, 12), positive(4))
    )
    yield Case(
        "complex numbers",
        lambda a, b: [torch.complex(a, b).angle(), torch.polar(a.abs(), b).imag],
        lambda: (normal(3), normal(3)),
    )
    yield Case("view_as_complex", lambda x: torch.view_as_real(torch.view_as_complex(x) ** 2), lambda: (normal(3, 2),))
    yield Case("histc", lambda x: torch.histc(x.detach()) * x.sum(), lambda: (normal(4),))
    yield Case("bf16", lambda w, x: (w.bfloat16() * x.bfloat16()).double(), lambda: (whole(3), whole(3)))
    yield Case("autocast", _autocast, lambda: (whole(2, 3), whole(4, 3)))


def _autocast(weight: Tensor, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return F.linear(x.float(), weight.float()).double()


class Cubed(torch.autograd.Function):
    """With a rule that torch writes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, w):
        return x**3 * w

    @staticmethod
    def setup_context(context, inputs, output):
        context.save_for_backward(*inputs)

    @staticmethod
    def backward(context, gradient):
        x, w = context.saved_tensors
        for_x = gradient * 3 * x**2 * w if context.needs_input_grad[0] else None
        return for_x, (gradient * x**3).sum() if context.needs_input_grad[1] else None


class Doubled(torch.autograd.Function):
    """With a rule of its own."""

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(context, inputs, output):
        context.save_for_backward(*inputs)

    @staticmethod
    def backward(context, gradient):
        return 2 * context.saved_tensors[0] * gradient

    @staticmethod
    def vmap(info, in_dims, x):
        return Doubled.apply(x), in_dims[0]


class Rolled(torch.autograd.Function):
    """What it computes is not called by the module itself."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return torch.roll(x, 1) + F.embedding(torch.tensor([1]), x.view(1, 1).expand(2, 1), padding_idx=1).sum()

    @staticmethod
    def setup_context(context, inputs, output):
        pass

    @staticmethod
    def backward(context, gradient):
        return 2 * gradient


class WithoutRule(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x * 1.0

    @staticmethod
    def backward(context, gradient):
        return gradient


def _of_ones_own():
    yield Case("autograd.Function with a generated rule", lambda w, x: Cubed.apply(x, w), lambda: (normal(), normal(4)))
    yield Case("autograd.Function with its own rule", lambda w, x: Doubled.apply(w * x), lambda: (normal(4), normal(4)))
    yield Case("autograd.Function of a wrong rule", lambda w, x: Rolled.apply(w * x), lambda: (normal(), normal()))
    yield Case("autograd.Function without a rule", lambda w: WithoutRule.apply(w), lambda: (normal(4),), raises=True)
    yield Case(
        "vmap within", lambda w, x: torch.func.vmap(lambda row: (row * w).sum())(x), lambda: (normal(3), normal(4, 3))
    )
    yield Case(
        "grad within", lambda w, x: torch.func.grad(lambda y: (y**3 * w).sum())(x), lambda: (normal(3), normal(3))
    )
    yield Case(
        "jvp within", lambda w, x: torch.func.jvp(lambda y: y**3 * w, (x,), (x,))[1], lambda: (normal(3), normal(3))
    )
    yield Case(
        "embedding within another vmap",
        lambda w, x: torch.func.vmap(lambda row: F.embedding(row, w, padding_idx=1))(x),
        lambda: (normal(4, 2), index(4, 3, 2)),
    )
    yield Case("if x.requires_grad", lambda w, x: w * x if w.requires_grad else x, lambda: (normal(3), normal(3)))
    yield Case("if x.grad_fn", lambda w, x: w * x if (2 * w).grad_fn is not None else x, lambda: (normal(3), normal(3)))
    yield Case("a hook", lambda w, x: _reversed(w * x), lambda: (normal(3), normal(3)), raises=True)
    yield Case(
        "a branch on data", lambda w, x: w if x.sum() > 0 else 2 * w, lambda: (normal(3), normal(3)), raises=True
    )
    yield Case(
        "checkpoint",
        lambda w, x: torch.utils.checkpoint.checkpoint(lambda: torch.tanh(w * x), use_reentrant=False),
        lambda: (normal(3), normal(3)),
        raises=True,
    )
    yield Case(
        "changing strides in place", lambda w: (2 * w).as_strided_((2, 2), (1, 2)), lambda: (normal(4, 3),), raises=True
    )
    yield Case(
        "changing storage in place", lambda w, x: w * x.clone().set_(), lambda: (normal(0), normal(4)), raises=True
    )
    yield Case(
        "changing size in place", lambda w, x: w * x.clone().resize_(2), lambda: (normal(2), normal(4)), raises=True
    )
    yield Case(
        "changing size after another",
        lambda w, x: w * x.clone().resize_as_(torch.zeros(2)),
        lambda: (normal(2), normal(4)),
        raises=True,
    )


def _reversed(x: Tensor) -> Tensor:
    if x.requires_grad:
        x.register_hook(lambda gradient: -gradient)
    return x


FAMILIES: dict[str, list[Case]] = {
    "embeddings": list(_embeddings()),
    "layers": list(_layers()),
    "attention": list(_attention()),
    "losses": list(_losses()),
    "reductions": list(_reductions()),
    "indexing": list(_indexing()),
    "writing": list(_writing()),
    "shapes": list(_shapes()),
    "algebra": list(_algebra()),
    "of one's own": list(_of_ones_own()),
}
