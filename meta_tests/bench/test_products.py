"""The benchmarks notice a wrong result, a rate above the physical bound, and a ceiling that was measured too low."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from accounting.formats import format_of
from bench.ceilings import Ceilings
from bench.measuring import METHOD, Measure, assert_within_bound
from bench.pace import PACES
from bench.products import DTYPES, Product, Unsupported, product
from bench.test_matmul import SHAPES
from bench.test_numerics import overflow_threshold

CPU = torch.device("cpu")


def supported(dtype: str, m: int = 48, k: int = 96, n: int = 64) -> Product:
    try:
        return product(dtype, m, k, n, CPU)
    except Unsupported as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_right_product_passes_its_check(dtype: str) -> None:
    for _ in range(10):
        case = supported(dtype)
        case.check(case.multiply())


WRONG: dict[str, Callable[[Product], torch.Tensor]] = {
    "zeros": lambda case: torch.zeros_like(case.multiply()),
    "not a number": lambda case: torch.full_like(case.multiply(), float("nan")),
    "one term of k left out": lambda case: case.a[:, 1:].float() @ case.b[1:].float(),
    "operands of another seed": lambda case: case.a.float() @ case.b.float().flip(0),
    "half the result": lambda case: case.multiply().float() / 2,
}


@pytest.mark.parametrize("wrong", [each for each in WRONG if each != "one term of k left out"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp8_e4m3"])
def test_a_long_sum_does_not_excuse_a_wrong_product(dtype: str, wrong: str) -> None:
    """Roundings relative to the sum of magnitudes, not to the sum, would let half of a result pass at such a k."""
    try:
        case = product(dtype, 16, 32768, 64, CPU)
    except Unsupported as reason:
        pytest.skip(str(reason))
    case.check(case.multiply())
    with pytest.raises(AssertionError, match=f"product of {dtype} differs from fp64"):
        case.check(WRONG[wrong](case))


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "fp16", "int8", "fp8_e4m3"])
def test_a_wrong_product_fails_its_check(dtype: str, wrong: str) -> None:
    if dtype == "int8" and wrong == "not a number":
        pytest.skip("integers have no NaN")
    case = supported(dtype)
    with pytest.raises(AssertionError, match=rf"product of {dtype} differs from fp64 by .* m=48, k=96, n=64"):
        case.check(WRONG[wrong](case))


def test_a_dtype_the_device_lacks_is_named_with_the_reason() -> None:
    with pytest.raises(Unsupported, match="tf32 exists on CUDA devices only"):
        product("tf32", 64, 64, 64, CPU)


def test_a_rate_above_the_physical_bound_fails_and_an_unknown_bound_does_not() -> None:
    assert_within_bound(1e12, 1e12, "a product")
    assert_within_bound(1e30, None, "a product")
    with pytest.raises(AssertionError, match=r"measured 1.1e\+12 FLOP/s, but its units do at most 1e\+12"):
        assert_within_bound(1.1e12, 1e12, "a product")


class FakeBenchmark:
    """Stands for pytest-benchmark's fixture: every round takes `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.extra_info: dict[str, Any] = {}
        self.stats = {"median": seconds}

    def pedantic(self, function: Callable[[], object], **_: object) -> None:
        function()


def run_measure(seconds: float, bound: float | None) -> dict[str, Any]:
    benchmark = FakeBenchmark(seconds)
    ceilings = Ceilings(CPU, PACES["quick"])
    ceilings._flop_per_s["fp32", "sustainable"] = 1e6
    case = supported("fp32")
    measure = Measure(benchmark, CPU, PACES["quick"], lambda dtype: 1e15, lambda dtype: bound)
    measure.product(case.multiply, "fp32", case.work, ceilings, check=case.check)
    return benchmark.extra_info


def test_a_benchmark_records_what_it_declared_and_what_follows() -> None:
    work = supported("fp32").work
    info = run_measure(seconds=1.0, bound=None)
    assert info["method"] == METHOD
    assert (info["flops"], info["bytes"]) == (2 * 48 * 96 * 64, 4 * (48 * 96 + 96 * 64 + 48 * 64))
    assert info["flop_per_s"] == work.flops
    assert info["mfu"] == work.flops / 1e15
    assert info["share_of_ceiling"] == work.flops / 1e6
    assert not info["ceiling_remeasured"]


def test_a_share_above_one_has_the_ceiling_measured_again() -> None:
    info = run_measure(seconds=0.1, bound=None)
    assert info["ceiling_remeasured"]
    assert info["ceiling_flop_per_s"] > 1e6


def test_a_benchmark_faster_than_its_units_fails() -> None:
    with pytest.raises(AssertionError, match="the FLOPs or the clock are wrong"):
        run_measure(seconds=1e-9, bound=1e12)


def test_a_burst_is_held_against_bursts_and_leaves_the_steady_ceiling_as_it_is() -> None:
    ceilings, case = Ceilings(CPU, PACES["quick"]), supported("fp32")
    ceilings._flop_per_s |= {("fp32", "sustainable"): 1e6, ("fp32", "achievable"): 1e15}
    measure = Measure(FakeBenchmark(1e-3), CPU, PACES["quick"])
    measure.product(case.multiply, "fp32", case.work, ceilings, check=case.check, regime="achievable")
    assert (measure.info["ceiling_flop_per_s"], measure.info["ceiling_remeasured"]) == (1e15, False)
    assert ceilings.flop_per_s("fp32") == 1e6, "a burst became the denominator of steady work"


def test_a_time_of_zero_is_refused() -> None:
    with pytest.raises(AssertionError, match="was the device waited for"):
        run_measure(seconds=0.0, bound=None)


@pytest.mark.parametrize(
    ("dtype", "threshold"), [("fp16", 65520), ("fp8_e5m2", 61440), ("fp8_e4m3", 464), ("bf16", 2**128 - 2**119)]
)
def test_the_overflow_threshold_is_half_a_step_beyond_the_largest_number(dtype: str, threshold: int) -> None:
    assert overflow_threshold(format_of(dtype)) == threshold  # type: ignore[arg-type]


def test_the_layers_of_llama3_8b_are_those_of_its_published_checkpoint() -> None:
    layers = {name.removeprefix("llama3-8b-"): shape[1:] for name, shape in SHAPES.items() if "llama3" in name}
    assert layers == {
        "qkv": (4096, 4096 + 2 * 1024),
        "attention-out": (4096, 4096),
        "mlp-up": (4096, 2 * 14336),
        "mlp-down": (14336, 4096),
    }


def test_the_timer_of_every_benchmark_is_the_devices_clock() -> None:
    from prooflops.suite.collection import use_device_clock

    markers: list[Any] = []
    item = SimpleNamespace(
        fixturenames=["benchmark"],
        get_closest_marker=lambda name: pytest.mark.benchmark(group="x").mark,
        add_marker=lambda marker, append: markers.append(marker),
    )
    use_device_clock(item, CPU)  # type: ignore[arg-type]
    assert markers[0].kwargs["group"] == "x"
    assert callable(markers[0].kwargs["timer"])
