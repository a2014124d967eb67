"""FLOPs of single dispatched operators, for those that torch's own counter leaves out or gets
wrong.

A formula takes an operator's result and its arguments, and reads nothing but their shapes, so it
holds for tensors of every device, `meta` included. To add one, decorate a function with the
operator's name:

    @operator("aten.mv")
    def mv(_out, matrix, _vector):
        return 2 * elements(matrix)

A multiply-add is two FLOPs. The bias of a product is ignored, as torch ignores that of `addmm`: one
addition per output against 2k.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

from accounting.checks import validated_choice
from accounting.roofline import FLOPS_PER_ELEMENT, GRADIENT_FLOPS_PER_ELEMENT
from prooflops.counted.result import ELEMENTWISE, PRODUCTS

Formula = Callable[..., int]


class Operator(NamedTuple):
    """The kind of an operator's work (`PRODUCTS` or `ELEMENTWISE`), and its FLOPs."""

    kind: int
    formula: Formula


OPERATORS: dict[str, Operator] = {}
KINDS = {"products": PRODUCTS, "elementwise": ELEMENTWISE}


def operator(*names: str, kind: str = "products") -> Callable[[Formula], Formula]:
    """Makes the decorated function the FLOP formula of the operators `names`, such as "aten.mv".

    The formula is called with the result, then with the operator's arguments in the order of its
    schema. A name covers all overloads and the form in place (`aten.addmv_`). `kind` is the figure
    that the FLOPs are counted in: "products" are sums of multiply-adds, comparable to 2mkn,
    "elementwise" is everything else.

    Raises ValueError for a name without a namespace, one that has a formula already, and another
    kind.

    >>> import torch
    >>> @operator("mylib.outer_add", kind="elementwise")
    ... def outer_add(out, a, b):
    ...     return elements(out)
    >>> OPERATORS.pop("mylib.outer_add").formula(torch.empty(3, 4), torch.empty(3), torch.empty(4))
    12
    """
    number = KINDS[validated_choice("kind", kind, KINDS)]
    for name in names:
        if "." not in name:
            raise ValueError(f"names must have a namespace, as aten.mv has, got {name!r}")
        if name in OPERATORS:
            raise ValueError(f"names must be new, but {name} has a formula")

    def register(formula: Formula) -> Formula:
        OPERATORS.update(dict.fromkeys(names, Operator(number, formula)))
        return formula

    return register


def elements(tensor: Any) -> int:
    """Elements of a tensor, or of a list of tensors together; 0 for None."""
    if tensor is None:
        return 0
    if isinstance(tensor, (list, tuple)):
        return sum(elements(each) for each in tensor)
    return int(prod(tensor.shape))


# --- products: sums of multiply-adds, comparable to 2mkn ------------------------------------------


def _product(place: int) -> Formula:
    """Each result sums over the last dimension of the argument at this place."""
    return lambda out, *args, **_: 2 * elements(out) * int(args[place].shape[-1])


def _grouped_product(_out: Any, a: Any, b: Any, *_: Any, **__: Any) -> int:
    """Groups of rows, of columns or of terms, each with a matrix of its own; every group padded in
    full.
    """
    groups = int(a.shape[0]) if len(a.shape) == len(b.shape) == 3 else 1
    return 2 * groups * int(a.shape[-2]) * int(a.shape[-1]) * int(b.shape[-1])


def _convolution_backward(_out: Any, grad_output: Any, x: Any, weight: Any, *rest: Any) -> int:
    """Each of the two gradients pairs the same factors as the forward convolution does, whatever
    the groups.

    A weight has only 1/groups of the input channels. Torch's formula takes the input's channels
    instead, and so counts the gradient of the weight `groups` times.
    """
    _bias_sizes, _stride, _padding, _dilation, transposed, _output_padding, _groups, output_mask = (
        rest
    )
    positions = (x if transposed else grad_output).shape[2:]
    forward = 2 * int(x.shape[0]) * int(prod(positions)) * elements(weight)
    return forward * (bool(output_mask[0]) + bool(output_mask[1]))


def _trilinear(
    _out: Any,
    a: Any,
    b: Any,
    c: Any,
    expand_a: Any,
    expand_b: Any,
    expand_c: Any,
    summed: Any,
    *_: Any,
) -> int:
    """Σ a·b·c, a bilinear layer or a gradient of it: first a·b, summed over the dimensions that c
    lacks, then times c.

    `expand_x` are the dimensions of the whole sum that x lacks. Where nothing is summed there are
    no additions.
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


def _recurrent(_out: Any, x: Any, *rest: Any) -> int:
    """Every matrix of weights meets every token once: one list of weights (cuDNN), or two tensors
    (oneDNN).
    """
    weights = rest[0] if isinstance(rest[0], (list, tuple)) else rest[:2]
    tokens = elements(x) // int(x.shape[-1])
    return 2 * tokens * sum(elements(weight) for weight in weights if len(weight.shape) == 2)


def _solved(out: Any, matrix: Any) -> int:
    """Substitution by a triangular matrix: n multiply-adds for two elements of the result."""
    return elements(out) * int(matrix.shape[-1])


def _lu(_out: Any, matrix: Any, *_: Any, **__: Any) -> int:
    """LU factorisation: each of k pivots updates the rows below it, one column less each time;
    2/3·n³ of a square.
    """
    rows, columns = map(int, matrix.shape[-2:])
    k = min(rows, columns)
    return int(prod(matrix.shape[:-2])) * (
        2 * rows * columns * k - (rows + columns) * k**2 + 2 * k**3 // 3
    )


def _fused_layer(weights: slice, _out: Any, x: Any, *rest: Any, **_: Any) -> int:
    """Attention with its maps, or a whole layer of an encoder: every matrix meets every token;
    scores and values.
    """
    batch, tokens, width = map(int, x.shape)
    matrices = sum(elements(each) for each in rest[weights] if len(getattr(each, "shape", ())) == 2)
    return 2 * batch * tokens * (matrices + 2 * tokens * width)


# aten.linear is an operator of its own on MPS alone.
PRODUCT_FORMULAS: dict[str, Formula] = {
    "mv linear _int_mm _scaled_mm _scaled_mm_v2": _product(0),
    "_weight_int8pack_mm _weight_int4pack_mm _weight_int4pack_mm_for_cpu": _product(0),
    "addmv _addmm_activation": _product(1),
    # Their packed weight has no shape.
    "quantized.linear_dynamic quantized.linear_relu_dynamic": lambda out, x, *_: (
        2 * elements(x) * int(out.shape[-1])
    ),
    "dot vdot": lambda _out, a, _b: 2 * elements(a),
    "addr": lambda out, *_, **__: 2 * elements(out),
    "addbmm": lambda _out, _added, a, b, **_: 2 * elements(a) * int(b.shape[-1]),
    "_grouped_mm _scaled_grouped_mm": _grouped_product,
    # Each gradient pairs the same factors as the forward pass; that of a bias is a sum.
    "linear_backward": lambda _out, x, grad, _weight, mask: (
        _product(0)(grad, x) * (bool(mask[0]) + bool(mask[1]))
    ),
    "convolution_backward": _convolution_backward,
    "_trilinear": _trilinear,
    "linalg_solve_triangular": lambda out, matrix, *_, **__: _solved(out, matrix),
    "triangular_solve": lambda out, _b, matrix, *_, **__: _solved(out[0], matrix),
    "linalg_lu_factor_ex _linalg_det _linalg_slogdet": _lu,
    # Two triangles are solved.
    "linalg_lu_solve": lambda out, matrix, *_, **__: 2 * _solved(out, matrix),
    "_linalg_solve_ex": lambda out, matrix, *_, **__: (
        _lu(out, matrix) + 2 * _solved(out[0], matrix)
    ),
    "linalg_inv_ex": lambda _out, matrix, *_, **__: 2 * elements(matrix) * int(matrix.shape[-1]),
    "linalg_cholesky_ex": lambda _out, matrix, *_, **__: (
        elements(matrix) * int(matrix.shape[-1]) // 3
    ),
    "cholesky_solve": lambda out, _b, matrix, *_, **__: 2 * _solved(out, matrix),
    # Rows with their square norm and a one beside them: |x|² - 2·x·y + |y|² is one product.
    "_euclidean_dist": lambda out, x, *_: 2 * elements(out) * (int(x.shape[-1]) + 2),
    "_native_multi_head_attention": partial(_fused_layer, slice(4, 8)),
    "_transformer_encoder_layer_fwd": partial(_fused_layer, slice(2, 17)),
    "_cudnn_rnn mkldnn_rnn_layer": _recurrent,
    "_cudnn_rnn_backward mkldnn_rnn_layer_backward": lambda *args: 2 * _recurrent(*args),
}

# --- elementwise operations and reductions: one FLOP per element and function ---------------------
# A fused operator counts as many functions as it fuses, so that a fused and an unfused layer cost
# the same.


def _per_element(flops: int, place: int) -> Formula:
    return lambda _out, *args, **_: flops * elements(args[place])


def _log_softmax(_out: Any, x: Any, dim: int, *_: Any) -> int:
    rows = elements(x) // int(x.shape[dim]) if elements(x) else 0
    return 5 * elements(x) + rows  # maximum, subtract, exp, sum, log of the sum, subtract


def _normalisation(statistics: int, weight: int, out: Any, *args: Any) -> int:
    """Mean, subtract, square, mean, times 1/sqrt(variance + eps); then times weight, plus bias.

    `statistics` is the place in the result of one number for each group that is normalised
    together: one sum and one square root. `weight` is the place of the weight; the bias follows it.
    """
    steps = 5 + sum(args[place] is not None for place in (weight, weight + 1))
    return steps * elements(args[0]) + 2 * elements(out[statistics])


def _normalisation_backward(weight: int, mask: int, _out: Any, *args: Any) -> int:
    """The normalised input again (2); the gradient of input (7, or 8 with a weight), weight (2) and
    bias (1).
    """
    of_input, of_weight, of_bias = map(bool, args[mask])
    steps = (
        2 * (of_input or of_weight)
        + (7 + (args[weight] is not None)) * of_input
        + 2 * of_weight
        + of_bias
    )
    return steps * elements(args[1])


def _cudnn_batch_norm_backward(_out: Any, x: Any, _grad: Any, *_: Any) -> int:
    """As `_normalisation_backward` of all three gradients, which cuDNN always computes."""
    return (2 + 8 + 2 + 1) * elements(x)


def _batch_norm(out: Any, x: Any, weight: Any, bias: Any, *rest: Any, **_: Any) -> int:
    """The running statistics, a few FLOPs per channel, are ignored."""
    is_training = next((flag for flag in rest if isinstance(flag, bool)), True)
    if is_training:
        return _normalisation(1, 1, out, x, weight, bias)
    return (2 + (weight is not None) + (bias is not None)) * elements(x)


def _rms_norm(out: Any, x: Any, _shape: Any, weight: Any = None, *_: Any) -> int:
    return (3 + (weight is not None)) * elements(x) + 2 * elements(out[1])


def _rms_norm_backward(_out: Any, _grad: Any, x: Any, *rest: Any) -> int:
    (weight, mask) = rest[2:]
    return (1 + (5 + (weight is not None)) * bool(mask[0]) + 2 * bool(mask[1])) * elements(x)


def _activation(name: str, table: dict[str, int]) -> Formula:
    return lambda _out, x, *_, approximate="none": (
        table[f"{name}_tanh" if approximate == "tanh" else name] * elements(x)
    )


def _pooling(dimensions: int, out: Any, _x: Any, sizes: Sequence[int], *_: Any) -> int:
    """Every element of a window is read once: a comparison or an addition; in the backward pass,
    one addition each.
    """
    window = int(prod(sizes)) if len(sizes) == dimensions else int(sizes[0]) ** dimensions
    return window * elements(out[0] if isinstance(out, tuple) else out)


def _embedding_bag(_out: Any, rows: Any, indices: Any, *_: Any) -> int:
    """`rows` is the table, or the gradient of the sums: as wide."""
    return elements(indices) * int(rows.shape[-1])


def _index_put(
    _out: Any, _x: Any, _indices: Any, values: Any, accumulate: bool = False, *_: Any
) -> int:
    return elements(values) if accumulate else 0


def _optimizer(flops: int, _out: Any, params: Any, *_: Any, **options: Any) -> int:
    """One FLOP more for each option, and two for momentum after the first step, as torch's loop
    over tensors does.
    """
    extra = sum(
        bool(options.get(name)) for name in ("weight_decay", "amsgrad", "maximize", "nesterov")
    )
    momentum = bool(options.get("momentum")) and not options["is_first_step"]
    return (flops + extra + 2 * momentum) * elements(params)


ELEMENTWISE_FORMULAS: dict[str, Formula] = {
    "_softmax _safe_softmax": _per_element(5, 0),  # maximum, subtract, exp, sum, divide
    "_cdist_forward": lambda out, x, *_: (
        3 * elements(out) * int(x.shape[-1])
    ),  # subtract, power, add
    # Subtract, power, multiply, add.
    "_cdist_backward": lambda _out, grad, x, *_: 4 * elements(grad) * int(x.shape[-1]),
    "_softmax_backward_data": _per_element(4, 0),  # multiply, sum, subtract, multiply
    "_log_softmax": _log_softmax,
    "_log_softmax_backward_data": _per_element(4, 0),  # sum, exp, multiply, subtract
    "mse_loss": lambda _out, x, _target, reduction=1: (2 + (reduction != 0)) * elements(x),
    "mse_loss_backward": _per_element(3, 1),
    "nll_loss_forward nll_loss2d_forward": _per_element(1, 1),  # one element of each row
    "nll_loss_backward nll_loss2d_backward": _per_element(1, 2),
    "embedding_dense_backward": _per_element(
        1, 0
    ),  # an addition per element added, not per element of the table
    "_embedding_bag _embedding_bag_forward_only _embedding_bag_backward": _embedding_bag,
    "index_add": _per_element(1, 3),
    "index_put _index_put_impl": _index_put,
    "scatter_add": _per_element(1, 2),
    "_amp_foreach_non_finite_check_and_unscale": _per_element(1, 0),
    "native_layer_norm": partial(_normalisation, 2, 2),
    "native_group_norm": partial(_normalisation, 2, 1),
    "native_layer_norm_backward": partial(_normalisation_backward, 5, 7),
    "native_group_norm_backward": partial(_normalisation_backward, 4, 9),
    "batch_norm_backward native_batch_norm_backward": partial(_normalisation_backward, 2, 9),
    "cudnn_batch_norm_backward": _cudnn_batch_norm_backward,
    "native_batch_norm cudnn_batch_norm": _batch_norm,
    "_native_batch_norm_legit _batch_norm_with_update": _batch_norm,
    "_native_batch_norm_legit_no_training": lambda out, x, weight, bias, *_: _batch_norm(
        out, x, weight, bias, False
    ),
    "_fused_rms_norm": _rms_norm,
    "_fused_rms_norm_backward": _rms_norm_backward,
    "gelu": _activation("gelu", FLOPS_PER_ELEMENT),
    "silu": _activation("silu", FLOPS_PER_ELEMENT),
    "gelu_backward": _activation("gelu", GRADIENT_FLOPS_PER_ELEMENT),
    "silu_backward": _activation("silu", GRADIENT_FLOPS_PER_ELEMENT),
    # Times the mask, times 1/(1 - p).
    "native_dropout": lambda _out, x, _p, train=True: 0 if train is False else 2 * elements(x),
    "max_pool2d_with_indices avg_pool2d": partial(_pooling, 2),
    "max_pool3d_with_indices avg_pool3d": partial(_pooling, 3),
    "max_pool2d_with_indices_backward max_pool3d_with_indices_backward": _per_element(1, 0),
    "avg_pool2d_backward": lambda _out, grad, x, *sizes: _pooling(2, grad, x, *sizes),
    "avg_pool3d_backward": lambda _out, grad, x, *sizes: _pooling(3, grad, x, *sizes),
    "_fused_adam _fused_adamw": partial(
        _optimizer, 7
    ),  # lerp, mul, addcmul, sqrt, div, add, addcdiv
    "_fused_sgd": partial(_optimizer, 1),
    "_fused_adagrad": partial(_optimizer, 4),
}

for _kind, _formulas in (("products", PRODUCT_FORMULAS), ("elementwise", ELEMENTWISE_FORMULAS)):
    for _names, _formula in _formulas.items():
        operator(*(name if "." in name else f"aten.{name}" for name in _names.split()), kind=_kind)(
            _formula
        )
