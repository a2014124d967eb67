"""Figures and tables for people: prefixes, columns, bars in cells, and a line's colour."""

import pytest

from prooflops.console.tables import aligned, engineering, markdown_table, write_coloured


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5e-9, "0.5 ns"),
        (999.96e-6, "1.00 ms"),
        (1.0, "1.00 s"),
        (99.96, "100 s"),
        (12.34e15, "12.3 Ps"),
        (1234.0, "1.23 ks"),
    ],
)
def test_figures_have_three_digits_and_a_prefix(value: float, text: str) -> None:
    assert engineering(value, "s") == text


def test_a_bar_in_a_cell_does_not_break_the_markdown_table() -> None:
    assert markdown_table([["a", "b"], ["|x| < 1", "y"]])[2] == "| \\|x\\| < 1 | y |"


def test_columns_are_aligned_and_no_line_ends_in_blanks() -> None:
    assert aligned([["name", "time", ""], ["a", "12 ms", ""]]) == ["name   time", "a     12 ms"]


@pytest.mark.parametrize(
    ("line", "colour"),
    [("a  1.2x  SLOWER", "red"), ("b  FASTER  1 s", "green"), ("c  INCONCLUSIVE", "yellow"), ("d  SAME", None)],
)
def test_a_line_has_the_colour_of_the_verdict_it_names(line: str, colour: str | None) -> None:
    class Terminal:
        def write_line(self, text: str, **markup: bool) -> None:
            written.append((text, markup))

    written: list[tuple[str, dict[str, bool]]] = []
    write_coloured(Terminal(), [line])  # type: ignore[arg-type]
    assert written == [(line, {colour: True} if colour else {})]
