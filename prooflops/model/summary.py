"""The answers about an examined step in a few lines: N, FLOPs, and the peak of its memory."""

from __future__ import annotations

from collections.abc import Iterator

from accounting.units import with_unit
from prooflops.model.examination import Examination
from prooflops.model.flop_difference import ExplainedFlops
from prooflops.model.inventory import Inventory
from prooflops.model.step_memory import PEAK, StepMemory

RULES = {"forward": "2ND", "backward": "4ND", "step": "6ND"}
NOT_KNOWN = "not known"
WORKSPACE = "workspace"
# Classes below this share of the peak are not printed.
LEAST_SHARE = 0.001
CLASSES = ("parameters", "gradients", "optimizer state", "activations", "inputs", WORKSPACE)


def summary_of(examination: Examination) -> Iterator[str]:
    """A line for each answer, and one for what was neither counted nor measured."""
    flops, memory = examination.flops, examination.memory
    yield f"N = {trained_text(examination.inventory)}"
    yield f"D = {flops.batch}"
    for title, phase in (("FLOPs forward", "forward"), ("FLOPs of a step", "step")):
        counted = flops.counted(phase)
        yield f"{title}: {with_unit(counted, 'FLOP')} ({counted:,}); {rule_text(flops, phase)}"
    compiled = "only the compiler knows what its graphs keep"
    why_not = f": {compiled}" if examination.user_model.is_compiled and not memory else ""
    yield f"peak memory: {peak_text(memory)}{why_not}"
    yield missing_text(examination)


def trained_text(inventory: Inventory) -> str:
    total, trained = inventory.parameters, inventory.trained
    if trained == total:
        return f"{total:,} parameters, all trained"
    return f"{total:,} parameters, {trained:,} trained ({trained / total:.2%})"


def rule_text(flops: ExplainedFlops, phase: str) -> str:
    """A rule of thumb, its distance from the count, and the first reason for it."""
    name, rule, counted = RULES[phase], flops.rule(phase), flops.counted(phase)
    if rule is None:
        return f"{name} is {NOT_KNOWN}, as D is"
    if rule == counted:
        return f"{name} = {rule:,}, exactly"
    parts = [each for each in flops.parts if getattr(each, phase)]
    reason = max(parts, key=lambda each: abs(getattr(each, phase))).name if parts else ""
    distance = times_text(rule, counted) if counted else "no product was counted"
    return f"{name} = {rule:,}, {distance}: {reason}"


def times_text(rule: int, flops: int) -> str:
    """A ratio for people: a small difference in percent, a large one as a factor."""
    times = rule / flops
    if rule == flops:
        return "exactly"
    if not 0.5 < times < 2:
        return f"{times:.3g} times"
    return f"{abs(times - 1):.1%} {'above' if times > 1 else 'below'}"


def peak_text(memory: StepMemory | None) -> str:
    """The peak as measured and predicted, and what it is made of."""
    if memory is None or memory.row(PEAK).known_bytes is None:
        return NOT_KNOWN
    peak = memory.row(PEAK)
    total = peak.known_bytes or 0
    texts = []
    if peak.measured_bytes is not None:
        texts.append(f"{with_unit(peak.measured_bytes, 'B')} measured")
    if peak.predicted_bytes is not None:
        at_least = "at least " if memory.is_peak_lower_bound else ""
        texts.append(f"{at_least}{with_unit(peak.predicted_bytes, 'B')} predicted")
    large = {
        name: size for name, size in peak_classes(memory).items() if size > LEAST_SHARE * total
    }
    classes = [f"{name} {with_unit(size, 'B')}" for name, size in large.items()]
    return ", ".join(texts) + (f": {', '.join(classes)}" if classes else "")


def peak_classes(memory: StepMemory) -> dict[str, int]:
    """The predicted bytes at the peak by class, in the order of CLASSES."""
    sums = dict.fromkeys(CLASSES, 0)
    for name, size in memory.at_peak.items():
        known = "parameters" if name == "buffers" else name
        sums[known if known in CLASSES else WORKSPACE] += size
    return {name: size for name, size in sums.items() if size}


def missing_text(examination: Examination) -> str:
    """The facts that the figures above leave out."""
    unknown = examination.flops.unknown
    calls = ", ".join(f"{name} ({number} calls)" for name, number in unknown.items())
    parts = [f"not counted, as they have no formula: {calls}"] if calls else []
    if not examination.is_measured:
        parts.append("not measured: memory and times; measure=True runs a copy")
        if not examination.fits:
            parts.append('device="RTX 4090" says whether it fits there, and the largest batch')
    else:
        parts.append("not measured: the time of a step, which pytest --model measures")
    return "; ".join(parts)
