"""The sections of a user's model: a table and remarks of each fact of the examination."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prooflops.model.breakdown import Breakdown, ModuleRow
from prooflops.model.claims import Answer
from prooflops.model.examination import OVERHEAD, Examination, Inventory, MeasuredStep
from prooflops.model.fits import Fits
from prooflops.model.flop_difference import ExplainedFlops
from prooflops.model.largest import Largest
from prooflops.model.step_memory import StepMemory
from prooflops.suite.verdicts import DOES_NOT_APPLY
from prooflops_gate.console.tables import binary, engineering, share
from prooflops_gate.page.plot import Axis, Block, Plot
from prooflops_gate.page.section import ABSENT, Section

RULES = {"forward": "2ND", "backward": "4ND", "step": "6ND"}
LONGEST_LIST = 8
MOST_ROWS = 10
NOT_KNOWN = "not known"
MEMORY_TITLE, STEP_TITLE = "memory, second step", "one training step"
PHASES_TITLE, OPERATORS_TITLE = "forward, backward, optimizer", "operators by time"
MODULES_TITLE, TREE_TITLE = "modules by own time", "every module"
MODULE_HEAD = ["parameters", "FLOPs forward", "FLOPs backward", "kept", "forward", "backward"]
# Stands before a module within another.
INDENT = "\u2003"


def sections_of(examination: Examination) -> Iterator[Section]:
    """The sections of the page, always the same; one whose fact was not computed says so."""
    facts = vars(examination)
    memory, breakdown = facts.get("memory"), facts.get("breakdown")
    step, unknown = examination.step, examination.unknown
    known = {
        "parameters": "inventory" in facts and inventory_section(examination.inventory),
        "FLOPs of one step": "flops" in facts and flops_section(examination.flops),
        MEMORY_TITLE: memory and memory_section(memory),
        STEP_TITLE: step and step_section(step, unknown, is_apart=examination.is_apart),
        PHASES_TITLE: breakdown
        and phases_section(breakdown, memory, is_known=not examination.is_apart),
        MODULES_TITLE: breakdown and modules_section(breakdown),
        OPERATORS_TITLE: breakdown and operators_section(breakdown),
    }
    for title, section in known.items():
        yield section or Section(title, absent=ABSENT)
    if "largest" in facts:
        for largest in examination.largest:
            yield largest_section(largest)
    if "fits" in facts:
        yield fits_section(examination.fits)
    yield answers_section(examination.answers)
    yield tree_section(breakdown) if breakdown else Section(TREE_TITLE, absent=ABSENT)


def bytes_text(value: float | None) -> str:
    return "-" if value is None else engineering(value, "B")


def seconds_text(value: float | None) -> str:
    return "-" if value is None else engineering(value, "s")


def count_text(count: float) -> str:
    """A count for people: `320`, `1.25 M`; below 1 a share, without a prefix: `0.906`."""
    return (
        f"{count:.3g}"
        if count < 1 or (count < 1000 and count == int(count))
        else engineering(count, "").strip()
    )


def per_second_text(rate: float, unit: str) -> str:
    """Tokens or examples per second, without a prefix."""
    return f"{rate:,.0f} {unit}/s" if rate >= 100 else f"{rate:.3g} {unit}/s"


def first_names(names: Iterable[str]) -> str:
    """The first names of a list, and how many more there are."""
    names = list(names)
    more = len(names) - LONGEST_LIST
    return ", ".join(names[:LONGEST_LIST]) + (f" and {more} more" if more > 0 else "")


def phase_name(phase: str) -> str:
    return "optimizer" if phase == "update" else phase


def inventory_section(inventory: Inventory) -> Section:
    rows = [["what", "dtype", "tensors", "elements", "bytes", ""]]
    for each in inventory.groups:
        role = each.role if each.role == "buffer" else f"parameters, {each.role}"
        figures = [
            f"{each.tensors:,}",
            f"{each.elements:,}",
            f"{each.bytes:,} B",
            bytes_text(each.bytes),
        ]
        rows.append([role, each.dtype, *figures])
    sums = [
        sum(getattr(each, name) for each in inventory.groups) for name in ("tensors", "elements")
    ]
    rows.append(
        [
            "all",
            "",
            *(f"{each:,}" for each in sums),
            f"{inventory.bytes:,} B",
            bytes_text(inventory.bytes),
        ]
    )
    remarks = [f"tied, counted once: {first_names(inventory.tied)}"] if inventory.tied else []
    if inventory.storage_bytes != inventory.bytes:
        remarks.append(
            f"their storages hold {inventory.storage_bytes:,} B: some are parts of larger tensors, "
            "or share one"
        )
    return Section(f"N = {inventory.parameters:,} parameters", rows, remarks)


def flops_section(flops: ExplainedFlops) -> Section:
    rows = [["FLOPs", *RULES, "share of 6ND"]]

    def row(name: str, forward: int, backward: int, sign: str = "") -> None:
        step = forward + backward
        of_rule = f"{step / flops.rule('step'):{sign}.2%}"
        rows.append([name, f"{forward:{sign},}", f"{backward:{sign},}", f"{step:{sign},}", of_rule])

    row("executed" if flops.recomputed else "counted", flops.forward, flops.backward)
    for part in flops.parts:
        row(f"{'+' if part.step >= 0 else '-'} {part.name}", part.forward, part.backward, "+")
    row("= 2ND, 4ND, 6ND", flops.rule("forward"), flops.rule("backward"))
    remarks = [rule_remark(flops, phase) for phase in RULES]
    if any(flops.unexplained(phase) for phase in RULES):
        remarks.append(
            "NOT EXPLAINED: "
            + ", ".join(f"{phase} {flops.unexplained(phase):,}" for phase in RULES)
        )
    if flops.recomputed:
        remarks.append(
            f"model FLOPs (MFU) {flops.model:,}, executed FLOPs (HFU) {flops.executed:,}"
        )
    if flops.update:
        remarks.append(
            f"the optimizer's step multiplies matrices too: {flops.update:,} FLOPs, which no rule "
            "covers"
        )
    remarks.append(
        f"elementwise operations and reductions, beside the products: {flops.elementwise:,} FLOPs"
    )
    calls = [f"{name} ({number} calls)" for name, number in flops.unknown.items()]
    without = f"operators without a formula, not counted: {first_names(calls)}"
    remarks.append(without if calls else "every operator of the step has a formula")
    return Section(f"FLOPs of one step, D = {flops.tokens:,} {flops.unit}", rows, remarks)


def rule_remark(flops: ExplainedFlops, phase: str) -> str:
    """The distance of a rule of thumb from the model FLOPs, and from those executed."""
    rule, needed, executed = flops.rule(phase), flops.needed(phase), flops.counted(phase)
    if not needed:
        return f"{RULES[phase]} does not apply: no product was counted"
    text = f"{RULES[phase]} is {_times_text(rule, needed)} the model FLOPs ({rule - needed:+,})"
    return (
        text if executed == needed else f"{text}, {_times_text(rule, executed)} the executed FLOPs"
    )


def _times_text(rule: int, flops: int) -> str:
    """A ratio for people: a small difference in percent, a large one as a factor."""
    times = rule / flops
    if rule == flops:
        return "exactly"
    return (
        f"{abs(times - 1):.1%} {'above' if times > 1 else 'below'}"
        if 0.5 < times < 2
        else f"{times:.3g} times"
    )


def memory_section(memory: StepMemory) -> Section:
    rows = [["memory", "predicted", "measured", "measured - predicted", ""]]
    for each in memory.rows:
        expected = each.predicted_bytes
        predicted = (
            ["-", "-"]
            if expected is None
            else [f"{expected:,} B", f"{each.measured_bytes - expected:+,} B"]
        )
        measured = [f"{each.measured_bytes:,} B", bytes_text(each.measured_bytes)]
        rows.append([each.name, predicted[0], measured[0], predicted[1], measured[1]])
    remarks = list(memory.remarks)
    if largest := sorted(
        (each for each in memory.scratch.items() if each[1] >= 1000), key=lambda item: -item[1]
    ):
        calls = [f"{name.removesuffix('.default')} {size:,} B" for name, size in largest]
        remarks.append(f"of it workspace inside kernels, the most per call: {first_names(calls)}")
    if memory.is_lower_bound:
        remarks.append(
            "the workspace of some kernels is not known: the last two predictions are lower bounds"
        )
    if memory.charged_peak_bytes is not None:
        remarks.append(
            f"the caching allocator set aside {memory.charged_peak_bytes:,} B at the peak"
        )
    return Section(MEMORY_TITLE, rows, remarks)


def step_section(step: MeasuredStep, unknown: str = "", *, is_apart: bool = False) -> Section:
    """The step's times and rates; shares only where no figure contradicts another.

    `is_apart`: its phases do not add up to it, so that its time is not known.
    """
    is_known = not unknown
    rows = [
        ["time", "figure", ""],
        *time_rows(step, is_known=not is_apart),
        *utilization_rows(step, is_known=is_known),
        *roofline_rows(step, is_known=is_known),
        *least_time_rows(step, is_known=is_known),
    ]
    return Section(STEP_TITLE, rows, [bound_sentence(step, unknown)])


def time_rows(step: MeasuredStep, *, is_known: bool) -> list[list[str]]:
    flops = step.flops
    seconds, throughput, rate = NOT_KNOWN, NOT_KNOWN, NOT_KNOWN
    if is_known:
        seconds = seconds_text(step.seconds)
        throughput = per_second_text(step.per_s, flops.unit)
        rate = engineering(flops.model / step.seconds, "FLOP/s")
    return [
        ["step", seconds, f"median of {step.rounds} rounds, IQR {step.spread:.1%}"],
        ["throughput", throughput, ""],
        ["rate", rate, f"model FLOPs, in {', '.join(flops.by_dtype)}"],
    ]


def utilization_rows(step: MeasuredStep, *, is_known: bool) -> list[list[str]]:
    """The shares of the vendor's peak and of this machine's own ceiling."""
    flops = step.flops

    def shown(value: float | None, absent: str) -> str:
        return share(value, absent) if value is None or is_known else NOT_KNOWN

    executed = "= MFU"
    if flops.recomputed:
        executed = f"executed FLOPs, {flops.recomputed / flops.executed:.1%} recomputed"
    peaks = _rates_text(step.peak_flop_per_s, flops, "vendor's dense peak")
    ceilings = _rates_text(step.ceiling_flop_per_s, flops, "own")
    return [
        ["MFU", shown(step.mfu, "not checked"), peaks],
        ["HFU", shown(step.hfu, "not checked"), executed],
        ["MFU of own ceiling", shown(step.mfu_of_ceiling, "-"), ceilings],
        ["HFU of own ceiling", shown(step.share_of_ceiling, "-"), executed],
    ]


def roofline_rows(step: MeasuredStep, *, is_known: bool) -> list[list[str]]:
    ridge = f"{step.ridge:.3g} FLOP/B" if step.ridge else "-"
    unfused = "each operator reads and writes its tensors: nothing fused"
    copies = f"own ceilings: {engineering(step.bytes_per_s, 'B/s')} for copies"
    return [
        ["intensity", f"{step.intensity:.3g} FLOP/B", unfused],
        ["ridge point", ridge if is_known else NOT_KNOWN, copies],
    ]


def least_time_rows(step: MeasuredStep, *, is_known: bool) -> list[list[str]]:
    """What the step would take if nothing but its compute, memory or launches took time."""
    flops = step.flops
    reasons = {
        "compute": "the FLOPs at this machine's own ceiling",
        "memory": f"{bytes_text(flops.moved_bytes)} at this machine's own bandwidth",
        "launch": f"{flops.operators:,} operators, {seconds_text(step.overhead_s)} each",
    }
    rows = []
    for name, seconds in step.least_times_s.items():
        time, reason = NOT_KNOWN, reasons[name]
        if is_known:
            time = seconds_text(seconds)
            reason = f"{seconds / step.seconds:.1%} of the step: {reason}"
        rows.append([f"{name} alone", time, reason])
    return rows


def bound_sentence(step: MeasuredStep, unknown: str = "") -> str:
    """The bound of the step, in a sentence; or why it is unknown."""
    if unknown:
        return f"what bounds the step is {NOT_KNOWN}: {unknown}"
    longest, seconds = max(step.least_times_s.items(), key=lambda item: item[1])
    part = f"{seconds / step.seconds:.1%} of the step"
    if step.bound == OVERHEAD:
        return (
            f"neither compute, memory nor launches bind it: {longest}, the longest, explains {part}"
        )
    return f"{longest}-bound: of the three, {longest} takes longest, {part}"


def _rates_text(rates: Mapping[str, float | None], flops: ExplainedFlops, whose: str) -> str:
    known = [
        f"{dtype} {engineering(rate, 'FLOP/s')}"
        for dtype in flops.by_dtype
        if (rate := rates.get(dtype))
    ]
    missing = [f"{dtype} not on record" for dtype in flops.by_dtype if not rates.get(dtype)]
    return f"{whose}: {', '.join(known + missing)}"


def phases_section(
    breakdown: Breakdown, memory: StepMemory | None, *, is_known: bool = True
) -> Section:
    """The time of each phase; not known where the phases do not add up to the step."""
    rows = [["phase", "time", "share", "in operators", "calls", "peak memory"]]
    total = sum(breakdown.phases_s.values())
    blocks, left = [], 0.0
    for place, (name, seconds) in enumerate(breakdown.phases_s.items()):
        own = [each for each in breakdown.operators if each.phase == name]
        in_operators = sum(each.seconds for each in own)
        calls = f"{sum(each.calls for each in own):,}"
        peak = bytes_text(memory.phase_peaks[name] if memory else None)
        time, share_of_all, part = NOT_KNOWN, NOT_KNOWN, NOT_KNOWN
        if is_known:
            time, share_of_all = seconds_text(seconds), f"{seconds / total:.1%}"
            part = seconds_text(in_operators) if in_operators <= seconds else NOT_KNOWN
            title = f"{phase_name(name)}: {time}, {share_of_all}"
            blocks.append(Block(0, 1e3 * left, 1e3 * (left + seconds), title, place))
        left += seconds
        rows.append([phase_name(name), time, share_of_all, part, calls, peak])
    remark = (
        "phases and operators are timed in different steps; the rest of a phase is Python, "
        "autograd and dispatch"
    )
    if breakdown.is_compiled:
        remark = (
            "compiled: modules and operators are those of the code as it is written, timed "
            "uncompiled"
        )
    legend = [phase_name(name) for name in breakdown.phases_s]
    axis = Axis("ms", low=0.0)
    plot = Plot(PHASES_TITLE, axis, Axis(rows=["step"]), blocks=blocks, legend=legend, height=120)
    return Section(PHASES_TITLE, rows, [remark], plot if is_known else None)


def modules_section(breakdown: Breakdown) -> Section:
    rows = [
        [
            "module",
            "kind",
            "own time",
            "params",
            "FLOPs forward",
            "FLOPs backward",
            "kept",
            "output",
        ]
    ]
    busy = [row for row in breakdown.modules if row.own_s]
    for row in sorted(busy, key=lambda row: -row.own_s)[:MOST_ROWS]:
        name = row.name or "(the whole)"
        rows.append([name, row.kind, seconds_text(row.own_s), *module_figures(row)[:4], row.output])
    remark = f"of {len(breakdown.modules) - 1:,} modules these take most time of their own"
    return Section(MODULES_TITLE, rows, [remark] if len(busy) >= len(rows) else [])


def tree_section(breakdown: Breakdown) -> Section:
    """Every module with all that is inside it, in the order of the code."""
    rows = [["module", "kind", "calls", *MODULE_HEAD, "output"]]
    for row in breakdown.modules:
        name = row.name.rpartition(".")[2] if row.depth else row.name or row.kind
        cells = [INDENT * row.depth + name, row.kind, f"{row.calls:,}"]
        rows.append([*cells, *module_figures(row), row.output])
    return Section(TREE_TITLE, rows, anchor="every-module", is_folded=True)


def module_figures(row: ModuleRow) -> list[str]:
    """The figures of MODULE_HEAD, all submodules included."""
    counts = map(count_text, (row.parameters, row.forward_flops, row.backward_flops))
    return [
        *counts,
        bytes_text(row.kept_bytes),
        seconds_text(row.forward_s),
        seconds_text(row.backward_s),
    ]


def operators_section(breakdown: Breakdown) -> Section:
    rows = [["operator", "phase", "calls", "time", "share", "FLOPs", "rate"]]
    total = sum(each.seconds for each in breakdown.operators)
    for each in breakdown.operators[:MOST_ROWS]:
        rate = (
            engineering(each.flops / each.seconds, "FLOP/s") if each.flops and each.seconds else "-"
        )
        time = [seconds_text(each.seconds), f"{each.seconds / total:.1%}"]
        flops = count_text(each.flops) if each.flops else "-"
        rows.append([each.name, each.phase, f"{each.calls:,}", *time, flops, rate])
    more = len(breakdown.operators) - len(rows) + 1
    return Section(OPERATORS_TITLE, rows, [f"and {more} more, in the .json"] if more > 0 else [])


def fits_section(fits: Fits) -> Section:
    """A row per training and card: what it offers, what the step reserves there, what is left."""
    has_choices = len({row.training for row in fits.rows}) > 1
    head = ["card", "it offers", "step reserves", "to spare", ""]
    head += [f"largest {name}" for name in fits.arguments]
    rows = [["training", *head] if has_choices else head]
    for row in fits.rows:
        fit = row.fit
        verdict = "fits" if fit.fits else "does not fit"
        if fit.fits and fit.spare_bytes < 0:
            verdict = "fits, emptying the cache"
        offers, reserves = binary(fit.usable_bytes), binary(fit.reserved_bytes)
        spare = binary(fit.spare_bytes) if fit.spare_bytes >= 0 else "-"
        cells = [fit.card, offers, reserves, spare, verdict]
        cells += [f"{size:,}" if size else "none" for size in row.largest.values()]
        rows.append([row.training, *cells] if has_choices else cells)
    remarks = [*fits.remarks]
    if fits.rows:
        remarks.append(
            "predicted: reserved is the most that torch.cuda.max_memory_reserved reads in two "
            "steps where memory is no limit; a step fits if torch's allocator gets through with "
            "what the card offers: its memory as torch sees it, less 0.5 GB for the context"
        )
    if fits.is_lower_bound:
        remarks.append("the workspace of some kernels is not known: a step reserves at least this")
    return Section("cards that it fits on", rows if fits.rows else [], remarks)


def largest_section(largest: Largest) -> Section:
    rows = [[largest.argument, "predicted peak", "measured peak", ""]]
    for trial in largest.trials:
        peaks = [bytes_text(trial.predicted_bytes), bytes_text(trial.measured_bytes)]
        peak = trial.measured_bytes or trial.predicted_bytes
        beyond = "does not fit" if peak and peak > largest.limit_bytes else ""
        rows.append([f"{trial.size:,}", *peaks, trial.why_not or beyond])
    found = "none fits"
    if largest.found is not None:
        found = f"{largest.argument}={largest.found:,}"
    if largest.next_larger:
        found += f" ({largest.next_larger:,} does not)"
    how = "predicted, and measured once" if largest.is_predicted else "measured"
    remarks = [
        f"limit: {binary(largest.limit_bytes)}, {largest.limit_of}",
        f"largest that fits, {how}: {found}",
    ]
    if largest.remark:
        remarks.append(largest.remark)
    return Section(f"the largest {largest.argument} that fits", rows, remarks)


def answers_section(answers: list[Answer]) -> Section:
    """Each settled claim in a row; the others grouped by the reason why they are not."""
    rows = [["claim", "of this model", ""]]
    unsettled: dict[str, list[str]] = {}
    for each in answers:
        if each.verdict in (DOES_NOT_APPLY, "not checked"):
            unsettled.setdefault(f"{each.verdict}, {each.reason}", []).append(each.claim)
        else:
            rows.append(
                [each.claim, each.verdict, "; ".join(filter(None, [*each.figures, each.reason]))]
            )
    remarks = [f"{why}: {', '.join(ids)}" for why, ids in unsettled.items()]
    table = rows if len(rows) > 1 else ()
    return Section("claims of the registry", table, remarks, absent=ABSENT)
