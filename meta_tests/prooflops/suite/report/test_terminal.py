"""The end of a run fits the terminal."""

from prooflops.console.tables import fitted
from prooflops.suite.report.run_report import RunReport
from prooflops.suite.report.tables import benchmark_table, topic_table
from prooflops.suite.report.terminal import narrowed, wrapped


def test_every_table_of_a_whole_run_fits_80_columns(report: RunReport) -> None:
    for table in (benchmark_table(report.benchmarks, report.peaks), topic_table(report.claims)):
        rows = narrowed(table, 80, "measured")
        lines = fitted(rows, 80)
        assert max(map(len, lines)) <= 80, max(lines, key=len)
        for cell in {cell for row in rows for cell in row}:
            for word in cell.replace("-", " ").split():
                assert word[:5] in "\n".join(lines), f"{word} is lost"


def test_a_long_line_is_wrapped_on_a_terminal_only(report: RunReport) -> None:
    line = max((claim.line for claim in report.claims), key=len)
    lines = wrapped(line, 80, "    ")
    assert max(map(len, lines)) <= 80
    assert " ".join(each.strip() for each in lines) == " ".join(line.split())
    assert wrapped(line, None, "") == [line]


def test_a_narrow_terminal_loses_nothing_but_what_says_nothing_and_the_notes(report: RunReport) -> None:
    table = benchmark_table(report.benchmarks, report.peaks)
    assert narrowed(table, None, "measured") == table
    assert narrowed(table, 200, "measured") == table
    assert narrowed(table, 80, "measured")[0] == ["benchmark", "median", "IQR", "rate", "of own ceiling"]
