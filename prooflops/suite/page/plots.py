"""The plots of a run, each a section that answers one question; one without data is absent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from prooflops.suite.page.measurement import Measurement
from prooflops.suite.page.run_report import RunReport
from prooflops.suite.page.tables import kernels_of, memory_stream, spread_text
from prooflops_gate.console.tables import binary, engineering, share
from prooflops_gate.page.plot import Axis, Block, Line, Plot, Point, Rule
from prooflops_gate.page.section import Section

HOLLOW = "Hollow: contended, above its roof, or the spread is too wide to conclude."
BOTH_ROOFS = (
    "Both roofs are measured in the same run: the fastest product of the dtype (level), and the "
    "bandwidth of the memory (slope). The share is of the bandwidth for the kernel's own mix of "
    "reads and writes."
)
UNSETTLED = "Not known: each of them was contended, or spread too widely."
PARTS = ("forward", "backward", "optimizer")
NOT_KNOWN = "not known"
# A prediction that is as near as this counts as right.
RELATIVE_TOLERANCE = 0.1
ROW_HEIGHT = 26.0
AXIS_HEIGHT = 90.0


def plots_of(report: RunReport) -> list[Section]:
    """The plots for which this run has data."""
    made = (
        roofline,
        rates_by_size,
        ceiling_shares,
        bandwidths,
        step_times,
        step_memory,
        predictions,
    )
    found = [make(report) for make in made]
    return [section for section in found if section]


def is_matmul(bench: Measurement) -> bool:
    """Whether it is a matrix product, but not the search for the ceiling."""
    return bool(bench.family == "matmul" and bench.arithmetic_rate and bench.has("flops"))


def dtypes_of(benchmarks: Iterable[Measurement]) -> list[str]:
    return list(dict.fromkeys(each.dtype for each in benchmarks))


def height_of(rows: Sequence[str]) -> float:
    return AXIS_HEIGHT + ROW_HEIGHT * len(rows)


# ---- roofline ------------------------------------------------------------------------------------


def roofline(report: RunReport) -> Section | None:
    """Kernels, or products without any, over their intensity, under the measured roofs."""
    products = [each for each in report.benchmarks if is_matmul(each)]
    points = [
        each
        for each in kernels_of(report.benchmarks) or products
        if each.has("flops", "bytes") and each.arithmetic_rate and each.dtype
    ]
    if not points:
        return None
    dtypes = dtypes_of(points)
    drawn, rows = [], [["point", "kernel", "FLOP/B", "rate", "of its roof", "spread", "held by"]]
    for number, each in enumerate(points, start=1):
        intensity = each.number("flops") / each.number("bytes")
        title = f"{number} {each.name}: {each.rate_text}, {each.bound or 'not placed'}"
        drawn.append(
            Point(
                x=intensity,
                y=each.arithmetic_rate or 0.0,
                title=title,
                series=dtypes.index(each.dtype),
                is_hollow=bool(each.unsettled),
                label=str(number),
            )
        )
        of_roof = share(each.number("share_of_attainable") or None, "-")
        cells = [f"{intensity:.3g}", each.rate_text, of_roof, f"{each.spread:.1%}", each.bound]
        rows.append([str(number), each.name, *cells])
    plot = Plot(
        title=f"Roofline measured on {report.machine.get('name')}",
        x=Axis("arithmetic intensity, FLOPs per byte", is_log=True),
        y=Axis("rate", "FLOP/s", is_log=True),
        points=drawn,
        lines=_roofs(points, memory_stream(report.benchmarks)),
        legend=dtypes,
        height=460,
    )
    question = "Which roof holds each kernel back?"
    return Section(question, rows, [BOTH_ROOFS, HOLLOW], plot, answer=_roofline_answer(points))


def _roofs(points: Sequence[Measurement], stream: Measurement | None) -> list[Line]:
    """The memory's bandwidth, and each dtype's ceiling."""
    xs = [each.number("flops") / each.number("bytes") for each in points]
    left, right = min(xs) / 2, 2 * max(xs)
    recorded = max(each.number("roof_bytes_per_s") for each in points)
    bandwidth = stream.number("bytes_per_s") if stream else recorded
    lines, highest = [], 0.0
    for series, dtype in enumerate(dtypes_of(points)):
        own = [each.number("ceiling_flop_per_s") for each in points if each.dtype == dtype]
        ceiling = max(own)
        if ceiling:
            highest = max(highest, ceiling)
            start = ceiling / bandwidth if bandwidth else left
            spots = [(min(start, right), ceiling), (max(2 * start, right), ceiling)]
            title = f"ceiling of {dtype}: {engineering(ceiling, 'FLOP/s')}"
            lines.append(Line(spots, series, title))
    if bandwidth:
        end = max(highest / bandwidth or right, 2 * left)
        title = f"memory, {engineering(bandwidth, 'B/s')}"
        lines.append(Line([(left, left * bandwidth), (end, end * bandwidth)], None, title))
    return lines


def _roofline_answer(points: Sequence[Measurement]) -> str:
    if all(each.unsettled for each in points):
        return UNSETTLED
    found: Counter[str] = Counter()
    for each in points:
        if each.bound or each.unsettled:
            found[each.bound or f"{NOT_KNOWN}: {each.unsettled}"] += 1
    listed = ", ".join(f"{number} {bound}" for bound, number in found.most_common())
    if not listed:
        return f"{len(points)} products under the roofs."
    return f"Of {len(points)} kernels {listed}."


# ---- products ------------------------------------------------------------------------------------


def rates_by_size(report: RunReport) -> Section | None:
    """Each product's rate over its FLOPs, one series per dtype."""
    products = [each for each in report.benchmarks if is_matmul(each)]
    if not products:
        return None
    dtypes = dtypes_of(products)
    points, lines = [], []
    for index, dtype in enumerate(dtypes):
        own = [each for each in products if each.dtype == dtype]
        own.sort(key=lambda each: each.number("flops"))
        squares = [each for each in own if "square" in each.case]
        spots = [(each.number("flops"), each.arithmetic_rate or 0.0) for each in squares or own]
        lines.append(Line(spots, index))
        for each in own:
            title = f"{each.name}: {each.rate_text}, spread {spread_text(each)}"
            spot = each.number("flops"), each.arithmetic_rate or 0.0
            points.append(Point(*spot, title, index, bool(each.unsettled)))
    plot = Plot(
        title="Rate of products by dtype and size",
        x=Axis("work of the product", "FLOP", is_log=True),
        y=Axis("rate", "FLOP/s", is_log=True),
        points=points,
        lines=lines,
        legend=dtypes,
    )
    rows = [["product", "operations", "rate", "spread"]]
    for each in products:
        work = engineering(each.number("flops"), "FLOP")
        rows.append([each.name, work, each.rate_text, spread_text(each)])
    fastest = max(products, key=lambda each: each.arithmetic_rate or 0)
    return Section(
        "How fast is each dtype multiplied, and from which size on?",
        rows,
        [f"Lines join the square products. {HOLLOW}"],
        plot,
        answer=f"The fastest is {fastest.name}: {fastest.rate_text}.",
    )


def ceiling_shares(report: RunReport) -> Section | None:
    """The share of the ceiling that each product, step and recomputation reaches."""
    found = [
        each
        for each in report.benchmarks
        if each.has("share_of_ceiling") and each.family != "ceiling"
    ]
    if not found:
        return None
    groups = list(dict.fromkeys(f"{each.family} {each.dtype}" for each in found))
    dtypes = dtypes_of(found)
    points, rows = [], [["benchmark", "rate", "own ceiling", "share", "spread"]]
    for each in found:
        reached = each.number("share_of_ceiling")
        title = f"{each.name}: {share(reached, '-')}, spread {spread_text(each)}"
        row = groups.index(f"{each.family} {each.dtype}")
        series = dtypes.index(each.dtype)
        points.append(Point(100 * reached, row, title, series, bool(each.unsettled)))
        ceiling = engineering(each.number("ceiling_flop_per_s"), "FLOP/s")
        rows.append([each.name, each.rate_text, ceiling, share(reached, "-"), spread_text(each)])
    plot = Plot(
        title="Share of the own ceiling",
        x=Axis("share of this machine's fastest product of the dtype, %", low=0.0),
        y=Axis(rows=groups),
        points=points,
        rules=[Rule(100, tone="edge")],
        height=height_of(groups),
    )
    settled = [(each.number("share_of_ceiling"), each.name) for each in found if not each.unsettled]
    answer = UNSETTLED
    if settled:
        low, high = min(settled), max(settled)
        answer = f"From {share(low[0], '-')} ({low[1]}) to {share(high[0], '-')} ({high[1]})."
    question = "How much of what this machine can do is reached?"
    return Section(question, rows, plot=plot, answer=answer)


# ---- memory --------------------------------------------------------------------------------------


def bandwidths(report: RunReport) -> Section | None:
    """Each STREAM kernel's bandwidth over its bytes, with the caches marked."""
    streams = [each for each in report.benchmarks if each.level and each.has("bytes") and each.rate]
    if not streams:
        return None
    kernels = list(dict.fromkeys(each.case.rpartition("-")[2] for each in streams))
    points, lines = [], []
    for index, kernel in enumerate(kernels):
        own = [each for each in streams if each.case.rpartition("-")[2] == kernel]
        own.sort(key=lambda each: each.number("bytes"))
        # The caches' rows run on one core, unlike the memory's.
        caches = [each for each in own if each.level != "memory"]
        spots = [(each.number("bytes"), each.number("bytes_per_s")) for each in caches]
        if len(spots) > 1:
            lines.append(Line(spots, index))
        for each in own:
            title = f"{each.case}: {each.rate_text}, spread {spread_text(each)}"
            spot = each.number("bytes"), each.number("bytes_per_s")
            points.append(Point(*spot, title, index, bool(each.unsettled)))
    plot = Plot(
        title="Bandwidth by working set",
        x=Axis("bytes that one pass reads and writes", "B", is_log=True),
        y=Axis("bandwidth", "B/s", is_log=True),
        points=points,
        lines=lines,
        rules=_levels(streams, report),
        legend=kernels,
    )
    rows = [["stream", "working set", "bandwidth", "reads", "spread"]]
    for each in streams:
        reads = f"{each.number('read_share'):.0%}"
        size = binary(each.number("bytes"))
        rows.append([each.case, size, each.rate_text, reads, spread_text(each)])
    remark = (
        "On a CPU the rows of a cache run on one core, those of the memory on all. Rows whose time "
        f"is that of their launch are left out. {HOLLOW}"
    )
    answer = f"At most: {', '.join(_best_of_levels(streams))}."
    return Section("How fast is memory, and each cache?", rows, [remark], plot, answer=answer)


def _levels(streams: Sequence[Measurement], report: RunReport) -> list[Rule]:
    """A line at each known cache size, and each level's name above its points."""
    rules = [Rule(size) for size in report.caches.values()]
    for level in dict.fromkeys(each.level for each in streams):
        sizes = [each.number("bytes") for each in streams if each.level == level]
        named = f" {binary(report.caches[level])}" if level in report.caches else ""
        rules.append(Rule((min(sizes) * max(sizes)) ** 0.5, level + named, has_line=False))
    return rules


def _best_of_levels(streams: Sequence[Measurement]) -> list[str]:
    best = []
    for level in dict.fromkeys(each.level for each in streams):
        own = [each for each in streams if each.level == level]
        fastest = max(own, key=lambda each: each.number("bytes_per_s"))
        best.append(f"{level} {fastest.rate_text} ({fastest.case.rpartition('-')[2]})")
    return best


# ---- training ------------------------------------------------------------------------------------


def step_times(report: RunReport) -> Section | None:
    """The parts of each training step."""
    steps = [each for each in report.benchmarks if all(each.has(f"{part}_s") for part in PARTS)]
    if not steps:
        return None
    blocks, said = [], []
    rows = [["step", *PARTS, "whole step", "parts over step", "spread"]]
    for place, each in enumerate(steps):
        times = {part: each.number(f"{part}_s") for part in PARTS}
        is_known = not each.unsettled
        left = 0.0
        for index, (part, time_s) in enumerate(times.items()):
            title = f"{each.case}, {part}: {engineering(time_s, 's')}"
            right = left + 1e3 * time_s
            if is_known:
                blocks.append(Block(place, left, right, title, index))
            left = right
        shares = ", ".join(f"{part} {t / sum(times.values()):.0%}" for part, t in times.items())
        unknown = f"{NOT_KNOWN}: {each.unsettled}"
        said.append(f"{each.case}: {shares if is_known else unknown}")
        cells = [engineering(time_s, "s") if is_known else NOT_KNOWN for time_s in times.values()]
        over = f"{each.number('parts_over_step'):.2f}"
        whole = engineering(each.median_s, "s") if is_known else NOT_KNOWN
        rows.append([each.case, *cells, whole, over, spread_text(each)])
    cases = [each.case for each in steps]
    plot = Plot(
        title="Time of a training step by parts",
        x=Axis("ms", low=0.0),
        y=Axis(rows=cases),
        blocks=blocks,
        legend=PARTS,
        height=height_of(cases),
    )
    remark = "Parts and whole are timed apart; where they do not agree, both are not known."
    question = "Where does the time of a training step go?"
    return Section(question, rows, [remark], plot, answer=f"{'; '.join(said[:3])}.")


def step_memory(report: RunReport) -> Section | None:
    """Memory held at the end of each phase of a step, and the peak."""
    steps = [each for each in report.benchmarks if each.info.get("step_memory")]
    if not steps:
        return None
    each = max(steps, key=lambda step: _peak_bytes(step.info["step_memory"]))
    phases = each.info["step_memory"]
    kinds = list(dict.fromkeys(kind for row in phases.values() for kind in row["held"]))
    blocks, peaks = [], []
    rows = [["phase", *kinds, "peak in it"]]
    for place, (phase, row) in enumerate(phases.items()):
        left = 0.0
        for index, kind in enumerate(kinds):
            held = row["held"].get(kind, 0)
            title = f"{kind} after {phase}: {binary(held)}"
            blocks.append(Block(place, left, left + held / 2**20, title, index))
            left += held / 2**20
        title = f"peak in {phase}: {binary(row['peak_bytes'])}"
        peaks.append(Point(row["peak_bytes"] / 2**20, place, title, len(kinds), is_hollow=True))
        cells = [binary(row["held"].get(kind, 0)) for kind in kinds]
        rows.append([f"after {phase}", *cells, binary(row["peak_bytes"])])
    names = [f"after {phase}" for phase in phases]
    plot = Plot(
        title=f"Memory of a training step: {each.case}",
        x=Axis("MiB", low=0.0),
        y=Axis(rows=names),
        blocks=blocks,
        points=peaks,
        legend=[*kinds, "peak"],
        height=height_of(names),
    )
    most = max(phases, key=lambda phase: phases[phase]["peak_bytes"])
    peak = binary(phases[most]["peak_bytes"])
    answer = f"{each.case} holds {peak} at most, in its {most}."
    return Section("What fills the memory over a training step?", rows, plot=plot, answer=answer)


def _peak_bytes(phases: dict[str, dict[str, float]]) -> float:
    return max(row["peak_bytes"] for row in phases.values())


# ---- predictions ---------------------------------------------------------------------------------

# Predicted quantity, keys of prediction and measurement.
PAIRS = (
    ("bytes saved by checkpointing", "predicted_saved_bytes", "saved_bytes"),
    ("time as FLOPs say", "flop_ratio", "time_ratio"),
    ("intensity", "intensity", "counted_intensity"),
    ("FLOPs", "flops", "counted_flops"),
)
NOT_PREDICTED = (
    "Time as FLOPs say ignores that a step is not compute-bound; intensities differ where an "
    "operator is counted by another convention."
)


def _figure_text(quantity: str, value: float) -> str:
    if quantity == "bytes saved by checkpointing":
        return binary(value)
    if quantity == "FLOPs":
        return engineering(value, "FLOP")
    return f"{value:.3g} FLOP/B" if quantity == "intensity" else f"{value:.3f}x"


def predictions(report: RunReport) -> Section | None:
    """Measured (or counted) over predicted values, for each quantity that has both."""
    found = [(pair, each) for pair in PAIRS for each in report.benchmarks if each.has(*pair[1:])]
    if not found:
        return None
    kinds = list(dict.fromkeys(what for (what, *_), _ in found))
    points, near = [], 0
    rows = [["what", "benchmark", "predicted", "measured", "ratio"]]
    for (what, first, second), each in found:
        predicted = _figure_text(what, each.number(first))
        measured = _figure_text(what, each.number(second))
        ratio = each.number(second) / each.number(first)
        near += abs(ratio - 1) <= RELATIVE_TOLERANCE
        title = f"{what}, {each.name}: {predicted} predicted, {measured} measured"
        row = kinds.index(what)
        points.append(Point(ratio, row, title, row, bool(each.unsettled)))
        rows.append([what, each.name, predicted, measured, f"{ratio:.3f}"])
    plot = Plot(
        title="Measured over predicted",
        x=Axis("measured (or counted) over predicted"),
        y=Axis(rows=kinds),
        points=points,
        rules=[Rule(1.0, tone="edge")],
        height=height_of(kinds),
    )
    answer = (
        f"{near} of {len(found)} predictions are within {RELATIVE_TOLERANCE:.0%} of what was "
        "measured or counted."
    )
    question = "Do the formulas predict what is measured?"
    return Section(question, rows, [NOT_PREDICTED], plot, answer=answer)
