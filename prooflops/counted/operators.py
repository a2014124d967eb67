"""FLOPs of the operators that torch's own counter leaves out or gets wrong.

A formula is called with an operator's result and its arguments. It reads only their shapes, so it
is valid on every device, `meta` included. To add one, decorate a function with the operator's
name:

    @operator("aten.mv")
    def mv(_out, matrix, _vector):
        return 2 * elements(matrix)

A multiply-add is two FLOPs. The bias of a product is ignored, as torch ignores that of `addmm`: one
addition per output against 2k.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
            raise ValueError(f"names must have a namespace, as in aten.mv, got {name!r}")
        if name in OPERATORS:
            raise ValueError(f"names must be new, but {name} already has a formula")

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


def width(tensor: Any) -> int:
    """The size of a tensor's last dimension."""
    return int(tensor.shape[-1])


# --- products: sums of multiply-adds, comparable to 2mkn ------------------------------------------


def product(names: str) -> Callable[[Formula], Formula]:
    """`operator` for products of torch's own, by their names in a row."""
    return operator(*(f"aten.{name}" for name in names.split()))


# aten.linear is an operator of its own on MPS alone.
@product(
    "mv linear _int_mm _scaled_mm _scaled_mm_v2 "
    "_weight_int8pack_mm _weight_int4pack_mm _weight_int4pack_mm_for_cpu"
)
def _product(out: Any, a: Any, *_: Any, **__: Any) -> int:
    """Each result sums over the last dimension of the first factor."""
    return 2 * elements(out) * width(a)


@product("addmv _addmm_activation")
def _added_product(out: Any, _added: Any, a: Any, *_: Any, **__: Any) -> int:
    return _product(out, a)


# A packed weight has no shape.
@operator("quantized.linear_dynamic", "quantized.linear_relu_dynamic")
def _packed_product(out: Any, x: Any, *_: Any) -> int:
    return 2 * elements(x) * width(out)


@product("dot vdot")
def _dot(_out: Any, a: Any, _b: Any) -> int:
    return 2 * elements(a)


@product("addr")
def _outer(out: Any, *_: Any, **__: Any) -> int:
    return 2 * elements(out)


@product("addbmm")
def _sum_of_products(_out: Any, _added: Any, a: Any, b: Any, **_: Any) -> int:
    return 2 * elements(a) * width(b)


@product("_grouped_mm _scaled_grouped_mm")
def _grouped_product(_out: Any, a: Any, b: Any, *_: Any, **__: Any) -> int:
    """Groups of rows, of columns or of terms, each with a matrix of its own; every group padded in
    full.
    """
    groups = int(a.shape[0]) if len(a.shape) == len(b.shape) == 3 else 1
    return 2 * groups * int(a.shape[-2]) * width(a) * width(b)


@product("linear_backward")
def _linear_backward(_out: Any, x: Any, grad: Any, _weight: Any, mask: Any) -> int:
    """Each gradient pairs the same factors as the forward pass; a bias's gradient is a sum."""
    return _product(grad, x) * sum(map(bool, mask[:2]))


@product("convolution_backward")
def _convolution_backward(
    _out: Any,
    grad: Any,
    x: Any,
    weight: Any,
    _bias_sizes: Any,
    _stride: Any,
    _padding: Any,
    _dilation: Any,
    transposed: bool,
    _output_padding: Any,
    _groups: int,
    mask: Sequence[bool],
) -> int:
    """Each of the two gradients pairs the same factors as the forward convolution does, whatever
    the groups.

    A weight has only 1/groups of the input channels. Torch's formula uses the input's channels
    instead, and so counts the gradient of the weight `groups` times.
    """
    positions = (x if transposed else grad).shape[2:]
    forward = 2 * int(x.shape[0]) * int(prod(positions)) * elements(weight)
    return forward * sum(map(bool, mask[:2]))


@product("_trilinear")
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
    then = [i for i in rest if i in summed]
    flops = 0
    for indices, sums in ((pair, first), (rest, then)):
        flops += (2 if sums else 1) * prod(sizes[i] for i in indices)
    return flops


@product("_cudnn_rnn mkldnn_rnn_layer")
def _recurrent(_out: Any, x: Any, weights: Any, *rest: Any) -> int:
    """Every matrix of weights multiplies every token once: one list of them (cuDNN), or two tensors
    (oneDNN).
    """
    if not isinstance(weights, (list, tuple)):
        weights = weights, rest[0]
    tokens = elements(x) // width(x)
    return 2 * tokens * sum(elements(each) for each in weights if len(each.shape) == 2)


@product("_cudnn_rnn_backward mkldnn_rnn_layer_backward")
def _recurrent_backward(*args: Any) -> int:
    return 2 * _recurrent(*args)


@product("linalg_solve_triangular")
def _solved(out: Any, matrix: Any, *_: Any, **__: Any) -> int:
    """Substitution by a triangular matrix: n multiply-adds for two elements of the result."""
    return elements(out) * width(matrix)


@product("triangular_solve")
def _solved_as_second_argument(out: Any, _b: Any, matrix: Any, *_: Any, **__: Any) -> int:
    return _solved(out[0], matrix)


@product("linalg_lu_solve")
def _solved_twice(out: Any, matrix: Any, *_: Any, **__: Any) -> int:
    return 2 * _solved(out, matrix)


@product("cholesky_solve")
def _solved_by_cholesky(out: Any, _b: Any, matrix: Any, *_: Any, **__: Any) -> int:
    return _solved_twice(out, matrix)


@product("linalg_lu_factor_ex _linalg_det _linalg_slogdet")
def _lu(_out: Any, matrix: Any, *_: Any, **__: Any) -> int:
    """LU factorisation: each of k pivots updates the rows below it, one column less each time;
    2/3·n³ of a square.
    """
    rows, columns = map(int, matrix.shape[-2:])
    k = min(rows, columns)
    of_one = 2 * rows * columns * k - (rows + columns) * k**2 + 2 * k**3 // 3
    return int(prod(matrix.shape[:-2])) * of_one


@product("_linalg_solve_ex")
def _factored_and_solved(out: Any, matrix: Any, *_: Any, **__: Any) -> int:
    return _lu(out, matrix) + _solved_twice(out[0], matrix)


@product("linalg_inv_ex")
def _inverse(_out: Any, matrix: Any, *_: Any, **__: Any) -> int:
    return 2 * elements(matrix) * width(matrix)


@product("linalg_cholesky_ex")
def _cholesky(_out: Any, matrix: Any, *_: Any, **__: Any) -> int:
    return elements(matrix) * width(matrix) // 3


@product("_euclidean_dist")
def _euclidean_distances(out: Any, x: Any, *_: Any) -> int:
    """|x|² - 2·x·y + |y|² is one product: rows with their square norm and a one beside them."""
    return 2 * elements(out) * (width(x) + 2)


MATRICES = ("qkv_weight", "proj_weight", "ffn_weight_1", "ffn_weight_2")


def fused_layer(name: str, arguments: str) -> None:
    """A layer with these arguments after its input, named as in the schema.

    Every matrix multiplies every token; attention adds its scores and values.
    """

    @product(name)
    def _fused_layer(_out: Any, x: Any, *values: Any, **_: Any) -> int:
        given = dict(zip(arguments.split(), values, strict=False))
        batch, tokens, dim = map(int, x.shape)
        matrices = [given.get(each) for each in MATRICES]
        return 2 * batch * tokens * (elements(matrices) + 2 * tokens * dim)


fused_layer(
    "_native_multi_head_attention",
    "key value embed_dim num_head qkv_weight qkv_bias proj_weight",
)
fused_layer(
    "_transformer_encoder_layer_fwd",
    "embed_dim num_heads qkv_weight qkv_bias proj_weight proj_bias use_gelu norm_first eps "
    "norm_weight_1 norm_bias_1 norm_weight_2 norm_bias_2 ffn_weight_1 ffn_bias_1 ffn_weight_2",
)


# --- elementwise operations and reductions: one FLOP per element and function ---------------------
# A fused operator counts each function that it fuses, so that a fused and an unfused layer cost
# the same.


def elementwise(names: str) -> Callable[[Formula], Formula]:
    """`operator` for elementwise operators of torch's own, by their names in a row."""
    return operator(*(f"aten.{name}" for name in names.split()), kind="elementwise")


def per_result(names: str, flops: int) -> None:
    """Operators that do `flops` FLOPs for each element of their result."""

    @elementwise(names)
    def _per_result(out: Any, *_: Any) -> int:
        return flops * elements(out)


# Maximum, subtract, exp, sum, divide.
per_result("_softmax _safe_softmax", 5)
# Multiply, sum, subtract, multiply; of the logarithm sum, exp, multiply, subtract.
per_result("_softmax_backward_data _log_softmax_backward_data", 4)
per_result("mse_loss_backward", 3)
per_result("silu", FLOPS_PER_ELEMENT["silu"])
per_result("silu_backward", GRADIENT_FLOPS_PER_ELEMENT["silu"])


def per_element(names: str, arguments: str) -> None:
    """Operators that do one FLOP per element of the last of `arguments`, such as an addition.

    Arguments are named as in the schema, from the first one on.
    """
    position = len(arguments.split())

    @elementwise(names)
    def _per_element(*result_and_arguments: Any, **_: Any) -> int:
        return elements(result_and_arguments[position])


per_element(
    "embedding_dense_backward max_pool2d_with_indices_backward max_pool3d_with_indices_backward "
    "_amp_foreach_non_finite_check_and_unscale",
    "gradients",
)
# One element of each row.
per_element("nll_loss_forward nll_loss2d_forward", "self target")
per_element("nll_loss_backward nll_loss2d_backward", "grad_output self target")
per_element("index_add", "self dim index source")
per_element("scatter_add", "self dim index")


@elementwise("_log_softmax")
def _log_softmax(_out: Any, x: Any, dim: int, *_: Any) -> int:
    """Maximum, subtract, exp, sum, subtract; the log of each sum."""
    rows = elements(x) // int(x.shape[dim]) if elements(x) else 0
    return 5 * elements(x) + rows


@elementwise("_cdist_forward")
def _cdist(out: Any, x: Any, *_: Any) -> int:
    """Subtract, power, add."""
    return 3 * elements(out) * width(x)


@elementwise("_cdist_backward")
def _cdist_backward(_out: Any, grad: Any, x: Any, *_: Any) -> int:
    """Subtract, power, multiply, add."""
    return 4 * elements(grad) * width(x)


@elementwise("mse_loss")
def _mse_loss(_out: Any, x: Any, _target: Any, reduction: int = 1) -> int:
    is_reduced = reduction != 0
    return (2 + is_reduced) * elements(x)


@elementwise("_embedding_bag _embedding_bag_forward_only _embedding_bag_backward")
def _embedding_bag(_out: Any, rows: Any, indices: Any, *_: Any) -> int:
    """`rows` is the table, or the gradient of the sums: as wide."""
    return elements(indices) * width(rows)


@elementwise("index_put _index_put_impl")
def _index_put(
    _out: Any, _x: Any, _indices: Any, values: Any, accumulate: bool = False, *_: Any
) -> int:
    return elements(values) if accumulate else 0


def _normalisation(x: Any, weight: Any, bias: Any, statistics: Any) -> int:
    """Mean, subtract, square, mean, times 1/sqrt(variance + eps); then times weight, plus bias.

    Each group that is normalised together has one of the `statistics`: one sum and one square root.
    """
    steps = 5 + (weight is not None) + (bias is not None)
    return steps * elements(x) + 2 * elements(statistics)


@elementwise("native_layer_norm")
def _layer_norm(out: Any, x: Any, _shape: Any, weight: Any, bias: Any, *_: Any) -> int:
    return _normalisation(x, weight, bias, statistics=out[2])


@elementwise("native_group_norm")
def _group_norm(out: Any, x: Any, weight: Any, bias: Any, *_: Any) -> int:
    return _normalisation(x, weight, bias, statistics=out[2])


@elementwise("native_batch_norm cudnn_batch_norm _native_batch_norm_legit _batch_norm_with_update")
def _batch_norm(out: Any, x: Any, weight: Any, bias: Any, *rest: Any, **_: Any) -> int:
    """The running statistics, a few FLOPs per channel, are ignored."""
    is_training = next((flag for flag in rest if isinstance(flag, bool)), True)
    if is_training:
        return _normalisation(x, weight, bias, statistics=out[1])
    return _batch_norm_in_evaluation(out, x, weight, bias)


@elementwise("_native_batch_norm_legit_no_training")
def _batch_norm_in_evaluation(_out: Any, x: Any, weight: Any, bias: Any, *_: Any) -> int:
    return (2 + (weight is not None) + (bias is not None)) * elements(x)


def _normalisation_backward(x: Any, weight: Any, mask: Sequence[bool]) -> int:
    """The normalised input again (2); the gradient of input (7, or 8 with a weight), weight (2) and
    bias (1).
    """
    of_input, of_weight, of_bias = mask
    steps = 2 if of_input or of_weight else 0
    if of_input:
        steps += 7 if weight is None else 8
    if of_weight:
        steps += 2
    if of_bias:
        steps += 1
    return steps * elements(x)


def normalisation_backward(names: str, arguments: str) -> None:
    """Operators with these arguments, named as in the schema, from the first one on."""

    @elementwise(names)
    def _backward(_out: Any, *values: Any) -> int:
        given = dict(zip(arguments.split(), values, strict=False))
        return _normalisation_backward(given["input"], given["weight"], given["output_mask"])


normalisation_backward(
    "native_layer_norm_backward",
    "grad_out input normalized_shape mean rstd weight bias output_mask",
)
normalisation_backward(
    "native_group_norm_backward", "grad_out input mean rstd weight N C HxW group output_mask"
)
normalisation_backward(
    "batch_norm_backward native_batch_norm_backward",
    "grad_out input weight running_mean running_var save_mean save_var train eps output_mask",
)


@elementwise("cudnn_batch_norm_backward")
def _cudnn_batch_norm_backward(_out: Any, x: Any, _grad: Any, weight: Any, *_: Any) -> int:
    """cuDNN always computes all three gradients."""
    return _normalisation_backward(x, weight, (True, True, True))


@elementwise("_fused_rms_norm")
def _rms_norm(out: Any, x: Any, _shape: Any, weight: Any = None, *_: Any) -> int:
    return (3 + (weight is not None)) * elements(x) + 2 * elements(out[1])


@elementwise("_fused_rms_norm_backward")
def _rms_norm_backward(
    _out: Any, _grad: Any, x: Any, _shape: Any, _root: Any, weight: Any, mask: Sequence[bool]
) -> int:
    of_input, of_weight = mask
    steps = 1
    if of_input:
        steps += 5 if weight is None else 6
    if of_weight:
        steps += 2
    return steps * elements(x)


def gelu(names: str, flops_per_element: Mapping[str, int]) -> None:
    """GELU or its gradient, both as large as their result."""

    @elementwise(names)
    def _gelu(out: Any, *_: Any, approximate: str = "none") -> int:
        kind = "gelu_tanh" if approximate == "tanh" else "gelu"
        return flops_per_element[kind] * elements(out)


gelu("gelu", FLOPS_PER_ELEMENT)
gelu("gelu_backward", GRADIENT_FLOPS_PER_ELEMENT)


@elementwise("native_dropout")
def _dropout(_out: Any, x: Any, _p: float, train: bool | None = True) -> int:
    """Times the mask, times 1/(1 - p)."""
    return 0 if train is False else 2 * elements(x)


def pooling(dimensions: int) -> None:
    """The formulas of pooling over this number of dimensions.

    Every element of a window is read once: a comparison or an addition; in the backward pass, one
    addition each.
    """

    def pooled(results: Any, sizes: Sequence[int]) -> int:
        window = int(prod(sizes)) if len(sizes) == dimensions else int(sizes[0]) ** dimensions
        return window * elements(results)

    @elementwise(f"max_pool{dimensions}d_with_indices")
    def _maximum(out: Any, _x: Any, sizes: Sequence[int], *_: Any) -> int:
        return pooled(out[0], sizes)

    @elementwise(f"avg_pool{dimensions}d")
    def _average(out: Any, _x: Any, sizes: Sequence[int], *_: Any) -> int:
        return pooled(out, sizes)

    @elementwise(f"avg_pool{dimensions}d_backward")
    def _average_backward(_out: Any, grad: Any, _x: Any, sizes: Sequence[int], *_: Any) -> int:
        return pooled(grad, sizes)


for dimensions in (2, 3):
    pooling(dimensions)


def _chosen(options: dict[str, Any]) -> int:
    """One FLOP more for each option, and two for momentum after the first step, as torch's loop
    over tensors does.
    """
    names = ("weight_decay", "amsgrad", "maximize", "nesterov")
    chosen = sum(bool(options.get(name)) for name in names)
    has_momentum = options.get("momentum") and not options["is_first_step"]
    return chosen + (2 if has_momentum else 0)


def fused_optimizer(names: str, flops: int) -> None:
    """Optimizers that, without options, do `flops` FLOPs for each parameter."""

    @elementwise(names)
    def _step(_out: Any, parameters: Any, *_: Any, **options: Any) -> int:
        return (flops + _chosen(options)) * elements(parameters)


# lerp, mul, addcmul, sqrt, div, add, addcdiv.
fused_optimizer("_fused_adam _fused_adamw", 7)
fused_optimizer("_fused_adagrad", 4)
fused_optimizer("_fused_sgd", 1)
