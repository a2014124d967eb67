"""The kernels that a training step calls, each beside its definition, and how near they come to it.

A definition is written forward, as textbooks print it. It runs in fp64, where autograd derives its
gradients, and `rounding.RunningError` bounds what a kernel may err by. Shapes, strides and values
are drawn; the same ones each time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from test_claims.oracles.rounding import FP32, TF32, Precision, RunningError, compared
from test_claims.strategies import TORCH_DTYPES, laid_out

Shape = tuple[int, ...]
Call = Callable[..., Tensor]
# Kernels change their way above these numbers of elements in a row, or in a tensor.
SHORT, LONG_ROW, MANY, HUGE = SIZES = (200, 4_096, 65_536, 2**20)
OUTPUTS = 24
# Convolutions are few and small, because a CPU multiplies their 16 bits slowly.
FILTERS, WINDOW = 3, 2
# Rows of a table that are looked up several times.
REPEATED = 50
LAYOUTS = ("contiguous", "rows apart", "transposed", "every second")


def no_others(_shape):
    return ()


def one_row(shape):
    return (shape[-1:],)


def two_rows(shape):
    return 2 * one_row(shape)


def as_large(shape):
    return (shape,)


def keys_and_values(shape):
    return shape, shape


def weight_and_bias(shape):
    return (OUTPUTS, shape[-1]), (OUTPUTS,)


def matrices(shape):
    return ((*shape[:-2], shape[-1], OUTPUTS),)


@dataclass(frozen=True)
class Kernel:
    """Calls that all compute `definition`; where rows have a width it takes their places, too.

    others: the shapes of the arguments behind the first one.
    rounds: the passes whose intermediate results have the format of the arguments, not fp32.
    adds: the passes whose sums have that format, not fp32; `adds_on_cpu`: on a CPU alone.
    by_rows: a row of the result, and of its gradient, needs one row of the first argument alone.
    width: of a row, where `elements` counts pairs of rows, as attention has them; four dimensions.
    tf32_by_default: on CUDA, torch lets cuDNN round the factors of fp32 products to TF32.
    """

    definition: Call
    calls: tuple[Call, ...]
    others: Callable[[Shape], tuple[Shape, ...]] = no_others
    rounds: str = ""
    adds: str = ""
    adds_on_cpu: str = ""
    by_rows: bool = True
    width: int = 0
    layouts: tuple[str, ...] = LAYOUTS
    tf32_by_default: bool = False
    sizes: tuple[int, ...] = SIZES


KERNELS = {}


def computed_by(*calls, **options):
    """Registers the decorated function as the definition of these calls."""

    def register(definition):
        KERNELS[definition.__name__] = Kernel(definition, calls, **options)
        return definition

    return register


def linear_module(x, weight, bias):
    """The same kernel, whose turn has a contiguous argument of HUGE elements, for addmm."""
    layer = nn.Linear(*weight.shape[::-1], device="meta")
    return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (x,))


def product_and_bias(x, weight, bias):
    return torch.matmul(x, weight.mT) + bias


@computed_by(
    functional.linear, linear_module, product_and_bias, others=weight_and_bias, rounds="forward"
)
def linear(x, weight, bias):
    return x @ weight.mT + bias


def batched_product(a, b):
    return torch.bmm(a.flatten(0, -3), b.flatten(0, -3)).unflatten(0, a.shape[:-2])


@computed_by(
    torch.matmul,
    partial(torch.einsum, "...ij,...jk->...ik"),
    batched_product,
    others=matrices,
)
def matmul(a, b):
    return a @ b


def filters(dimensions):
    """The shapes of filters over the last dimensions; those before them are channels."""
    return lambda shape: ((FILTERS, shape[-dimensions - 1], *dimensions * [WINDOW]),)


def convolution(x, weight):
    """One example after the other, as torch's own kernel on a CPU does; places in a row."""
    dimensions = weight.dim() - 2
    for dim in range(-dimensions, 0):
        places = x.shape[dim] - WINDOW + 1
        x = torch.cat([x.narrow(dim, at, places) for at in range(WINDOW)], dim=-dimensions - 1)
    rows = weight.permute(0, *range(dimensions + 1, 0, -1)).flatten(1)
    examples = x.reshape(-1, rows.shape[1], x.shape[-dimensions:].numel())
    return torch.cat([rows @ example for example in examples.split(1)])


def convolved(call, x, weight):
    return call(x.reshape(-1, *x.shape[1 - weight.dim() :]), weight).flatten(2)


CONVOLUTION = Kernel(
    convolution,
    (partial(convolved, functional.conv1d),),
    filters(1),
    "backward",
    by_rows=False,
    tf32_by_default=True,
    sizes=SIZES[:-1],
)
KERNELS |= {
    "conv1d": CONVOLUTION,
    "conv2d": replace(
        CONVOLUTION, calls=(partial(convolved, functional.conv2d),), others=filters(2)
    ),
}


def layer_norm_of_rows(x, weight, bias):
    return functional.layer_norm(x, x.shape[-1:], weight, bias)


@computed_by(layer_norm_of_rows, others=two_rows, rounds="backward", adds_on_cpu="backward")
def layer_norm(x, weight, bias):
    centred = x - x.mean(-1, keepdim=True)
    variance = (centred * centred).mean(-1, keepdim=True)
    return centred * (variance + 1e-5) ** -0.5 * weight + bias


def of_channels(shape):
    return 2 * ((shape[1],),)


def group_norm_of_channels(x, weight, bias):
    return functional.group_norm(x, x.shape[1], weight, bias)


@computed_by(
    group_norm_of_channels, others=of_channels, rounds="backward", by_rows=False, sizes=SIZES[:2]
)
def group_norm(x, weight, bias):
    return layer_norm(x.flatten(2), weight[:, None], bias[:, None]).view(x.shape)


def rms_norm_of_rows(x, weight):
    return functional.rms_norm(x, x.shape[-1:], weight, 1e-5)


@computed_by(rms_norm_of_rows, others=one_row)
def rms_norm(x, weight):
    return x * ((x * x).mean(-1, keepdim=True) + 1e-5) ** -0.5 * weight


@computed_by(partial(torch.softmax, dim=-1), rounds="backward")
def softmax(x):
    powers = (x - x.detach().amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


@computed_by(partial(torch.log_softmax, dim=-1), rounds="forward backward")
def log_softmax(x):
    shifted = x - x.detach().amax(-1, keepdim=True)
    return shifted - shifted.exp().sum(-1, keepdim=True).log()


def classes(x):
    """A class for each row of `x`, one of its columns; they repeat, and are not in order."""
    rows = x.numel() // x.shape[-1]
    return torch.arange(rows, device=x.device) * 7 % x.shape[-1]


def loss_of_classes(x):
    return functional.cross_entropy(x.flatten(0, -2), classes(x))


@computed_by(loss_of_classes, rounds="forward backward", by_rows=False)
def cross_entropy(x):
    return -log_softmax(x).flatten(0, -2).gather(1, classes(x)[:, None]).mean()


@computed_by(functional.mse_loss, others=as_large, rounds="backward", by_rows=False)
def mse_loss(x, y):
    difference = x - y
    return (difference * difference).mean()


fused_attention = partial(functional.scaled_dot_product_attention, is_causal=True)


def attention_by_products(q, k, v):
    with sdpa_kernel(SDPBackend.MATH):
        return fused_attention(q, k, v)


@computed_by(
    fused_attention,
    attention_by_products,
    others=keys_and_values,
    rounds="forward backward",
    width=16,
    # fused kernels take no others
    layouts=("contiguous", "rows apart"),
)
def attention(q, k, v, rows):
    past = rows[:, None] >= torch.arange(k.shape[-2])
    scores = q @ k.mT * q.shape[-1] ** -0.5
    powers = (scores - scores.detach().amax(-1, keepdim=True)).exp() * past
    return powers / powers.sum(-1, keepdim=True) @ v


@computed_by(functional.gelu)
def gelu(x):
    return x * 0.5 * (1 + (x * 2**-0.5).erf())


@computed_by(partial(functional.gelu, approximate="tanh"))
def gelu_by_tanh(x):
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return x * 0.5 * (1 + inner.tanh())


@computed_by(functional.silu)
def silu(x):
    # x times its logistic function, whose slope cancels as the slope of tanh does
    return x * 0.5 * (1 + (x * 0.5).tanh())


@computed_by(torch.sigmoid, rounds="backward", sizes=SIZES[:2])
def sigmoid(x):
    return 0.5 * (1 + (x * 0.5).tanh())


@computed_by(torch.tanh, rounds="backward")
def tanh(x):
    return x.tanh()


@computed_by(torch.relu)
def relu(x):
    return x * (x > 0)


def lookups(table):
    """Each row of a table, not in order, and the first ones three times."""
    rows = table.numel() // table.shape[-1]
    each = torch.arange(rows, device=table.device) * 7 % rows
    return torch.cat([each, each[:REPEATED], each[:REPEATED]])


def embedded(table):
    return functional.embedding(lookups(table), table.flatten(0, -2))


def indexed(table):
    return table.flatten(0, -2)[lookups(table)]


@computed_by(embedded, indexed, rounds="backward", adds="backward", by_rows=False)
def embedding(table):
    return table.flatten(0, -2)[lookups(table)]


@computed_by(partial(torch.sum, dim=-1))
def row_sum(x):
    return x.sum(-1)


@computed_by(partial(torch.mean, dim=-1))
def row_mean(x):
    return x.mean(-1)


@computed_by(torch.sum, by_rows=False)
def total(x):
    return x.sum()


@computed_by(torch.linalg.vector_norm, torch.norm, rounds="backward", by_rows=False)
def norm(x):
    return (x * x).sum() ** 0.5


@computed_by(torch.add, others=one_row)
def add(x, y):
    return x + y


@computed_by(torch.mul, others=one_row, rounds="backward")
def multiply(x, y):
    return x * y


def half_turned(x):
    first, second = x.tensor_split(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


@computed_by(half_turned)
def turn(x):
    half = x.shape[-1] // 2 + x.shape[-1] % 2
    return torch.cat([x[..., half:] * -1, x[..., :half]], dim=-1)


@computed_by(torch.cos, rounds="backward")
def cosine(x):
    return x.cos()


@computed_by(torch.sin, rounds="backward")
def sine(x):
    return x.sin()


def drawn_shape(elements, width, rng):
    """Three or four dimensions with somewhat more elements, for LONG_ROW more in each row."""
    dimensions = 2 if width else rng.randint(1, 2)
    leading = [rng.randint(2, 3) for _ in range(dimensions)]
    side = math.ceil(math.sqrt(elements / math.prod(leading)))
    if width:
        return (*leading, side + rng.randint(1, 7), width)
    if elements == LONG_ROW:
        return (*leading, 2, elements + rng.randint(1, 900))
    return (*leading, side + rng.randint(1, 7), side + rng.randint(0, 5))


def layouts_of(kernel, arguments, turn):
    """The layout of each argument in this turn; over all turns each argument has every layout."""
    return [kernel.layouts[(turn + place) % len(kernel.layouts)] for place in range(arguments)]


def checked_rows(kernel, elements, shape, rng):
    """The rows that get a gradient: few of HUGE tensors, so that no others need be computed."""
    rows = shape[-2]
    if elements < HUGE or not kernel.by_rows:
        return torch.arange(rows)
    inner = rng.sample(range(2, rows - 2), 20)
    return torch.tensor([0, 1, *sorted(inner), rows - 2, rows - 1])


def torch_dtype(precision):
    """The dtype of tensors of a precision: TF32 is a way to multiply fp32 tensors."""
    return TORCH_DTYPES["fp32" if precision == "tf32" else precision]


def running_error(
    kernel,
    passing,
    precision,
    device,
    after=None,
):
    """The bounds of the errors of a kernel's forward or backward pass."""
    own = Precision.of(torch_dtype(precision))
    products = 0.0
    if kernel.tf32_by_default and device.type == "cuda" and precision == "fp32":
        precision = "tf32"
    if precision == "tf32":
        products = 2 * TF32.unit
    elif device.type == "cuda":
        # torch lets cuBLAS round the partial sums of a product that it splits
        products = own.unit
    adds = kernel.adds + (kernel.adds_on_cpu if device.type == "cpu" else "")
    results = own if passing in kernel.rounds else FP32
    accumulator = own if passing in adds else FP32
    return RunningError(results, accumulator, products, after)


@dataclass(frozen=True)
class Expected:
    """The gradient of a result, and what result and gradients should be, each with its bound."""

    above: Tensor
    values: list[Tensor]
    bounds: list[Tensor]


def expected(
    kernel,
    precision,
    device,
    arguments,
    generator,
    rows,
):
    """Result and gradients of these rows by the definition, from a drawn gradient of the result."""
    exact = [x.double().requires_grad_() for x in arguments]
    places = (rows,) if kernel.width else ()
    with running_error(kernel, "forward", precision, device) as forward:
        result = kernel.definition(*exact, *places)
    above = (torch.rand(result.shape, generator=generator) + 0.5).to(torch_dtype(precision))
    exact_above = above.double()
    with running_error(kernel, "backward", precision, device, forward) as errors:
        gradients = torch.autograd.grad(result, exact, exact_above)
    values = [result.detach(), *gradients]
    return Expected(above, values, [errors.of(x) for x in values])


def comparisons(kernel, precision, device, elements):
    """The result and the gradients of each call of a kernel against its definition."""
    name = kernel.definition.__name__
    rng = random.Random(f"{name} {precision} {elements}")
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    shape = drawn_shape(elements, kernel.width, rng)
    shapes = (shape, *kernel.others(shape))
    dtype = torch_dtype(precision)
    arguments = [torch.randn(each, generator=generator).to(dtype) for each in shapes]

    rows = checked_rows(kernel, elements, shape, rng)
    of_rows = partial(torch.index_select, dim=len(shape) - 2)
    first, *others = arguments
    arguments_of_rows = [of_rows(first, index=rows), *others]
    should = expected(kernel, precision, device, arguments_of_rows, generator, rows)
    for number, call in enumerate(kernel.calls):
        layouts = layouts_of(kernel, len(arguments), number + SIZES.index(elements))
        leaves = []
        for x, layout in zip(arguments, layouts, strict=True):
            leaves.append(laid_out(x.to(device), layout).detach().requires_grad_())
        result = call(*leaves)
        if kernel.by_rows:
            result = of_rows(result, index=rows.to(device))
        result.backward(should.above.to(device))
        got = [result, *(leaf.grad for leaf in leaves)]
        if kernel.by_rows:
            got[1] = of_rows(got[1], index=rows.to(device))
        said = f"{name} in {precision} [{shapes}, {', '.join(layouts)}]"
        for place, value in enumerate(should.values):
            what = f"gradient of argument {place}" if place else "result"
            yield compared(f"{what} of {said}", got[place], value, should.bounds[place])
