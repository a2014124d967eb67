"""Claims about FLOPs of operations: formulas, counted operations, dispatch and time."""

import itertools
import operator
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import accounting
from accounting.attention import Attention, attention_flops
from accounting.flops import (
    broadcast_matmul_flops,
    einsum_flops,
    elementwise_flops,
    matmul_flops,
)
from accounting.roofline import elementwise_work
from prooflops import counted
from test_claims.oracles import scalars
from test_claims.oracles.dispatched import product_flops
from test_claims.oracles.kernels import OPERATIONS, Operands, product
from test_claims.oracles.messages import agree, equal
from test_claims.oracles.scalars import Operations, integers
from test_claims.strategies import (
    TORCH_DTYPES,
    dtypes_among,
    fewer,
    shapes,
    sizes,
    stretched,
)


@pytest.mark.claim("flops.matmul-2mnk", "flops.reason-per-output", "flops.add-mul-misconception")
@pytest.mark.claim("flops.example-ratio")
@given(m=sizes(), k=sizes(), n=sizes())
def test_matmul_costs_a_multiplication_and_an_addition_per_term(m, k, n):
    operations = Operations()
    a = integers(m, k)
    b = integers(k, n)
    product = scalars.matmul(operations.array(a), operations.array(b))
    equal(scalars.tensor(product), a @ b, "the oracle's own product")
    terms = m * k * n
    equal((operations.multiplications, operations.additions), (terms, terms), "products and sums")
    equal(matmul_flops(m, k, n), operations.flops, "matmul_flops")
    # A row alone, a column alone, and the inner product of both.
    for left, right in itertools.product((a, a[0]), (b, b[:, 0])):
        should = 2 * k * (left @ right).numel()
        equal(broadcast_matmul_flops(left.shape, right.shape), should, "broadcast_matmul_flops")

    equal(operations.flops == 2 * m * n, k == 1, "whether two FLOPs an output are enough")

    square = Operations()
    _ = square.array(a) * square.array(a)
    equal(operations.flops, 2 * n * square.flops, "FLOPs of the product by those of a square")

    least = Operations()
    for row, column in itertools.product(least.array(a), least.array(b).T):
        # Its first addition is a copy.
        scalars.inner_product(row, column)
    equal(least.flops, m * n * (2 * k - 1), "the least FLOPs")


@pytest.mark.claim("flops.matmul-2mnk", "matmul.einsum-efficient")
@fewer
@given(
    m=sizes(2, 16),
    k=sizes(2, 16),
    n=sizes(2, 16),
    huge=st.booleans(),
    dtype=dtypes_among(["fp32", "bf16"]),
)
@example(m=3, k=0, n=2, huge=False, dtype="fp32")
# A float no longer holds their number of FLOPs.
@example(m=13, k=15, n=11, huge=True, dtype="bf16")
def test_torch_dispatches_2mkn_flops_whatever_the_call(device, m, k, n, huge, dtype):
    if huge:
        m, k, n = m**5, k**5, n**5
        device = "meta"
    shapes_of = (m, k), (k, n), (n,)
    a, b, c = (integers(*of, device=device).to(TORCH_DTYPES[dtype]) for of in shapes_of)
    formula = matmul_flops(m, k, n)
    for name, call in {
        "a @ b": lambda: a @ b,
        "addmm": lambda: torch.addmm(c, a, b),
        "linear": lambda: torch.nn.functional.linear(a, b.T),
        "bmm": lambda: torch.bmm(a[None], b[None]),
        "einsum": lambda: torch.einsum("mk,kn->mn", a, b),
    }.items():
        equal(product_flops(call), formula, "FLOPs dispatched", name=name)


@pytest.mark.claim("flops.batched")
@given(
    batch=shapes((0, 4), (0, 3)), m=sizes(most=3), k=sizes(most=3), n=sizes(most=3), data=st.data()
)
def test_a_batch_costs_the_product_of_each_of_its_elements(device, batch, m, k, n, data):
    """Each operand has any of the batch's dimensions, of its size or 1; or one has none of them."""
    drawn = [data.draw(stretched(batch)) for _ in "ab"]
    for a_batch, b_batch in (drawn, ((), batch), (batch, ())):
        operations = Operations()
        a = integers(*a_batch, m, k)
        b = integers(*b_batch, k, n)
        product = scalars.matmul(operations.array(a), operations.array(b))
        equal(scalars.tensor(product), a @ b, "the oracle's own product")
        agree(
            "FLOPs",
            formula=broadcast_matmul_flops(a.shape, b.shape),
            dispatched=product_flops(torch.matmul, a.to(device), b.to(device)),
            counted=operations.flops,
        )
        # The same with large sizes, but for those of 1.
        a, b = (
            torch.empty([100 * size if size > 1 else size for size in x.shape], device="meta")
            for x in (a, b)
        )
        dispatched = product_flops(torch.matmul, a, b)
        equal(broadcast_matmul_flops(a.shape, b.shape), dispatched, "FLOPs of large batches")


@pytest.mark.parametrize(
    ("a_shape", "b_shape", "number"),
    [
        pytest.param((4, 8, 16, 32), (32, 2), 65_536, marks=pytest.mark.claim("flops.batched")),
        pytest.param(
            (4, 8, 16, 32), (4, 8, 32, 64), 2_097_152, marks=pytest.mark.claim("flops.batched")
        ),
        pytest.param(
            (1024, 512), (512, 256), 268_435_456, marks=pytest.mark.claim("flops.example-268M")
        ),
    ],
)
def test_the_worked_products_cost_what_torch_dispatches(device, a_shape, b_shape, number):
    a = torch.rand(a_shape, device=device)
    b = torch.rand(b_shape, device=device)
    dispatched = product_flops(lambda: a @ b)
    formula = broadcast_matmul_flops(a_shape, b_shape)
    einsum = einsum_flops("...mk,...kn->...mn", a_shape, b_shape)
    agree("FLOPs", formula=formula, einsum=einsum, dispatched=dispatched, stated=number)


@pytest.mark.claim("flops.cubic", "flops.one-dimension", "flops.add")
@given(sides=st.tuples(*[sizes(2, 3000)] * 3), factor=sizes(2, 4))
@example(sides=(3, 3, 3), factor=2)
def test_a_product_grows_with_the_cube_an_addition_with_the_square(sides, factor):
    def costs(m, k, n):
        a, b = (torch.empty(shape, device="meta") for shape in ((m, k), (k, n)))
        with counted.flops() as elementwise:
            a + a
        product = product_flops(lambda: a @ b)
        agree("FLOPs of a product", formula=matmul_flops(m, k, n), dispatched=product)
        added = elementwise.elementwise
        agree("FLOPs of an addition", formula=elementwise_flops((m, k), (m, k)), dispatched=added)
        return product, added

    product, added = costs(*sides)
    for grown in ({0}, {1}, {2}, {0, 1, 2}):
        longer = list(sides)
        for at in grown:
            longer[at] *= factor
        larger, larger_added = costs(*longer)
        equal(larger, factor ** len(grown) * product, "FLOPs", grown=grown)
    equal(larger_added, factor**2 * added, "FLOPs of an addition")


def stretched_shape(operand, dims):
    """The size of each dimension that the operand has, and 1 where it lacks one."""
    shape = []
    for size, operands in dims:
        shape.append(size if operand in operands else 1)
    return tuple(shape)


@pytest.mark.claim("flops.add", "flops.elementwise")
@given(dims=st.lists(st.tuples(sizes(most=5), st.sampled_from(["xy", "x", "y"])), max_size=3))
@example(dims=[(3, "xy"), (4, "xy")])
@example(dims=[(3, "x"), (4, "y")])  # (3, 1) and (1, 4)
@example(dims=[(0, "xy"), (4, "xy")])
def test_adding_multiplying_or_relu_costs_one_flop_per_element(device, dims):
    x_shape = stretched_shape("x", dims)
    y_shape = stretched_shape("y", dims)
    x = integers(*x_shape, device=device)
    y = integers(*y_shape, device=device)
    formula = elementwise_flops(x_shape, y_shape)
    for name in ("add", "sub", "mul"):
        operation = getattr(operator, name)
        function = getattr(torch, name)
        tally = Operations()
        values = scalars.tensor(operation(tally.array(x), tally.array(y)))
        for way in (
            operation,
            function,
            partial(function, out=torch.empty(values.shape, device=device)),
            getattr(operator, f"i{name}"),
            getattr(torch.Tensor, f"{name}_"),
        ):
            # In place the first operand has the shape of the result.
            whole = x.expand(values.shape).clone()
            with counted.flops() as dispatched:
                got = way(whole, y)
            equal(got, values, "the oracle's own values", way=way)
            agree(name, formula=formula, dispatched=dispatched.elementwise, counted=tally.flops)
    tally = Operations()
    values = scalars.tensor(scalars.relu(tally.array(x)))
    for way in (torch.relu, torch.relu_):
        with counted.flops() as dispatched:
            got = way(x.clone())
        equal(got, values, "the oracle's own relu", way=way)
        equal(dispatched.elementwise, tally.flops, "FLOPs", way=way)
    for name in ("add", "multiply", "relu"):
        equal(elementwise_work(x_shape, name).flops, tally.flops, "elementwise_work", name=name)


@pytest.mark.claim("flops.elementwise", "roof.gelu")
@given(shape=shapes((1, 3), (1, 5)))
def test_gelu_costs_nine_flops_per_element_by_tanh_and_five_by_erf(shape):
    x = torch.randn(shape)
    for name, approximate, each in (("gelu_tanh", "tanh", 9), ("gelu", "none", 5)):
        tally = Operations()
        values = scalars.tensor(scalars.gelu(tally.array(x), approximate))
        with counted.flops() as dispatched:
            got = torch.nn.functional.gelu(x, approximate=approximate)
        torch.testing.assert_close(values, got)
        agree(
            "FLOPs of GELU",
            counted=tally.flops,
            dispatched=dispatched.elementwise,
            formula=elementwise_flops(x.shape, flops_per_element=each),
            work=elementwise_work(x.shape, name).flops,
            should=each * x.numel(),
        )


@pytest.mark.claim("flops.example-square", "flops.example-ratio")
def test_squaring_a_1024x512_matrix_costs_524_288_flops(device):
    x = torch.rand(1024, 512, device=device)
    with counted.flops() as product:
        x * x
    with counted.flops() as power:
        x**2
    agree(
        "FLOPs of a square",
        formula=elementwise_flops((1024, 512)),
        product=product.elementwise,
        power=power.elementwise,
        stated=524_288,
    )
    equal(matmul_flops(1024, 512, 256), 512 * 524_288, "FLOPs of the product as worked")
    unseen = product_flops(lambda: (x * x, x**2))
    equal(unseen, 0, "what torch's FlopCounterMode counts")


@pytest.mark.claim("flops.dominates")
@pytest.mark.parametrize(
    ("name", "each"),
    [
        ("layer norm", 7),
        ("softmax", 5),
        ("gelu", 5),
        ("add", 1),
        ("relu", 1),
    ],
    ids=str,
)
def test_other_operations_take_more_of_the_time_than_of_the_flops(device, speed, name, each):
    n = 256 if device.type == "cpu" else 4096
    operands = Operands.of(n * n, device)
    of_flops = elementwise_flops((n, n), flops_per_element=each) / matmul_flops(n, n, n)
    what = f"{name} with {of_flops:.2%} of the FLOPs of the product behind it, in time"
    speed.assert_slower(
        lambda: OPERATIONS[name](operands), product(device, "fp32", n), what, at_least=2 * of_flops
    )


@pytest.mark.claim("flops.small-regime")
@pytest.mark.parametrize(("n", "name"), [(4, "mm"), (8, "mm"), (8, "matmul"), (8, "bmm")])
def test_a_tiny_product_takes_far_longer_than_its_flops_would(device, speed, n, name):
    side = 64 if device.type == "cpu" else 1024
    by_flops = matmul_flops(n, n, n) / matmul_flops(side, side, side)
    what = f"{n} x {n} against {side} x {side} ({1 / by_flops:,.0f} times the FLOPs), in time"
    multiply = getattr(torch, name)
    batch = [1] * (name == "bmm")
    tiny, large = (torch.rand(*batch, of, of, device=device) for of in (n, side))
    speed.assert_slower(
        lambda: multiply(tiny, tiny), lambda: multiply(large, large), what, at_least=10 * by_flops
    )


@pytest.mark.claim("flops.crude")
@pytest.mark.parametrize("times", [1, 2])
def test_products_of_equal_flops_take_unequal_times(device, speed, times):
    on_cpu = device.type == "cpu"
    n = times * (64 if on_cpu else 512)
    thin = times * (1 if on_cpu else 2)
    wide = times * (512 if on_cpu else 8192)
    equal(matmul_flops(wide, thin, wide), matmul_flops(n, n, n), "FLOPs")
    what = f"({wide}, {thin}) by ({thin}, {wide}) against {n} x {n}, the same FLOPs, in time"
    speed.assert_slower(
        product(device, "fp32", wide, thin, wide), product(device, "fp32", n), what, at_least=2
    )


@pytest.mark.claim("flops.crude")
@given(heads=sizes(most=3), length=sizes(2, 64), width=sizes(8, 32))
@example(heads=2, length=64, width=32)
def test_the_kernel_that_runs_decides_what_is_counted(heads, length, width):
    """The formula knows shapes alone; torch's counter has no formula for the CPU's fused kernel."""
    q, k, v = torch.rand(3, 1, heads, length, width)
    seen = {}
    for kernel in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(kernel), FlopCounterMode(display=False) as counter:
            torch.nn.functional.scaled_dot_product_attention(q, k, v)
        seen[kernel.name] = counter.get_total_flops()
    formula = attention_flops(Attention(1, heads, length, width))
    equal(seen, {"MATH": formula, "FLASH_ATTENTION": 0}, "what torch counts of one attention")


@pytest.mark.claim("flops.crude")
def test_strassens_algorithm_does_other_operations_than_are_counted():
    tally = Operations()
    x = integers(2, 2)
    y = integers(2, 2)
    (a, b), (c, d) = tally.array(x)
    (e, f), (g, h) = tally.array(y)
    p1 = a * (f - h)
    p2 = (a + b) * h
    p3 = (c + d) * e
    p4 = d * (g - e)
    p5 = (a + d) * (e + h)
    p6 = (b - d) * (g + h)
    p7 = (a - c) * (e + f)
    upper_left = p5 + p4 - p2 + p6
    upper_right = p1 + p2
    lower_left = p3 + p4
    lower_right = p1 + p5 - p3 - p7
    product = [float(value) for value in (upper_left, upper_right, lower_left, lower_right)]
    equal(product, (x @ y).flatten().tolist(), "Strassen's product")
    equal((tally.multiplications, tally.additions), (7, 18), "Strassen's products and sums")
    equal(matmul_flops(2, 2, 2), 16, "FLOPs counted")


MISNOMERS = re.compile(
    r"(?<![A-Z_])[GMTP]?FLOPS(?![A-Z_])|FLOPs/s"
    r"|(?i:flops_(?:per_s|rate)|flops?ps)\b|(?<![a-z])[gmtp]flops\b"
)


@pytest.mark.claim("flops.terms")
def test_no_file_writes_a_rate_as_an_amount():
    suite = Path(accounting.__path__[0]).parent
    wrong = []
    files = [suite / "README.md", *suite.glob("docs/**/*.md"), *suite.glob("examples/**/*.py")]
    for room in ("accounting", "bench", "prooflops"):
        files += (suite / room).rglob("*.py")
    for file in files:
        wrong += MISNOMERS.findall(file.read_text(encoding="utf-8"))
    equal(wrong, [], "words that confuse an amount and a rate")
