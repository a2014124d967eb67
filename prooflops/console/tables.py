"""Figures with units, and tables as text and as Markdown. Imports nothing that is slow to import."""

from __future__ import annotations

from collections.abc import Sequence


def engineering(value: float, unit: str) -> str:
    """A figure with three digits and an SI prefix.

    >>> engineering(0.00123, "s"), engineering(9.2e11, "FLOP/s")
    ('1.23 ms', '920 GFLOP/s')
    """
    for factor, prefix in (
        (1e15, "P"),
        (1e12, "T"),
        (1e9, "G"),
        (1e6, "M"),
        (1e3, "k"),
        (1, ""),
        (1e-3, "m"),
        (1e-6, "µ"),
    ):
        if abs(value) >= factor * 0.9995:
            scaled = value / factor
            digits = 0 if scaled >= 99.95 else 1 if scaled >= 9.995 else 2
            return f"{scaled:.{digits}f} {prefix}{unit}"
    return f"{value / 1e-9:.3g} n{unit}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table as lines of text: the first column flush left, the others flush right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def markdown_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown; a bar in a cell is escaped."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    head, *body = ["| " + " | ".join(row) + " |" for row in cells]
    return [head, "|" + " --- |" * len(rows[0]), *body]
