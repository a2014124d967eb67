"""FLOPs of single dispatched operators, for those that torch's own counter leaves out or gets wrong.

Each formula takes an operator's result and its arguments and reads nothing but their shapes, so it holds for tensors
of every device, `meta` included. Names are those of `torch.ops.aten`. `accounting.counted` applies them.

A multiply-add is two FLOPs. The bias of a product (`addmv`, a convolution's bias) is ignored, as torch ignores that of
`addmm`: one addition per output against 2k. Attention, whose cost is a matter of convention, is described by shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

from accounting.attention import Attention

Formula = Callable[..., int]


def elements(tensor: Any) -> int:
    """Elements of a tensor, or of a list of tensors together; 0 for None."""
    if tensor is None:
        return 0
    if isinstance(tensor, (list, tuple)):
        return sum(elements(each) for each in tensor)
    return int(prod(tensor.shape))


# --- products: sums of multiply-adds, comparable to 2mkn ----------------------------------------------------


def _product(out: Any, a: Any, *_: Any, **__: Any) -> int:
    """A product of `a` with something: each result sums over the last dimension of `a`."""
    return 2 * elements(out) * int(a.shape[-1])


def _added_product(out: Any, _added: Any, a: Any, *_: Any, **__: Any) -> int:
    return _product(out, a)


def _added_product_summed_over_the_batch(_out: Any, _added: Any, a: Any, b: Any, **_: Any) -> int:
    return 2 * elements(a) * int(b.shape[-1])


def _added_outer_product(out: Any, *_: Any, **__: Any) -> int:
    return 2 * elements(out)


def _grouped_product(_out: Any, a: Any, b: Any, *_: Any, **__: Any) -> int:
    """Groups of rows, of columns or of terms, each with a matrix of its own; every group padded in full."""
    groups = int(a.shape[0]) if len(a.shape) == len(b.shape) == 3 else 1
    return 2 * groups * int(a.shape[-2]) * int(a.shape[-1]) * int(b.shape[-1])


def _convolution_backward(
    _out: Any,
    grad_output: Any,
    x: Any,
    weight: Any,
    _bias_sizes: Any,
    _stride: Any,
    _padding: Any,
    _dilation: Any,
    transposed: bool,
    _output_padding: Any,
    _groups: int,
    output_mask: Sequence[bool],
) -> int:
    """Each of the two gradients pairs the same factors as the forward convolution does, whatever the groups.

    A weight already has only 1/groups of the input channels; torch's formula takes the input's channels instead and
    so counts the gradient of the weight `groups` times.
    """
    positions = (x if transposed else grad_output).shape[2:]
    forward = 2 * int(x.shape[0]) * int(prod(positions)) * elements(weight)
    return forward * (bool(output_mask[0]) + bool(output_mask[1]))


def _trilinear(
    _out: Any, a: Any, b: Any, c: Any, expand_a: Any, expand_b: Any, expand_c: Any, summed: Any, *_: Any
) -> int:
    """Σ a·b·c, a bilinear layer or a gradient of it: a·b, summed over what c lacks, then that times c.

    `expand_x` are the dimensions of the whole sum that x lacks. Where nothing is summed there are no additions.
    """
    sizes: dict[int, int] = {}
    for operand, lacking in ((a, expand_a), (b, expand_b), (c, expand_c)):
        has = [i for i in range(len(operand.shape) + len(lacking)) if i not in lacking]
        sizes |= {i: int(size) for i, size in zip(has, operand.shape, strict=True)}
    pair = [i for i in sizes if i not in expand_a or i not in expand_b]
    first = [i for i in pair if i in summed and i in expand_c]
    rest = [i for i in sizes if i not in first]
    return sum(
        (2 if any(i in summed for i in over) else 1) * prod(sizes[i] for i in indices)
        for indices, over in ((pair, first), (rest, [i for i in rest if i in summed]))
    )


def _recurrent(x: Any, weights: Sequence[Any]) -> int:
    """Every matrix of weights meets every token once."""
    tokens = elements(x) // int(x.shape[-1])
    return 2 * tokens * sum(elements(weight) for weight in weights if len(weight.shape) == 2)


PRODUCTS: dict[str, Formula] = {
    "dot": lambda out, a, b: 2 * elements(a),
    "vdot": lambda out, a, b: 2 * elements(a),
    "mv": _product,
    "addmv": _added_product,
    "addmv_": _added_product,
    "addr": _added_outer_product,
    "addr_": _added_outer_product,
    "addmm_": _added_product,
    "baddbmm_": _added_product,
    "addbmm": _added_product_summed_over_the_batch,
    "addbmm_": _added_product_summed_over_the_batch,
    "_addmm_activation": _added_product,
    "_int_mm": _product,
    "_weight_int8pack_mm": _product,
    "_weight_int4pack_mm": _product,
    "_weight_int4pack_mm_for_cpu": _product,
    "_scaled_mm": _product,
    "_scaled_mm_v2": _product,
    "_grouped_mm": _grouped_product,
    "_scaled_grouped_mm": _grouped_product,
    "convolution_backward": _convolution_backward,
    "_trilinear": _trilinear,
    "mkldnn_rnn_layer": lambda out, x, w1, w2, *_: _recurrent(x, (w1, w2)),
    "mkldnn_rnn_layer_backward": lambda out, x, w1, w2, *_: 2 * _recurrent(x, (w1, w2)),
    "_cudnn_rnn": lambda out, x, weights, *_: _recurrent(x, weights),
    "_cudnn_rnn_backward": lambda out, x, weights, *_: 2 * _recurrent(x, weights),
}


# --- attention: products whose cost is a matter of convention -----------------------------------------------------


def attentions(name: str, arguments: Mapping[str, Any], pairs: str = "full") -> list[Attention]:
    """What a call of the kernel `name`, one of `ATTENTION`, attends to, from its arguments as the schema names them.

    Several shapes where sequences of different lengths lie one after the other, or where a mask leaves several; with
    "causal" `pairs` only those are counted that the mask leaves.
    """
    query, key, value = (arguments[each] for each in ("query", "key", "value"))
    dense = name.startswith("_scaled_dot_product")
    widths: dict[str, Any] = {"head_dim": int(query.shape[-1]), "value_dim": int(value.shape[-1])}
    if dense:  # (..., head, position, width)
        rows = int(prod(query.shape[:-2]))
        shapes = [Attention(rows, 1, int(query.shape[-2]), key_length=int(key.shape[-2]), **widths)]
    else:  # (batch, position, head, width), or (position, head, width) of sequences one after the other
        lengths = zip(_lengths(arguments, "q", query), _lengths(arguments, "k", key), strict=True)
        shapes = [Attention(1, int(query.shape[-2]), queries, key_length=keys, **widths) for queries, keys in lengths]
    mask = arguments.get("custom_mask_type")
    if pairs == "full" or not (mask or arguments.get("is_causal")):
        return shapes
    # The dense kernels see torch's mask, which starts at the first key; the others end at the last one.
    at_end = not dense if arguments.get("is_causal") else mask == 2
    return [part for shape in shapes for part in unmasked(shape, at_end)]


def unmasked(whole: Attention, at_end: bool = False) -> list[Attention]:
    """What a causal mask leaves: query i sees the first i keys, or with `at_end` the last query all keys.

    The two differ where there are more keys than queries. Queries beyond the last key see all keys.
    """
    if at_end and whole.keys > whole.query_length:
        return [replace(whole, pairs="causal")]
    masked = min(whole.query_length, whole.keys)
    square = replace(whole, query_length=masked, key_length=masked, pairs="causal")
    return [square, replace(whole, query_length=whole.query_length - masked, key_length=whole.keys)]


def _lengths(arguments: Mapping[str, Any], side: str, operand: Any) -> list[int]:
    """The lengths of the sequences of queries ("q") or keys ("k").

    Where the bounds between them cannot be read (on the meta device) each counts as the longest.
    """
    bounds, longest = (
        next((arguments[name] for name in names if name in arguments), None)
        for names in ((f"cum_seq_{side}", f"cu_seqlens_{side}"), (f"max_{side}", f"max_seqlen_{side}"))
    )
    if bounds is None:
        return [int(operand.shape[1])] * int(operand.shape[0])
    if bounds.device.type == "meta":
        return [int(longest or 0)] * (int(bounds.shape[0]) - 1)
    places = [int(place) for place in bounds]
    return [end - start for start, end in pairwise(places)]


_KERNELS = """
_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention
_scaled_dot_product_cudnn_attention _scaled_dot_product_fused_attention_overrideable
""".split()
_FORWARD = (*_KERNELS, "_flash_attention_forward", "_efficient_attention_forward")
_BACKWARD = (*(f"{name}_backward" for name in _KERNELS), "_flash_attention_backward", "_efficient_attention_backward")
ATTENTION = frozenset(_FORWARD + _BACKWARD)


# --- elementwise operations and reductions: one FLOP per element --------------------------------------------
# Operators that fuse several of them count as many as they fuse, so that a fused and an unfused layer cost the same.
# "rows" below are the groups normalised together: one sum, one square root each.


def _log_softmax(_out: Any, x: Any, dim: int, *_: Any) -> int:
    rows = elements(x) // int(x.shape[dim]) if elements(x) else 0
    return 5 * elements(x) + rows  # maximum, subtract, exp, sum, log of the sum, subtract


def _normalisation(x: Any, statistics: Any, weight: Any, bias: Any) -> int:
    """Mean, subtract, square, mean, times 1/sqrt(variance + eps); then times weight, plus bias."""
    steps = 5 + (weight is not None) + (bias is not None)
    return steps * elements(x) + 2 * elements(statistics)


def _normalisation_backward(x: Any, weight: Any, mask: Sequence[bool]) -> int:
    """The normalised input again (2); the gradient of input (7, or 8 with a weight), weight (2) and bias (1)."""
    steps = 2 * (bool(mask[0]) or bool(mask[1])) + (7 + (weight is not None)) * bool(mask[0])
    return (steps + 2 * bool(mask[1]) + bool(mask[2])) * elements(x)


def _rms_norm(out: Any, x: Any, _shape: Any, weight: Any = None, *_: Any) -> int:
    return (3 + (weight is not None)) * elements(x) + 2 * elements(out[1])


def _rms_norm_backward(
    _out: Any, _grad: Any, x: Any, _shape: Any, _rstd: Any, weight: Any, mask: Sequence[bool]
) -> int:
    return (1 + (5 + (weight is not None)) * bool(mask[0]) + 2 * bool(mask[1])) * elements(x)


def _batch_norm(out: Any, x: Any, weight: Any, bias: Any, *rest: Any, **_: Any) -> int:
    """The running statistics, a few FLOPs per channel, are ignored."""
    training = next((flag for flag in rest if isinstance(flag, bool)), True)
    if training:
        return _normalisation(x, out[1], weight, bias)
    return (2 + (weight is not None) + (bias is not None)) * elements(x)


def _pooling(windows: Any, window: Sequence[int], dimensions: int) -> int:
    return elements(windows) * (int(prod(window)) if len(window) == dimensions else int(window[0]) ** dimensions)


def _dropout(_out: Any, x: Any, _p: float, train: bool | None = True) -> int:
    return 0 if train is False else 2 * elements(x)  # times the mask, times 1/(1 - p)


def _adam(_out: Any, params: Any, *_: Any, weight_decay: float, amsgrad: bool, maximize: bool, **__: Any) -> int:
    """lerp, mul, addcmul, sqrt, div, add, addcdiv, as torch's loop over tensors does it."""
    return (7 + (weight_decay != 0) + bool(amsgrad) + bool(maximize)) * elements(params)


def _sgd(
    _out: Any,
    params: Any,
    *_: Any,
    weight_decay: float,
    momentum: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    **__: Any,
) -> int:
    steps = 1 + (weight_decay != 0) + bool(maximize) + bool(nesterov)
    return (steps + 2 * (momentum != 0 and not is_first_step)) * elements(params)


def _adagrad(_out: Any, params: Any, *_: Any, weight_decay: float, maximize: bool, **__: Any) -> int:
    return (4 + (weight_decay != 0) + bool(maximize)) * elements(params)


FUSED_ELEMENTWISE: dict[str, Formula] = {
    "_softmax": lambda out, x, *_: 5 * elements(x),  # maximum, subtract, exp, sum, divide
    "_safe_softmax": lambda out, x, *_: 5 * elements(x),
    "_softmax_backward_data": lambda out, grad, *_: 4 * elements(grad),  # multiply, sum, subtract, multiply
    "_log_softmax": _log_softmax,
    "_log_softmax_backward_data": lambda out, grad, *_: 4 * elements(grad),  # sum, exp, multiply, subtract
    "native_layer_norm": lambda out, x, shape, weight, bias, eps: _normalisation(x, out[2], weight, bias),
    "native_layer_norm_backward": lambda out, grad, x, shape, mean, rstd, weight, bias, mask: _normalisation_backward(
        x, weight, mask
    ),
    "native_group_norm": lambda out, x, weight, bias, *_: _normalisation(x, out[2], weight, bias),
    "native_group_norm_backward": lambda out, grad, x, mean, rstd, weight, n, c, hw, group, mask: (
        _normalisation_backward(x, weight, mask)
    ),
    "_fused_rms_norm": _rms_norm,
    "_fused_rms_norm_backward": _rms_norm_backward,
    "native_batch_norm": _batch_norm,
    "cudnn_batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm,
    "_batch_norm_with_update": _batch_norm,
    "_native_batch_norm_legit_no_training": lambda out, x, weight, bias, *_: _batch_norm(out, x, weight, bias, False),
    "batch_norm_backward": lambda out, grad, x, weight, rm, rv, mean, rstd, train, eps, mask, reserve: (
        _normalisation_backward(x, weight, mask)
    ),
    "native_batch_norm_backward": lambda out, grad, x, weight, rm, rv, mean, rstd, train, eps, mask: (
        _normalisation_backward(x, weight, mask)
    ),
    "native_dropout": _dropout,
    "mse_loss": lambda out, x, target, reduction=1: (2 + (reduction != 0)) * elements(x),
    "mse_loss_backward": lambda out, grad, x, *_: 3 * elements(x),
    "nll_loss_forward": lambda out, x, target, *_: elements(target),
    "nll_loss_backward": lambda out, grad, x, target, *_: elements(target),
    "nll_loss2d_forward": lambda out, x, target, *_: elements(target),
    "nll_loss2d_backward": lambda out, grad, x, target, *_: elements(target),
    # Every element of a window is read once: a comparison or an addition; in the backward pass, one addition each.
    "max_pool2d_with_indices": lambda out, x, window, *_: _pooling(out[0], window, 2),
    "max_pool3d_with_indices": lambda out, x, window, *_: _pooling(out[0], window, 3),
    "max_pool2d_with_indices_backward": lambda out, grad, *_: elements(grad),
    "max_pool3d_with_indices_backward": lambda out, grad, *_: elements(grad),
    "avg_pool2d": lambda out, x, window, *_: _pooling(out, window, 2),
    "avg_pool3d": lambda out, x, window, *_: _pooling(out, window, 3),
    "avg_pool2d_backward": lambda out, grad, x, window, *_: _pooling(grad, window, 2),
    "avg_pool3d_backward": lambda out, grad, x, window, *_: _pooling(grad, window, 3),
    # Sums into a table: one addition per element that is added, not per element of the table.
    "embedding_dense_backward": lambda out, grad, *_: elements(grad),
    "_embedding_bag": lambda out, weight, indices, *_: elements(indices) * int(weight.shape[-1]),
    "_embedding_bag_forward_only": lambda out, weight, indices, *_: elements(indices) * int(weight.shape[-1]),
    "index_add": lambda out, x, dim, index, source, **_: elements(source),
    "scatter_add": lambda out, x, dim, index, source: elements(index),
    "index_put": lambda out, x, indices, values, accumulate=False, *_: elements(values) if accumulate else 0,
    "_index_put_impl": lambda out, x, indices, values, accumulate=False, *_: elements(values) if accumulate else 0,
    "_amp_foreach_non_finite_check_and_unscale": lambda out, grads, *_: elements(grads),
    "_fused_adam": _adam,
    "_fused_adamw": _adam,
    "_fused_sgd": _sgd,
    "_fused_adagrad": _adagrad,
}

REDUCTIONS = frozenset(
    """
    all amax amin aminmax any argmax argmin count_nonzero cummax cummin cumprod cumsum dist equal linalg_vector_norm
    logcumsumexp logsumexp max mean median min nanmedian nansum norm prod std std_mean sum var var_mean
    """.split()
)

# Pointwise operators that torch does not tag as such.
POINTWISE = frozenset(
    """
    complex _conj_physical elu_backward floor_divide glu glu_backward hardshrink_backward hardsigmoid_backward hardswish
    hardswish_backward hardtanh_backward leaky_relu leaky_relu_backward log_sigmoid_backward log_sigmoid_forward polar
    _prelu_kernel _prelu_kernel_backward rrelu_with_noise rrelu_with_noise_backward softplus_backward
    softshrink_backward
    """.split()
)

# Operators that only create, copy, cast, reorder or describe data. (Views and their copies are recognised as such, and
# operators without any tensor argument create something.)
DATA_MOVEMENT = frozenset(
    """
    as_strided_scatter bernoulli block_diag cat cauchy channel_shuffle _chunk_cat clone constant_pad_nd copy _copy_from
    _copy_from_and_resize diag_embed diagonal_backward diagonal_scatter embedding empty_like exponential fill flip
    full_like gather geometric im2col index index_copy index_fill index_select lift lift_fresh linspace
    _local_scalar_dense log_normal logspace masked_scatter masked_select max_unpool2d max_unpool3d multinomial
    new_empty new_empty_strided new_full new_ones new_zeros nonzero nonzero_static normal ones_like _pin_memory
    pixel_shuffle pixel_unshuffle rand_like randint_like randn_like random reflection_pad1d reflection_pad2d
    reflection_pad3d repeat repeat_interleave replication_pad1d replication_pad2d replication_pad3d resize resize_as
    roll rot90 scatter select_backward select_scatter set slice_backward slice_scatter stack take _to_copy tril triu
    uniform unsafe_chunk _unsafe_index unsafe_split unsafe_split_with_sizes _unsafe_view zero zeros_like
    _assert_async is_pinned is_same_size record_stream
    """.split()
)

# --- bytes moved: each tensor that is read once, each result written once -----------------------------------------

# Operators that allocate, resize or describe without touching the data.
UNTOUCHED = frozenset(
    """
    empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize resize_as set lift lift_fresh
    is_pinned is_same_size record_stream _assert_async _reshape_alias _unsafe_view
    """.split()
)

# Operators whose first argument is a model for the result, or overwritten unread.
FIRST_UNREAD = frozenset(
    """
    bernoulli cauchy copy exponential fill full_like geometric log_normal new_full new_ones new_zeros normal ones_like
    rand_like randint_like randn_like random uniform zero zeros_like
    """.split()
)

# Operators that read of their first argument as many elements as they return.
GATHERS = frozenset("embedding gather index index_select masked_select take".split())
