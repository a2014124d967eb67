"""Writes docs/operators.md: what torch's own counter says of each operator beside ours and a count number by number.

python -m meta_tests.accounting.counted.operator_table            # prints the page
python -m meta_tests.accounting.counted.operator_table --write    # replaces docs/operators.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from accounting import counted
from meta_tests.accounting.counted.operator_cases import CASES, Case

PAGE = Path(__file__).parents[3] / "docs" / "operators.md"

HEAD = """\
# FLOPs by operator: torch's counter, ours, and number by number

`accounting.counted.flops()` applies a formula to each operator that a program dispatches. Here each formula is held
against the operator's definition carried out number by number, every multiplication, addition and call of a function
counted (`meta_tests/accounting/counted/operator_definitions.py`), on the small call that the second column names.
Beside it stands what `torch.utils.flop_counter.FlopCounterMode` of torch {version} reports. **✗** marks where that is
wrong: 0 where the operator is not known to it, or another figure.

Products are counted in FLOPs, a multiply-add as 2. Elementwise work and reductions, in the second table, are counted as
one FLOP per element and function; torch's counter leaves them out on purpose, and we report them apart. An optimizer's
step updates 38 parameters in two tensors.

Written by `python -m meta_tests.accounting.counted.operator_table --write`; a test compares it with what the installed
torch says.
"""


@dataclass(frozen=True)
class Row:
    """The three figures of one call."""

    case: Case
    torch_flops: int
    our_flops: int
    right_flops: int

    def __str__(self) -> str:
        mark = "" if self.torch_flops == self.right_flops else " **✗**"
        return (
            f"| {self.case.operator} | {self.case.call} | {self.torch_flops}{mark} | {self.our_flops} "
            f"| {self.right_flops} |"
        )


def count_of(case: Case) -> counted.CountedWork:
    act = case.prepare()
    with counted.flops() as count:
        act()
    return count


def row(case: Case) -> Row:
    count, act = count_of(case), case.prepare()
    with FlopCounterMode(display=False) as theirs:
        act()
    ours = count.total if case.products else count.elementwise
    return Row(case, int(theirs.get_total_flops()), ours, case.definition())


def page() -> str:
    """The whole page as the installed torch makes it."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield HEAD.format(version=version())
    for title, products in (("Products", True), ("Elementwise work and reductions", False)):
        yield f"## {title}\n"
        yield "| operator | call | torch's counter | ours | number by number |"
        yield "|---|---|---:|---:|---:|"
        yield from (str(row(case)) for case in CASES if case.products == products)
        yield ""


def version() -> str:
    """The installed torch's, without its build."""
    return torch.__version__.partition("+")[0]


def main() -> None:
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page(), encoding="utf-8")
        print(f"wrote {PAGE}")
    elif sys.argv[1:]:
        sys.exit(f"unknown argument {sys.argv[1:]}; {__doc__}")
    else:
        print(page())


if __name__ == "__main__":
    main()
