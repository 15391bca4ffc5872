"""Rules of arithmetic: element by element, along a dimension, products, normalisation, attention."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from apportion.models.record_tracer import ANY, FRONT, Place, RecordsMayMix, RecordTracer
from apportion.models.rule_registry import (
    CONSTANT_ROWS,
    Arguments,
    NoRule,
    Places,
    broadcast_place,
    common_place,
    dims_of,
    place_beside,
    place_of,
    records_in,
    require_fitting,
    rule,
    shape_of,
    tensors_in,
)


@rule(
    "where masked_fill lerp addcmul addcdiv copy clamp threshold_backward native_dropout_backward gelu_backward "
    "_prelu_kernel _prelu_kernel_backward dropout rrelu_with_noise fmod remainder heaviside sigmoid_backward "
    "tanh_backward hardtanh_backward leaky_relu_backward softplus_backward elu_backward silu_backward "
    "mish_backward hardswish_backward hardsigmoid_backward log_sigmoid_backward _masked_scale polar complex "
    "nextafter softshrink_backward hardshrink_backward logit_backward native_dropout log_sigmoid_forward "
    "clone detach alias _to_copy contiguous lift lift_fresh lift_fresh_copy fill zero _conj bernoulli normal "
    "uniform exponential log_normal cauchy geometric random nan_to_num _neg_view resolve_conj resolve_neg real "
    "imag _efficientzerotensor"
)
def pointwise(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    return broadcast_place(tensors_in(given), name)


@rule(
    "mse_loss binary_cross_entropy smooth_l1_loss huber_loss soft_margin_loss mse_loss_backward "
    "binary_cross_entropy_backward smooth_l1_loss_backward huber_loss_backward"
)
def _loss(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    if given["reduction"] != 0:
        raise RecordsMayMix(name, "it takes a mean or a sum over the records")
    return pointwise(given, tracer, name)


# --- along a dimension ------------------------------------------------------------------------------------------------------------------


@rule(
    "sum mean amax amin prod any all logsumexp var std nansum norm linalg_vector_norm argmax argmin count_nonzero "
    "var_mean std_mean max min median nanmedian mode kthvalue aminmax"
)
def _reduction(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    if isinstance(given.get("other"), Tensor):  # max(x, y)
        return pointwise(given, tracer, name)
    place, shape = records_in(given["self"])
    dims = dims_of(given.get("dim"), len(shape))
    return place_beside(place, dims, name, removed=() if given.get("keepdim") else dims)


@rule(
    "_softmax _log_softmax cumsum cumprod logcumsumexp cummax cummin _cummax_helper sort argsort topk "
    "_softmax_backward_data _log_softmax_backward_data _safe_softmax _fft_r2c _fft_c2r _fft_c2c"
)
def _along_dimension(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    tensors = tensors_in(given)
    return place_beside(common_place(tensors, name), dims_of(given["dim"], len(shape_of(tensors[0]))), name)


_LAST_DIMS = {
    operation: count
    for count, names in {
        0: "view_as_real",
        1: (
            "view_as_complex avg_pool1d adaptive_avg_pool1d reflection_pad1d replication_pad1d upsample_nearest1d "
            "upsample_linear1d _upsample_nearest_exact1d"
        ),
        2: (
            "triu tril linalg_inv_ex linalg_cholesky_ex _linalg_det _linalg_slogdet linalg_qr _linalg_svd _linalg_eigh "
            "linalg_matrix_exp linalg_lu_factor_ex matrix_exp avg_pool2d max_pool2d_with_indices _adaptive_avg_pool2d "
            "adaptive_max_pool2d reflection_pad2d replication_pad2d upsample_nearest2d upsample_bilinear2d "
            "upsample_bicubic2d _upsample_nearest_exact2d col2im _cdist_forward _cdist_backward"
        ),
        3: (
            "avg_pool3d max_pool3d_with_indices _adaptive_avg_pool3d adaptive_max_pool3d reflection_pad3d "
            "replication_pad3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa pixel_shuffle pixel_unshuffle "
            "upsample_nearest3d upsample_trilinear3d _upsample_nearest_exact3d grid_sampler_2d im2col channel_shuffle"
        ),
        4: "grid_sampler_3d",
    }.items()
    for name in names.split()
    for operation in (name, f"{name}_backward")
}
"""Operations on so many of the last dimensions, as their backward passes are; all dimensions before them are a batch."""


@rule(" ".join(_LAST_DIMS))
def _last_dims(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    count, tensors = _LAST_DIMS[name], tensors_in(given)
    placed = [tensor for tensor in tensors if place_of(tensor) is not None]
    place, shape = common_place(placed, name), shape_of(placed[0])
    if any(len(shape_of(tensor)) != len(shape) for tensor in placed):
        raise RecordsMayMix(name, "records of one tensor meet other records of another")
    if any(place_of(tensor) is None and len(shape_of(tensor)) > count for tensor in tensors):
        raise RecordsMayMix(name, CONSTANT_ROWS)
    return place_beside(place, range(len(shape) - count, len(shape)), name)


# --- products ---------------------------------------------------------------------------------------------------------------------------


def _product_place(one: Any, other: Any, name: str) -> Place | None:
    """Of matrices (…, n, k)·(…, k, m) with the same number of dimensions, two or three, or of a matrix and a vector."""
    left, right = place_of(one), place_of(other)
    rows, columns = len(shape_of(one)) - 2, len(shape_of(one)) - 1
    if left is not None and right is not None:
        if (
            columns == 2
            and left.dim == right.dim == 0
            and (left.inner == right.inner or ANY in (left.inner, right.inner))
        ):
            return left if left.inner != ANY else right
        raise RecordsMayMix(name, "records of one factor are multiplied with other records of the other")
    place, summed = (left, columns) if left is not None else (right, rows)
    if place is None:
        return None
    if place.dim == summed:
        raise RecordsMayMix(name, "it adds up records")
    if columns == 2 and place.dim == 0:
        raise RecordsMayMix(name, CONSTANT_ROWS)
    return place


_FACTORS = {
    **dict.fromkeys(("mm", "bmm"), ("self", "mat2")),
    **dict.fromkeys(("addmm", "_addmm_activation"), ("mat1", "mat2")),
    "baddbmm": ("batch1", "batch2"),
    "mv": ("self", "vec"),
    "addmv": ("mat", "vec"),
}


@rule(" ".join(_FACTORS))
def _product(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    one, other = (given[key] for key in _FACTORS[name])
    place = _product_place(one, other, name)
    if _FACTORS[name][0] != "self":
        if place is None:
            raise RecordsMayMix(name, "records are added to a product that belongs to none")
        require_fitting(given["self"], place, len(shape_of(other)), name)
    return place


def _kernel_place(given: Arguments, tracer: RecordTracer, name: str) -> Place | None:
    """Where the kernels of records are; `None` if all records share one.

    A kernel for each record is one convolution with B times the channels, in groups: (1, B·c, …) with (B·o, c/g, …).
    """
    kernel, place, records = place_of(given["weight"]), place_of(given["input"]), tracer.records
    if kernel is None:
        return None
    in_groups = not given["transposed"] and given["groups"] % records == 0
    if (
        not in_groups
        or place != Place(1, shape_of(given["input"])[1] // records)
        or kernel != Place(0, shape_of(given["weight"])[0] // records)
    ):
        raise RecordsMayMix(name, "kernels of records meet images of others")
    return kernel


@rule("convolution")
def _convolution(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, kernel, bias = place_of(given["input"]), _kernel_place(given, tracer, name), given["bias"]
    if bias is not None and place_of(bias) != kernel:
        raise RecordsMayMix(name, "biases of records meet images of others")
    if kernel is not None:
        return Place(1, kernel.inner)
    if place is not None and place.dim != 0:
        raise RecordsMayMix(name, "records are taken for channels or pixels")
    return place


@rule("convolution_backward")
def _convolution_backward(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, kernel = place_of(given["grad_output"]), _kernel_place(given, tracer, name)
    if kernel is not None:
        if place != Place(1, kernel.inner):
            raise RecordsMayMix(name, "kernels of records meet images of others")
        return [place_of(given["input"]), kernel, kernel]
    if any(given["output_mask"][1:]):
        raise RecordsMayMix(name, "the gradient of a kernel adds up records")
    if place is not None and place.dim != 0:
        raise RecordsMayMix(name, "records are taken for channels or pixels")
    return [place, None, None]


# --- normalisation ----------------------------------------------------------------------------------------------------------------------


@rule(
    "native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward "
    "native_group_norm native_group_norm_backward"
)
def _norm(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    if any(given.get("output_mask", ())[1:]):
        raise RecordsMayMix(name, "the gradient of its weight adds up records")
    place, count = broadcast_place([given.get("grad_out"), given["input"]], name), len(shape_of(given["input"]))
    if place is None or any(place_of(given.get(key)) is not None for key in ("weight", "bias")):
        raise NoRule
    return place_beside(place, range(count - len(given.get("normalized_shape", range(1, count))), count), name)


@rule("native_batch_norm _native_batch_norm_legit native_batch_norm_backward")
def _batch_norm(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    """Instance norm calls it with records among the channels, (1, B·c, …); running statistics would outlive the records, unless they are
    only applied, as by a frozen map that is not trained."""
    place = broadcast_place([given.get("grad_out"), given["input"]], name)
    fixed = [given.get(key) for key in ("running_mean", "running_var", "weight", "bias")]
    if "grad_out" not in given and given.get("training") is False and place == FRONT and fixed[0] is not None:
        if any(one is not None and place_of(one) is not None for one in fixed):
            raise RecordsMayMix(name, "what is applied to a record belongs to others")
        return [place, None, None]
    if place is None or place.dim != 1 or given.get("running_mean") is not None:
        raise RecordsMayMix(name, "it normalises over the records")
    row = Place(0, place.inner)
    if any(given.get(key) is not None and place_of(given[key]) != row for key in ("weight", "bias")):
        raise RecordsMayMix(name, "weights of channels belong to other records, or to none")
    return [place, row, row]


# --- attention --------------------------------------------------------------------------------------------------------------------------


@rule(
    "_scaled_dot_product_attention_math _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_for_cpu_backward"
)
def _attention(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    if any(place_of(given[key]) != FRONT for key in ("grad_out", "query", "key", "value") if key in given):
        raise RecordsMayMix(name, "query, key and value do not all have the records in front")
    if given.get("attn_mask") is not None:
        require_fitting(given["attn_mask"], FRONT, len(shape_of(given["query"])), name)
    return FRONT
