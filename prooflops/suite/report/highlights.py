"""The top of a report: the run in one sentence, unusual findings, and the machine's limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

from prooflops.suite.peaks import published_mfu_text
from prooflops.suite.report.measurement import Measurement
from prooflops.suite.report.run_report import RunReport
from prooflops.suite.report.tables import best_rates, kernels_of, memory_stream
from prooflops_gate.console.tables import engineering

NARROWER = {"bf16": "fp32", "fp16": "fp32", "fp8_e4m3": "bf16", "int8": "bf16", "fp32": "fp64"}
FAR_BELOW = 0.5  # below this share of the roofs, neither roof is the limit
POWER_LIMITED = 1.05  # speedup on zeros, which switch few transistors, that shows a power limit
FEW_CACHES = 4.0  # in last-level cache sizes; smaller arrays are partly served by the caches
USUAL_FLAGS = {
    "float32_matmul_precision": "highest",
    "deterministic": False,
    "default_dtype": "float32",
}


def sentence(report: RunReport) -> str:
    """The run in one sentence."""
    counts = report.counts
    if not report.claims:
        return f"{len(report.benchmarks)} benchmarks were measured; no claim was checked."
    hold, red = counts["holds"] + counts["holds if"], counts["FAILS"] + counts["error"]
    settled = hold + counts["corrected"] + red
    condition = f" ({counts['holds if']} of them under a condition)" if counts["holds if"] else ""
    parts = [f"{hold} hold{condition}"]
    if counts["corrected"]:
        parts.append(
            f"{counts['corrected']} {'is' if counts['corrected'] == 1 else 'are'} wrong as written"
        )
    parts.append(f"{red or 'none'} {'fails' if red < 2 else 'fail'} here")
    text = f"Of {settled} claims checked on this machine, {', '.join(parts[:-1])} and {parts[-1]}"
    if unchecked := counts["not checked"]:
        text += f"; {unchecked} could not be checked"
    return f"{text}."


def unusual(report: RunReport) -> list[str]:
    """Warnings about this machine and run that affect the figures; empty if all is normal."""
    return [
        *_slow_dtypes(report),
        *_disturbed(report.benchmarks),
        *_ceilings(report.benchmarks),
        *_settings(report),
    ]


def _slow_dtypes(report: RunReport) -> Iterable[str]:
    best = {dtype: bench for dtype, bench, _ in best_rates(report.benchmarks)}
    unknown = []
    for narrow, wide in NARROWER.items():
        if narrow in best and wide in best:
            pair = best[narrow], best[wide]
            ratio = (pair[0].arithmetic_rate or 0.0) / (pair[1].arithmetic_rate or 1.0)
            is_wide, either_way = (
                any(bench.is_wide for bench in pair),
                (1 + pair[0].spread) * (1 + pair[1].spread),
            )
            if is_wide and 1 / either_way <= ratio <= either_way:
                unknown.append(f"{narrow} with {wide}")
            elif ratio < 1:
                marked = (
                    " (contended)" if any(bench.unsettled for bench in pair) and not is_wide else ""
                )
                about = f"about {ratio:.1g}" if is_wide else f"{ratio:.2g}"
                yield f"{narrow} is multiplied slower than {wide}: at {about} times its rate{marked}"
    if unknown:
        yield f"not known how the rates of these compare, as they spread too widely: {', '.join(unknown)}"


def _disturbed(benchmarks: Sequence[Measurement]) -> Iterable[str]:
    causes: Counter[str] = Counter(
        label.partition(":")[0] for bench in benchmarks for label in {*bench.labels}
    )
    for cause, number in causes.most_common():
        yield (
            f"{number} of {len(benchmarks)} benchmarks were {cause}"
            if cause in ("contended", "throttled")
            else (f"{cause}: {number} of {len(benchmarks)} benchmarks")
        )
    if wide := [bench for bench in benchmarks if bench.is_wide]:
        yield f"{len(wide)} of {len(benchmarks)} benchmarks spread too widely to conclude anything from them"
    if above := [bench.name for bench in benchmarks if bench.unsettled.startswith("above")]:
        yield f"not known what limits these, which exceed the highest ceiling or roof of this run: {first(above)}"


def _ceilings(benchmarks: Sequence[Measurement]) -> Iterable[str]:
    multiples = [bench.number("cache_multiple") for bench in benchmarks if bench.level == "memory"
                 and bench.has("cache_multiple")]  # fmt: skip
    if multiples and min(multiples) < FEW_CACHES:
        yield (
            f"the bandwidth of the memory was measured with arrays of {min(multiples):.1f} last-level caches, which "
            "serve a part of it"
        )
    for bench in benchmarks:
        if bench.number("zeros_ratio") > POWER_LIMITED:
            times = f"{bench.number('zeros_ratio'):.2f} times as fast"
            yield f"power limits {bench.dtype}: zeros are multiplied {times}"


def _settings(report: RunReport) -> Iterable[str]:
    flags = report.machine.get("flags") or {}
    for key, usual in USUAL_FLAGS.items():
        if key in flags and flags[key] != usual:
            yield f"{key} is {flags[key]}, not {usual} as usual"
    if any(bench.info.get("mfu", 0) is None for bench in report.benchmarks):
        yield f"no vendor peak is on record for {report.machine.get('name')}: shares are of the own ceiling"


def limits(report: RunReport) -> list[str]:
    """The machine's limits, from uncontended measurements with a narrow spread; a maximum is one over all."""
    benchmarks = [bench for bench in report.benchmarks if not bench.unsettled]
    return [
        *_roofs(benchmarks),
        *_bandwidth(report.benchmarks),
        *_training(report.benchmarks),
        *_data(benchmarks),
    ]


def _roofs(benchmarks: Sequence[Measurement]) -> Iterable[str]:
    kernels = kernels_of(benchmarks)
    for dtype in dict.fromkeys(bench.dtype for bench in kernels):
        own = [bench for bench in kernels if bench.dtype == dtype]
        ridge = median(bench.number("ridge") for bench in own)
        bounds = Counter(bench.bound for bench in own)
        listed = ", ".join(f"{number} {bound}" for bound, number in bounds.most_common())
        yield f"{dtype}: below {ridge:.3g} FLOPs per byte the memory limits; of {len(own)} kernels {listed}"
    if low := [
        bench.name for bench in kernels if 0 < bench.number("share_of_attainable") < FAR_BELOW
    ]:
        yield f"neither memory nor arithmetic limits these, which reach less than half of either roof: {first(low)}"


def _bandwidth(benchmarks: Sequence[Measurement]) -> Iterable[str]:
    if best := memory_stream(benchmarks):
        share = f", {best.number('mbu'):.0%} of the vendor's figure" if best.has("mbu") else ""
        marked = f", {best.unsettled}" if best.unsettled else ""
        yield f"the memory gives {best.rate_text} at most ({best.case.partition('-')[2]}{marked}){share}"


def _training(benchmarks: Sequence[Measurement]) -> Iterable[str]:
    steps = [bench for bench in benchmarks if bench.family == "step"]
    for bench in steps:
        if bench.unsettled:
            yield f"a training step ({bench.case}): not known: {bench.unsettled}"
        elif bench.has("share_of_ceiling"):
            reached = f"{bench.number('share_of_ceiling'):.0%} of the own ceiling"
            figures = [
                f"takes {engineering(bench.median_s, 's')} and reaches {reached}",
                *_step_figures(bench),
            ]
            yield f"a training step ({bench.case}) {', '.join(figures)}"
    if any(bench.has("mfu") and not bench.unsettled for bench in steps):
        yield f"for comparison, published MFU: {published_mfu_text()}"


def _step_figures(bench: Measurement) -> Iterable[str]:
    """The longest part of a training step, its MFU, its tokens per second and their energy, as far as recorded."""
    parts = {
        key: bench.number(f"{key}_s")
        for key in ("forward", "backward", "optimizer")
        if bench.has(f"{key}_s")
    }
    if parts and (most := max(parts, key=lambda key: parts[key])):
        yield f"{parts[most] / sum(parts.values()):.0%} of it {most}"
    unit = "token" if bench.case.startswith("transformer") else "example"
    if bench.has("mfu"):
        yield f"MFU {bench.number('mfu'):.0%}"
    if bench.has("tokens_per_s"):
        yield f"{bench.number('tokens_per_s'):,.0f} {unit}s/s"
    if bench.has("joules_per_token"):
        yield f"{engineering(bench.number('joules_per_token'), 'J')} per {unit}"


def _data(benchmarks: Sequence[Measurement]) -> Iterable[str]:
    loops = [
        bench
        for bench in benchmarks
        if bench.family == "training_loop" and bench.info.get("bottleneck")
    ]
    if found := Counter(str(bench.info["bottleneck"]) for bench in loops).most_common():
        listed = ", ".join(f"{name} ({number} of {len(loops)})" for name, number in found)
        yield f"between data loading and step, the slower is: {listed}"


def first(names: Sequence[str], number: int = 4) -> str:
    """The first names, and the number of the others."""
    return ", ".join(names[:number]) + (
        f" and {len(names) - number} more" if len(names) > number else ""
    )
