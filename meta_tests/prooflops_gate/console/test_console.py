"""Figures and tables for people, and the line of progress: rare, announced, and in nobody's way."""

import pytest

from prooflops_gate.console.progress import Progress
from prooflops_gate.console.tables import (
    engineering,
    fitted,
    markdown_table,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5e-9, "0.5 ns"), (999.96e-6, "1.00 ms"), (9.995, "10.0 s"), (-2.5, "-2.50 s"), (0, "0 s")],
)
def test_figures_have_three_digits_and_a_prefix(value, text):
    assert engineering(value, "s") == text


def test_a_bar_in_a_cell_does_not_break_markdown():
    assert markdown_table([["a", "b"], ["|x| < 1", ""]]) == [
        "| a | b |",
        "| --- | --- |",
        "| \\|x\\| < 1 |  |",
    ]


WHOLE = [
    "benchmark                    rate",
    "matmul of a large-ish one  1 GB/s",
    "b                               2",
]
WORDS = ["benchmark  rate", "matmul of     1", "a large-   GB/s", "ish one", "b             2"]
LEAST = [
    "bench  rate",
    "mark",
    "matmu     1",
    "l of   GB/s",
    "a lar",
    "ge-",
    "ish",
    "one",
    "b         2",
]


@pytest.mark.parametrize(
    ("width", "lines"), [(None, WHOLE), (33, WHOLE), (15, WORDS), (11, LEAST), (8, LEAST)]
)
def test_a_table_is_as_wide_as_the_terminal_unless_columns_would_vanish(width, lines):
    assert (
        fitted([["benchmark", "rate"], ["matmul of a large-ish one", "1 GB/s"], ["b", "2"]], width)
        == lines
    )


class Terminal:
    """A terminal and a capture, which are all that a line of progress needs of pytest."""

    def __init__(self):
        self.lines = []

    def get_plugin(self, name):
        return self if name == "terminalreporter" else None

    def write_line(self, line, **_):
        self.lines.append(line)

    def ensure_newline(self): ...
    def flush(self): ...


@pytest.mark.parametrize(
    ("verbosity", "under_q", "printed"), [(0, False, True), (-1, False, False), (-1, True, True)]
)
def test_a_line_appears_every_three_seconds_at_most_and_under_q_if_asked(
    verbosity, under_q, printed
):
    class Config:
        pluginmanager = Terminal()

        def get_verbosity(self):
            return verbosity

    now = [0.0]
    config = Config()
    progress = Progress(config, "test_it", lambda: now[0], under_q=under_q)
    for second in range(10):
        now[0] = second + 0.5
        progress(f"second {second}", ahead_s=0.4)
    assert Config.pluginmanager.lines == [
        f"  test_it: second {second}" for second in (3, 6, 9) if printed
    ]
