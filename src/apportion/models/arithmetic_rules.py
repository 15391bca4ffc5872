"""Rules of arithmetic: element by element, along a dimension, products, normalisation, attention."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from apportion.models.record_tracer import ANY, FRONT, Place, RecordsMayMix, RecordTracer, TracedTensor
from apportion.models.rule_registry import (
    CONSTANT_ROWS,
    OTHER_RECORDS,
    Arguments,
    NoRule,
    Places,
    broadcast_place,
    place_of,
    positive_dim,
    rule,
    shape_of,
    tensors_in,
)


@rule(
    "where masked_fill lerp addcmul addcdiv copy clamp threshold_backward native_dropout_backward gelu_backward "
    "_prelu_kernel _prelu_kernel_backward dropout rrelu_with_noise fmod remainder heaviside sigmoid_backward "
    "tanh_backward hardtanh_backward leaky_relu_backward softplus_backward elu_backward silu_backward "
    "mish_backward hardswish_backward hardsigmoid_backward log_sigmoid_backward huber _masked_scale polar complex "
    "nextafter softshrink_backward hardshrink_backward logit_backward"
)
def pointwise(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    return broadcast_place(tensors_in(given), tracer, name)


@rule("native_dropout")
def _dropout(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    return [place_of(given["input"])] * 2


@rule("log_sigmoid_forward")
def _log_sigmoid(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    return [place_of(given["self"]), None if not tensors_in(given) else place_of(given["self"])]


@rule(
    "mse_loss binary_cross_entropy smooth_l1_loss huber_loss soft_margin_loss mse_loss_backward "
    "binary_cross_entropy_backward smooth_l1_loss_backward huber_loss_backward"
)
def _loss(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    if given["reduction"] != 0:
        raise RecordsMayMix(name, "it takes a mean or a sum over the records")
    return broadcast_place(tensors_in(given), tracer, name)


@rule(
    "clone detach alias _to_copy contiguous lift lift_fresh lift_fresh_copy fill zero _conj bernoulli normal "
    "uniform exponential log_normal cauchy geometric random nan_to_num _neg_view resolve_conj resolve_neg real "
    "imag set_requires_grad _efficientzerotensor"
)
def _elementwise_copy(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    return broadcast_place(tensors_in(given), tracer, name)


@rule("triu tril")
def _triangle(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place = place_of(given["self"])
    if place is not None and place.dim >= len(shape_of(given["self"])) - 2:
        raise RecordsMayMix(name, "it treats records differently by their place")
    return place


@rule("view_as_real view_as_complex")
def _complex_view(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place = place_of(given["self"])
    if name == "view_as_complex" and place is not None and place.dim == len(shape_of(given["self"])) - 1:
        raise RecordsMayMix(name, "records are taken for real and imaginary parts")
    return place


# --- along a dimension ------------------------------------------------------------------------------------------------------------------


@rule(
    "sum mean amax amin prod any all logsumexp var std nansum norm linalg_vector_norm argmax argmin count_nonzero "
    "var_mean std_mean max min median nanmedian mode kthvalue aminmax"
)
def _reduction(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    value = given["self"]
    place, count = place_of(value), len(shape_of(value))
    if place is None:
        return None
    if isinstance(given.get("other"), Tensor):  # max(x, y)
        return broadcast_place(tensors_in(given), tracer, name)
    wanted = given.get("dim")
    wanted = [wanted] if isinstance(wanted, int) else wanted
    dims = {positive_dim(dim, count) for dim in wanted} if wanted else set(range(count))
    if place.dim in dims:
        raise RecordsMayMix(name, "it is taken over the records")
    return place if given.get("keepdim") else Place(place.dim - sum(dim < place.dim for dim in dims), place.inner)


@rule(
    "_softmax _log_softmax cumsum cumprod logcumsumexp cummax cummin _cummax_helper sort argsort topk "
    "_softmax_backward_data _log_softmax_backward_data _safe_softmax"
)
def _along_dimension(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    value = given.get("self", given.get("grad_output"))
    assert isinstance(value, Tensor)
    place = broadcast_place(tensors_in(given), tracer, name)
    dim = given.get("dim")
    if place is not None and positive_dim(-1 if dim is None else dim, len(shape_of(value))) == place.dim:
        raise RecordsMayMix(name, "it is taken along the records")
    return place


@rule("_fft_r2c _fft_c2r _fft_c2c")
def _fourier(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, count = place_of(given["self"]), len(shape_of(given["self"]))
    if place is not None and place.dim in {positive_dim(dim, count) for dim in given["dim"]}:
        raise RecordsMayMix(name, "it is taken along the records")
    return place


_LAST_DIMS = {
    name: count
    for count, names in {
        1: (
            "avg_pool1d adaptive_avg_pool1d reflection_pad1d replication_pad1d upsample_nearest1d upsample_linear1d "
            "_upsample_nearest_exact1d reflection_pad1d_backward replication_pad1d_backward"
        ),
        2: (
            "linalg_inv_ex linalg_cholesky_ex _linalg_det _linalg_slogdet linalg_qr _linalg_svd _linalg_eigh "
            "linalg_matrix_exp linalg_lu_factor_ex matrix_exp avg_pool2d max_pool2d_with_indices _adaptive_avg_pool2d "
            "adaptive_max_pool2d reflection_pad2d replication_pad2d upsample_nearest2d upsample_bilinear2d "
            "upsample_bicubic2d _upsample_nearest_exact2d col2im avg_pool2d_backward max_pool2d_with_indices_backward "
            "_adaptive_avg_pool2d_backward adaptive_max_pool2d_backward reflection_pad2d_backward "
            "replication_pad2d_backward _cdist_forward _cdist_backward"
        ),
        3: (
            "avg_pool3d max_pool3d_with_indices _adaptive_avg_pool3d adaptive_max_pool3d reflection_pad3d "
            "replication_pad3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa pixel_shuffle pixel_unshuffle "
            "upsample_nearest3d upsample_trilinear3d _upsample_nearest_exact3d grid_sampler_2d im2col channel_shuffle "
            "avg_pool3d_backward max_pool3d_with_indices_backward _adaptive_avg_pool3d_backward "
            "adaptive_max_pool3d_backward reflection_pad3d_backward replication_pad3d_backward "
            "grid_sampler_2d_backward"
        ),
        4: ("grid_sampler_3d"),
    }.items()
    for name in names.split()
}
"""Operations on so many of the last dimensions; all dimensions before them are a batch."""


@rule(" ".join(_LAST_DIMS))
def _last_dims(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    count, tensors = _LAST_DIMS[name], tensors_in(given)
    place = broadcast_place([tensor for tensor in tensors if place_of(tensor) is not None], tracer, name)
    if place is None:
        return None
    for tensor in tensors:
        own = place_of(tensor)
        if own is not None and own.dim >= len(shape_of(tensor)) - count:
            raise RecordsMayMix(name, "it works across the records")
        if own is None and len(shape_of(tensor)) > count:
            raise RecordsMayMix(name, CONSTANT_ROWS)
    if len({len(shape_of(tensor)) for tensor in tensors if place_of(tensor) is not None}) > 1:
        raise RecordsMayMix(name, OTHER_RECORDS)
    return place


@rule(
    "upsample_nearest1d_backward upsample_linear1d_backward _upsample_nearest_exact1d_backward "
    "upsample_nearest2d_backward upsample_bilinear2d_backward upsample_bicubic2d_backward "
    "_upsample_nearest_exact2d_backward upsample_nearest3d_backward upsample_trilinear3d_backward"
)
def _upsample_backward(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place = place_of(given["grad_output"])
    if place is not None and place.dim > 1:
        raise RecordsMayMix(name, "it works across the records")
    return place


# --- products ---------------------------------------------------------------------------------------------------------------------------


def _product_place(one: Any, other: Any, name: str) -> Place | None:
    """Of matrices (…, n, k)·(…, k, m) with the same number of dimensions, two or three."""
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


@rule("mm bmm")
def _mm(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    return _product_place(given["self"], given["mat2"], name)


@rule("addmm baddbmm _addmm_activation")
def _addmm(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    one, other = given.get("mat1", given.get("batch1")), given.get("mat2", given.get("batch2"))
    return _add_to_product(_product_place(one, other, name), given["self"], len(shape_of(one)), name)  # type: ignore[arg-type]


def _add_to_product(place: Place | None, added: Any, dimensions: int, name: str) -> Place | None:
    """The place of a product with this many dimensions, to which a tensor is added."""
    shape, own = shape_of(added), place_of(added)
    if place is None:
        if own is not None:
            raise RecordsMayMix(name, "records are added to a product that belongs to none")
        return None
    dim = place.dim - (dimensions - len(shape))
    if own is None:
        if dim >= 0 and shape[dim] != 1:
            raise RecordsMayMix(name, CONSTANT_ROWS)
    elif own.dim != dim or own.inner not in (place.inner, ANY):
        raise RecordsMayMix(name, OTHER_RECORDS)
    return place


@rule("mv addmv")
def _mv(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    matrix, vector = (given["self"], given["vec"]) if name == "mv" else (given["mat"], given["vec"])
    place = place_of(matrix)
    if place_of(vector) is not None:
        raise RecordsMayMix(name, "it adds up records")
    if place is not None and place.dim == 1:
        raise RecordsMayMix(name, "it adds up records")
    return place if name == "mv" else _add_to_product(place, given["self"], 1, name)


@rule("convolution")
def _convolution(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    image, weight, bias = given["input"], given["weight"], given["bias"]
    place, kernel = place_of(image), place_of(weight)
    if kernel is None:
        if isinstance(bias, TracedTensor) and bias.place is not None:
            raise RecordsMayMix(name, "a bias for each record is added to channels")
        if place is not None and place.dim != 0:
            raise RecordsMayMix(name, "records are taken for channels or pixels")
        return place
    # A kernel for each record, as one convolution with B times the channels, in groups: (1, B·c, …) with (B·o, c/g, …).
    records = tracer.records
    blocks = not given["transposed"] and given["groups"] % records == 0 and kernel.dim == 0 and place is not None
    if not blocks or place is None or place.dim != 1:
        raise RecordsMayMix(name, "kernels of records meet images of others")
    channels, filters = shape_of(image)[1], shape_of(weight)[0]
    if kernel.inner * records != filters or place.inner * records != channels:
        raise RecordsMayMix(name, "kernels of records meet images of others")
    if bias is not None and (place_of(bias) is None or place_of(bias) != Place(0, kernel.inner)):
        raise RecordsMayMix(name, "biases of records meet images of others")
    return Place(1, kernel.inner)


@rule("convolution_backward")
def _convolution_backward(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    gradient, image, weight = given["grad_output"], given["input"], given["weight"]
    kernel = place_of(weight)
    if kernel is None:
        if any(given["output_mask"][1:]):
            raise RecordsMayMix(name, "the gradient of a kernel adds up records")
        if place_of(gradient) not in (None, Place(0, 1)) and place_of(gradient).dim != 0:  # type: ignore[union-attr]
            raise RecordsMayMix(name, "records are taken for channels or pixels")
        return [place_of(gradient), None, None]
    place, own = place_of(gradient), place_of(image)
    grouped = given["groups"] % tracer.records == 0 and not given["transposed"]
    if not grouped or place is None or own is None or not place.dim == own.dim == 1 or kernel.dim != 0:
        raise RecordsMayMix(name, "kernels of records meet images of others")
    filters, channels = shape_of(weight)[0], shape_of(image)[1]
    if (
        place.inner != kernel.inner
        or kernel.inner * tracer.records != filters
        or own.inner * tracer.records != channels
    ):
        raise RecordsMayMix(name, "kernels of records meet images of others")
    return [own, kernel, Place(0, kernel.inner)]


# --- normalisation ----------------------------------------------------------------------------------------------------------------------


@rule("native_layer_norm _fused_rms_norm")
def _layer_norm(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    value = given["input"]
    place = place_of(value)
    if any(place_of(given.get(key)) is not None for key in ("weight", "bias")):
        raise NoRule
    if place is not None and place.dim >= len(shape_of(value)) - len(given["normalized_shape"]):
        raise RecordsMayMix(name, "it normalises over the records")
    return [place] * (3 if name == "native_layer_norm" else 2)


@rule("native_group_norm")
def _group_norm(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place = place_of(given["input"])
    if any(place_of(given.get(key)) is not None for key in ("weight", "bias")):
        raise NoRule
    if place is not None and place.dim != 0:
        raise RecordsMayMix(name, "it normalises over the records")
    return [place] * 3


@rule("native_layer_norm_backward native_group_norm_backward _fused_rms_norm_backward")
def _norm_backward(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    if any(given["output_mask"][1:]):
        raise RecordsMayMix(name, "the gradient of its weight adds up records")
    value = given["input"]
    place = broadcast_place([given["grad_out"], value], tracer, name)
    if name == "native_group_norm_backward":
        if place is not None and place.dim != 0:
            raise RecordsMayMix(name, "it normalises over the records")
    elif place is not None and place.dim >= len(shape_of(value)) - len(given["normalized_shape"]):
        raise RecordsMayMix(name, "it normalises over the records")
    return [place] + [None] * (len(given["output_mask"]) - 1)


@rule("native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional _batch_norm_with_update")
def _batch_norm(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    """Instance norm calls it with records among the channels, (1, B·c, …); running statistics would outlive the records."""
    place = place_of(given["input"])
    if place is not None and (place.dim != 1 or given.get("running_mean") is not None):
        raise RecordsMayMix(name, "it normalises over the records")
    for key in ("weight", "bias"):
        value = given.get(key)
        if value is not None and place is not None and (own := place_of(value)) != Place(0, place.inner):
            raise RecordsMayMix(
                name, "weights of channels meet other records" if own else "a constant has a row for each record"
            )
    row = None if place is None else Place(0, place.inner)
    return [place, row, row]


@rule("native_batch_norm_backward")
def _batch_norm_backward(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place = broadcast_place([given["grad_out"], given["input"]], tracer, name)
    if place is None or place.dim != 1 or given.get("running_mean") is not None:
        raise RecordsMayMix(name, "it normalises over the records")
    row = Place(0, place.inner)
    return [place, row if given["output_mask"][1] else None, row if given["output_mask"][2] else None]


# --- attention --------------------------------------------------------------------------------------------------------------------------


@rule("_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_attention_math")
def _attention(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    for key in ("query", "key", "value"):
        place = place_of(given[key])
        if place is None or place.dim != 0 or place.inner != 1:
            raise RecordsMayMix(name, "query, key and value do not all have the records in front")
    mask = given.get("attn_mask")
    if mask is not None:
        own, shape = place_of(mask), shape_of(mask)
        if own is not None and (own.dim != 0 or len(shape) != 4):
            raise RecordsMayMix(name, "a mask of other records")
        if own is None and len(shape) == 4 and shape[0] != 1:
            raise RecordsMayMix(name, CONSTANT_ROWS)
    return [FRONT, FRONT]


@rule("_scaled_dot_product_flash_attention_for_cpu_backward")
def _attention_backward(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    if any(place_of(given[key]) != FRONT for key in ("grad_out", "query", "key", "value")):
        raise RecordsMayMix(name, "query, key and value do not all have the records in front")
    return [FRONT] * 3
