"""Claims about rooflines: intensities against counts, bounds against simulation and measurement."""

from fractions import Fraction
from functools import cache, partial

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
from test_claims.oracles.dispatched import Recorded
from test_claims.oracles.kernels import (
    FULL_TENSORS,
    OPERATIONS,
    ROW,
    Operands,
    gelu_by_hand,
    product,
)
from test_claims.oracles.messages import at_least, at_most, between, close, equal
from test_claims.oracles.rounding import MOVES
from test_claims.oracles.training_kernels import KERNELS
from test_claims.strategies import (
    TORCH_DTYPES,
    dtypes,
    sizes,
)

H100 = ACCELERATORS["H100 SXM5 80GB"]
# Three operands of this size, 128 KiB each, stay in the cache of one core.
IN_CACHE = 2**15
# Each call of an operation on memory takes milliseconds.
FEW = {"pairs": 15}


@pytest.fixture(scope="module")
def memory(device, sizing):
    """Operands beyond the cache of a core: 32 MiB each on a CPU; on a GPU 1 GiB, or what fits."""
    wanted = 2**23 if device.type == "cpu" else 2**28
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


def bytes_of(*shapes, dtype):
    return sum(tensor.nbytes for tensor in meta(*shapes, dtype=dtype))


def ridge(row, dtype):
    """FLOPs per byte from which a device can reach its peak, or None where a figure is missing."""
    peak = peak_flop_per_s(row, dtype)
    bandwidth = bandwidth_bytes_per_s(row)
    return None if peak is None or bandwidth is None else roofline.ridge_point(peak, bandwidth)


@pytest.mark.claim("roof.definition")
@given(m=sizes(most=5000), k=sizes(most=5000), n=sizes(most=5000), dtype=dtypes)
def test_intensity_is_the_operations_over_the_bytes_of_each_operand(m, k, n, dtype):
    a, b = meta((m, k), (k, n), dtype=dtype)
    with counted.flops() as dispatched:
        a @ b
    nbytes = bytes_of((m, k), (k, n), (m, n), dtype=dtype)
    formula = roofline.matmul_work(m, k, n, dtype)

    equal(formula, Work(dispatched.total, nbytes), "matmul_work")
    equal(dispatched.moved_bytes, nbytes, "bytes moved")
    equal((formula + formula).bytes, 2 * nbytes, "bytes of one after the other")
    equal(formula.intensity, 2 * m * k * n / nbytes, "the intensity")


def flops_while_a_byte_moves(row, column):
    """FLOPs of a device's units by clock cycles while a byte arrives; no printed peak is used."""
    vector_mhz, matrix_mhz = row.clocks_mhz
    mhz = vector_mhz if column == "fp32" else matrix_mhz
    cycles = mhz * 1e6 / bandwidth_bytes_per_s(row)
    return cycles * row.units * FLOP_PER_CLOCK[row.die][column]


@pytest.mark.claim("roof.accelerator-300")
@pytest.mark.parametrize(
    ("label", "dtype", "rounded"),
    [
        ("H100 SXM5 80GB", "bf16", 295),
        ("H100 SXM5 80GB", "fp16", 295),
        ("H100 SXM5 80GB", "fp32", 20),
        ("H100 SXM5 80GB", "fp8_e4m3", 591),
        ("H100 PCIe 80GB", "bf16", 378),
        ("A100 SXM4 80GB", "bf16", 153),
        ("H200 SXM 141GB", "bf16", 206),
    ],
)
def test_the_ridge_is_300_for_an_h100_in_bf16_and_elsewhere_for_others(label, dtype, rounded):
    row = ACCELERATORS[label]
    units = {"fp16": "bf16", "fp8_e4m3": "fp8"}.get(dtype, dtype)
    formula = ridge(row, dtype)
    done = flops_while_a_byte_moves(row, units)

    close(done, formula, "FLOPs that the units do a byte", rel=2e-3)
    equal(round(formula), rounded, "ridge_point, rounded")

    near = abs(formula / 300 - 1) < 0.05
    should = label == "H100 SXM5 80GB" and dtype in ("bf16", "fp16")
    equal(near, should, "a ridge of about 300")


def simulated_s(work, peak, bandwidth):
    """Seconds of a device that fetches each of many parts while it works on the one before."""
    fetched = done = Fraction(0)
    for _ in range(64):
        fetched += Fraction(work.bytes, 64) / bandwidth
        done = max(done, fetched) + Fraction(work.flops, 64) / peak
    return done


works = st.builds(Work, st.integers(1, 10**12), st.integers(1, 10**12))
rates = st.integers(10**6, 10**15)


@pytest.mark.claim("roof.model", "roof.below-is-memory-bound", "roof.mfu-min-one")
@given(work=works, peak=rates, bandwidth=rates)
@example(work=Work(2953, 10), peak=989_400, bandwidth=3350)
def test_the_bound_is_the_time_of_a_pipeline_that_overlaps(work, peak, bandwidth):
    """It is the longer of the two, and a 64th of the shorter until the first part has arrived."""
    fetching = Fraction(work.bytes, bandwidth)
    arithmetic = Fraction(work.flops, peak)
    simulated = simulated_s(work, peak, bandwidth)
    attainable = roofline.attainable_flop_per_s(work.intensity, peak, bandwidth)
    least_s = work.flops / attainable
    longer = max(fetching, arithmetic)
    tolerance = 1 + 1e-9

    at_most(least_s, simulated * tolerance, "seconds at the attainable rate")
    at_most(simulated, least_s * (1 + 1 / 64) * tolerance, "seconds of the pipeline")

    below = work.intensity < roofline.ridge_point(peak, bandwidth)
    equal(below, fetching > arithmetic, "an intensity below the ridge")

    least = roofline.least_time_s(work, peak, bandwidth)
    close(least, float(longer), "least_time_s")

    bound = min(1.0, work.intensity / roofline.ridge_point(peak, bandwidth))
    reached = roofline.mfu(work.flops, float(simulated), peak)
    in_turn = roofline.mfu(work.flops, float(fetching + arithmetic), peak)
    at_least(reached * tolerance * (1 + 1 / 64), bound, "the pipeline's MFU")

    alone = bound * float(longer / (fetching + arithmetic))
    close(in_turn, alone, "the MFU of one after the other")
    at_most(in_turn, reached * tolerance, "the MFU of one after the other")
    at_most(reached, bound * tolerance, "the pipeline's MFU")


BY_MEMORY = ["roof.below-is-memory-bound", "roof.most-others"]


@marked(
    {
        "relu": [*BY_MEMORY, "roof.relu"],
        "multiply": BY_MEMORY,
        # The bandwidth of memory bounds nothing that comes from a cache: there it beats that roof.
        "add": [*BY_MEMORY, "roof.model"],
        "dot": ["roof.dot"],
        "matvec": ["roof.matvec"],
    }
)
def test_an_operation_of_low_intensity_waits_for_memory(speed, record_figure, memory, name):
    """The same arithmetic is faster on operands in a cache, or as fast as a copy where all fit."""
    operation = OPERATIONS[name]
    elements = memory.x.numel()
    faster = 0.0
    if memory.x.device.type == "cpu":
        few = memory.first(IN_CACHE)
        calls = elements // IN_CACHE
        in_cache = speed.ratio(
            lambda: operation(memory),
            lambda: [operation(few) for _ in range(calls)],
            decided=lambda low, _: low >= 1.2,
            **FEW,
        )
        record_figure(
            f"{name} of operands in memory against the same arithmetic in a cache: {in_cache}"
        )
        faster = in_cache.low
    if faster < 1.2:
        # A copy reads and writes.
        half = memory.first(elements * FULL_TENSORS[name] // 4)
        least, most = (0.25, 3) if memory.x.device.type == "cpu" else (0.5, 1.5)
        if name in ("dot", "matvec"):
            # They read alone, and libraries reduce their parts in a second kernel.
            most = 3
        what = f"{name} against a copy of as many bytes"

        def twice():
            half.out.copy_(half.x)
            half.out.copy_(half.x)

        speed.assert_slower(
            lambda: operation(memory), twice, what, at_least=least, at_most=most, **FEW
        )


def operands_of(name, shape, **options):
    """Operands of a kernel, both of `add` of one shape."""
    others = [shape] if name == "add" else KERNELS[name].others(shape)
    return [torch.ones(each, **options) for each in (shape, *others)]


@cache
def work_by_definition(name, shape, dtype="bf16"):
    """The work of a definition: one FLOP per element; operands and result move once."""
    operands = operands_of(name, shape, device="meta")
    with Recorded() as recorded:
        result = KERNELS[name].definition(*operands)
    flops = 0
    for operation, read, made in recorded.calls:
        if operation not in MOVES and made[0].is_floating_point():
            flops += max(x.numel() for x in (*read, *made))
    elements = sum(x.numel() for x in (*operands, result))
    return Work(flops, elements * element_bits(dtype) // 8)


FORMULAS = {
    "relu": partial(roofline.elementwise_work, function="relu"),
    "gelu": partial(roofline.elementwise_work, function="gelu"),
    "add": partial(roofline.elementwise_work, function="add", operands=2),
    "softmax": roofline.softmax_work,
    "layer_norm": roofline.layer_norm_work,
}


@marked(
    {
        "relu": ["roof.most-others", "roof.relu"],
        "gelu": ["roof.most-others", "roof.gelu"],
        "add": ["roof.most-others", "roof.definition"],
        "softmax": ["roof.most-others", "roof.definition", "matmul.bread-and-butter"],
        "layer_norm": ["roof.most-others", "roof.definition", "flops.dominates"],
    }
)
@given(rows=sizes(most=5000), width=sizes(most=5000), dtype=dtypes)
def test_a_formula_has_the_flops_and_bytes_of_its_definition(name, rows, width, dtype):
    shape = rows, width
    done = work_by_definition(name, shape, dtype)
    formula = FORMULAS[name](shape, dtype=dtype)
    # An addition of ε, an inverse root.
    of_rows = 2 * rows if name == "layer_norm" else 0
    got = formula.flops + of_rows, formula.bytes, formula.intensity
    should = done.flops, done.bytes, (done.flops - of_rows) / done.bytes

    equal(got, should, "FLOPs, bytes and intensity")
    if name == "relu":
        equal(formula.intensity == 0.25, element_bits(dtype) == 16, "an intensity of 0.25")


SHAPE = 3, 4
OTHERS = {
    **{name: name for name in ("layer_norm", "softmax", "log_softmax", "gelu", "relu", "tanh")},
    **{name: name for name in ("cross_entropy", "mse_loss", "norm", "add", "rms_norm", "silu")},
    "sum": "row_sum",
    "mean": "row_mean",
    "mul": "multiply",
}


@pytest.mark.claim("roof.most-others", "flops.dominates")
@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_product_counts_about_the_flops_of_its_definition(name):
    operands = operands_of(OTHERS[name], SHAPE, dtype=torch.bfloat16)
    with counted.flops() as dispatched:
        KERNELS[OTHERS[name]].calls[0](*operands)
    done = work_by_definition(OTHERS[name], SHAPE).flops

    equal(dispatched.total, 0, "FLOPs of products")
    between(dispatched.elementwise, done / 2.5, 2.5 * done, "FLOPs counted")
    if name in roofline.FLOPS_PER_ELEMENT:
        work = roofline.elementwise_work(SHAPE, name)
        equal(work.flops, dispatched.elementwise, "FLOPs of elementwise_work")


@pytest.mark.claim("roof.most-others", "roof.gelu", "roof.relu")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_what_is_no_product_lies_below_the_ridge_of_vector_units(row):
    peak = peak_flop_per_s(row, "fp32", path="vector")
    bandwidth = bandwidth_bytes_per_s(row)
    if peak is None or bandwidth is None:
        of_tensor_cores = ridge(row, "bf16")
        assert of_tensor_cores is None or of_tensor_cores > 30, f"a ridge of {of_tensor_cores}"
        return
    least = roofline.ridge_point(peak, bandwidth)
    works = [work_by_definition(name, SHAPE) for name in OTHERS.values()]
    above = [work for work in works if work.flops > least / 2 * work.bytes]

    assert not above, f"{above} lie above half the ridge of {least:.1f} FLOPs per byte"


def gelu_of(on, **options):
    return torch.nn.functional.gelu(on.x, **options)


@pytest.mark.claim("roof.gelu")
@given(n=st.integers(1, 2000))
def test_a_fused_gelu_moves_the_bytes_of_a_relu_one_by_hand_many_more(device, n):
    on = Operands.of(n, device)
    moved = []
    gelus = (partial(gelu_of, approximate=approximate) for approximate in ("none", "tanh"))
    for operation in (*gelus, OPERATIONS["gelu"], OPERATIONS["relu"], gelu_by_hand):
        with counted.flops() as dispatched:
            operation(on)
        moved.append(dispatched.moved_bytes)
    formula = roofline.elementwise_work((n,), "gelu", "fp32").bytes

    *fused, by_hand = moved
    equal({*fused}, {formula}, "bytes of GELU and ReLU")
    equal(by_hand, 5.5 * formula, "bytes of GELU by hand")


@pytest.mark.claim("roof.gelu")
@pytest.mark.needs("cuda")
def test_on_a_gpu_a_fused_gelu_is_about_as_fast_as_relu(memory, speed):
    gelu = partial(OPERATIONS["gelu"], memory)
    relu = partial(OPERATIONS["relu"], memory)
    speed.assert_slower(gelu, relu, "fused GELU against ReLU", at_least=0.7, at_most=1.5, **FEW)


@pytest.mark.claim("roof.dot")
@given(n=st.integers(1, 10**6), dtype=dtypes)
def test_a_dot_product_does_at_most_half_a_flop_per_byte_in_16_bits(n, dtype):
    work = roofline.dot_work(n, dtype)
    equal(work, Work(2 * n, bytes_of(n, n, 1, dtype=dtype)), "dot_work")

    limit = Fraction(8, element_bits(dtype))
    assert work.intensity < limit, f"{work.intensity} reaches {limit}"


@pytest.mark.claim("roof.matvec")
@given(m=sizes(most=10**5), k=sizes(most=10**5), dtype=dtypes)
def test_a_matrix_times_a_vector_does_at_most_one_flop_per_byte_in_16_bits(m, k, dtype):
    work = roofline.matvec_work(m, k, dtype)
    limit = Fraction(16, element_bits(dtype))

    equal(work, Work(2 * m * k, bytes_of((m, k), k, m, dtype=dtype)), "matvec_work")
    assert work.intensity < limit, f"{work.intensity} reaches {limit}"

    wide = roofline.matvec_work(10**6, 10**6, dtype).intensity
    close(wide, float(limit), "the intensity of a large one", rel=1e-5)


@pytest.mark.claim("roof.matmul")
@given(n=st.integers(1, 10**5), dtype=dtypes, batch=sizes(), result=dtypes)
def test_a_square_product_does_n_thirds_flops_per_byte_in_16_bits(n, dtype, batch, result):
    squares = batch, n, n
    third = n / 3 * 16 / element_bits(dtype)
    close(roofline.matmul_work(n, n, n, dtype, batch).intensity, third, "the intensity")

    moved = bytes_of(squares, squares, dtype=dtype) + bytes_of(squares, dtype=result)
    equal(roofline.matmul_work(n, n, n, dtype, batch, result).bytes, moved, "bytes moved")


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
    formula, larger = (roofline.matmul_work(rows, k, n).intensity for rows in (batch, batch + 1))
    assert formula < min(batch, Fraction(k * n, k + n)), f"{formula} reaches its limit"
    assert formula < larger, f"one row more changes {formula} to {larger}"


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
    equal(large, factor * small, "FLOPs per byte of a large product")
    assert vector < 1, f"a matrix times a vector does {vector} FLOPs per byte"


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
    moved = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        operands = Operands(*torch.ones(4, 2 * ROW, dtype=dtype, device=device))
        with counted.flops() as dispatched:
            OPERATIONS[name](operands)
        moved.append(dispatched.moved_bytes)
    full, *halves = moved
    equal([2 * half for half in halves], [full, full], "twice the bytes in 16 bits")


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
    flops_and_bytes = {
        "relu": (n, 4 * n),
        "gelu": (5 * n, 4 * n),
        "dot": (2 * n - 1, 4 * n + 2),
        "matvec": ((2 * n - 1) * n, 2 * n * (n + 2)),
        "matmul": ((2 * n - 1) * n * n, 6 * n * n),
    }
    for name, (flops, nbytes) in flops_and_bytes.items():
        rough = roofline.arithmetic_intensity(flops, round(nbytes * factor))
        close(rough * factor, flops / nbytes, "the intensity times the factor", name=name)
        sides = rough >= ridge(H100, "bf16"), Fraction(flops, nbytes) >= units
        above = name == "matmul"
        equal(sides, (above, above), "above the ridge, roughly and exactly", name=name)
