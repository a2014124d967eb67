"""Work, roofs and utilisation against a machine that counts each operation and each element it touches."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting import roofline
from accounting.attention import Attention
from accounting.formats import element_bits
from accounting.roofline import (
    Work,
    arithmetic_intensity,
    attainable_flop_per_s,
    attention_work,
    dot_work,
    elementwise_work,
    hfu,
    layer_norm_work,
    least_time_s,
    matmul_work,
    matvec_work,
    mfu,
    ridge_point,
    softmax_work,
)
from meta_tests.accounting.refusals import refuses


class Machine:
    """Counts operations on its numbers, and which elements of its operands are read and written at least once."""

    def __init__(self):
        self.flops = 0
        self.touched = set()

    def operand(self, name):
        return Operand(self, name)

    def work(self, dtype_bytes):
        return Work(self.flops, len(self.touched) * dtype_bytes)


class Operand:
    """An array in the memory of a machine."""

    def __init__(self, machine, name):
        self.machine, self.name = machine, name

    def __getitem__(self, index):
        self.machine.touched.add((self.name, index))
        return Number(self.machine, 0.5)

    def __setitem__(self, index, number):
        self.machine.touched.add((self.name, index))


class Number:
    """A number in a register, whose every arithmetic operation counts."""

    def __init__(self, machine, value):
        self.machine, self.value = machine, value

    def _counted(self, value):
        self.machine.flops += 1
        return Number(self.machine, value)

    def __add__(self, other):
        return self._counted(self.value + getattr(other, "value", other))

    def __sub__(self, other):
        return self._counted(self.value - getattr(other, "value", other))

    def __mul__(self, other):
        return self._counted(self.value * getattr(other, "value", other))

    def __truediv__(self, other):
        return self._counted(self.value / getattr(other, "value", other))

    def largest(self, other):
        return self._counted(max(self.value, getattr(other, "value", other)))

    def apply(self, function):
        return self._counted(function(self.value))


def matmul(machine, a, b, c, batch, m, k, n):
    for t in range(batch):
        for i in range(m):
            for j in range(n):
                total = Number(machine, 0.0)
                for p in range(k):
                    total = total + a[t, i, p] * b[t, p, j]
                c[t, i, j] = total


def softmax_of(row):
    largest = Number(row[0].machine, -math.inf)
    for x in row:
        largest = largest.largest(x)
    total, exponentials = Number(row[0].machine, 0.0), []
    for x in row:
        exponentials.append((x - largest).apply(math.exp))
        total = total + exponentials[-1]
    return [x / total for x in exponentials]


few = st.integers(1, 4)


@given(batch=few, m=few, k=few, n=few)
def test_matmul_work_is_what_a_naive_product_does_and_touches(batch, m, k, n):
    machine = Machine()
    matmul(machine, machine.operand("a"), machine.operand("b"), machine.operand("c"), batch, m, k, n)
    formula, counted = matmul_work(m, k, n, "bf16", batch), machine.work(2)
    assert formula == counted, f"{formula=}, but should be {counted} [{batch=}, {m=}, {k=}, {n=}]"


@given(m=few, k=few)
def test_matvec_and_dot_work_are_those_of_thin_products(m, k):
    machine = Machine()
    matmul(machine, machine.operand("a"), machine.operand("x"), machine.operand("y"), 1, m, k, 1)
    assert matvec_work(m, k, "fp32") == machine.work(4)
    assert matvec_work(1, k, "fp64") == dot_work(k, "fp64")


FUNCTIONS = {
    "relu": lambda x: x.largest(0.0),
    "gelu": lambda x: x * 0.5 * ((x / math.sqrt(2)).apply(math.erf) + 1),
    "gelu_tanh": lambda x: x * 0.5 * (((x * x * x * 0.044715 + x) * math.sqrt(2 / math.pi)).apply(math.tanh) + 1),
    "silu": lambda x: x / ((x * -1).apply(math.exp) + 1),
}


def gelu_gradient(x, dy):
    share = ((x / math.sqrt(2)).apply(math.erf) + 1) * 0.5
    return (x * ((x * x * -0.5).apply(math.exp) * (1 / math.sqrt(2 * math.pi))) + share) * dy


def gelu_tanh_gradient(x, dy):
    factor, square = math.sqrt(2 / math.pi), x * x
    t = ((square * x * 0.044715 + x) * factor).apply(math.tanh)
    slope = (Number(x.machine, 1.0) - t * t) * ((square * (3 * 0.044715) + 1) * factor)
    return (x * 0.5 * slope + (t + 1) * 0.5) * dy


def silu_gradient(x, dy):
    one = Number(x.machine, 1.0)
    share = one / ((x * -1).apply(math.exp) + 1)
    return ((one - share) * x + 1) * share * dy


GRADIENTS = {"gelu": gelu_gradient, "gelu_tanh": gelu_tanh_gradient, "silu": silu_gradient}
BINARY = {"add": lambda x, y: x + y, "multiply": lambda x, y: x * y}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_elementwise_work_is_what_the_formula_of_the_function_does(name):
    machine = Machine()
    x, y = machine.operand("x"), machine.operand("y")
    for i in range(6):
        y[i] = FUNCTIONS[name](x[i])
    assert elementwise_work((2, 3), name, "fp32") == machine.work(4)


def test_the_gradient_of_a_function_costs_what_its_formula_does():
    for name, gradient in GRADIENTS.items():
        machine, other = Machine(), Machine()
        got = gradient(Number(machine, 0.7), Number(machine, 2.0)).value
        above, below = (FUNCTIONS[name](Number(other, 0.7 + step)).value for step in (1e-6, -1e-6))
        assert got == pytest.approx(2 * (above - below) / 2e-6, rel=1e-6), f"{name} has another gradient"
        assert machine.flops == roofline.GRADIENT_FLOPS_PER_ELEMENT[name], name
    assert set(GRADIENTS) == set(roofline.GRADIENT_FLOPS_PER_ELEMENT)


@pytest.mark.parametrize("name", BINARY)
def test_elementwise_work_of_two_operands_reads_both(name):
    machine = Machine()
    a, b, y = machine.operand("a"), machine.operand("b"), machine.operand("y")
    for i in range(6):
        y[i] = BINARY[name](a[i], b[i])
    assert elementwise_work((6,), name, "bf16", operands=2) == machine.work(2)


def test_every_elementwise_function_has_been_counted():
    assert set(FUNCTIONS) | set(BINARY) == set(roofline.FLOPS_PER_ELEMENT)


@given(rows=few, length=few)
def test_softmax_work_is_what_a_stable_softmax_does(rows, length):
    machine = Machine()
    x, y = machine.operand("x"), machine.operand("y")
    for r in range(rows):
        for i, value in enumerate(softmax_of([x[r, i] for i in range(length)])):
            y[r, i] = value
    assert softmax_work((rows, length), "bf16") == machine.work(2)


@given(rows=few, length=st.integers(1, 40))
def test_layer_norm_work_is_what_a_layer_norm_does_but_for_a_few_operations_a_row(rows, length):
    machine = Machine()
    x, y, weight, bias = (machine.operand(name) for name in ("x", "y", "weight", "bias"))
    for r in range(rows):
        total = Number(machine, 0.0)
        for i in range(length):
            total = total + x[r, i]
        mean, squares, centred = total / length, Number(machine, 0.0), []
        for i in range(length):
            centred.append(x[r, i] - mean)
            squares = squares + centred[-1] * centred[-1]
        scale = (squares / length + 1e-5).apply(lambda v: 1 / math.sqrt(v))
        for i in range(length):
            y[r, i] = centred[i] * scale * weight[i] + bias[i]
    formula, counted = layer_norm_work((rows, length), "fp32"), machine.work(4)
    assert formula.bytes == counted.bytes, f"{formula.bytes=}, but should be {counted.bytes} [{rows=}, {length=}]"
    assert layer_norm_work((), "fp32").bytes == 4 * 4, "of one number: in, out, weight, bias"
    a_few = 4 * rows  # its two divisions, ε and root
    assert counted.flops - formula.flops == a_few, f"{formula.flops=}, but should be {counted.flops} less {a_few}"


@pytest.mark.parametrize("fused", [True, False])
@given(batch=st.integers(1, 2), groups=st.integers(1, 2), kv_heads=st.integers(1, 2), queries=few, keys=few, size=few)
def test_attention_work_is_what_attention_does(fused, batch, groups, kv_heads, queries, keys, size):
    machine, heads = Machine(), groups * kv_heads
    q, k, v, out, scores, shares = (machine.operand(name) for name in ("q", "k", "v", "out", "scores", "shares"))
    extra = 0  # the unfused reading back of what was written, which touching an element twice does not show
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                row = []
                for j in range(keys):
                    total = Number(machine, 0.0)
                    for p in range(size):
                        total = total + q[b, h, i, p] * k[b, h // groups, j, p]
                    row.append(total)
                weights = softmax_of(row)
                if not fused:
                    for j in range(keys):
                        scores[b, h, i, j], shares[b, h, i, j] = row[j], weights[j]
                        extra += 2
                for p in range(size):
                    total = Number(machine, 0.0)
                    for j in range(keys):
                        total = total + weights[j] * v[b, h // groups, j, p]
                    out[b, h, i, p] = total
    counted = machine.work(2)
    counted = Work(counted.flops, counted.bytes + 2 * extra)
    formula = attention_work(Attention(batch, heads, queries, size, key_length=keys, kv_heads=kv_heads), fused=fused)
    assert formula == counted, f"{formula=}, but should be {counted}"


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "fp8_e4m3", "fp4_e2m1"])
def test_bytes_follow_the_width_of_the_format(dtype):
    elements = 3 * 16 * 16
    assert matmul_work(16, 16, 16, dtype).bytes == elements * element_bits(dtype) / 8


@given(n=st.integers(1, 10**5))
def test_the_intensity_of_a_square_product_in_16_bits_is_a_third_of_its_size(n):
    assert matmul_work(n, n, n).intensity == pytest.approx(n / 3)


def test_work_adds_up():
    assert Work(1, 2) + Work(10, 20) == Work(11, 22)


# Roofs and utilisation

rates = st.floats(1e9, 1e16)


@given(peak=rates, bandwidth=st.floats(1e9, 1e14), flops=st.integers(1, 10**18), moved=st.integers(1, 10**15))
def test_attainable_rate_is_the_work_over_the_time_of_its_slower_half(peak, bandwidth, flops, moved):
    work = Work(flops, moved)
    seconds = max(flops / peak, moved / bandwidth)  # arithmetic and traffic overlapped
    assert least_time_s(work, peak, bandwidth) == pytest.approx(seconds)
    assert attainable_flop_per_s(work.intensity, peak, bandwidth) == pytest.approx(flops / seconds)


@given(peak=rates, bandwidth=st.floats(1e9, 1e14))
def test_the_peak_is_attained_from_the_ridge_point_on_and_not_below(peak, bandwidth):
    ridge = ridge_point(peak, bandwidth)
    assert attainable_flop_per_s(ridge * 1.0001, peak, bandwidth) == peak
    assert attainable_flop_per_s(ridge * 0.999, peak, bandwidth) < peak


@given(work=st.integers(1, 10**15), extra=st.integers(0, 10**15), seconds=st.floats(1e-6, 1e6), devices=few)
def test_utilisation_of_a_device_that_is_busy_all_the_time_is_one(work, extra, seconds, devices):
    peak = (work + extra) / seconds / devices
    assert hfu(work, extra, seconds, peak, devices) == pytest.approx(1)
    assert mfu(work, seconds, peak, devices) == pytest.approx(work / (work + extra))


def test_utilisation_is_not_clipped_and_not_guessed():
    assert mfu(2 * 10**12, 1.0, 1e12) == 2.0
    assert mfu(10**12, 1.0, None) is None
    assert hfu(10**12, 0, 1.0, None) is None
    assert mfu(0, 1.0, 1e12) == 0


test_a_wrong_argument_is_named_in_the_error = refuses(
    (lambda: Work(-1, 2), ValueError, "flops must be at least 0, got -1"),
    (lambda: arithmetic_intensity(1, 0), ValueError, "moved_bytes must be at least 1, got 0"),
    (lambda: arithmetic_intensity(-1, 1), ValueError, "flops must be at least 0, got -1"),
    (lambda: arithmetic_intensity(1.5, 1), TypeError, "flops must be an integer"),
    (lambda: elementwise_work((0,)).intensity, ValueError, "moved_bytes"),
    (lambda: matmul_work(-1, 2, 3), ValueError, "m must be at least 0, got -1"),
    (lambda: matmul_work(1, 2, 3, "flaot16"), ValueError, "flaot16"),
    (lambda: elementwise_work((2,), "swish"), ValueError, "function must be one of"),
    (lambda: elementwise_work((2,), operands=0), ValueError, "operands must be at least 1"),
    (lambda: elementwise_work((2, -3)), ValueError, r"shape\[1\] must be at least 0, got -3"),
    (lambda: attention_work(Attention(1, 6, 2, 8), "flaot16"), ValueError, "flaot16"),
    (lambda: ridge_point(0, 1e9), ValueError, "peak_flop_per_s must be a finite number above 0, got 0"),
    (lambda: ridge_point(1e12, float("inf")), ValueError, "bandwidth_bytes_per_s"),
    (lambda: attainable_flop_per_s(-1, 1e12, 1e9), ValueError, "intensity"),
    (lambda: mfu(10, 0, 1e12), ValueError, "seconds must be a finite number above 0, got 0"),
    (lambda: mfu(10, 1.0, 0), ValueError, "peak_flop_per_s must be a finite number above 0, got 0"),
    (lambda: mfu(10, 1.0, 1e12, devices=0), ValueError, "devices must be at least 1"),
    (lambda: mfu(10, 1.0, None, devices=0), ValueError, "devices must be at least 1"),
    (lambda: mfu(10.5, 1.0, 1e12), TypeError, "model_flops must be an integer"),
    (lambda: hfu(10, -1, 1.0, 1e12), ValueError, "recomputed_flops must be at least 0"),
    (lambda: least_time_s(Work(1, 1), 1e12, 0), ValueError, "bandwidth_bytes_per_s"),
)


def test_a_copy_attains_no_flops():
    assert attainable_flop_per_s(0, 1e12, 1e9) == 0
