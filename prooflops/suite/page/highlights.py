"""The run in one sentence, what limits the machine, and what is unusual about it and the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from accounting.devices import cpu_flops_per_cycle
from prooflops.reasons import NO_BANDWIDTH
from prooflops.suite.page.delivery import disturbance
from prooflops.suite.page.measurement import CONTENDED, Measurement
from prooflops.suite.page.run_report import RunReport
from prooflops.suite.page.tables import best_products, kernels_of, memory_stream
from prooflops.suite.peaks import published_mfu_text
from prooflops_gate.console.tables import engineering

NARROWER = {"bf16": "fp32", "fp16": "fp32", "fp8_e4m3": "bf16", "int8": "bf16", "fp32": "fp64"}
# Arrays of fewer last-level caches are partly served by the caches.
FEWEST_CACHES = 4.0
MARKED = "only a row that is worse than most is marked contended"
# Families of whole training steps.
TRAINING_STEPS = ("step", "mfu")
USUAL_FLAGS = {
    "float32_matmul_precision": "highest",
    "deterministic": False,
    "default_dtype": "float32",
}


def sentence(report: RunReport) -> str:
    """The run in one sentence."""
    if not report.claims:
        return "No claim was checked."
    counts = report.counts
    numbers = {
        "hold": counts["holds"],
        "hold under a condition": counts["holds if"],
        "are wrong on any machine": counts["corrected"],
        "fail here": counts["FAILS"],
        "crashed": counts["error"],
        "could not be checked": counts["not checked"],
        "are on record": counts["on record"],
    }
    said = [f"{number} {word}" for word, number in numbers.items() if number or word == "fail here"]
    return f"Of {sum(numbers.values())} claims, {', '.join(said)}."


def unusual(report: RunReport) -> list[str]:
    """Warnings about this machine and run that affect the figures; empty if all is normal."""
    return [
        *_slow_dtypes(report),
        *_disturbed(report.benchmarks),
        *_ceilings(report.benchmarks),
        *_settings(report),
    ]


def _slow_dtypes(report: RunReport) -> Iterable[str]:
    """Dtypes multiplied slower than wider ones whose peak is lower."""
    best = best_products(report.benchmarks)
    peaks = _peaks(report, best)
    for narrow, wide in NARROWER.items():
        is_faster_on_paper = peaks.get(narrow, 0.0) > peaks.get(wide, 0.0) > 0
        if not is_faster_on_paper or not {narrow, wide} <= best.keys():
            continue
        pair = best[narrow], best[wide]
        ratio = (pair[0].arithmetic_rate or 0.0) / (pair[1].arithmetic_rate or 1.0)
        noise = (1 + pair[0].spread) * (1 + pair[1].spread)
        if any(each.is_wide for each in pair) and 1 / noise < ratio < noise:
            yield f"too noisy to compare the rates of {narrow} and {wide}"
        elif ratio < 1:
            contended = " (contended)" if any(each.unsettled for each in pair) else ""
            times = f"{ratio:.2g} times its rate{contended}"
            yield f"products in {narrow} are slower than in {wide}: {times}"


def _peaks(report: RunReport, best: Mapping[str, Measurement]) -> Mapping[str, float]:
    """The peak by dtype; of a CPU the FLOPs per cycle of its instruction sets."""
    if report.machine.get("device") == "cpu":
        return cpu_flops_per_cycle(report.machine.get("isa") or ())
    return {dtype: bench.number("peak_flop_per_s") for dtype, bench in best.items()}


def _disturbed(benchmarks: Sequence[Measurement]) -> Iterable[str]:
    causes: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    for bench in benchmarks:
        found = {cause: reason for cause, _, reason in (x.partition(": ") for x in bench.labels)}
        causes.update(found.keys())
        reasons = found | reasons
    for cause, number in causes.most_common():
        listed = f"{number} of {len(benchmarks)} benchmarks"
        if cause == CONTENDED and disturbance(benchmarks):
            yield f"{listed} ran beside other work{_speeds(benchmarks)}; {MARKED}"
        else:
            example = f" (the first: {reasons[cause]})" if reasons[cause] else ""
            yield f"{listed}: {cause}{example}"
    wide = [bench for bench in benchmarks if bench.is_wide]
    if wide:
        listed = f"{len(wide)} of {len(benchmarks)} benchmarks"
        yield f"{listed} spread too widely for any conclusion"


def _speeds(benchmarks: Sequence[Measurement]) -> str:
    """Between which shares of its speed the slowest core ran; empty where that is not known."""
    shares = [1 / bench.slowness for bench in benchmarks if bench.slowness > 1]
    return f", a core at {min(shares):.0%} to {max(shares):.0%} of its speed" if shares else ""


def _ceilings(benchmarks: Sequence[Measurement]) -> Iterable[str]:
    multiples = [
        bench.number("cache_multiple")
        for bench in benchmarks
        if bench.level == "memory" and bench.has("cache_multiple")
    ]
    if multiples and min(multiples) < FEWEST_CACHES:
        yield (
            f"memory bandwidth may be too high: the arrays are only {min(multiples):.1f} times the "
            "last-level cache, which can serve a part of them"
        )


def _settings(report: RunReport) -> Iterable[str]:
    flags = report.machine.get("flags") or {}
    for key, usual in USUAL_FLAGS.items():
        if key in flags and flags[key] != usual:
            yield f"{key} is {flags[key]}, not {usual} as usual"
    if any(bench.info.get("mfu", 0) is None for bench in report.benchmarks):
        peak = "cores x FLOPs per clock x clock, or to " * bool(report.clock_mhz)
        name = report.machine.get("name")
        yield f"no vendor states a dense peak of {name}: shares refer to {peak}the `own ceiling`"


def limits(report: RunReport) -> list[str]:
    """The machine's limits, from uncontended measurements with a narrow spread."""
    benchmarks = [bench for bench in report.benchmarks if not bench.unsettled]
    return [
        *_roofs(benchmarks),
        *_bandwidth(report),
        *_power(benchmarks),
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
        yield (
            f"{dtype}: memory limits kernels below {ridge:.3g} FLOPs per byte; of {len(own)} "
            f"kernels, {listed}"
        )


def _bandwidth(report: RunReport) -> Iterable[str]:
    if best := memory_stream(report.benchmarks):
        share = f", {best.number('mbu'):.0%} of the vendor's figure" if best.has("mbu") else ""
        marked = f", {best.remark}" if best.remark else ""
        bound = "at least" if best.is_contended else "up to"
        kernel = best.case.partition("-")[2]
        yield f"memory bandwidth: {bound} {best.rate_text} ({kernel}{marked}){share}"
    reasons = report.unmeasured.values()
    yield from dict.fromkeys(reason for reason in reasons if reason.startswith(NO_BANDWIDTH))


def _power(benchmarks: Sequence[Measurement]) -> Iterable[str]:
    """How many benchmarks ran at the power limit, and the lowest clock: normal work."""
    limited = [fact for bench in benchmarks for fact in bench.facts if fact.startswith("power-lim")]
    if limited:
        lowest = min(limited)
        clock = f" (lowest clock: {lowest.partition(': ')[2]})" if ": " in lowest else ""
        number = f"{len(limited)} of {len(benchmarks)}"
        yield f"{number} benchmarks ran at the power limit{clock}, which is normal"


def _training(benchmarks: Sequence[Measurement]) -> Iterable[str]:
    steps = [bench for bench in benchmarks if bench.family in TRAINING_STEPS]
    for bench in steps:
        if bench.unsettled == CONTENDED:
            marked = f", {bench.remark}" if bench.remark else ""
            time = engineering(bench.median_s, "s")
            yield f"a training step ({bench.case}) takes at most {time}{marked}"
        elif bench.unsettled:
            yield f"a training step ({bench.case}): not known: {bench.unsettled}"
        else:
            figures = ", ".join(_step_figures(bench))
            yield f"a training step ({bench.case}) takes {figures}"
    if any(bench.has("mfu") and not bench.unsettled for bench in steps):
        yield f"for comparison, published MFU: {published_mfu_text()}"


def _step_figures(bench: Measurement) -> Iterable[str]:
    """A step's time, where it goes, what it reaches, its tokens per second and their energy."""
    names = ("forward", "backward", "optimizer")
    parts = {name: bench.number(f"{name}_s") for name in names if bench.has(f"{name}_s")}
    time = engineering(bench.median_s, "s")
    if parts:
        most = max(parts, key=lambda name: parts[name])
        time += f" ({parts[most] / sum(parts.values()):.0%} of it in {most})"
    yield time
    if bench.has("share_of_ceiling"):
        share = f"{bench.number('share_of_ceiling'):.0%}"
        yield f"{share} of this machine's best {bench.dtype} rate"
    reads_text = bench.family == "mfu" or bench.case.startswith("transformer")
    unit = "token" if reads_text else "example"
    if bench.has("mfu"):
        yield f"MFU {bench.number('mfu'):.0%}"
    if bench.has("tokens_per_s"):
        yield f"{bench.number('tokens_per_s'):,.0f} {unit}s/s"
    if bench.has("joules_per_token"):
        yield f"{engineering(bench.number('joules_per_token'), 'J')} per {unit}"
    kinds = dict(bench.info.get("seconds_by_kind") or {})
    if kinds:
        kinds["no kernel"] = bench.number("idle_s")
        listed = ", ".join(f"{kind} {engineering(kinds[kind], 's')}" for kind in kinds)
        yield f"of which {listed}"


def _data(benchmarks: Sequence[Measurement]) -> Iterable[str]:
    loops = [
        bench
        for bench in benchmarks
        if bench.family == "training_loop" and bench.info.get("bottleneck")
    ]
    found = Counter(str(bench.info["bottleneck"]) for bench in loops).most_common()
    if found:
        listed = ", ".join(f"{name} ({number} of {len(loops)})" for name, number in found)
        yield f"the slower of data loading and step: {listed}"
