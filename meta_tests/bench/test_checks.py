"""What one call reads, writes and dispatches is seen; wrong results and lengths of kernels are noticed."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accounting import counted, measured
from accounting.formats import format_of
from bench import checks, kernels, test_matmul, test_roofline, transfers
from bench.ceilings import Ceilings
from bench.checks import assert_random, examine
from bench.kernels import bound_of
from bench.products import DTYPES, Operands, Product, Unsupported, probe_tf32
from bench.rounds import PACES
from bench.streams import MEMORY, STREAMS, WINDOW, Arrays, Bandwidths, Size, bandwidth_of_mix, cache_size, memory_size
from bench.test_numerics import overflow_threshold
from meta_tests.bench.stand_ins import CPU, steady, supported
from meta_tests.conftest import ROOT
from prooflops.machine.caches import Caches

GIB = 2**30

# ---- one call ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_operands_of_a_product_count_as_random_and_its_flops_as_declared(dtype: str) -> None:
    case = supported(dtype)
    seen = examine(case.multiply)
    assert_random(seen.inputs)
    assert {case.a.data_ptr(), case.b.data_ptr()} <= {tensor.data_ptr() for tensor in seen.inputs}
    assert seen.flops == case.work.flops


def test_what_a_function_writes_is_no_input_of_it_and_views_are_no_operators() -> None:
    x, out = torch.randn(256), torch.zeros(256)
    for function, operators in (
        (lambda: torch.relu(torch.add(x, x, out=out)), 2),
        (lambda: out.copy_(x), 1),
        (lambda: x.view(16, 16).t() + torch.zeros(16, 16), 2),
    ):
        seen = examine(function)
        assert [t.data_ptr() for t in seen.inputs] == [x.data_ptr()]
        assert seen.operators == operators


def test_looking_at_a_call_keeps_nothing_that_the_call_frees() -> None:
    x = torch.randn(2**18)

    def held_bytes(look: Callable[[Callable[[], object]], object]) -> int:
        with measured.memory("cpu") as held:
            look(lambda: [x + 1 for _ in range(8)] and [(x * 2).relu_().sum() for _ in range(64)])
        return held.peak_bytes

    plain, looked_at = held_bytes(lambda function: function()), held_bytes(examine)
    assert looked_at < plain + x.nbytes, f"a call holds {plain} bytes, but looked at {looked_at}"


def test_a_storage_that_takes_the_place_of_a_freed_one_is_told_from_it() -> None:
    """The second of two inputs often gets the address of what the call wrote, and freed, before."""

    def read_later() -> None:
        (torch.zeros(2**12) + 1).sum()
        inputs.append(torch.from_numpy(np.ones(2**12)))
        inputs[-1].sum()

    inputs: list[torch.Tensor] = []
    for _ in range(20):
        seen = examine(read_later)
        assert any(tensor is inputs[-1] for tensor in seen.inputs), "an input was taken for what the call wrote"


def test_what_a_call_reads_is_not_overwritten() -> None:
    x, kept = torch.randn(64), torch.arange(64)
    seen = examine(lambda: (x.add_(1), kept, kept + 1, torch.ones(1).expand(8)))
    checks.overwrite(seen)
    assert x.isfinite().all()
    assert kept.tolist() == list(range(64))
    assert (seen.result[2] == torch.iinfo(torch.int64).min).all()  # type: ignore[index]


# ---- products ----------------------------------------------------------------------------------------------------

WRONG: dict[str, Callable[[Product], torch.Tensor]] = {
    "zeros": lambda case: torch.zeros_like(case.multiply()),
    "not a number": lambda case: torch.full_like(case.multiply(), float("nan")),
    "one term of k left out": lambda case: case.a[:, 1:].float() @ case.b[1:].float(),
    "operands of another seed": lambda case: case.a.float() @ case.b.float().flip(0),
    "half the result": lambda case: case.multiply().float() / 2,
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("k", [96, 32768])
@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "fp16", "int8", "fp8_e4m3"])
def test_a_wrong_product_fails_its_check_and_a_right_one_passes(dtype: str, k: int, wrong: str) -> None:
    """Roundings relative to the sum of magnitudes, not to the sum, would let half of a long result pass."""
    if (dtype, wrong) == ("int8", "not a number") or (k > 96 and wrong == "one term of k left out"):
        pytest.skip("integers have no NaN; one term of many is within rounding")
    case = supported(dtype, 16, k, 64)
    case.check(case.multiply())
    with pytest.raises(AssertionError, match=rf"product of {dtype} differs from fp64 by .* m=16, {k=}, n=64"):
        case.check(WRONG[wrong](case))


def test_tf32_that_keeps_every_bit_of_fp32_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unsupported, match="tf32 exists on CUDA devices only"):
        Ceilings(CPU, PACES["quick"]).flop_per_s("tf32")
    with pytest.raises(Unsupported, match="multiplies fp32 in full where tf32 is allowed"):
        probe_tf32(CPU)
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: a.bfloat16().float().mm(b))
    probe_tf32(CPU)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_part_of_the_operands_is_multiplied_right(dtype: str) -> None:
    try:
        operands = Operands(dtype, 64, 96, 80, CPU)
    except Unsupported as reason:
        pytest.skip(str(reason))
    for m, k, n in ((64, 96, 80), (16, 32, 48), (48, 16, 16)):
        multiply, flops = operands.multiply(m, k, n)
        b = operands._b[: k * n]
        b = b.view(n, k).t() if dtype == "fp8_e4m3" else b.view(k, n)
        Product(dtype, operands._a[: m * k].view(m, k), b, multiply).check(multiply())
        assert flops == 2 * m * k * n
    assert not operands.zeroed().multiply(16, 32, 48)[0]().any()


def test_the_layers_of_llama3_8b_are_those_of_its_published_checkpoint() -> None:
    layers = {name.removeprefix("llama3-8b-"): shape[1:] for name, shape in test_matmul.SHAPES.items()}
    assert (layers["qkv"], layers["attention-out"]) == ((4096, 4096 + 2 * 1024), (4096, 4096))
    assert (layers["mlp-up"], layers["mlp-down"]) == ((4096, 2 * 14336), (14336, 4096))


@pytest.mark.parametrize(
    ("dtype", "threshold"), [("fp16", 65520), ("fp8_e5m2", 61440), ("fp8_e4m3", 464), ("bf16", 2**128 - 2**119)]
)
def test_the_overflow_threshold_is_half_a_step_beyond_the_largest_number(dtype: str, threshold: int) -> None:
    assert overflow_threshold(format_of(dtype)) == threshold  # type: ignore[arg-type]


# ---- streams and kernels -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def arrays() -> Arrays:
    return Arrays(3 * WINDOW, CPU)


WRONG_STREAM: dict[str, Callable[[torch.Tensor], object]] = {
    "zeros": lambda out: out.zero_(),
    "a part is not written": lambda out: out[out.numel() // 3 :][:256].fill_(7.0) if out.dim() else out.mul_(0.99),
    "the last element": lambda out: out[-1:].mul_(1.001) if out.dim() else out.mul_(1.001),
    "not a number": lambda out: out.fill_(float("nan")),
}


@pytest.mark.parametrize("wrong", WRONG_STREAM)
@pytest.mark.parametrize("kernel", STREAMS)
def test_a_wrong_result_of_a_stream_is_caught(kernel: str, wrong: str, arrays: Arrays) -> None:
    stream = arrays.stream(kernel)
    stream.check(stream.run())
    WRONG_STREAM[wrong](out := stream.run())
    with pytest.raises(AssertionError, match=f"{kernel} differs from fp64 by"):
        stream.check(out)


@pytest.mark.parametrize(
    ("last_level", "memory", "pace", "multiple", "label"),
    [
        (32 * 2**20, 24 * GIB, "quick", 4, ""),
        (480 * 2**20, 512 * GIB, "quick", 128 / 480, "fits the cache: 0.27 of it"),  # a host's, seen in a container
        (480 * 2**20, 512 * GIB, "thorough", 4, ""),
        (32 * 2**20, GIB, "default", 1, "fits the cache: 1 of it"),
        (48 * 2**20, 512 * GIB, "quick", 128 / 48, "arrays of 2.7 caches"),
    ],
)
def test_arrays_are_four_caches_long_or_say_that_they_are_not(
    last_level: int, memory: int, pace: str, multiple: float, label: str
) -> None:
    size = memory_size(CPU, pace, Caches({"L3": last_level}, memory_bytes=memory))
    assert (size.multiple, size.label) == (pytest.approx(multiple), label)


def test_rows_of_a_cache_fit_it_and_not_the_one_within() -> None:
    known = {"L1": 48 * 2**10, "L2": 2**20, "L3": 32 * 2**20}
    within = 0
    for level, size in known.items():
        for count in (2, 3):
            row = cache_size(level, count, known)
            assert row is not None
            assert within < 4 * count * row.elements <= size / 2
        within = size
    assert cache_size("L3", 2, {"L2": 2**20, "L3": 2**20}) is None, "no larger than the level within it"


@pytest.fixture(params=list(kernels.KERNELS))
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> kernels.Kernel:
    monkeypatch.setattr(kernels, "LAYER", (256, 512))
    return kernels.KERNELS[request.param](torch.randn(128, 1024), torch.rand(128, 1024))


def test_a_kernel_does_the_work_that_it_declares_and_a_wrong_result_is_caught(kernel: kernels.Kernel) -> None:
    with counted.flops() as seen:
        out = kernel.run()
    kernel.check(out)
    assert seen.total + seen.elementwise == kernel.work.flops + kernel.more_flops
    assert seen.moved_bytes == kernel.work.bytes + kernel.more_bytes
    out.view(-1)[-1].add_(1.0).mul_(1.01)
    with pytest.raises(AssertionError, match="differs from fp64 by"):
        kernel.check(out)


def test_a_kernel_has_its_place_under_the_roofs_and_one_above_has_its_roof_measured_again(
    kernel: kernels.Kernel,
) -> None:
    def placed(seconds: float) -> dict[str, Any]:
        ceilings = Ceilings(CPU, PACES["quick"])
        ceilings._flop_per_s["fp32", "sustainable"] = 1e12
        bandwidths = Bandwidths(CPU, PACES["quick"], Size(2**12, MEMORY, 4.0))
        bandwidths._measured |= {1.0: 4e10, 0.5: 2e10}
        run = steady(seconds)
        fixture = test_roofline.place.__wrapped__
        fixture(CPU, Caches({"L3": 1}), ceilings, bandwidths, run, lambda dtype: None, None)(kernel)
        return run.info

    info = placed(1.0)
    roof = bandwidth_of_mix(info["read_share"], {1.0: 4e10, 0.5: 2e10})
    assert (info["bound"], info["roof_remeasured"]) == ("memory", "")
    assert info["share_of_attainable"] == pytest.approx(kernel.work.bytes / roof)
    assert info["ridge"] == pytest.approx(1e12 / roof)
    assert placed(1e-9)["roof_remeasured"] == "bandwidth"


@pytest.mark.parametrize("features", [1, 1000, 1024, 3000])
def test_the_vectors_of_a_layer_norm_lie_alike_in_each_process(features: int) -> None:
    kept = [kernels.half_a_page_apart(features, CPU) for _ in range(3)]  # placed by chance
    for weight, bias in kept:
        assert (weight.data_ptr() % 4096, bias.data_ptr() % 4096) == (0, 2048)
        assert bias.data_ptr() >= weight.data_ptr() + 4 * features, "they do not overlap"


# ---- mixes and overlaps ------------------------------------------------------------------------------------------

SHARES = st.floats(0, 1)


@given(SHARES, st.dictionaries(SHARES, st.floats(1e6, 1e13), min_size=1, max_size=5))
def test_the_bandwidth_of_a_mix_is_between_those_measured_beside_it(share: float, measured: dict[float, float]) -> None:
    beside = [measured[max((s for s in measured if s <= share), default=min(measured))],
              measured[min((s for s in measured if s >= share), default=max(measured))]]  # fmt: skip
    found = bandwidth_of_mix(share, measured)
    assert min(beside) * (1 - 1e-9) <= found <= max(beside) * (1 + 1e-9)
    if share in measured:
        assert found == measured[share]


@given(st.floats(1e-6, 1e3), st.floats(1e-6, 1e3), SHARES)
def test_the_overlap_is_the_share_of_the_shorter_that_is_hidden(first: float, second: float, hidden: float) -> None:
    together = first + second - hidden * min(first, second)
    tolerance = 1e-12 * max(first, second) / min(first, second)
    assert transfers.overlap_share(first, second, together) == pytest.approx(hidden, abs=1e-9 + tolerance)


def test_the_bound_changes_at_the_ridge_and_a_launch_comes_first() -> None:
    assert [bound_of(intensity, 4.0) for intensity in (0, 3.99, 4.0)] == ["memory", "memory", "compute"]
    assert [bound_of(100.0, 4.0, share) for share in (0.49, 0.5)] == ["compute", "launch"]


# ---- freed memory ------------------------------------------------------------------------------------------------

IN_A_NEW_PROCESS = """
import ctypes
from bench.freed_memory import keep_freed_memory, new_pages
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
def pages():
    before, block = new_pages(), ctypes.c_void_p(libc.malloc(2**26))
    libc.memset(block, 1, 2**26)
    libc.free(block)
    return new_pages() - before
print(pages(), pages())
with keep_freed_memory() as done:
    pages()
    print(done, pages(), pages())
print(pages(), pages())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")
def test_a_freed_block_is_used_again_while_it_is_kept_and_only_then() -> None:
    ran = subprocess.run([sys.executable, "-c", IN_A_NEW_PROCESS], cwd=ROOT, capture_output=True, text=True, check=True)
    before, within, after = map(str.split, ran.stdout.splitlines())
    assert min(map(int, [*before, *after])) > 16, "glibc gives it back by default, and afterwards"
    assert within[0] == "True"
    assert max(map(int, within[1:])) < 16
