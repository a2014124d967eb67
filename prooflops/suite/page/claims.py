"""The claims of a run as sections: failing claims, errors, and all claims by topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from prooflops.suite.page.run_report import RedTest, RunReport, by_topic, unchecked
from prooflops.suite.verdicts import VERDICTS, Verdict
from prooflops_gate.console.progress import minutes
from prooflops_gate.console.tables import many
from prooflops_gate.page.section import BAD, GOOD, OPEN, OTHER, PLAIN, Mark, Section, literal

# The shape serves readers who do not see the colour.
MARKS = {
    "holds": Mark("holds", GOOD, "✓"),
    "holds if": Mark("holds if", GOOD, "◐"),
    "corrected": Mark("corrected", OTHER, "≠"),
    "FAILS": Mark("FAILS", BAD, "✕"),
    "error": Mark("error", OPEN, "!"),
    "not checked": Mark("not checked", OPEN, "–"),
    "on record": Mark("on record", PLAIN, "§"),
}
PLURALS = {"holds": "hold", "holds if": "hold if", "FAILS": "FAIL", "error": "errors"}
WHOSE_FAULT = (
    "A crashed test contradicts no claim and says nothing about this machine. The suite, a "
    "package or a driver is at fault: please report it with the log."
)
LONGEST_REASONS = 7_000  # characters of all reasons together, on a page for a comment


def mark_of(verdict: str, *, is_known: bool = False) -> Mark:
    """The mark of a verdict; one that --known-failures lists says so."""
    mark = MARKS.get(verdict, Mark(verdict, OPEN, "?"))
    return Mark(f"{mark.word} (known)", mark.tone, mark.shape) if is_known else mark


def answer(report: RunReport) -> tuple[Mark, str]:
    """The number of claims, then the number of each verdict. FAILS is named even if it is 0."""
    claims, counts = report.claims, report.counts
    numbers = [
        f"{counts[word]} {word if counts[word] == 1 else PLURALS.get(word, word)}"
        for word in VERDICTS
        if counts[word] or word == "FAILS"
    ]
    total = many(len(claims), "claim")
    if report.partial and len(claims) < report.known_claims:
        total = f"{len(claims)} of {many(report.known_claims, 'claim')}"
    if report.in_part:
        numbers[-1] += f"; {len(report.in_part)} ran in part"
    tone, shape = GOOD, "✓"
    if counts["not checked"] == len(claims) or counts["error"]:
        tone, shape = OPEN, "?"
    if any(claim.verdict == "FAILS" and not claim.known for claim in claims):
        tone, shape = BAD, "✕"
    return Mark(total, tone, shape), ", ".join(numbers)


def red_sections(report: RunReport) -> list[Section]:
    """The failing claims, failing benchmarks and errors."""
    claims = _claim_rows(report.with_verdicts("FAILS"))
    benchmarks = [[f"`{each.test}`", literal(each.reason)] for each in report.red_benchmarks]
    errors = [_error_row(each) for each in report.errors]
    return [
        Section("Claims that FAIL", [["claim", "statement", "why"], *claims], anchor="fails"),
        Section("Failing benchmarks", [["benchmark", "why"], *benchmarks], anchor="red-benchmarks"),
        Section(
            "Errors of the suite, not of this machine",
            [["test", "status", "why", "claims"], *errors],
            anchor="errors",
            answer=WHOSE_FAULT,
        ),
    ]


def _error_row(red: RedTest) -> list[str]:
    claims = ", ".join(f"`{claim}`" for claim in red.claims)
    return [f"`{red.test}`", red.status, literal(red.reason), claims]


def _claim_rows(claims: Sequence[Verdict]) -> list[list[str]]:
    longest = LONGEST_REASONS // max(len(claims), 1)
    rows = []
    for each in claims:
        known = "known: " if each.known else ""
        rows.append([f"`{each.id}`", each.claim.statement, known + literal(each.reason)[:longest]])
    return rows


def claims_section(report: RunReport) -> Section:
    """All claims by topic, folded, with a search; before them counts, and what is unchecked."""
    left_open = [
        f"{literal(reason)}: {', '.join(f'`{name}`' for name in names)}"
        for reason, names in unchecked(report.claims, report.in_part)
    ]
    parts = []
    for topic, group in by_topic(report.claims).items():
        claims = [_claim(report, each) for each in group]
        parts.append(Section(topic, parts=claims, is_folded=True))
    return Section(
        "Claims",
        _counts(report),
        left_open,
        parts=parts,
        anchor="claims",
        can_search=True,
    )


def _counts(report: RunReport) -> list[list[str]]:
    """The number of claims by verdict, in one row; the search shows its verdicts in this order."""
    if not report.claims:
        return []
    counted = report.counts
    return [[*counted], [str(number or "·") for number in counted.values()]]


def _claim(report: RunReport, each: Verdict) -> Section:
    return Section(
        each.claim.statement or each.id,
        list(_facts(report, each)),
        anchor=each.id,
        mark=mark_of(each.verdict, is_known=each.known),
        is_folded=True,
        has_head=False,
    )


def _facts(report: RunReport, each: Verdict) -> Iterator[tuple[str, str]]:
    claim = each.claim
    yield "id", f"`{each.id}`"
    if claim.condition:
        yield "holds if", claim.condition
    if claim.correction:
        yield "correction", claim.correction
    if each.reason and each.reason not in (claim.condition, claim.correction):
        yield "why", literal(each.reason)
    if claim.note and claim.note not in each.reason:
        yield "note", claim.note
    if each.figures:
        yield "measured", "\n".join(each.figures)
    if claim.sources:
        cited = (report.sources[each.source].cited_at(each.place) for each in claim.citations)
        yield "source", "\n".join(cited)
    yield "tested", _tests_text(each)


def _tests_text(each: Verdict) -> str:
    cases = f"{each.cases:,} case{'' if each.cases == 1 else 's'}"
    lines = [f"{cases} in {duration(each.duration)}" if each.duration else cases]
    functions = Counter(test.partition("[")[0] for test in each.tests)
    for test, number in functions.items():
        lines.append(f"`{test}`" + (f" × {number}" if number > 1 else ""))
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """A time as text.

    >>> duration(4.2), duration(93)
    ('4.2 s', '1 min 33 s')
    """
    return f"{seconds:.1f} s" if seconds < 60 else minutes(seconds)
