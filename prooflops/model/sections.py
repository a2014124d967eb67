"""The tables of the page about a user's model: parameters, FLOPs, memory, the time of a step, claims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prooflops.console.tables import engineering, fitted, share
from prooflops.model.claims import Answer
from prooflops.model.examination import OVERHEAD, Inventory, MeasuredStep
from prooflops.model.flop_difference import StepFlops
from prooflops.model.step_memory import StepMemory
from prooflops.suite.report.terminal import wrapped
from prooflops.suite.verdicts import DOES_NOT_APPLY

RULES = {"forward": "2ND", "backward": "4ND", "step": "6ND"}
LONGEST_LIST = 8


@dataclass(frozen=True)
class Section:
    """A table, and the remarks below it."""

    title: str
    rows: list[list[str]]
    remarks: list[str]
    text_column: bool = False  # whether the last column is text, which is flush left

    def lines(self, width: int | None = None) -> list[str]:
        """The table, then the remarks; of at most `width` columns, as far as wrapping goes."""
        remarks = [line for remark in self.remarks for line in wrapped(remark, width, "  ")]
        return [*fitted(self.rows, width, text_column=self.text_column), *remarks]


def inventory_section(inventory: Inventory) -> Section:
    rows = [["what", "dtype", "tensors", "elements", "bytes", ""]]
    for each in inventory.groups:
        what = each.role if each.role == "buffer" else f"parameters, {each.role}"
        rows.append([what, each.dtype, f"{each.tensors:,}", f"{each.elements:,}", *bytes_twice(each.bytes)])
    tensors, elements = (sum(getattr(each, name) for each in inventory.groups) for name in ("tensors", "elements"))
    rows.append(["all", "", f"{tensors:,}", f"{elements:,}", *bytes_twice(inventory.bytes)])
    remarks = []
    if inventory.tied:
        remarks.append(f"tied, counted once: {first_names(inventory.tied)}")
    if inventory.storage_bytes != inventory.bytes:
        remarks.append(
            f"their storages hold {inventory.storage_bytes:,} B: some are parts of larger tensors, or share one"
        )
    return Section(f"N = {inventory.parameters:,} parameters", rows, remarks)


def bytes_twice(value: int) -> tuple[str, str]:
    """Bytes exactly, and in three digits."""
    return f"{value:,} B", engineering(value, "B")


def flops_section(flops: StepFlops) -> Section:
    rows = [["FLOPs", *RULES, "share of 6ND"]]

    def row(what: str, forward: int, backward: int, sign: str = "") -> None:
        step = forward + backward
        of_rule = f"{step / flops.rule('step'):{sign}.2%}"
        rows.append([what, f"{forward:{sign},}", f"{backward:{sign},}", f"{step:{sign},}", of_rule])

    row("executed" if flops.recomputed else "counted", flops.forward, flops.backward)
    for part in flops.parts:
        row(f"{'+' if part.step >= 0 else '-'} {part.name}", part.forward, part.backward, "+")
    row("= 2ND, 4ND, 6ND", flops.rule("forward"), flops.rule("backward"))
    remarks = [rule_remark(flops, phase) for phase in RULES]
    if any(flops.unexplained(phase) for phase in RULES):
        remarks.append(f"NOT EXPLAINED: {', '.join(f'{phase} {flops.unexplained(phase):,}' for phase in RULES)}")
    if flops.recomputed:
        remarks.append(f"model FLOPs (MFU) {flops.model:,}, executed FLOPs (HFU) {flops.executed:,}")
    if flops.update:
        remarks.append(f"the optimizer's step multiplies matrices too: {flops.update:,} FLOPs, which no rule covers")
    remarks.append(f"elementwise operations and reductions, beside the products: {flops.elementwise:,} FLOPs")
    if flops.unknown:
        calls = [f"{name} ({number} calls)" for name, number in flops.unknown.items()]
        remarks.append(f"operators without a formula, not counted: {first_names(calls)}")
    else:
        remarks.append("every operator of the step has a formula")
    return Section(f"FLOPs of one step, D = {flops.tokens:,} {flops.unit}", rows, remarks)


def rule_remark(flops: StepFlops, phase: str) -> str:
    """How far a rule of thumb is from the model FLOPs, and from the executed ones where more ran."""
    rule, needed, executed = flops.rule(phase), flops.needed(phase), flops.counted(phase)
    if not needed:
        return f"{RULES[phase]} does not apply: no product was counted"
    text = f"{RULES[phase]} is {times_text(rule, needed)} the model FLOPs ({rule - needed:+,})"
    return text if executed == needed else f"{text}, {times_text(rule, executed)} the executed FLOPs"


def times_text(rule: int, flops: int) -> str:
    """A ratio for people: a small difference in percent, a large one as a factor."""
    if rule == flops:
        return "exactly"
    times = rule / flops
    if 0.5 < times < 2:
        return f"{abs(times - 1):.1%} {'above' if times > 1 else 'below'}"
    return f"{times:.3g} times"


def memory_section(memory: StepMemory) -> Section:
    rows = [["memory", "predicted", "measured", "measured - predicted", ""]]
    for each in memory.rows:
        known = each.predicted_bytes is not None
        rows.append([
            each.name,
            f"{each.predicted_bytes:,} B" if known else "-",
            f"{each.measured_bytes:,} B",
            f"{each.measured_bytes - (each.predicted_bytes or 0):+,} B" if known else "-",
            engineering(each.measured_bytes, "B"),
        ])  # fmt: skip
    remarks = list(memory.remarks)
    largest = sorted((each for each in memory.scratch.items() if each[1] >= 1000), key=lambda item: -item[1])
    if largest:
        calls = [f"{name.removesuffix('.default')} {size:,} B" for name, size in largest]
        remarks.append(f"of it workspace inside kernels, the most per call: {first_names(calls)}")
    if memory.is_lower_bound:
        remarks.append("the workspace of some kernels is not known: the last two predictions are lower bounds")
    if memory.charged_peak_bytes is not None:
        remarks.append(f"the caching allocator set aside {memory.charged_peak_bytes:,} B at the peak")
    return Section("memory, second step", rows, remarks)


def step_section(step: MeasuredStep) -> Section:
    flops, rates = step.flops, step.rates
    executed = f"executed FLOPs, {flops.recomputed / flops.executed:.1%} recomputed" if flops.recomputed else "= MFU"
    dtypes = ", ".join(flops.by_dtype)
    ridge = f"{step.ridge:.3g} FLOP/B" if step.ridge else "-"
    rows = [
        ["time", "figure", ""],
        ["step", engineering(step.seconds, "s"), f"median of {step.rounds} rounds, IQR {step.spread:.1%}"],
        ["throughput", f"{engineering(step.per_s, '')}{flops.unit}/s", ""],
        ["rate", engineering(flops.model / step.seconds, "FLOP/s"), f"model FLOPs, in {dtypes}"],
        ["MFU", share(step.mfu, "not checked"), rates_text(rates.peak_flop_per_s, flops, "vendor's dense peak")],
        ["HFU", share(step.hfu, "not checked"), executed],
        ["MFU of own ceiling", share(step.mfu_of_ceiling, "-"), rates_text(rates.ceiling_flop_per_s, flops, "own")],
        ["HFU of own ceiling", share(step.share_of_ceiling, "-"), executed],
        ["intensity", f"{step.intensity:.3g} FLOP/B", "each operator reads and writes its tensors: nothing fused"],
        ["ridge point", ridge, f"own ceilings: {engineering(rates.bytes_per_s, 'B/s')} for copies"],
    ]
    reasons = {
        "compute": "the FLOPs at this machine's own ceiling",
        "memory": f"{engineering(flops.moved_bytes, 'B')} at this machine's own bandwidth",
        "launch": f"{flops.operators:,} operators, {engineering(rates.overhead_s, 's')} each",
    }
    for name, seconds in step.least_times_s.items():
        part = f"{seconds / step.seconds:.1%} of the step: {reasons[name]}"
        rows.append([f"{name} alone", engineering(seconds, "s"), part])
    return Section("one training step", rows, [bound_sentence(step)], text_column=True)


def answers_section(answers: list[Answer]) -> Section:
    """Each claim that was settled in a row; the others grouped by the reason why they were not."""
    rows = [["claim", "of this model", ""]]
    unsettled: dict[str, list[str]] = {}
    for each in answers:
        if each.verdict in (DOES_NOT_APPLY, "not checked"):
            unsettled.setdefault(f"{each.verdict}, {each.reason}", []).append(each.claim)
        else:
            rows.append([each.claim, each.verdict, "; ".join(filter(None, [*each.figures, each.reason]))])
    return Section(
        "claims of the registry", rows, [f"{why}: {', '.join(ids)}" for why, ids in unsettled.items()], text_column=True
    )


def bound_sentence(step: MeasuredStep) -> str:
    """What bounds the step, in a sentence."""
    times = step.least_times_s
    longest = max(times, key=lambda name: times[name])
    part = f"{times[longest] / step.seconds:.1%} of the step"
    if step.bound == OVERHEAD:
        return f"neither compute, memory nor launches bind it: {longest}, the longest, explains {part}"
    return f"{longest}-bound: of the three, {longest} takes longest, {part}"


def rates_text(rates: Mapping[str, float | None], flops: StepFlops, whose: str) -> str:
    known = [f"{dtype} {engineering(rate, 'FLOP/s')}" for dtype in flops.by_dtype if (rate := rates.get(dtype))]
    missing = [f"{dtype} not on record" for dtype in flops.by_dtype if not rates.get(dtype)]
    return f"{whose}: {', '.join(known + missing)}"


def first_names(names: Iterable[str]) -> str:
    """The first names of a list, and how many more there are."""
    names = list(names)
    more = len(names) - LONGEST_LIST
    return ", ".join(names[:LONGEST_LIST]) + (f" and {more} more" if more > 0 else "")
