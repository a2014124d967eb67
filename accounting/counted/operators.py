"""FLOPs of single dispatched operators, for those that torch's own counter leaves out or gets wrong.

A formula takes an operator's result and its arguments, and reads nothing but their shapes, so it holds for tensors of
every device, `meta` included. To add one, decorate a function with the operator's name:

    @operator("aten.mv")
    def mv(_out, matrix, _vector):
        return 2 * elements(matrix)

A multiply-add is two FLOPs. The bias of a product is ignored, as torch ignores that of `addmm`: one addition per output
against 2k.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

from accounting.checks import validated_choice
from accounting.counted.result import ELEMENTWISE, PRODUCTS
from accounting.roofline import FLOPS_PER_ELEMENT, GRADIENT_FLOPS_PER_ELEMENT

Formula = Callable[..., int]


class Operator(NamedTuple):
    """The kind of an operator's work (`PRODUCTS` or `ELEMENTWISE`), and its FLOPs."""

    kind: int
    formula: Formula


OPERATORS: dict[str, Operator] = {}
KINDS = {"products": PRODUCTS, "elementwise": ELEMENTWISE}


def operator(*names: str, kind: str = "products") -> Callable[[Formula], Formula]:
    """Makes the decorated function the FLOP formula of the operators `names`, such as "aten.mv".

    The formula is called with the result, then with the operator's arguments in the order of its schema. A name covers
    all overloads and the form in place (`aten.addmv_`). `kind` is the figure that the FLOPs are counted in: "products"
    are sums of multiply-adds, comparable to 2mkn, "elementwise" is everything else.

    Raises ValueError for a name without a namespace, one that has a formula already, and another kind.

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


def elementwise(*names: str) -> Callable[[Formula], Formula]:
    return operator(*names, kind="elementwise")


def elements(tensor: Any) -> int:
    """Elements of a tensor, or of a list of tensors together; 0 for None."""
    if tensor is None:
        return 0
    if isinstance(tensor, (list, tuple)):
        return sum(elements(each) for each in tensor)
    return int(prod(tensor.shape))


# --- products: sums of multiply-adds, comparable to 2mkn --------------------------------------------------------------


def _product(place: int, out: Any, *args: Any, **_: Any) -> int:
    """Each result sums over the last dimension of one argument."""
    return 2 * elements(out) * int(args[place].shape[-1])


# The argument whose last dimension is summed over. aten.linear is an operator of its own on MPS alone.
for _place, _names in {
    0: "mv _int_mm _scaled_mm _scaled_mm_v2 _weight_int8pack_mm _weight_int4pack_mm _weight_int4pack_mm_for_cpu linear",
    1: "addmv _addmm_activation",
}.items():
    operator(*(f"aten.{name}" for name in _names.split()))(partial(_product, _place))

operator("aten.dot", "aten.vdot")(lambda _out, a, _b: 2 * elements(a))
operator("aten.addr")(lambda out, *_, **__: 2 * elements(out))
operator("aten.addbmm")(lambda _out, _added, a, b, **_: 2 * elements(a) * int(b.shape[-1]))


@operator("aten._grouped_mm", "aten._scaled_grouped_mm")
def _grouped_product(_out: Any, a: Any, b: Any, *_: Any, **__: Any) -> int:
    """Groups of rows, of columns or of terms, each with a matrix of its own; every group padded in full."""
    groups = int(a.shape[0]) if len(a.shape) == len(b.shape) == 3 else 1
    return 2 * groups * int(a.shape[-2]) * int(a.shape[-1]) * int(b.shape[-1])


@operator("aten.linear_backward")
def _linear_backward(_out: Any, x: Any, grad_output: Any, _weight: Any, output_mask: Any) -> int:
    """The gradients of input and weight pair the same factors as the forward pass; that of a bias is a sum."""
    return _product(0, grad_output, x) * (bool(output_mask[0]) + bool(output_mask[1]))


@operator("aten.convolution_backward")
def _convolution_backward(_out: Any, grad_output: Any, x: Any, weight: Any, *rest: Any) -> int:
    """Each of the two gradients pairs the same factors as the forward convolution does, whatever the groups.

    A weight has only 1/groups of the input channels. Torch's formula takes the input's channels instead, and so counts
    the gradient of the weight `groups` times.
    """
    _bias_sizes, _stride, _padding, _dilation, transposed, _output_padding, _groups, output_mask = rest
    positions = (x if transposed else grad_output).shape[2:]
    forward = 2 * int(x.shape[0]) * int(prod(positions)) * elements(weight)
    return forward * (bool(output_mask[0]) + bool(output_mask[1]))


@operator("aten._trilinear")
def _trilinear(
    _out: Any, a: Any, b: Any, c: Any, expand_a: Any, expand_b: Any, expand_c: Any, summed: Any, *_: Any
) -> int:
    """Σ a·b·c, a bilinear layer or a gradient of it: first a·b, summed over the dimensions that c lacks, then times c.

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


def _recurrent(passes: int, _out: Any, x: Any, *rest: Any) -> int:
    """Every matrix of weights meets every token once in the forward pass, twice in the backward pass.

    The weights are one list (cuDNN) or two tensors (oneDNN); biases are among cuDNN's.
    """
    weights = rest[0] if isinstance(rest[0], (list, tuple)) else rest[:2]
    tokens = elements(x) // int(x.shape[-1])
    return 2 * passes * tokens * sum(elements(weight) for weight in weights if len(weight.shape) == 2)


for _passes, _suffix in ((1, ""), (2, "_backward")):
    operator(f"aten._cudnn_rnn{_suffix}", f"aten.mkldnn_rnn_layer{_suffix}")(partial(_recurrent, _passes))


# --- elementwise operations and reductions: one FLOP per element and function -----------------------------------------
# A fused operator counts as many functions as it fuses, so that a fused and an unfused layer cost the same.


def _per_element(flops: int, place: int, _out: Any, *args: Any, **_: Any) -> int:
    return flops * elements(args[place])


# Operators that cost a fixed number of FLOPs per element of one argument, given by its place.
for _flops, _place, _names in (
    (5, 0, "_softmax _safe_softmax"),  # maximum, subtract, exp, sum, divide
    (4, 0, "_softmax_backward_data"),  # multiply, sum, subtract, multiply
    (4, 0, "_log_softmax_backward_data"),  # sum, exp, multiply, subtract
    (3, 1, "mse_loss_backward"),
    (1, 1, "nll_loss_forward nll_loss2d_forward"),  # one element of each row
    (1, 2, "nll_loss_backward nll_loss2d_backward"),
    (1, 0, "max_pool2d_with_indices_backward max_pool3d_with_indices_backward"),
    (1, 0, "embedding_dense_backward"),  # an addition per element that is added, not per element of the table
    (1, 3, "index_add"),
    (1, 2, "scatter_add"),
    (1, 0, "_amp_foreach_non_finite_check_and_unscale"),
):
    elementwise(*(f"aten.{name}" for name in _names.split()))(partial(_per_element, _flops, _place))


@elementwise("aten._log_softmax")
def _log_softmax(_out: Any, x: Any, dim: int, *_: Any) -> int:
    rows = elements(x) // int(x.shape[dim]) if elements(x) else 0
    return 5 * elements(x) + rows  # maximum, subtract, exp, sum, log of the sum, subtract


def _normalisation(statistics: int, weight: int, out: Any, *args: Any) -> int:
    """Mean, subtract, square, mean, times 1/sqrt(variance + eps); then times weight, plus bias.

    `statistics` is the place in the result of one number for each group that is normalised together: one sum and one
    square root. `weight` is the place of the weight; the bias follows it.
    """
    steps = 5 + sum(args[place] is not None for place in (weight, weight + 1))
    return steps * elements(args[0]) + 2 * elements(out[statistics])


def _normalisation_backward(weight: int, mask: int, _out: Any, *args: Any) -> int:
    """The normalised input again (2); the gradient of input (7, or 8 with a weight), weight (2) and bias (1)."""
    of_input, of_weight, of_bias = map(bool, args[mask])
    steps = 2 * (of_input or of_weight) + (7 + (args[weight] is not None)) * of_input + 2 * of_weight + of_bias
    return steps * elements(args[1])


elementwise("aten.native_layer_norm")(partial(_normalisation, 2, 2))
elementwise("aten.native_group_norm")(partial(_normalisation, 2, 1))
elementwise("aten.native_layer_norm_backward")(partial(_normalisation_backward, 5, 7))
elementwise("aten.native_group_norm_backward")(partial(_normalisation_backward, 4, 9))
elementwise("aten.batch_norm_backward", "aten.native_batch_norm_backward")(partial(_normalisation_backward, 2, 9))


@elementwise(
    "aten.native_batch_norm", "aten.cudnn_batch_norm", "aten._native_batch_norm_legit", "aten._batch_norm_with_update"
)
def _batch_norm(out: Any, x: Any, weight: Any, bias: Any, *rest: Any, **_: Any) -> int:
    """The running statistics, a few FLOPs per channel, are ignored."""
    training = next((flag for flag in rest if isinstance(flag, bool)), True)
    if training:
        return _normalisation(1, 1, out, x, weight, bias)
    return (2 + (weight is not None) + (bias is not None)) * elements(x)


@elementwise("aten._native_batch_norm_legit_no_training")
def _batch_norm_of_inference(out: Any, x: Any, weight: Any, bias: Any, *_: Any) -> int:
    return _batch_norm(out, x, weight, bias, False)


@elementwise("aten._fused_rms_norm")
def _rms_norm(out: Any, x: Any, _shape: Any, weight: Any = None, *_: Any) -> int:
    return (3 + (weight is not None)) * elements(x) + 2 * elements(out[1])


@elementwise("aten._fused_rms_norm_backward")
def _rms_norm_backward(_out: Any, _grad: Any, x: Any, *rest: Any) -> int:
    (weight, mask) = rest[2:]
    return (1 + (5 + (weight is not None)) * bool(mask[0]) + 2 * bool(mask[1])) * elements(x)


def _activation(flops: int, flops_of_tanh: int, _out: Any, x: Any, *_: Any, approximate: str = "none") -> int:
    return (flops_of_tanh if approximate == "tanh" else flops) * elements(x)


for _name in ("gelu", "silu"):
    for _suffix, _table in (("", FLOPS_PER_ELEMENT), ("_backward", GRADIENT_FLOPS_PER_ELEMENT)):
        _of_tanh = _table.get(f"{_name}_tanh", 0)
        elementwise(f"aten.{_name}{_suffix}")(partial(_activation, _table[_name], _of_tanh))


# Times the mask, times 1/(1 - p).
elementwise("aten.native_dropout")(lambda _out, x, _p, train=True: 0 if train is False else 2 * elements(x))
elementwise("aten.mse_loss")(lambda _out, x, _target, reduction=1: (2 + (reduction != 0)) * elements(x))


# Pooling reads every element of a window once: a comparison or an addition; in the backward pass, one addition each.


def _pooling(dimensions: int, out: Any, _x: Any, sizes: Sequence[int], *_: Any) -> int:
    window = int(prod(sizes)) if len(sizes) == dimensions else int(sizes[0]) ** dimensions
    return window * elements(out[0] if isinstance(out, tuple) else out)


def _average_pooling_backward(dimensions: int, _out: Any, grad: Any, x: Any, *sizes: Any) -> int:
    return _pooling(dimensions, grad, x, *sizes)


for _dimensions in (2, 3):
    elementwise(f"aten.max_pool{_dimensions}d_with_indices", f"aten.avg_pool{_dimensions}d")(
        partial(_pooling, _dimensions)
    )
    elementwise(f"aten.avg_pool{_dimensions}d_backward")(partial(_average_pooling_backward, _dimensions))


@elementwise("aten._embedding_bag", "aten._embedding_bag_forward_only", "aten._embedding_bag_backward")
def _embedding_bag(_out: Any, rows: Any, indices: Any, *_: Any) -> int:
    """`rows` is the table, or the gradient of the sums: as wide."""
    return elements(indices) * int(rows.shape[-1])


@elementwise("aten.index_put", "aten._index_put_impl")
def _index_put(_out: Any, _x: Any, _indices: Any, values: Any, accumulate: bool = False, *_: Any) -> int:
    return elements(values) if accumulate else 0


def _optimizer(flops: int, _out: Any, params: Any, *_: Any, **options: Any) -> int:
    """One FLOP more for each option, and two for momentum after the first step, as torch's loop over tensors does."""
    extra = sum(bool(options.get(name)) for name in ("weight_decay", "amsgrad", "maximize", "nesterov"))
    momentum = bool(options.get("momentum")) and not options["is_first_step"]
    return (flops + extra + 2 * momentum) * elements(params)


# lerp, mul, addcmul, sqrt, div, add, addcdiv
elementwise("aten._fused_adam", "aten._fused_adamw")(partial(_optimizer, 7))
elementwise("aten._fused_sgd")(partial(_optimizer, 1))
elementwise("aten._fused_adagrad")(partial(_optimizer, 4))
