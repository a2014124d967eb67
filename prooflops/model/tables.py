"""The sections of a user's model: a table and remarks of each fact of the examination."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from accounting.units import with_unit
from prooflops.machine import device as machine
from prooflops.model.breakdown import Breakdown
from prooflops.model.examination import Examination
from prooflops.model.fits import Fits
from prooflops.model.flop_difference import ExplainedFlops
from prooflops.model.step_memory import PEAK, StepMemory
from prooflops.model.step_time import OVERHEAD, MeasuredStep
from prooflops.model.summary import (
    NOT_KNOWN,
    RULES,
    counts_of,
    first_names,
    peak_text,
)
from prooflops.model.tree import count_text, figures_of, shown_branches, tree_of
from prooflops_gate.console.tables import engineering, many, share
from prooflops_gate.page.section import Section

MOST_ROWS = 10
MEMORY_TITLE, STEP_TITLE = "memory, second step", "one training step"
MODULE_HEAD = ["parameters", "trained", "FLOPs forward", "FLOPs backward", "kept"]
INDENT_OF_A_MODULE = "\u2003"


def sections_of(examination: Examination) -> Iterator[Section]:
    """The answers, the modules, what was asked, and the details, which a reader opens."""
    yield answer_box(examination)
    yield branches_section(examination.breakdown, is_measured=examination.is_measured)
    if examination.fits:
        yield fits_section(examination.fits)
    for section in _details(examination):
        yield replace(section, is_folded=True)


def _details(examination: Examination) -> Iterator[Section]:
    memory, breakdown, step = examination.memory, examination.breakdown, examination.step
    yield flops_section(examination.flops)
    if memory:
        yield memory_section(memory)
    if step:
        yield step_section(step, examination.unknown)
    if examination.is_measured:
        yield operators_section(breakdown, is_compiled=examination.user_model.is_compiled)


def answer_box(examination: Examination) -> Section:
    """N and FLOPs, the peak beside the device's memory, and what bounds the step."""
    memory, step = examination.memory, examination.step
    bound = "not measured here: `pytest --model` times a step"
    if step:
        bound = bound_sentence(step, examination.unknown)
    peak = peak_text(memory)
    if memory and (total := memory.row(PEAK).known_bytes):
        device, capacity = _memory_of_device(examination)
        if capacity:
            part = f"{total / capacity:.1%}" if total > capacity / 1000 else "under 0.1%"
            peak += f"; {part} of the {bytes_text(capacity)} of {device}"
    parts = (
        Section("N and FLOPs", [*counts_of(examination)], has_head=False),
        Section("memory at the peak", [("peak", peak)], has_head=False),
        Section("what bounds the step", remarks=[bound]),
    )
    return Section("the answers", parts=parts, is_box=True)


def _memory_of_device(examination: Examination) -> tuple[str, int | None]:
    """The card that was asked about, else the device of the step, and its memory."""
    if examination.fits and examination.fits.rows:
        fit = examination.fits.rows[0].fit
        return fit.card, fit.usable_bytes
    device = examination.user_model.device
    return str(device), machine.memory_bytes(device) if machine.is_here(device) else None


def branches_section(breakdown: Breakdown, *, is_measured: bool) -> Section:
    """The tree as it is printed, with times where they were measured."""
    times = ["time forward", "backward"] if is_measured else []
    rows = [["module", *MODULE_HEAD, *times, "output", "dtype"]]
    for level, branch in shown_branches(tree_of(breakdown)):
        *figures, output, dtype = figures_of(branch.row)
        if is_measured:
            figures += map(seconds_text, (branch.row.forward_s, branch.row.backward_s))
        rows.append([INDENT_OF_A_MODULE * level + branch.title, *figures, output, dtype])
    return Section("modules", rows, ["equal siblings share a line; each module is in the .json"])


def bytes_text(value: float | None) -> str:
    return "-" if value is None else with_unit(value, "B")


def seconds_text(value: float | None) -> str:
    return "-" if value is None else engineering(value, "s")


def per_second_text(rate: float | None, unit: str) -> str:
    """Tokens or examples per second, without a prefix."""
    if rate is None:
        return NOT_KNOWN
    return f"{rate:,.0f} {unit}/s" if rate >= 100 else f"{rate:.3g} {unit}/s"


def flops_section(flops: ExplainedFlops) -> Section:
    rows, rule = [["FLOPs", *RULES, "step, per parameter"]], flops.rule("step")
    remarks = []

    def row(name: str, forward: int, backward: int, sign: str = "") -> None:
        figures = [f"{each:{sign},}" for each in (forward, backward, forward + backward)]
        rows.append([name, *figures, f"{(forward + backward) / flops.parameters:{sign},.4g}"])

    row("executed" if flops.recomputed else "counted", flops.forward, flops.backward)
    for part in flops.parts:
        row(f"{'+' if part.step >= 0 else '-'} {part.name}", part.forward, part.backward, "+")
    if rule is None:
        remarks.append(f"D is {flops.batch}; without it 2ND, 4ND and 6ND are {NOT_KNOWN}")
    else:
        row("= 2ND, 4ND, 6ND", flops.rule("forward") or 0, flops.rule("backward") or 0)
    unexplained = {name: flops.unexplained(phase) for phase, name in RULES.items()}
    calls = [f"{name} ({many(number, 'call')})" for name, number in flops.unknown.items()]
    if any(unexplained.values()):
        remarks.append(f"NOT EXPLAINED: {unexplained}")
    if flops.recomputed:
        remarks.append(
            f"model FLOPs (MFU) {flops.model:,}, executed FLOPs (HFU) {flops.executed:,}"
        )
    if flops.update:
        remarks.append(
            f"products in the optimizer's step, which no rule covers: {flops.update:,} FLOPs"
        )
    remarks.append(
        f"elementwise operations and reductions, besides the products: {flops.elementwise:,} FLOPs"
    )
    without = f"operators without a formula, not counted: {first_names(calls)}"
    remarks.append(without if calls else "every operator of the step has a formula")
    return Section(f"FLOPs of one step, D = {flops.batch.size}", rows, remarks)


def memory_section(memory: StepMemory) -> Section:
    rows = [["memory", "predicted", "measured", "measured - predicted", ""]]
    for each in memory.rows:
        known = (each.predicted_bytes, each.measured_bytes)
        predicted, measured = ("-" if size is None else f"{size:,} B" for size in known)
        difference = "-"
        if each.predicted_bytes is not None and each.measured_bytes is not None:
            difference = f"{each.measured_bytes - each.predicted_bytes:+,} B"
        rows.append([each.name, predicted, measured, difference, bytes_text(each.known_bytes)])
    return Section(MEMORY_TITLE, rows, memory.remarks)


def step_section(step: MeasuredStep, unknown: str) -> Section:
    """The step's times and rates; about so much where a figure contradicts another."""
    rows = [["time", "figure", ""]]
    found = [*time_rows(step), *utilization_rows(step), *least_time_rows(step)]
    for name, figure, reason in found:
        rows.append([name, about(figure) if unknown else figure, reason])
    return Section(STEP_TITLE, rows, [bound_sentence(step, unknown)])


def about(figure: str) -> str:
    """A figure that noise or another figure makes uncertain."""
    return f"~ {figure}" if figure[:1].isdigit() else figure


def time_rows(step: MeasuredStep) -> list[list[str]]:
    flops = step.flops
    rounds = f"median of {step.rounds} rounds, IQR {step.spread:.1%}"
    rate = engineering(flops.model / step.seconds, "FLOP/s")
    return [
        ["step", seconds_text(step.seconds), rounds],
        ["throughput", per_second_text(step.per_s, flops.batch.unit), ""],
        ["rate", rate, f"model FLOPs, in {', '.join(flops.by_dtype)}"],
    ]


def utilization_rows(step: MeasuredStep) -> list[list[str]]:
    """The shares of the dense peak and of this machine's best measured rate."""
    flops = step.flops
    executed = "= MFU"
    if flops.recomputed:
        executed = f"executed FLOPs, {flops.recomputed / flops.executed:.1%} recomputed"
    peaks = _rates_text(step.peak_flop_per_s, flops, "dense peak")
    measured = _rates_text(step.ceiling_flop_per_s, flops, "best square products of this run")
    return [
        ["MFU", share(step.mfu, "not checked"), peaks],
        ["HFU", share(step.hfu, "not checked"), executed],
        ["MFU of the best rate", share(step.mfu_of_ceiling, "-"), measured],
        ["HFU of the best rate", share(step.hfu_of_ceiling, "-"), executed],
    ]


def least_time_rows(step: MeasuredStep) -> list[list[str]]:
    """The step's time if nothing but its compute, memory or launches needed any."""
    flops = step.flops
    reasons = {
        "compute": "the FLOPs at the best measured rate",
        "memory": f"{bytes_text(flops.moved_bytes)} at the best measured rate of a copy",
        "launch": f"{flops.operators:,} operators, {seconds_text(step.overhead_s)} to launch each",
    }
    rows = []
    for name, seconds in step.least_times_s.items():
        reason = f"{seconds / step.seconds:.1%} of the step: {reasons[name]}"
        rows.append([f"{name} alone", seconds_text(seconds), reason])
    return rows


def bound_sentence(step: MeasuredStep, unknown: str) -> str:
    """The bound of the step, in a sentence; or why it is unknown."""
    if unknown:
        return f"what bounds the step is {NOT_KNOWN}: {unknown}"
    longest, seconds = max(step.least_times_s.items(), key=lambda item: item[1])
    part = f"{seconds / step.seconds:.1%} of the step"
    if step.bound == OVERHEAD:
        return f"nothing bounds the step alone: {longest}, the longest, takes {part}"
    return f"{longest}-bound: {longest} takes longest, {part}"


def _rates_text(rates: Mapping[str, float | None], flops: ExplainedFlops, whose: str) -> str:
    parts = []
    for dtype in flops.by_dtype:
        rate = rates.get(dtype)
        parts.append(f"{dtype} {engineering(rate, 'FLOP/s') if rate else 'not on record'}")
    return f"{whose}: {', '.join(parts)}"


def operators_section(breakdown: Breakdown, *, is_compiled: bool) -> Section:
    rows = [["operator", "phase", "calls", "time", "share", "FLOPs", "rate"]]
    total = sum(each.seconds for each in breakdown.operators)
    for each in breakdown.operators[:MOST_ROWS]:
        flops = rate = "-"
        if each.flops and each.seconds:
            flops, rate = count_text(each.flops), engineering(each.flops / each.seconds, "FLOP/s")
        time = [seconds_text(each.seconds), f"{each.seconds / total:.1%}"]
        rows.append([each.name, each.phase, f"{each.calls:,}", *time, flops, rate])
    more = len(breakdown.operators) - MOST_ROWS
    remarks = [f"and {more} more, in the .json"] if more > 0 else []
    if is_compiled:
        remarks.append("timed uncompiled, as the modules are")
    return Section("operators by time", rows, remarks)


def fits_section(fits: Fits) -> Section:
    """A row per card: what it offers, what the step reserves there, and the answer."""
    rows = [["card", "card offers", "step reserves", "does it fit?"]]
    rows += [[row.fit.card, row.offers, row.reserves, row.answer] for row in fits.rows]
    remarks = [*fits.not_predicted, *fits.notes]
    if fits.rows:
        remarks.append(
            "predicted, without the card: the most that torch.cuda.max_memory_reserved reads in "
            "two steps; a step fits if torch's allocator can serve its requests from the card's "
            "memory less 0.54 GB for the CUDA context"
        )
    unknown = dict.fromkeys(name for row in fits.rows for name in row.fit.unknown)
    if unknown:
        remarks.append(f"at least: the workspace of {first_names(unknown)} is not known")
    return Section("cards that the step fits on", rows if fits.rows else [], remarks)
