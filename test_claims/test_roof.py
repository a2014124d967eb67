"""Roofline: intensities against counted operations and real bytes, bounds against simulations,
limits measured here.
"""

from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from accounting import roofline
from accounting.devices import (
    ACCELERATORS,
    FLOP_PER_CLOCK,
    ROWS,
    bandwidth_bytes_per_s,
    peak_flop_per_s,
)
from accounting.formats import element_bits
from accounting.roofline import Work
from prooflops import counted
from test_claims.oracles import scalars
from test_claims.oracles.kernels import (
    FULL_TENSORS,
    OPERATIONS,
    ROW,
    Operands,
    gelu_by_hand,
    product,
)
from test_claims.oracles.operators import NEW
from test_claims.strategies import (
    TORCH_DTYPES,
    sizes,
)

H100 = ACCELERATORS["H100 SXM5 80GB"]
IN_CACHE = 2**15  # elements; three operands of 128 KiB stay in the cache of one core
FEW = {"pairs": 15}  # each call of an operation on memory takes milliseconds

float_dtypes = st.sampled_from(["fp32", "bf16", "fp16", "fp64"])


@pytest.fixture(scope="module")
def memory(device, sizing):
    """Operands beyond the cache of a core: 64 MiB each on a CPU; on a GPU 1 GiB, or less if that
    does not fit.
    """
    wanted = 2**24 if device.type == "cpu" else 2**28
    return Operands.of(
        sizing.fitting(wanted, lambda elements: 4 * 6 * elements, least=2**22), device
    )


def marked(claims_of):
    """Runs a test for each name, marked with the claims that it settles."""
    named = [
        pytest.param(name, marks=pytest.mark.claim(*claims)) for name, claims in claims_of.items()
    ]
    return pytest.mark.parametrize("name", named)


def meta(*shapes, dtype="fp32"):
    """Tensors with shapes and bytes, but without data."""
    return [torch.empty(shape, dtype=TORCH_DTYPES[dtype], device="meta") for shape in shapes]


def ridge(row, dtype):
    """FLOPs per byte from which a device of the table can reach its peak, or None where a figure is
    missing.
    """
    peak = peak_flop_per_s(row, dtype)
    bandwidth = bandwidth_bytes_per_s(row)
    return None if peak is None or bandwidth is None else roofline.ridge_point(peak, bandwidth)


@pytest.mark.claim("roof.definition")
@given(m=sizes(most=5), k=sizes(most=5), n=sizes(most=5), dtype=float_dtypes)
def test_intensity_is_the_operations_over_the_bytes_of_each_operand(m, k, n, dtype):
    tally = scalars.Operations()
    scalars.matmul(tally.array(torch.ones(m, k)), tally.array(torch.ones(k, n)))
    tensors = meta((m, k), (k, n), (m, n), dtype=dtype)
    with counted.flops() as dispatched:
        tensors[0] @ tensors[1]
    nbytes = sum(tensor.nbytes for tensor in tensors)
    formula = roofline.matmul_work(m, k, n, dtype)
    intensity = roofline.arithmetic_intensity(formula.flops, formula.bytes)
    assert formula == Work(tally.flops, nbytes), (
        f"{formula}, not {Work(tally.flops, nbytes)} [{m=} {k=} {n=}]"
    )
    assert dispatched.moved_bytes == nbytes, (
        f"{dispatched.moved_bytes} bytes are moved, but should be {nbytes}"
    )
    assert intensity == tally.flops / nbytes, (
        f"intensity={intensity}, but should be {tally.flops}/{nbytes}"
    )


def flops_while_a_byte_moves(row, column, nbytes=10**9):
    """FLOPs of a device's units while `nbytes` arrive, over these bytes, by clock cycles; no
    printed peak is used.
    """
    cycles = nbytes / bandwidth_bytes_per_s(row) * row.clocks_mhz[column != "fp32"] * 1e6
    return cycles * row.units * FLOP_PER_CLOCK[row.die][column] / nbytes


@pytest.mark.claim("roof.accelerator-300")
@pytest.mark.parametrize(
    ("label", "dtype", "printed", "rounded"),
    [
        ("H100 SXM5 80GB", "bf16", Fraction("989.4") / Fraction("3.35"), 295),
        ("H100 SXM5 80GB", "fp16", Fraction("989.4") / Fraction("3.35"), 295),
        ("H100 SXM5 80GB", "fp32", Fraction("66.9") / Fraction("3.35"), 20),
        ("H100 SXM5 80GB", "fp8_e4m3", Fraction("1978.9") / Fraction("3.35"), 591),
        ("H100 PCIe 80GB", "bf16", Fraction(756) / 2, 378),
        ("A100 SXM4 80GB", "bf16", Fraction(312) / Fraction("2.039"), 153),
        ("H200 SXM 141GB", "bf16", Fraction("989.5") / Fraction("4.8"), 206),
    ],
)
def test_the_ridge_is_300_for_an_h100_in_bf16_and_elsewhere_for_others(
    label, dtype, printed, rounded
):
    row = ACCELERATORS[label]
    # Those that multiply it.
    units = {"fp16": "bf16", "fp8_e4m3": "fp8"}.get(dtype, dtype)
    formula = ridge(row, dtype)
    done = flops_while_a_byte_moves(row, units)
    assert formula == pytest.approx(float(printed)), (
        f"ridge_point={formula}, but should be {float(printed)}"
    )
    assert formula == pytest.approx(done, rel=2e-3), (
        f"ridge_point={formula}, but the units do {done} a byte [{label}]"
    )
    assert round(formula) == rounded, f"ridge_point={formula:.1f}, but should round to {rounded}"

    near = abs(formula / 300 - 1) < 0.05
    should = label == "H100 SXM5 80GB" and dtype in ("bf16", "fp16")
    assert near == should, f"{label}: {formula:.0f} FLOPs per byte of {dtype}, about 300: {should}"


def simulated_s(work, peak, bandwidth, steps=64):
    """Seconds of a device that fetches a part while it works on the part before: a pipeline of many
    equal parts.
    """
    fetched = done = Fraction(0)
    for _ in range(steps):
        fetched += Fraction(work.bytes, steps) / bandwidth
        done = max(done, fetched) + Fraction(work.flops, steps) / peak
    return done


works = st.builds(Work, st.integers(1, 10**12), st.integers(1, 10**12))
rates = st.integers(10**6, 10**15)


@pytest.mark.claim("roof.model", "roof.below-is-memory-bound", "roof.mfu-min-one")
@given(work=works, peak=rates, bandwidth=rates)
@example(work=Work(2953, 10), peak=989_400, bandwidth=3350)
def test_the_bound_is_the_time_of_a_pipeline_that_overlaps(work, peak, bandwidth):
    """The pipeline takes the longer of the two, and a 64th of the shorter until its first part has
    arrived.
    """
    fetching = Fraction(work.bytes, bandwidth)
    arithmetic = Fraction(work.flops, peak)
    simulated = simulated_s(work, peak, bandwidth)
    attainable = roofline.attainable_flop_per_s(work.intensity, peak, bandwidth)
    least_s = work.flops / attainable
    tolerance = 1 + 1e-9
    assert least_s <= simulated * tolerance, (
        f"at {attainable=} FLOP/s it takes {least_s} s, above {float(simulated)}"
    )
    assert simulated <= least_s * (1 + 1 / 64) * tolerance, (
        f"the pipeline takes {float(simulated)} s, not {least_s}"
    )

    below = work.intensity < roofline.ridge_point(peak, bandwidth)
    assert below == (fetching > arithmetic), (
        f"{below=} the ridge, but fetching takes {float(fetching)} s [{work}]"
    )

    least = roofline.least_time_s(work, peak, bandwidth)
    assert least == pytest.approx(float(max(fetching, arithmetic))), (
        f"least_time_s={least}, not the longer of the two"
    )

    bound = min(1.0, work.intensity / roofline.ridge_point(peak, bandwidth))
    reached, in_turn = (
        roofline.mfu(work.flops, float(s), peak) for s in (simulated, fetching + arithmetic)
    )
    assert bound / (1 + 1 / 64) <= reached * tolerance, (
        f"the pipeline's MFU is {reached}, not {bound} [{work}]"
    )

    alone = bound * float(max(fetching, arithmetic) / (fetching + arithmetic))
    assert in_turn == pytest.approx(alone), (
        f"one after the other the MFU is {in_turn}, not {alone} [{work}]"
    )
    assert in_turn <= reached * tolerance <= bound * tolerance**2, (
        f"MFU {in_turn}, {reached} above {bound} [{work}]"
    )


LOW_INTENSITY = {
    name: ["roof.below-is-memory-bound", "roof.most-others"]
    for name in ("relu", "multiply", "negative")
}
# The bandwidth of memory bounds nothing that comes from a cache: there "add" beats that roof.
BEYOND_THE_ROOF = {"add": ["roof.below-is-memory-bound", "roof.most-others", "roof.model"]}


@marked(LOW_INTENSITY | BEYOND_THE_ROOF | {"dot": ["roof.dot"]})
def test_an_operation_of_low_intensity_waits_for_memory(speed, record_figure, memory, name):
    """The same arithmetic is faster on operands in a cache, or where all fit into one, it takes the
    time of a copy.
    """
    operation = OPERATIONS[name]
    elements = memory.x.numel()
    faster = 0.0
    if memory.x.device.type == "cpu":
        few = memory.first(IN_CACHE)
        calls = elements // IN_CACHE
        in_cache = speed.ratio(
            lambda: operation(memory), lambda: [operation(few) for _ in range(calls)], **FEW
        )
        record_figure(
            f"{name} of operands in memory against the same arithmetic in a cache: {in_cache}"
        )
        faster = in_cache.low
    if faster < 1.2:
        half = memory.first(elements * FULL_TENSORS[name] // 4)  # copied: read and written
        # A dot product reads alone, and libraries reduce its parts in a second kernel.
        bounds = (0.25, 3) if memory.x.device.type == "cpu" else (0.5, 3 if name == "dot" else 1.5)
        what, least, most = f"{name} against a copy of as many bytes", *bounds
        twice = lambda: [half.out.copy_(half.x) for _ in range(2)]  # noqa: E731
        speed.assert_slower(
            lambda: operation(memory), twice, what, at_least=least, at_most=most, **FEW
        )


def work_by_definition(definition, *arguments, dtype="bf16"):
    """What numpy does for a definition, one FLOP for each element that a function meets; operands
    and result once.
    """
    done = []

    class Tallied(np.ndarray):
        def __array_ufunc__(self, function, method, *operands, out=(), **options):
            plain = [np.asarray(operand) for operand in operands]
            result = np.asarray(getattr(function, method)(*plain, **options))
            done.append(max(map(np.size, (*plain, result))))
            return result.view(Tallied)

    result = definition(*(argument.view(Tallied) for argument in arguments))
    return Work(sum(done), sum(np.size(x) * element_bits(dtype) // 8 for x in (*arguments, result)))


FORMULAS = {name: partial(roofline.elementwise_work, function=name) for name in ("relu", "gelu")}
FORMULAS |= {"add": partial(roofline.elementwise_work, function="add", operands=2)}
FORMULAS |= {"softmax": roofline.softmax_work, "layer_norm": roofline.layer_norm_work}
CLAIMED = {
    name: ["roof.most-others", "roof.definition"] for name in ("add", "softmax", "layer_norm")
}
CLAIMED |= {name: ["roof.most-others", f"roof.{name}"] for name in ("relu", "gelu")}


@marked(CLAIMED)
@given(rows=sizes(1, 40), width=sizes(1, 40), dtype=float_dtypes)
def test_a_formula_has_the_flops_and_bytes_of_its_definition(name, rows, width, dtype):
    shape = rows, width
    operands = {"add": [shape, shape], "layer_norm": [shape, width, width]}.get(name, [shape])
    done = work_by_definition(NEW[name].definition, *map(np.ones, operands), dtype=dtype)
    formula = FORMULAS[name](shape, dtype=dtype)
    of_rows = (
        4 * rows * (name == "layer_norm")
    )  # two divisions by the width, an addition of ε, a root
    got = formula.flops + of_rows, formula.bytes, formula.intensity
    should = done.flops, done.bytes, (done.flops - of_rows) / done.bytes
    assert got == should, (
        f"FLOPs, bytes and intensity are {got}, but should be {should} [{shape=}, {dtype=}]"
    )
    assert name != "relu" or (got[2] == 0.25) == (element_bits(dtype) == 16), (
        f"{got[2]}, not 0.25 in 16 bits alone"
    )


PRODUCTS = {"matmul", "bmm", "mv", "einsum", "linear", "conv2d", "attention"}
DEFINED = {
    name: work_by_definition(of.definition, *of.numbers())
    for name, of in NEW.items()
    if name not in PRODUCTS
}


@pytest.mark.claim("roof.most-others")
@pytest.mark.parametrize("name", DEFINED)
def test_what_is_no_product_counts_about_the_flops_of_its_definition(name):
    with counted.flops() as dispatched:
        NEW[name].call(*NEW[name].arguments("cpu", dtype=torch.bfloat16))
    done = DEFINED[name].flops
    got = dispatched.elementwise
    assert dispatched.total == 0, f"{name} is counted as a product of {dispatched.total} FLOPs"
    assert done / 2.5 <= got <= 2.5 * done, (
        f"{name} is counted with {got} FLOPs, but by definition does {done}"
    )


@pytest.mark.claim("roof.most-others", "roof.gelu", "roof.relu")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_what_is_no_product_lies_below_the_ridge_of_vector_units(row):
    peak = peak_flop_per_s(row, "fp32", path="vector")
    bandwidth = bandwidth_bytes_per_s(row)
    if peak is None or bandwidth is None:
        assert ridge(row, "bf16") is None or ridge(row, "bf16") > 30, (
            f"{row.label} has a ridge of {ridge(row, 'bf16')}"
        )
        return
    least = roofline.ridge_point(peak, bandwidth)
    above = {name: work for name, work in DEFINED.items() if work.flops > least / 2 * work.bytes}
    assert not above, (
        f"{row.label} has a ridge of {least:.1f} FLOPs per byte, but {above} should be far below"
    )


@pytest.mark.claim("roof.gelu")
@given(n=st.integers(1, 2000))
def test_a_fused_gelu_moves_the_bytes_of_a_relu_one_by_hand_many_more(device, n):
    on = Operands.of(n, device)
    moved = []
    for operation in (OPERATIONS["gelu"], OPERATIONS["relu"], gelu_by_hand):
        with counted.flops() as dispatched:
            operation(on)
        moved.append(dispatched.moved_bytes)
    formula = roofline.elementwise_work((n,), "gelu", "fp32").bytes
    should = [formula, formula, 5.5 * formula]
    assert moved == should, (
        f"a fused GELU, a ReLU and a GELU by hand move {moved} bytes, not {should} [{n=}]"
    )


@pytest.mark.claim("roof.gelu")
@pytest.mark.needs("cuda")
def test_on_a_gpu_a_fused_gelu_is_about_as_fast_as_relu(memory, speed):
    gelu, relu = (lambda name=name: OPERATIONS[name](memory) for name in ("gelu", "relu"))
    speed.assert_slower(gelu, relu, "fused GELU against ReLU", at_least=0.7, at_most=1.5, **FEW)


@pytest.mark.claim("roof.dot")
@given(n=st.integers(1, 60), dtype=float_dtypes)
def test_a_dot_product_does_at_most_half_a_flop_per_byte_in_16_bits(n, dtype):
    tally = scalars.Operations()
    scalars.inner_product(tally.array(torch.ones(n)), tally.array(torch.ones(n)))
    strict = Fraction(tally.flops, sum(tensor.nbytes for tensor in meta((n,), (n,), dtype=dtype)))
    work = roofline.dot_work(n, dtype)
    limit = Fraction(8, element_bits(dtype))
    assert strict == Fraction(2 * n - 1, 2 * n * element_bits(dtype) // 8), (
        f"a dot product of {n} counts {strict}"
    )
    assert max(strict, work.intensity) < limit, (
        f"{strict} and {work.intensity} should be below {limit} [{n=}]"
    )

    exact = Work(2 * n, (2 * n + 1) * element_bits(dtype) // 8)
    assert work == exact, f"{work}, but should be {exact} [{n=}, {dtype=}]"


@pytest.mark.claim("roof.matvec")
@given(m=sizes(most=8), k=sizes(most=8), dtype=float_dtypes)
def test_a_matrix_times_a_vector_does_at_most_one_flop_per_byte_in_16_bits(m, k, dtype):
    tally = scalars.Operations()
    scalars.matmul(tally.array(torch.ones(m, k)), tally.array(torch.ones(k, 1)))
    intensity = Fraction(
        tally.flops, sum(tensor.nbytes for tensor in meta((m, k), (k,), (m,), dtype=dtype))
    )
    formula = roofline.matvec_work(m, k, dtype).intensity
    assert formula == float(intensity), (
        f"intensity={formula}, but should be {intensity} [{m=}, {k=}, {dtype=}]"
    )
    assert intensity < Fraction(16, element_bits(dtype)), (
        f"{intensity=}, but should stay below that of 16 bits"
    )

    wide = roofline.matvec_work(10**6, 10**6, dtype).intensity
    assert wide == pytest.approx(16 / element_bits(dtype), rel=1e-5), (
        f"a large one has {wide} [{dtype=}]"
    )


@pytest.mark.claim("roof.matmul")
@given(n=st.integers(1, 10**5), dtype=float_dtypes)
def test_a_square_product_does_n_thirds_flops_per_byte_in_16_bits(n, dtype):
    nbytes = sum(tensor.nbytes for tensor in meta(*[(n, n)] * 3, dtype=dtype))
    formula = roofline.matmul_work(n, n, n, dtype).intensity
    intensity = Fraction(2 * n**3, nbytes)
    third = Fraction(n, 3) * 16 / element_bits(dtype)
    assert pytest.approx(formula) == intensity == third, (
        f"{formula=}, {intensity=}, not {third} [{n=}, {dtype=}]"
    )


@pytest.mark.claim("roof.matmul")
def test_a_product_of_twice_the_side_takes_eight_times_as_long_not_four(device, speed):
    """Its time grows with its FLOPs, not with its bytes: it waits for the arithmetic."""
    side = 128 if device.type == "cpu" else 4096
    what = f"a product of side {2 * side} against one of {side}"
    twice, once = (product(device, "fp32", of) for of in (2 * side, side))
    speed.assert_slower(twice, once, what, at_least=4.5, at_most=16, usual=(6, 12), **FEW)


@pytest.mark.claim("roof.bigger-batch")
@given(batch=st.integers(1, 10**4), k=st.integers(1, 10**4), n=st.integers(1, 10**4))
def test_intensity_grows_with_the_batch_up_to_that_of_the_matrix(batch, k, n):
    nbytes = sum(tensor.nbytes for tensor in meta((batch, k), (k, n), (batch, n), dtype="bf16"))
    formula = roofline.matmul_work(batch, k, n).intensity
    intensity = Fraction(2 * batch * k * n, nbytes)
    assert formula == pytest.approx(float(intensity)), (
        f"{formula=}, but should be {intensity} [{batch=}, {k=}, {n=}]"
    )
    assert formula < min(batch, Fraction(k * n, k + n)), (
        f"intensity={formula} is not below {batch=} and {k=} * {n=}"
    )
    assert formula < roofline.matmul_work(batch + 1, k, n).intensity, (
        f"one row more should raise {formula}"
    )


@pytest.mark.claim("roof.bigger-batch")
def test_64_examples_at_once_are_far_faster_than_one_by_one(device, speed):
    dim = 1024 if device.type == "cpu" else 8192
    one, many = (product(device, "fp32", rows, dim, dim) for rows in (1, 64))
    what = "64 examples one by one against all at once"
    speed.assert_slower(lambda: [one() for _ in range(64)], many, what, at_least=1.3, **FEW)


@pytest.mark.claim("roof.larger-matrices")
@given(sides=st.tuples(*[sizes(most=9)] * 3), factor=sizes(2, 5))
def test_products_of_larger_matrices_do_more_flops_a_byte(device, sides, factor):
    """Counted as dispatched, in bf16; of a matrix and a vector there is hardly a gain."""
    intensities = []
    for m, k, n in (sides, [factor * side for side in sides], (1000, 1000, 1)):
        a, b = (
            torch.ones(shape, dtype=torch.bfloat16, device=device) for shape in ((m, k), (k, n))
        )
        with counted.flops() as dispatched:
            torch.mm(a, b)
        intensities.append(Fraction(dispatched.total, dispatched.moved_bytes))
    small, large, vector = intensities
    assert large == factor * small, f"{large}, not {factor} times {small} FLOPs a byte [{sides=}]"
    assert vector < 1, f"a matrix times a vector does {vector} FLOPs a byte, not less than one"


@pytest.mark.claim("roof.larger-matrices")
def test_a_product_of_larger_matrices_runs_at_a_higher_rate(device, speed):
    few, many = (16, 256) if device.type == "cpu" else (128, 4096)
    flops = (many / few) ** 3
    small, large = (product(device, "fp32", side) for side in (few, many))
    what = f"a product of side {many} against one of {few}, of 1/{flops:.0f} of the FLOPs"
    speed.assert_slower(large, small, what, at_least=1, at_most=flops / 2)


@pytest.mark.claim("roof.half-traffic")
@pytest.mark.parametrize("name", ["relu", "add", "matvec"])
def test_16_bits_move_half_the_bytes_of_fp32(device, name):
    moved = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        operands = Operands(*torch.ones(4, 2 * ROW, dtype=dtype, device=device))
        with counted.flops() as dispatched:
            OPERATIONS[name](operands)
        moved[dtype] = dispatched.moved_bytes
    full, *halves = moved.values()
    assert [2 * half for half in halves] == [full] * 2, f"{name} moves {moved}, not half in 16 bits"


@pytest.mark.claim("roof.half-traffic")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_copy_in_16_bits_takes_half_the_time(memory, speed, dtype):
    half = memory.x.to(dtype)
    out = torch.zeros_like(half)
    what = f"a copy in fp32 against one of as many elements in {dtype}"
    whole = partial(memory.out.copy_, memory.x)
    usual = (1.4, 2.6)
    speed.assert_slower(
        whole, partial(out.copy_, half), what, at_least=1.2, at_most=4, usual=usual, **FEW
    )


@pytest.mark.claim("roof.rough")
@pytest.mark.parametrize("factor", [0.5, 2])
def test_a_factor_of_two_in_the_bytes_changes_no_verdict(factor):
    n = ROW
    units = flops_while_a_byte_moves(H100, "bf16")
    exact = {
        "relu": (n, 4 * n),
        "gelu": (5 * n, 4 * n),
        "dot": (2 * n - 1, 4 * n + 2),
    }  # FLOPs and bytes
    exact |= {
        "matvec": ((2 * n - 1) * n, 2 * n * (n + 2)),
        "matmul": ((2 * n - 1) * n * n, 6 * n * n),
    }
    for name, (flops, nbytes) in exact.items():
        rough = roofline.arithmetic_intensity(flops, round(nbytes * factor))
        assert rough * factor == pytest.approx(flops / nbytes), (
            f"{name} has {rough}, not {flops}/{nbytes}/{factor}"
        )
        sides = rough >= ridge(H100, "bf16"), Fraction(flops, nbytes) >= units
        assert sides == (name == "matmul",) * 2, (
            f"{name} has {rough:.3g} FLOPs per byte and changes sides: {sides}"
        )
