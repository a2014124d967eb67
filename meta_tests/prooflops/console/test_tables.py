"""Figures and tables for people: prefixes, columns, bars in cells, and a line's colour."""

import pytest

from prooflops.console.tables import (
    Wrapper,
    aligned,
    binary,
    engineering,
    fitted,
    markdown_table,
    share,
    write_coloured,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5e-9, "0.5 ns"),
        (999.96e-6, "1.00 ms"),
        (1.0, "1.00 s"),
        (99.96, "100 s"),
        (12.34e15, "12.3 Ps"),
        (1234.0, "1.23 ks"),
        (0.0, "0 s"),
        (1e-9, "1 ns"),
        (0.9995, "1.00 s"),
        (99.95, "100 s"),
        (-2.5, "-2.50 s"),
        *((factor, f"1.00 {prefix}s") for factor, prefix in ((1e6, "M"), (1e9, "G"), (1e12, "T"), (1e15, "P"))),
        (9.995, "10.0 s"),
        (9.98, "9.98 s"),
        (99.9, "99.9 s"),
    ],
)
def test_figures_have_three_digits_and_a_prefix(value: float, text: str) -> None:
    assert engineering(value, "s") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1024**2 - 1, "1024.0 KiB"),
        (1024**2, "1.0 MiB"),
        (1.5 * 1024**3, "1.5 GiB"),
        (1024**4, "1.0 TiB"),
        (3000 * 1024**4, "3000.0 TiB"),
    ],
)
def test_bytes_have_one_decimal_and_a_binary_prefix(value: float, text: str) -> None:
    assert binary(value) == text


def test_a_share_above_one_is_marked() -> None:
    assert [share(value, "-") for value in (0.5, 1, 1.5, None)] == ["50.0%", "100.0%", "150.0% !", "-"]


def test_a_bar_in_a_cell_does_not_break_the_markdown_table() -> None:
    table = ["| a | b | c |", "| --- | --- | --- |", "| \\|x\\| < 1 | y |  |"]
    assert markdown_table([["a", "b", "c"], ["|x| < 1", "y", ""]]) == table
    assert markdown_table([["a", "b", "c"]]) == table[:2]


def test_columns_are_aligned_and_no_line_ends_in_blanks() -> None:
    assert aligned([["name", "time", ""], ["a", "12 ms", ""]]) == ["name   time", "a     12 ms"]
    assert aligned([["name", "time"]]) == ["name  time"]


WHOLE = ["benchmark                    rate", "matmul of a large-ish one  1 GB/s", "b                               2"]
WRAPPED = [
    "benchmark                   rate",
    "matmul of a large-ish     1 GB/s",
    "one",
    "b                              2",
]
WORDS = ["benchmark  rate", "matmul of     1", "a large-   GB/s", "ish one", "b             2"]
LEAST = ["bench  rate", "mark", "matmu     1", "l of   GB/s", "a lar", "ge-", "ish", "one", "b         2"]


@pytest.mark.parametrize(
    ("width", "lines"), [(None, WHOLE), (33, WHOLE), (32, WRAPPED), (15, WORDS), (11, LEAST), (8, LEAST)]
)
def test_a_table_is_as_wide_as_the_terminal_unless_its_columns_would_vanish(
    width: int | None, lines: list[str]
) -> None:
    assert fitted([["benchmark", "rate"], ["matmul of a large-ish one", "1 GB/s"], ["b", "2"]], width) == lines


def test_the_words_of_a_head_are_wrapped_before_the_body() -> None:
    assert fitted([["a long head", "x"], ["b", "2"]], 13) == ["a     x", "long", "head", "b     2"]


def test_names_are_wrapped_at_their_marks_and_figures_are_not() -> None:
    rows = [["module", "kind", "rate"], ["layer1.downsample.0", "BatchNorm2d", "9.22 MFLOP/s"]]
    assert fitted(rows, 39) == [
        "module               kind          rate",
        "layer1.       BatchNorm2d  9.22 MFLOP/s",
        "downsample.0",
    ]


@pytest.mark.parametrize(
    ("line", "colour"),
    [
        *((f"a  {verdict}  1 s", "red") for verdict in ("SLOWER", "MORE MEMORY", "CHANGED", "MISSING")),
        *((f"a  {verdict}", "green") for verdict in ("FASTER", "LESS MEMORY")),
        *((f"a  {verdict}", "yellow") for verdict in ("INCONCLUSIVE", "MORE INSTRUCTIONS")),
        ("d  SAME", None),
        ("unSLOWER", None),
    ],
)
def test_a_line_has_the_colour_of_the_verdict_it_names(line: str, colour: str | None) -> None:
    class Terminal:
        def write_line(self, text: str, **markup: bool) -> None:
            written.append((text, markup))

    written: list[tuple[str, dict[str, bool]]] = []
    write_coloured(Terminal(), [line])  # type: ignore[arg-type]
    assert written == [(line, {colour: True} if colour else {})]


def test_a_name_is_broken_after_a_mark_before_a_word_and_not_before_a_number() -> None:
    assert Wrapper(width=8).wrap("layer1.down matmul[bf16 v-12.5") == ["layer1.", "down", "matmul[", "bf16", "v-12.5"]
    assert Wrapper.longest("layer1.downsample v-12.5") == len("downsample")
    assert Wrapper.longest("") == 0
