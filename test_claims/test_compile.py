"""Claims about torch.compile: one compilation, its gains, and its limits."""

import functools
import math
from itertools import pairwise

import pytest
import torch

from prooflops.memory import measured_memory
from test_claims.oracles import dispatched
from test_claims.oracles.dispatched import (
    Graphs,
    compiled,
    fresh,
    profiled_operators,
    profiled_product_flops,
)
from test_claims.oracles.messages import agree, at_least, at_most, between, equal
from test_claims.oracles.scalars import integers
from test_claims.oracles.tensors import metered
from test_claims.strategies import in_fp64

pytestmark = [
    # torch.compile imports a deprecated part of torch.
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    # A test disables the cache.
    pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled:UserWarning"),
]


def gelu(x):
    """GELU as the lecture writes it by hand: nine operations."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def dropout(x):
    return torch.nn.functional.dropout(x, 0.5)


def chain(*matrices):
    """The product a @ b @ c and so on."""
    return functools.reduce(torch.matmul, matrices)


def einsum_chain(*matrices):
    letters = "abcdef"[: len(matrices) + 1]
    operands = ",".join(first + second for first, second in pairwise(letters))
    return torch.einsum(f"{operands}->a{letters[-1]}", *matrices)


def products(a, b):
    """The product alone, with a bias, and in a batch."""
    return torch.stack(
        [a @ b, torch.addmm(torch.zeros_like(b), a, b), torch.bmm(a[None], b[None])[0]]
    )


def scaled(x):
    return 2 * x + 1


@pytest.fixture(scope="session", autouse=True)
def _compiled_in_this_process():
    """Without helper processes, whose start takes longer than all compilations here."""
    from torch._inductor import config

    with config.patch(compile_threads=1):
        yield


# The functions below are compiled once a session: without a cache the first call takes ten seconds.


@pytest.fixture(scope="session")
def x(device, sizing):
    """Numbers that exceed most caches, so that fusing saves passes over the memory."""
    wanted = 2**20 if device.type == "cpu" else 2**26
    return torch.randn(
        sizing.fitting(wanted, lambda elements: 8 * 4 * elements, least=2**20), device=device
    )


@pytest.fixture(scope="session")
def compiled_gelu(x):
    return compiled(gelu, x)


@pytest.fixture(scope="session")
def ones(device):
    return torch.ones(2**12, device=device)


def horner(x):
    return (((0.5 * x - 1) * x + 2) * x - 3) * x + 4


def wave(x):
    return torch.exp(-x * x) * torch.cos(3 * x)


@pytest.fixture(
    scope="session", params=[(gelu, 9), (horner, 8), (wave, 6)], ids=["gelu", "horner", "wave"]
)
def fused(request, x):
    """A function, its compiled form, and the numbers of its operations and compiled kernels."""
    from torch._inductor import metrics

    function, operations = request.param
    metrics.reset()
    as_one = compiled(fresh(function), x)
    return function, as_one, operations, metrics.generated_kernel_count


def graphs_after_each(lengths, device, **options):
    """The number of graphs after each call with a vector of these lengths, and of all runs."""
    backend = Graphs()
    counts = []
    function = torch.compile(fresh(scaled), backend=backend, **options)
    for number, length in enumerate(lengths):
        # Other values compile nothing.
        result = function(torch.full((length,), float(number), device=device))
        counts.append(backend.compiled)
        should = torch.full((length,), 2.0 * number + 1)
        equal(result, should, "the compiled result", length=length)

    return counts, backend.runs


@pytest.mark.claim("compile.once-then-reuse")
@pytest.mark.parametrize(
    ("options", "most"), [({}, 2), ({"dynamic": False}, 8)], ids=["by default", "dynamic=False"]
)
@pytest.mark.parametrize("drawn", [[5, 5, 6, 3, 5, 9]], ids=str)
def test_a_second_shape_is_compiled_for_any_size_or_each_for_itself(device, options, most, drawn):
    graphs, runs = graphs_after_each(drawn, device, **options)
    should = [min(len(set(drawn[: i + 1])), most) for i in range(len(drawn))]
    equal(graphs, should, "graphs after each call")
    equal(runs, len(drawn), "runs of a graph")


def under_autocast(function, x):
    with torch.autocast(x.device.type, torch.bfloat16):
        return function(x)


CHANGES = {
    "another dtype": torch.Tensor.half,
    "another number of dimensions": lambda x: x[None],
    "a size of 1": lambda x: x[:1],
    "a size of 0": lambda x: x[:0],
    "a gradient is wanted": lambda x: x.clone().requires_grad_(),
    "other strides": lambda x: x.repeat_interleave(2)[::2],
}


@pytest.mark.claim("compile.once-then-reuse")
@pytest.mark.parametrize("change", [*CHANGES, "autocast"])
def test_what_else_changes_compiles_once_more_and_is_then_reused_too(device, change):
    backend = Graphs()
    x = torch.ones(4, device=device)
    counts = []
    function = torch.compile(fresh(scaled), backend=backend)
    for changed in (False, False, True, True, False):
        if not changed:
            function(x)
        elif change == "autocast":
            under_autocast(function, x)
        else:
            function(CHANGES[change](x))
        counts.append(backend.compiled)

    equal(counts, [1, 1, 2, 2, 2], "graphs after each call")


@pytest.mark.claim("compile.once-then-reuse")
def test_beyond_a_limit_of_compilations_calls_run_uncompiled(device, record_figure):
    from torch._dynamo import config

    # Before torch 2.7 the limit had the second name.
    names = ("recompile_limit", "cache_size_limit")
    limit = next(name for name in names if hasattr(config, name))
    record_figure(f"at most {getattr(config, limit)} compilations of a function")
    with config.patch({limit: 3}):
        got = graphs_after_each(range(2, 8), device, dynamic=False)
    equal(got, ([1, 2, 3, 3, 3, 3], 3), "graphs after each call, and runs")


@pytest.mark.claim("compile.once-then-reuse")
@pytest.mark.needs("c++")
def test_the_first_call_pays_for_the_compilation_and_the_others_do_not(
    compiled_gelu, x, speed, record_figure
):
    record_figure(f"first call {compiled_gelu.first_call_s:.1f} s")
    four = x[:4]
    again = compiled(fresh(gelu), four)

    def first():
        torch.compile(fresh(gelu), backend=Graphs())(four)

    claim = "the first call of a function, even without generated code, against later ones"
    speed.assert_slower(first, lambda: again(four), claim, at_least=10)


@pytest.mark.claim("compile.fuses", "compile.same-values")
def test_all_operations_become_one_that_allocates_its_result_alone(device, fused, x):
    function, as_one, operations, kernels = fused
    equal(kernels, 1, "kernels")

    arithmetic = {f"aten::{name}" for name in ("mul", "add", "sub", "neg", "exp", "cos", "tanh")}
    others = {gelu: x.bfloat16(), horner: x.half().view(2, -1), wave: x.double()[::2]}
    for each in (x, others[function]):
        as_one(each)
        eager = profiled_operators(function, each)
        left = profiled_operators(as_one, each)
        shared = arithmetic & set(eager)
        at_least(len(shared), 3, "kinds of arithmetic uncompiled", dtype=each.dtype)

        apart = {name for name in left if name.removesuffix("_") in arithmetic}
        equal(apart, set(), "arithmetic compiled", dtype=each.dtype)

        exact = function(in_fp64(each))
        off = (in_fp64(as_one(each)) - exact).abs().max() / exact.abs().max()
        near = max(torch.finfo(each.dtype).eps, 1e-6)
        at_most(off.item(), near, "the error over the largest value", dtype=each.dtype)

    if metered(device) != device:
        return
    with measured_memory(device) as separate:
        function(x)
    with measured_memory(device) as fused_memory:
        as_one(x)
    equal(separate.allocated_bytes // x.nbytes, operations, "tensors allocated uncompiled")
    equal(fused_memory.allocated_bytes / x.nbytes, 1, "tensors allocated compiled")


@pytest.mark.claim("compile.fuses", "compile.better-than-hand")
@pytest.mark.needs("c++")
def test_fused_operations_are_faster_than_one_after_the_other(fused, x, speed):
    function, as_one, operations, _ = fused
    claim = f"{operations} operations, uncompiled against compiled"
    speed.assert_slower(lambda: function(x), lambda: as_one(x), claim, pairs=21)


@pytest.mark.claim("compile.fuses")
@pytest.mark.needs("c++")
def test_of_few_elements_a_compiled_call_is_slower_than_the_operations(device, x, speed):
    if device.type != "cpu":
        pytest.skip("on a GPU the launches can take longer than calling the compiled function")
    small = x[:4]
    as_one = compiled(fresh(scaled), small)
    claim = "compiled against uncompiled, 4 elements"
    speed.assert_slower(lambda: as_one(small), lambda: scaled(small), claim)


def least_flops(widths):
    """The FLOPs of a chain of matrices in its cheapest order.

    Every split of the chain into two chains is tried as its last product.
    """
    orders = []
    for split in range(1, len(widths) - 1):
        last_product = 2 * widths[0] * widths[split] * widths[-1]
        left, right = widths[: split + 1], widths[split:]
        orders.append(least_flops(left) + least_flops(right) + last_product)
    return min(orders, default=0)


def flops_from_the_left(widths):
    return sum(2 * widths[0] * m * n for m, n in pairwise(widths[1:]))


CHEAP_FROM_THE_RIGHT = [12, 12, 12, 2]
CHEAPEST_FROM_THE_MIDDLE = [7, 12, 2, 11, 3]


def chains(*matrices):
    """A plain product and an einsum, of matrices of their own."""
    return chain(*matrices[:3]), einsum_chain(*matrices[3:])


@pytest.mark.claim("compile.best-order", "compile.better-than-hand")
@pytest.mark.parametrize("enabled", [False, True])
def test_a_chain_runs_from_the_left_unless_an_einsum_has_opt_einsum(enabled):
    from torch._inductor import config

    chained = pairwise(CHEAP_FROM_THE_RIGHT), pairwise(CHEAPEST_FROM_THE_MIDDLE)
    matrices = [integers(*shape) for shapes in chained for shape in shapes]
    # The keys of the cache on disk ignore whether opt_einsum is enabled.
    uncached = config.patch(force_disable_caches=True)
    # The order is chosen before code is generated; the compiler's own backend is tried with it.
    backend = "inductor" if enabled else "aot_eager"
    with dispatched.opt_einsum(enabled=enabled), uncached:
        as_one = compiled(fresh(chains), *matrices, backend=backend)
        got = profiled_product_flops(as_one, *matrices)
        eager = profiled_product_flops(chains, *matrices)

    product = flops_from_the_left(CHEAP_FROM_THE_RIGHT)
    einsum = (least_flops if enabled else flops_from_the_left)(CHEAPEST_FROM_THE_MIDDLE)
    assert product > least_flops(CHEAP_FROM_THE_RIGHT), "the product is cheapest from the left"

    should = product + einsum
    agree("FLOPs", compiled=got, uncompiled=eager, should=should)


def ones_and_a_bit(device, bit):
    """A matrix of 1 + 2^-bit everywhere, and a permutation.

    Each output has one term, so only precision can be lost. At this size kernels are those of large
    products.
    """
    ones = torch.full((300, 300), 1 + 2.0**-bit, device=device)
    return ones, torch.eye(300, device=device).flip(0)


@pytest.fixture(scope="session")
def compiled_products(device):
    return compiled(products, *ones_and_a_bit(device, 1))


@pytest.mark.claim("compile.mixed-precision")
@pytest.mark.parametrize("bit", [1, 8, 9, 11, 12, 23])
def test_compiling_leaves_products_in_fp32(device, compiled_products, bit):
    result = compiled_products(*ones_and_a_bit(device, bit))
    equal(result.dtype, torch.float32, "the compiled product's dtype")
    equal(result.unique().tolist(), [1 + 2.0**-bit], "values of the compiled product")


@pytest.mark.claim("compile.mixed-precision")
def test_autocast_lowers_the_precision_compiled_and_uncompiled(device):
    backend = Graphs()
    function = torch.compile(fresh(products), backend=backend)
    for name, call in {"compiled": function, "uncompiled": products}.items():
        with torch.autocast(device.type, torch.bfloat16):
            result = call(*ones_and_a_bit(device, 12))
        got = result.dtype, result.unique().tolist()
        equal(got, (torch.bfloat16, [1.0]), "dtype and values under autocast", name=name)

    equal(backend.compiled, 1, "graphs compiled")


@pytest.mark.claim("compile.same-values")
def test_compiled_and_uncompiled_agree_to_rounding_for_any_number(compiled_gelu, x, record_figure):
    """Random bit patterns have every exponent, subnormals, infinities and NaNs among them."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, x.shape, generator=generator).to(torch.int32)
    patterns = bits.view(torch.float32).to(x.device)

    def first_million(values):
        return values[: 2**20].cpu().double()

    fused = first_million(compiled_gelu(patterns))
    eager = first_million(gelu(patterns))
    argument = first_million(patterns)
    equal(fused.isnan(), eager.isnan(), "where the compiled result is NaN")

    valid = ~eager.isnan() & argument.isfinite()
    eps = torch.finfo(torch.float32).eps
    least = torch.finfo(torch.float32).tiny
    exact = gelu(argument)
    bound = 8 * eps * argument.abs() + least
    for name, values in {"compiled": fused, "uncompiled": eager}.items():
        off = ((values - exact).abs() / bound)[valid]
        worst = argument[valid][off.argmax()].item()
        at_most(off.max().item(), 1, "the error in 8 roundings", name=name, worst=worst)

    same = (fused == eager)[valid].double().mean().item()
    record_figure(f"{1 - same:.2%} of a million results differ in some bit")


def after_seed(function, *arguments):
    torch.manual_seed(0)
    return function(*arguments)


@pytest.mark.claim("compile.same-values")
def test_dropout_draws_other_numbers_unless_fallback_random_is_set(ones):
    eager = after_seed(dropout, ones)
    fused = after_seed(compiled(dropout, ones), ones)
    differ = (fused != eager).float().mean().item()
    # Independent masks differ in half of their elements.
    between(differ, 0.4, 0.6, "the share of masks that differ")

    for name, mask in {"compiled": fused, "uncompiled": eager}.items():
        equal(mask.unique().tolist(), [0, 2], "values of dropout(ones)", name=name)
        kept = (mask == 2).float().mean().item()
        between(kept, 0.4, 0.6, "the share that dropout keeps", name=name)

    fallback = compiled(fresh(dropout), ones, options={"fallback_random": True})
    with_fallback = after_seed(fallback, ones)
    equal(with_fallback, eager, "the compiled mask with fallback_random=True")


@pytest.mark.claim("compile.same-values")
def test_a_compiled_net_has_outputs_and_gradients_of_the_uncompiled_one(device):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)]
    net = torch.nn.Sequential(torch.nn.LayerNorm(64), *layers).to(device)
    # The inputs have three dimensions; the last is not contiguous.
    inputs = torch.randn(4, 64, 30, device=device).mT

    def outputs_and_gradients(forward):
        net.zero_grad()
        outputs = forward(inputs)
        outputs.square().mean().backward()
        gradients = {name: p.grad.clone() for name, p in net.named_parameters()}
        return {"outputs": outputs.detach(), **gradients}

    eager = outputs_and_gradients(net)
    fused = outputs_and_gradients(compiled(net, inputs))
    net.compile()
    in_place = outputs_and_gradients(net)
    for name, values in [*fused.items(), *in_place.items()]:
        off = (values - eager[name]).abs().max().item() / eager[name].abs().max().item()
        at_most(off, 1e-5, "the error over the largest value", name=name)


@pytest.fixture(scope="session")
def large(device):
    return [torch.randn(4096, 4096, device=device) for _ in range(2)]


@pytest.mark.claim("compile.uses-hardware")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_compiled_product_takes_the_time_of_the_uncompiled_one(large, speed, dtype):
    a, b = (matrix.to(dtype) for matrix in large)
    function = compiled(fresh(chain), a, b)
    claim = f"an uncompiled product in {dtype} against a compiled one"
    bounds = {"at_least": 1 / 1.5, "at_most": 1.5}
    speed.assert_slower(lambda: chain(a, b), lambda: function(a, b), claim, **bounds)


@pytest.mark.claim("compile.uses-hardware")
@pytest.mark.needs("sm>=8.0")
def test_compiled_products_use_tensor_cores_for_bf16_and_not_for_fp32(large, speed):
    low = [matrix.bfloat16() for matrix in large]
    in_fp32 = compiled(fresh(chain), *large)
    in_bf16 = compiled(fresh(chain), *low)
    claim = "a compiled product in fp32 against bf16"
    speed.assert_slower(lambda: in_fp32(*large), lambda: in_bf16(*low), claim, at_least=1.5)
