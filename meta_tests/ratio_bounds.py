"""What each ratio of times that a claim or a benchmark bounds must be on three cards.

`python -m meta_tests.ratio_bounds` writes docs/ratio-bounds.md. A time is the longest of the launches, the FLOPs at 3/4
of the vendor's peak, and the bytes at 9/10 of the vendor's bandwidth.
That is rough, so a bound should lie a factor of MARGIN from the ratio.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from accounting.devices import ACCELERATORS, bandwidth_bytes_per_s, peak_flop_per_s

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "ratio-bounds.md"
MARGIN = 1.3
# Of one operator from Python. A kernel's launch takes 4 to 6 µs on an RTX 5070 Ti with driver 580
# (susun-blog.com/blog/pegainfer-3-cuda-graph); that of a fast host 3.
LAUNCHES_S = (3e-6, 6e-6)
VIEW_S = 4e-6  # one view made from Python, on a busy Xeon at 2.5 GHz
HOST_FLOP_PER_S, HOST_BYTES_PER_S = 1e11, 1e10  # of one thread: products of fp32, and copies
ALL_CORES_FLOP_PER_S = 5e12
PINNED_BYTES_PER_S, PAGEABLE_BYTES_PER_S = 2.5e10, 1e10  # PCIe 4.0 x16
PINNING_BYTES_PER_S = 5e9  # of fresh host memory


@dataclass(frozen=True)
class Card:
    """A card of the peak table, and how long an operator's launch takes beside it."""

    label: str
    launch_s: float = LAUNCHES_S[1]

    @property
    def bytes_per_s(self) -> float:
        return 0.9 * (bandwidth_bytes_per_s(ACCELERATORS[self.label]) or math.nan)

    def stream(self, nbytes: float, launches: int = 1) -> float:
        """Seconds of kernels that move so many bytes."""
        return max(launches * self.launch_s, nbytes / self.bytes_per_s)

    def product(self, m: int, k: int | None = None, n: int | None = None, dtype: str = "fp32") -> float:
        """Seconds of one product."""
        k, n = k or m, n or m
        peak = peak_flop_per_s(ACCELERATORS[self.label], dtype)
        size = {"fp32": 4, "tf32": 4, "fp8_e4m3": 1}.get(dtype, 2)
        moved = size * (m * k + k * n) + max(size, 2) * m * n
        return math.nan if peak is None else max(self.stream(moved), 2 * m * k * n / (0.75 * peak))


CARDS = ("H100 SXM5 80GB", "RTX 4090", "MI300X")
Model = Callable[[Card], float]
UP = math.inf


@dataclass(frozen=True)
class Bound:
    """A test's bounds on a ratio of times, and the ratio on a card; `why`, where it is not by bandwidth and peak."""

    least: float
    ratio: Model
    most: float = UP
    why: str = ""

    def ratios(self, label: str) -> list[float]:
        """With the fastest and the slowest launch; none where the card has no such product."""
        return [r for launch in LAUNCHES_S if not math.isnan(r := self.ratio(Card(label, launch)))]

    @property
    def margin(self) -> float:
        """How many times further away the nearest bound is, on the card where that is least."""
        found = [r for label in CARDS for r in self.ratios(label)]
        return min(min(r / self.least, self.most / r) for r in found)


def sizes_of_views(card: Card) -> float:
    return 2 ** round(math.log2(5e-4 * card.bytes_per_s / 0.9 / 8)) * 8.0


MIB, GIB = 2.0**20, 2.0**30
ROWS = 2.0**28 * 4  # bytes of an operand of the roofline claims
ON_CPU = "on the CPU alone"
NETS = "launches of some 30 operators"

# test: its bounds, one for each comparison, in the order of the calls
BOUNDS: dict[str, list[Bound]] = {
    "test_amp.py::test_a_large_layer_is_faster_in_bf16_where_the_device_multiplies_it_faster": [
        Bound(1, lambda c: c.product(32, 8192, 8192) / c.product(32, 8192, 8192, "bf16")),
    ],
    "test_amp.py::test_a_small_layer_is_not_twice_as_fast_in_bf16": [Bound(0.6, lambda c: 1, why="two launches")],
    "test_amp.py::test_for_small_layers_mixed_precision_is_slower_than_fp32": [
        Bound(0.9, lambda c: 1.4, why="launches: casts besides, some 40 of 100"),
    ],
    "test_amp.py::test_for_large_layers_mixed_precision_gains_where_products_in_bf16_are_faster": [
        Bound(1, lambda c: mixed_gain(c), why="asked only where a product alone gains more than 2"),
        Bound(1, lambda c: 1.5, why=ON_CPU),
    ],
    "test_compile.py::test_the_first_call_pays_for_the_compilation_and_the_others_do_not": [
        Bound(10, lambda c: 100, why="tracing, 10 ms or more, against guards and nine launches, 0.1 ms"),
    ],
    "test_compile.py::test_fused_operations_are_faster_than_one_after_the_other": [
        Bound(1, lambda c: c.stream(8 * 2 * MIB * 256, 8) / c.stream(2 * MIB * 256)),
    ],
    "test_compile.py::test_a_product_ordered_by_hand_beats_the_compiled_one": [
        Bound(1, lambda c: (c.product(4096) + c.product(4096, 4096, 64)) / (2 * c.product(4096, 4096, 64))),
    ],
    "test_compile.py::test_a_compiled_product_takes_the_time_of_the_uncompiled_one": [Bound(1 / 1.5, lambda c: 1, 1.5)],
    "test_compile.py::test_compiled_products_use_tensor_cores_for_bf16_and_not_for_fp32": [
        Bound(1.5, lambda c: c.product(4096) / c.product(4096, dtype="bf16")),
    ],
    "test_data.py::test_a_pinned_batch_is_copied_beside_the_kernels_of_another_stream": [
        Bound(1.2, lambda c: PINNED_BYTES_PER_S / PAGEABLE_BYTES_PER_S + 1, why="the link; pageable holds the host"),
        Bound(1.2, lambda c: 2, why="products as long as the copy"),
    ],
    "test_data.py::test_a_loader_that_reads_ahead_costs_time_only_where_it_is_slower_than_the_model": [
        Bound(0.5, lambda c: 1, 2, why="hidden by the step, or else 20 steps' time: 2 at least"),
    ],
    "test_data.py::test_with_a_slow_loader_a_training_step_takes_as_long_as_its_data": [
        Bound(2, lambda c: 5, why="a loader of five steps' time"),
    ],
    "test_device.py::test_a_copy_over_the_bus_takes_longer_than_one_within_the_device": [
        Bound(2, lambda c: 256 * MIB / 5.5e10 / c.stream(512 * MIB), why="PCIe 5.0 x16, the fastest link"),
    ],
    "test_device.py::test_a_copy_from_a_buffer_pinned_before_is_faster": [
        Bound(1, lambda c: PINNED_BYTES_PER_S / PAGEABLE_BYTES_PER_S, why="the link"),
    ],
    "test_device.py::test_pinning_for_one_copy_is_slower_than_not_pinning": [
        Bound(1, lambda c: PAGEABLE_BYTES_PER_S * (1 / PINNING_BYTES_PER_S + 1 / HOST_BYTES_PER_S), why="fresh pages"),
    ],
    "test_device.py::test_pinning_gains_less_the_more_computation_there_is_per_copy": [
        Bound(1, lambda c: PINNED_BYTES_PER_S / PAGEABLE_BYTES_PER_S, why="the link"),
        Bound(0.5, lambda c: 21 / 20.4, 1.75, why="products of 20 times the copy; at most half of the gain above"),
    ],
    "test_device.py::test_a_large_product_is_slower_on_all_cores_of_the_cpu_too": [
        Bound(2, lambda c: 2 * 4096**3 / ALL_CORES_FLOP_PER_S / c.product(4096), why="64 cores of the host"),
    ],
    "test_device.py::test_a_large_product_is_an_order_of_magnitude_slower_on_the_cpu": [
        Bound(10, lambda c: 2 * 4096**3 / HOST_FLOP_PER_S / c.product(4096), why="one thread of the host"),
    ],
    "test_device.py::test_a_tiny_operation_is_slower_on_the_gpu": [
        Bound(1, lambda c: c.launch_s / 1.5e-6, why="launch against 1.5 µs of an addition on a CPU"),
    ],
    "test_device.py::test_many_small_copies_take_longer_than_one_of_the_same_bytes": [
        Bound(2, lambda c: 256 * c.launch_s / max(c.launch_s, MIB / PINNED_BYTES_PER_S)),
    ],
    "test_dtype.py::test_a_large_bf16_matmul_is_faster_than_fp32_where_there_is_a_bf16_unit": [
        Bound(1, lambda c: c.product(4096) / c.product(4096, dtype="bf16")),
    ],
    "test_dtype.py::test_an_fp8_matmul_without_an_fp8_unit_is_slower_than_fp32": [Bound(1, lambda c: 10, why=ON_CPU)],
    "test_flops.py::test_an_elementwise_operation_takes_time_in_proportion_to_the_elements": [
        Bound(2, lambda c: c.stream(16 * 12 * 2.0**26) / c.stream(12 * 2.0**26), 128),
    ],
    "test_flops.py::test_a_norm_takes_more_of_the_time_than_of_the_flops": [
        Bound(2 * 8 * 4096**2 / (2 * 4096**3), lambda c: c.stream(2 * 4 * 4096.0**2) / c.product(4096)),
    ],
    "test_flops.py::test_a_tiny_product_takes_far_longer_than_its_flops_would": [
        Bound(10 * (8 / 1024) ** 3, lambda c: c.product(8) / c.product(1024)),
        Bound(1, lambda c: 4 * c.product(8) / c.product(16)),
    ],
    "test_flops.py::test_products_of_equal_flops_take_unequal_times": [
        Bound(1.2, lambda c: c.product(16384, 4, 16384) / c.product(1024)),
    ],
    "test_grad.py::test_forward_and_backward_take_two_to_four_and_a_half_times_the_forward": [
        Bound(1.5, lambda c: 3 * c.product(8192) / c.product(8192), 6),
    ],
    "test_matmul.py::test_a_batched_product_is_much_faster_than_a_loop_in_python": [
        Bound(2, lambda c: 32 * c.product(16, 32, 2) / c.product(512, 32, 2)),
    ],
    "test_matmul.py::test_small_products_with_matrices_of_their_own_are_faster_as_a_batch": [
        Bound(2, lambda c: 32, why="launches"),
    ],
    "test_matmul.py::test_a_loop_over_large_products_takes_about_as_long_as_their_batch": [
        Bound(0.4, lambda c: 1, 2, why="the same products"),
    ],
    "test_matmul.py::test_tensor_cores_multiply_faster_than_fp32_by_default": [
        Bound(0.75, lambda c: c.product(4096) / c.product(4096, dtype="tf32"), why="tf32, 3/4 of the table's"),
    ],
    "test_mfu.py::test_a_tiny_product_stays_below_a_twentieth_whatever_the_peak_is": [
        Bound(20 * (64 / 4096) ** 3, lambda c: c.product(64) / c.product(4096)),
    ],
    "test_mfu.py::test_a_whole_training_step_stays_away_from_the_rate_of_its_own_products": [
        Bound(1 / 0.9, lambda c: 1 + c.stream(15 * 2 * 3 * 4096.0**2 + 10 * 2 * 3 * 2048.0 * 4096, 60)
              / (8 * c.product(2048, 4096, 4096, "bf16")), why="AdamW moves 30 bytes a parameter"),
    ],
    "test_mfu.py::test_norms_and_activations_between_the_products_lower_the_utilisation": [
        Bound(1.06, lambda c: 1 + c.stream(4 * 2 * 2.0**16 * 1024) / c.product(2**16, 1024, 1024, "bf16")),
    ],
    "test_mfu.py::test_a_product_of_little_work_per_byte_lowers_it": [
        Bound(1.2, lambda c: 32 * c.product(1, 8192, 8192) / c.product(32, 8192, 8192)),
    ],
    "test_mfu.py::test_many_tiny_operations_lower_it": [Bound(5, lambda c: 256 * c.launch_s / c.launch_s)],
    "test_mfu.py::test_communication_lowers_it": [
        Bound(1, lambda c: 1 + 2**18 * (2 / 2e9 + 1 / PAGEABLE_BYTES_PER_S) / (30 * c.launch_s), why=NETS),
    ],
    "test_mfu.py::test_the_same_flops_in_another_shape_take_far_longer": [
        Bound(1.5, lambda c: c.product(8, 1024**3 // 64, 8) / c.product(1024)),
    ],
    "test_quant.py::test_one_token_times_quantised_weights_is_faster_than_times_fp32": [
        Bound(1, lambda c: c.stream(4 * 8192.0**2) / c.stream(0.5 * 8192**2)),
    ],
    "test_quant.py::test_weights_written_out_before_each_product_are_slower_than_fp32": [
        Bound(1, lambda c: 1 + c.stream(5 * 8192.0**2, 2) / c.stream(4 * 8192.0**2)),
    ],
    "test_quant.py::test_a_large_batch_gains_less_than_one_token": [
        Bound(1, lambda c: c.product(1, 8192, 8192) / c.stream(0.5 * 8192**2)
              / (c.product(64, 8192, 8192) / (4 * c.stream(0.5 * 8192**2))), why="the kernel takes 16 rows at a time"),
    ],
    "test_roof.py::assert_memory_bound": [
        Bound(1.2, lambda c: 2, why=ON_CPU),
        Bound(0.5, lambda c: 1, 1.5, why="as many bytes"),
    ],
    "test_roof.py::test_a_tiny_operation_of_low_intensity_waits_for_its_launch_instead": [
        Bound(10 * 16 / 2**28, lambda c: c.launch_s / c.stream(2 * ROWS)),
    ],
    "test_roof.py::test_nothing_beats_the_roof_of_its_own_mix_of_reads_and_writes": [
        Bound(0.5, lambda c: 1, why="in times of the bytes' own"),
    ],
    "test_roof.py::test_a_product_stays_below_the_roof_of_the_best_product": [
        Bound(0.5 / 8, lambda c: c.product(2048) / c.product(4096)),
    ],
    "test_roof.py::test_an_operation_takes_far_longer_than_a_product_of_its_flops": [
        Bound(2, lambda c: c.stream(2 * ROWS) / c.product(1024), why="GELU, of most FLOPs"),
    ],
    "test_roof.py::test_a_gelu_written_as_five_operations_is_slower_than_a_fused_one": [
        Bound(1.2, lambda c: c.stream(11 * ROWS, 5) / c.stream(2 * ROWS)),
    ],
    "test_roof.py::test_on_a_gpu_a_fused_gelu_is_about_as_fast_as_relu": [Bound(0.7, lambda c: 1, 1.5)],
    "test_roof.py::test_a_matrix_times_a_vector_takes_longer_than_a_product_of_its_flops": [
        Bound(1.3, lambda c: c.stream(ROWS) / c.product(646)),
    ],
    "test_roof.py::test_a_matrix_times_a_vector_takes_about_the_time_of_reading_the_matrix": [
        Bound(0.4, lambda c: c.stream(ROWS) / c.stream(ROWS), 4),
    ],
    "test_roof.py::test_a_product_of_twice_the_side_takes_eight_times_as_long_not_four": [
        Bound(4.5, lambda c: c.product(8192) / c.product(4096), 16),
    ],
    "test_roof.py::test_64_examples_at_once_are_far_faster_than_one_by_one": [
        Bound(1.3, lambda c: 64 * c.product(1, 8192, 8192) / c.product(64, 8192, 8192)),
    ],
    "test_roof.py::test_from_some_batch_on_more_examples_take_proportionally_more_time": [
        Bound(0.5, lambda c: 4 * c.product(2048, 8192, 8192) / c.product(8192), 1.8),
    ],
    "test_spec.py::test_products_of_fp8_are_faster_than_those_of_fp16_here": [
        Bound(1, lambda c: c.product(8192, dtype="fp16") / c.product(8192, dtype="fp8_e4m3")),
    ],
    "test_spec.py::test_products_of_fp32_are_slower_than_those_of_fp16_here_but_not_by_orders_of_magnitude": [
        Bound(1, lambda c: c.product(4096) / c.product(4096, dtype="fp16"), 100),
    ],
    "test_spec.py::test_a_product_outruns_elementwise_arithmetic_here": [
        Bound(1 / 8, lambda c: c.stream(256 * 4 * 2.0**22, 256) / c.product(2048, dtype="bf16"), why="a fast cache"),
    ],
    "test_storage.py::test_making_views_takes_a_time_that_does_not_grow_with_their_size": [
        Bound(0.5, lambda c: 1, 2, why="the host alone"),
        Bound(10, lambda c: c.stream(sizes_of_views(c)) / (6 * VIEW_S), why="half a millisecond of the bandwidth"),
    ],
    "test_storage.py::test_summing_a_column_is_slower_than_summing_its_contiguous_copy": [
        Bound(1, lambda c: c.stream(2.0**22 * 32) / c.stream(2.0**22 * 4), why="a sector of 32 bytes an element"),
    ],
    "test_storage.py::test_a_product_with_a_transposed_matrix_is_not_worth_a_contiguous_copy": [
        Bound(1, lambda c: 1 + c.stream(8 * MIB) / c.stream(4 * MIB)),
    ],
}  # fmt: skip
# Of the benchmarks: the constant that bounds a ratio.
BENCH_BOUNDS = {
    "cache.py::LEAST_RATIO_OF_OTHERS": Bound(
        1.05,
        lambda c: (c.stream(25 * MIB) + 3e-6) / (c.stream(25 * MIB) / 2 + 3e-6),
        why="half of an L2 twice as fast as the memory, and 3 µs of a sum of little; not tried on AMD",
    ),
    "measuring.py::LEAST_WAITED_SHARE": Bound(
        0.5, lambda c: 2e-4 / (2e-4 + 2 * c.launch_s + 1e-5), why="calls for 0.2 ms, and the wait for an idle device"
    ),
}


def mixed_gain(card: Card) -> float:
    """A step of two layers of 8192² on 4096 rows: 5 products, and in bf16 casts of weights and gradients."""
    products, casts = 5 * card.product(4096, 8192, 8192), card.stream(6 * 2 * 8192.0**2 * 2)
    low = card.product(4096, 8192, 8192, "bf16")
    update = card.stream(2 * 3 * 4 * 8192.0**2)
    return (products + update) / (5 * low + casts + update) if products > 10 * low else math.nan


# ---- what the code says ------------------------------------------------------------------------------------------


def comparisons() -> Iterator[tuple[str, set[str], list[ast.Call]]]:
    """Each function of the claims that compares times by `speed`: its key, the claims' ids, the calls."""
    for file in sorted((ROOT / "test_claims").glob("test_*.py")):
        for function in ast.parse(file.read_text(encoding="utf-8")).body:
            if not isinstance(function, ast.FunctionDef):
                continue
            calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
            asserted = [call for call in calls if _names(call.func) == ("speed", "assert_slower")]
            if asserted or any(_names(call.func) == ("speed", "ratio") for call in calls):
                ids = {ast.literal_eval(arg) for mark in function.decorator_list if isinstance(mark, ast.Call)
                       and _names(mark.func)[-1:] == ("claim",) for arg in mark.args}  # fmt: skip
                yield f"{file.name}::{function.name}", ids, sorted(asserted, key=lambda call: call.lineno)


def _names(node: ast.expr) -> tuple[str, ...]:
    return (*_names(node.value), node.attr) if isinstance(node, ast.Attribute) else (getattr(node, "id", ""),)


def literal(call: ast.Call, keyword: str) -> float | None:
    """The bound that a call states in figures; None where it is computed."""
    for each in call.keywords:
        if each.arg == keyword:
            try:
                return float(eval(compile(ast.Expression(each.value), "bound", "eval"), {"__builtins__": {}}))
            except NameError:
                return None
    if any(each.arg is None for each in call.keywords):
        return None  # in what is unpacked there
    return 1.0 if keyword == "at_least" else UP


# ---- the page ----------------------------------------------------------------------------------------------------


def figure(value: float) -> str:
    return f"{value:.2g}" if value < 100 else f"{value:,.0f}"


def span(values: list[float]) -> str:
    ends = sorted({figure(value) for value in values}, key=lambda text: float(text.replace(",", "")))
    return " to ".join(ends) if ends else "–"


def line(name: str, ids: str, bound: Bound) -> str:
    limits = f"{figure(bound.least)}" + (f" to {figure(bound.most)}" if bound.most < UP else "")
    cells = [f"`{name}`", ids, limits, *(span(bound.ratios(label)) for label in CARDS), figure(bound.margin), bound.why]
    return "| " + " | ".join(cells) + " |"


def page() -> str:
    claims = {name: ", ".join(f"`{each}`" for each in sorted(ids)) or "several" for name, ids, _ in comparisons()}
    lines = [line(name, claims[name], bound) for name, bounds in BOUNDS.items() for bound in bounds]
    lines += [line(f"bench/{name}", "", bound) for name, bound in BENCH_BOUNDS.items()]
    low, high = (1e6 * each for each in LAUNCHES_S)
    return f"""# Bounds on ratios of times

A claim about speed, and some checks of benchmarks, bound a ratio of two times. What that ratio must be on a card
follows from the table of peaks: a time is the longest of the launches ({low:g} to {high:g} µs an operator), the FLOPs
at 3/4 of the vendor's peak, and the bytes at 9/10 of the vendor's bandwidth. Nothing here is measured. The margin
is how many times further away the nearest bound is, on the card where that is least; below {MARGIN:g} a test fails.
"–": the card has no such product, or the claim is not asked there.

`python -m meta_tests.ratio_bounds` writes this page.

| test | claims | bound | {" | ".join(CARDS)} | margin | besides bandwidth, peak and launch |
| --- | --- | --- | {"--- | " * len(CARDS)}--- | --- |
""" + "\n".join(lines) + "\n"  # fmt: skip


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
