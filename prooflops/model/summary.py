"""The answers about an examined step in a few lines: N, FLOPs, and the peak of its memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from accounting.units import with_unit
from prooflops.model.breakdown import ModuleRow
from prooflops.model.examination import Examination
from prooflops.model.flop_difference import ExplainedFlops
from prooflops.model.step_memory import PEAK, StepMemory
from prooflops.model.user_model import default_loss
from prooflops_gate.console.tables import many

MOMENTS = {
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "step": "in the optimizer's step",
}
RULES = {"forward": "2ND", "backward": "4ND", "step": "6ND"}
NOT_KNOWN = "not known"
WORKSPACE = "workspace"
LONGEST_LIST = 8
# Classes below this share of the peak are not printed.
LEAST_SHARE = 0.001
# A second cause of a difference, and the rest, are printed from this share of the count on.
LEAST_SHARE_OF_COUNT = 0.005
CLASSES = ("parameters", "gradients", "optimizer state", "activations", "inputs", WORKSPACE)


def summary_of(examination: Examination) -> Iterator[str]:
    """A line for each answer, and one for what is not known, not counted or not measured."""
    yield from (f"{name}: {text}" for name, text in counts_of(examination))
    yield f"step: {step_text(examination)}"
    yield f"peak memory on {examination.user_model.device}: {peak_text(examination.memory)}"
    if fits := examination.fits:
        for row in fits.rows:
            card = f"{row.fit.card}, {row.offers} usable"
            yield f"{card}: a step reserves {row.reserves}: {row.answer}"
        yield from (*fits.not_predicted, *fits.notes)
    yield missing_text(examination)


def step_text(examination: Examination) -> str:
    """The optimizer and the loss of the step, and what was chosen for the user."""
    instance = examination.instance
    loss = [] if instance.loss is default_loss else ["the loss that is given"]
    return "; ".join([type(instance.optimizer).__name__, *loss, *examination.notes])


def counts_of(examination: Examination) -> Iterator[tuple[str, str]]:
    """N, D and the FLOPs beside their rules of thumb, by name."""
    flops = examination.flops
    yield "N", trained_text(examination.breakdown.whole)
    if tied := examination.tied:
        yield "tied, counted once", first_names(tied)
    yield "D", str(flops.batch)
    for title, phase in (("FLOPs forward", "forward"), ("FLOPs of a step", "step")):
        counted = flops.counted(phase)
        yield title, f"{with_unit(counted, 'FLOP')} ({counted:,}); {rule_text(flops, phase)}"


def first_names(names: Iterable[str]) -> str:
    """The first names of a list, and how many more there are."""
    names = list(names)
    more = len(names) - LONGEST_LIST
    return ", ".join(names[:LONGEST_LIST]) + (f" and {more} more" if more > 0 else "")


def trained_text(whole: ModuleRow) -> str:
    total, trained = whole.parameters, whole.trained
    if trained == total:
        return f"{total:,} parameters, all trained"
    return f"{total:,} parameters, {trained:,} trained ({trained / total:.2%})"


def rule_text(flops: ExplainedFlops, phase: str) -> str:
    """A rule of thumb, how far it is from the count, and the largest causes of the difference."""
    name, rule, counted = RULES[phase], flops.rule(phase), flops.counted(phase)
    if rule is None:
        return f"{name} is {NOT_KNOWN}, as D is"
    if rule == counted:
        return f"{name} gives exactly that"
    if not counted:
        return f"{name} gives {with_unit(rule, 'FLOP')}, but no product was counted"
    named = main_causes(flops, phase)
    rest = rule - counted - sum(size for _, size in named)
    if abs(rest) > LEAST_SHARE_OF_COUNT * counted:
        named.append(("others", rest))
    causes = [f"{percent(size / counted, '+')} {cause}" for cause, size in named]
    off = f"{percent(abs(rule / counted - 1))} {'more' if rule > counted else 'less'}"
    return f"{name} gives {with_unit(rule, 'FLOP')}, {off}: {'; '.join(causes)}"


def main_causes(flops: ExplainedFlops, phase: str) -> list[tuple[str, int]]:
    """The largest cause of a difference, and the second if it is visible beside the count."""
    sizes = {part.name: getattr(part, phase) for part in flops.parts}
    largest, *others = sorted(sizes.items(), key=lambda cause: -abs(cause[1]))
    least = LEAST_SHARE_OF_COUNT * flops.counted(phase)
    return [largest, *(cause for cause in others[:1] if abs(cause[1]) > least)]


def percent(share: float, sign: str = "") -> str:
    """A share in percent of three digits, and of four from 100 % on.

    >>> percent(1.16049), percent(0.00603), percent(-0.069, "+"), percent(70_000)
    ('116.0%', '0.603%', '-6.90%', '7,000,000%')
    """
    figure = 100 * share
    if abs(figure) >= 100:
        return f"{figure:{sign},.{1 if abs(figure) < 1000 else 0}f}%"
    return f"{figure:{sign}#.3g}%"


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
        at_least = "at least " if memory.unknown else ""
        texts.append(f"{at_least}{with_unit(peak.predicted_bytes, 'B')} predicted")
    texts.append(MOMENTS[memory.peak_phase])
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
    kernels = [*examination.memory.unknown] if examination.memory else []
    for row in examination.fits.rows if examination.fits else ():
        kernels += row.fit.unknown
    parts = []
    if kernels:
        parts.append(f"not known: the workspace of {first_names(dict.fromkeys(kernels))}")
    uncounted = examination.flops.unknown.items()
    if calls := [f"{name} ({many(number, 'call')})" for name, number in uncounted]:
        parts.append(f"not counted, as they have no formula: {', '.join(calls)}")
    if not examination.is_measured:
        parts.append("not measured: memory and times; measure=True runs a copy")
        if not examination.fits:
            parts.append('device="RTX 4090" says whether it fits there, and the largest batch')
    else:
        parts.append("not measured: the time of a step, which pytest --model measures")
    return "; ".join(parts)
