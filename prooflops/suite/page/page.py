"""The page of one run, for all media: report.html, report.md and the end of the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prooflops.machine import processor
from prooflops.reasons import TOO_SLOW
from prooflops.suite.commands import of_tests
from prooflops.suite.page import claims, delivery, highlights
from prooflops.suite.page.plots import roofline
from prooflops.suite.page.run_report import RunReport
from prooflops.suite.page.tables import (
    benchmark_table,
    step_remarks,
    steps_table,
    unmeasured_table,
)
from prooflops.suite.page.words import words_section
from prooflops.suite.peaks import DERIVED, listed
from prooflops_gate.console.tables import binary, engineering, many
from prooflops_gate.page.section import ABSENT, BAD, OPEN, Headline, Mark, Page, Section

# A comment on a pull request has at most 65,536 characters.
LARGEST_SHORT_PAGE_BYTES = 20_000
MOST_CLAIMS_OF_A_COMMAND = 10
BARS = (
    "A full bar is the `dense peak`, the vendor's bandwidth, or the value named beside the bar. "
    "The line marks the `floor`; the band is the healthy range, which healthy devices of this kind "
    "reach."
)
FOOT = (
    "Each claim is settled by at least two of a formula, a count and a measurement. The folder "
    "also has a short version of this page (`.md`) and `verdicts.json` for programs."
)
SPREAD = (
    "The device's own timer measures times. A `spread` above 25 % is too wide for a conclusion. "
    "The `dense peak` is the vendor's highest rate without sparsity; for a CPU, cores × FLOPs per "
    "clock × measured clock. The `best rate` is the rate of this machine's fastest product of "
    "the dtype."
)


def page_of(report: RunReport) -> Page:
    """The page of a run. Its sections are always the same; one without data says so."""
    kind = f"prooflops {report.version} · validation of one machine"
    return Page(
        title=str(report.machine.get("name")),
        kind=f"{kind} · {report.date[:10]}" if report.date else kind,
        headline=headline(report),
        lead=_lead(report),
        warnings=[f"Partial run: {report.partial}."] if report.partial else [],
        sections=[
            delivery_section(report),
            *claims.red_sections(report),
            Section("Unusual about this machine", remarks=highlights.unusual(report),
                    anchor="unusual", absent="Nothing."),
            Section("Training steps", steps_table(report.benchmarks),
                    [*step_remarks(report.benchmarks)], anchor="steps", absent=ABSENT),
            roofline(report),
            claims.claims_section(report),
            benchmarks_section(report),
            Section("Benchmarks without a result", unmeasured_table(report.unmeasured),
                    anchor="unmeasured", is_folded=True),
            run_section(report),
            words_section(),
        ],
        foot=FOOT,
    )  # fmt: skip


def headline(report: RunReport) -> Headline:
    """The first screen: does it deliver, which device, when, with which software."""
    advice, command = delivery.REPEAT, report.command
    if is_of_claims(report):
        mark, text = delivery.so_far(*claims.answer(report), report.unfinished)
    else:
        beside = delivery.disturbance(report.benchmarks)
        mark, text = delivery.verdict(report.figures, beside)
        advice, command = delivery.next_step(
            mark, report.figures, beside, command, report.arguments
        )
        mark, text = delivery.so_far(mark, text, report.unfinished)
        mark = _with_what_is_red(mark, report)
    failing = [each.id for each in report.with_verdicts("FAILS") if not each.known]
    if 0 < len(failing) <= MOST_CLAIMS_OF_A_COMMAND and mark.word != delivery.MISSES.word:
        advice = "Check the failing claims again"
        chosen = [f"--claim={claim}" for claim in failing]
        command = of_tests(report.command, report.arguments, chosen)
    if report.resume:
        advice, command = "To resume", report.resume
    machine = report.machine
    facts = [report.date[:10], str(machine.get("name"))]
    if machine.get("device") == "cpu":
        memory = machine.get("memory_bytes")
        facts += [*processor.described(machine), binary(memory) if memory else ""]
    facts += [f"{key} {machine[key]}" for key in ("driver", "torch") if machine.get(key)]
    return Headline(mark, text, [fact for fact in facts if fact], command, advice)


def _with_what_is_red(mark: Mark, report: RunReport) -> Mark:
    """The machine's verdict, in the colour of the run: what else fails stands behind it."""
    failing = sum(not each.known for each in report.with_verdicts("FAILS"))
    benchmarks = [] if mark is delivery.MISSES else report.red_benchmarks
    red = [f"{many(failing, 'claim')} FAIL{'S' * (failing == 1)}"] * bool(failing)
    red += [f"{many(len(benchmarks), 'benchmark')} failed"] * bool(benchmarks)
    floors = report.failing_floors
    red += [f"{many(len(floors), 'undecided floor')} failing the run"] * bool(floors)
    red += [f"{many(len(report.errors), 'test')} crashed"] * bool(report.errors)
    if not red:
        return mark
    tone = BAD if failing or benchmarks or floors or mark is delivery.MISSES else OPEN
    return Mark(f"{mark.word}, and {' and '.join(red)}", tone, "✕" if tone == BAD else "!")


def is_of_claims(report: RunReport) -> bool:
    """True if the headline counts the verdicts, because the run judges nothing else."""
    has_claims = bool(report.claims or report.in_part)
    return has_claims and not (report.figures or report.undecided_floors)


def claims_sentence(report: RunReport) -> list[str]:
    """The number of each verdict in a sentence, unless the headline says it."""
    if is_of_claims(report):
        return []
    mark, numbers = claims.answer(report)
    return [f"{mark.word}: {numbers}."] if report.claims else ["No claim was checked."]


def _lead(report: RunReport) -> list[str]:
    """The claims in a sentence, then what was stated and stays open."""
    return [*claims_sentence(report), *measured(report), *undecided(report)]


def measured(report: RunReport) -> list[str]:
    """The number of measured benchmarks, where some were too slow."""
    slow = sum(reason.startswith(TOO_SLOW) for reason in report.unmeasured.values())
    if not slow:
        return []
    number, rest = len(report.benchmarks), len(report.unmeasured)
    reasons = f"{slow} would take too long on this machine, {rest - slow} have other reasons"
    return [f"This run measured {number} of {number + rest} benchmarks. Of the rest, {reasons}."]


def undecided(report: RunReport) -> list[str]:
    """A sentence for each stated floor that could not be judged."""
    fails = ", which fails this run (floor_undecided=fail)" * report.undecided_fails
    return [
        f"The floor stated for {each.name} could not be judged{fails}: {each.text}."
        for each in report.undecided_floors
    ]


def delivery_section(report: RunReport) -> Section:
    return Section(
        "Does it deliver?",
        bars=report.bars,
        answer=BARS if report.figures else "",
        anchor="delivers",
        absent="No benchmark with a floor ran.",
    )


def benchmarks_section(report: RunReport) -> Section:
    return Section(
        "Every benchmark",
        benchmark_table(report.benchmarks, report.peaks),
        answer=SPREAD if report.benchmarks else "",
        anchor="benchmarks",
        is_folded=True,
        absent=ABSENT,
    )


def run_section(report: RunReport) -> Section:
    """The machine's fingerprint and the run."""
    rows = [(name, text) for name, value in _facts(report).items() if (text := _listed(value))]
    return Section(
        "The machine and the run",
        rows,
        anchor="run",
        has_head=False,
        is_folded=True,
    )


def _facts(report: RunReport) -> dict[str, Any]:
    facts: dict[str, Any] = {
        key.removesuffix("_bytes"): value for key, value in report.machine.items()
    }
    memory = report.machine.get("memory_bytes")
    facts["memory"] = binary(memory) if memory else ""
    facts["caches"] = {level: binary(size) for level, size in report.caches.items()}
    at = engineering(1e6 * report.clock_mhz, "Hz") if report.clock_mhz else "the first clock"
    for origin, peaks in report.peaks.items():
        facts[f"dense peaks {f'at {at}' if origin == DERIVED else origin}"] = listed(peaks)
    facts["date"] = report.date[:19].replace("T", " ")
    facts["duration"] = claims.duration(report.duration_s) if report.duration_s else ""
    facts["command"] = f"`{report.command}`"
    facts["revision"] = report.revision
    facts["pace"] = report.pace
    facts["measuring method"] = report.methods
    facts["scope"] = f"partial run: {report.partial}" if report.partial else "whole run"
    return facts


def _listed(value: Any) -> str:
    """A fact as text: "avx2, fma3", "L1 64.0 KiB, L2 2.0 MiB"."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value or "")
