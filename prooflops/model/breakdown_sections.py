"""The tables of where a step of a user's model goes, what inference takes, what fits, and several models compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from prooflops.console.tables import binary, engineering
from prooflops.model.breakdown import PHASES, Breakdown, Inference, ModuleRow
from prooflops.model.examination import Examination
from prooflops.model.sections import Section
from prooflops.model.step_memory import HELD, PEAK, StepMemory
from prooflops.model.sweep import Sweep, Trial

MOST = 10
UNCOMPILED = "compiled: modules and operators are those of the code as it is written, timed uncompiled"


def phases_section(breakdown: Breakdown, memory: StepMemory | None) -> Section:
    rows = [["phase", "time", "share", "in operators", "calls", "peak memory"]]
    total = sum(breakdown.phases_s.values())
    for name in PHASES:
        seconds, own = breakdown.phases_s[name], [each for each in breakdown.operators if each.phase == name]
        rows.append([
            phase_name(name),
            engineering(seconds, "s"),
            f"{seconds / total:.1%}",
            engineering(sum(each.seconds for each in own), "s"),
            f"{sum(each.calls for each in own):,}",
            engineering(memory.phase_peaks[name], "B") if memory else "-",
        ])  # fmt: skip
    remark = "what is not in operators passes between their calls: Python, autograd, dispatch"
    return Section("forward, backward, optimizer", rows, [UNCOMPILED if breakdown.is_compiled else remark])


def modules_section(breakdown: Breakdown) -> Section:
    head = ["module", "kind", "own time", "params", "FLOPs forward", "FLOPs backward", "kept", "output"]
    rows = [[module_name(row), row.kind, engineering(row.own_s, "s"), *module_figures(row)[:4], row.output]
            for row in breakdown.slowest(MOST) if row.own_s]  # fmt: skip
    more = sum(row.own_s > 0 for row in breakdown.modules) - len(rows)
    remarks = [f"of {len(breakdown.modules) - 1:,} modules these take most time of their own, forward and backward"]
    return Section("modules by own time", [head, *rows], remarks if more > 0 else [], text_column=True)


def module_name(row: ModuleRow) -> str:
    return row.name or "(the whole)"


def module_figures(row: ModuleRow) -> list[str]:
    """Parameters, FLOPs forward and backward, bytes kept, time forward and backward; with all that is inside it."""
    counts = [row.parameters, row.forward_flops, row.backward_flops]
    return [
        *map(count_text, counts),
        engineering(row.kept_bytes, "B"),
        engineering(row.forward_s, "s"),
        engineering(row.backward_s, "s"),
    ]


def count_text(count: float) -> str:
    """A count for people: `320`, `1.25 M`; below 1 a share, without a prefix: `0.906`."""
    return f"{count:.3g}" if count < 1 or (count < 1000 and count == int(count)) else engineering(count, "").strip()


def operators_section(breakdown: Breakdown, most: int | None = MOST) -> Section:
    rows = [["operator", "phase", "calls", "time", "share", "FLOPs", "rate"]]
    for each in breakdown.operators[:most]:
        rate = engineering(each.flops / each.seconds, "FLOP/s") if each.flops and each.seconds else "-"
        of_all = f"{each.seconds / breakdown.in_operators_s:.1%}"
        flops = count_text(each.flops) if each.flops else "-"
        rows.append([each.name, each.phase, f"{each.calls:,}", engineering(each.seconds, "s"), of_all, flops, rate])
    more = len(breakdown.operators) - len(rows) + 1
    return Section("operators by time", rows, [f"and {more} more, in the .json"] if more > 0 else [])


def inference_section(inference: Inference, tokens: int, unit: str) -> Section:
    rows = [["inference", "figure", "how"]]
    if inference.why_not:
        return Section("inference", [*rows, ["not run", "-", inference.why_not]], [], text_column=True)
    spread = f"eval mode, inference mode, IQR {inference.spread:.1%}"
    rows += [
        ["time", engineering(inference.seconds, "s"), spread],
        ["throughput", f"{engineering(tokens / inference.seconds, '')}{unit}/s", "forward pass alone"],
        ["FLOPs", f"{inference.flops:,}", f"{engineering(inference.flops / inference.seconds, 'FLOP/s')}"],
        ["activations", engineering(inference.activation_bytes, "B"), "at the peak, the output included"],
    ]
    return Section("inference", rows, [], text_column=True)


def sweep_section(sweep: Sweep) -> Section:
    rows = [[sweep.argument, "predicted peak", "measured peak", "step", f"{sweep.unit or 'tokens'}/s", ""]]
    rows += [trial_row(trial) for trial in sweep.trials]
    remarks = [f"limit: {binary(sweep.limit_bytes)}, {sweep.limit_of}"]
    found = "none fits" if sweep.found is None else f"{sweep.argument}={sweep.found:,}"
    remarks.append(
        f"largest found to fit: {found}" + (f" ({sweep.next_larger:,} does not)" if sweep.next_larger else "")
    )
    remarks.append("predicted: " + (f"{sweep.argument}={sweep.predicted:,}" if sweep.predicted else "none"))
    return Section(f"the largest {sweep.argument} that fits", rows, [*remarks, *filter(None, [sweep.remark])], True)


def trial_row(trial: Trial) -> list[str]:
    def figure(value: int | None) -> str:
        return "-" if value is None else engineering(value, "B")

    note = "" if trial.seconds else trial.why_not or "does not fit"
    seconds = engineering(trial.seconds, "s") if trial.seconds else "-"
    rate = engineering(trial.tokens / trial.seconds, "").strip() if trial.seconds else "-"
    return [f"{trial.size:,}", figure(trial.predicted_bytes), figure(trial.measured_bytes), seconds, rate, note]


def phase_name(phase: str) -> str:
    return "optimizer" if phase == "update" else phase


# ---- several models ----------------------------------------------------------------------------------------------

# What each figure is called, the fact that it is of, its unit.
FIGURES: tuple[tuple[str, str, str, Callable[[Any], float]], ...] = (
    ("parameters", "inventory", "", lambda inventory: inventory.parameters),
    ("D", "flops", "", lambda flops: flops.tokens),
    ("FLOPs of a step", "flops", "", lambda flops: flops.executed),
    ("FLOPs for each of D", "flops", "", lambda flops: flops.executed / flops.tokens),
    (HELD, "memory", "B", lambda memory: memory.row(HELD).measured_bytes),
    (PEAK, "memory", "B", lambda memory: memory.row(PEAK).measured_bytes),
    ("time of a step", "step", "s", lambda step: step.seconds),
    ("D per second", "step", "", lambda step: step.per_s),
    ("MFU of own ceiling, %", "step", "", lambda step: 100 * (step.mfu_of_ceiling or 0)),
    *(
        (f"time, {phase_name(each)}", "breakdown", "s", lambda breakdown, each=each: breakdown.phases_s[each])
        for each in PHASES
    ),
    ("time of inference", "inference", "s", lambda inference: inference.seconds),
)


def comparison_section(examinations: Sequence[Examination]) -> Section:
    """The figures of several models, a column each, and of two models the second as a multiple of the first."""
    specs = [each.user_model.spec for each in examinations]
    short = [spec.rpartition("/")[2] for spec in specs]
    names = short if len({*short}) == len(specs) else specs
    rows = [["figure", *names, *(["second / first"] if len(names) == 2 else [])]]
    for name, fact, unit, figure in FIGURES:
        if not all(each.has(fact) and getattr(each, fact) for each in examinations):
            continue
        found = [figure(getattr(each, fact)) for each in examinations]
        values = [engineering(value, unit) if unit else count_text(value) for value in found]
        times = [f"{found[1] / found[0]:.3g}x" if found[0] else "-"] if len(names) == 2 else []
        rows.append([name, *values, *times])
    return Section("side by side", rows, [])
