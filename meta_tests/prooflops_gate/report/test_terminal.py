"""What is said of a comparison.

One line for what has one reason, and nothing that contradicts itself.
"""

import math

import pytest

from prooflops_gate.instruments.pace import TOO_LONG
from prooflops_gate.instruments.time_rule import BUDGET, NOISE
from prooflops_gate.report.terminal import remedies, sections
from prooflops_gate.rows import Row
from prooflops_gate.statistics.effects import paired
from prooflops_gate.where import risen


def open_row(number, reason):
    """A benchmark that is open for this reason, the wider the higher its number."""
    effect = paired([1.0] * 8, [1.0, 1.0 + number / 100] * 4, level=0.01)
    note = f"noise 9.0%; slower by 1% at most; {reason}; about 900 pairs would decide"
    return Row(f"t.py::test_{number}", "time", 1.0, 1.0, "INCONCLUSIVE", effect, note)


@pytest.mark.parametrize("reason", [NOISE, TOO_LONG])
def test_open_benchmarks_of_one_reason_are_one_line_that_names_the_widest(reason):
    rows = [open_row(number, reason) for number in range(1, 18)]
    ((heading, said),) = sections(rows)
    assert heading == "INCONCLUSIVE (17)"
    (line,) = said
    assert line.startswith(f"17 benchmarks: {reason}; the widest: t.py::test_17 (slower by 17.0%")
    assert "t.py::test_15" in line
    assert "t.py::test_14" not in line
    assert line.endswith(", and 14 less wide")
    assert len(remedies(rows)) == 1, "the advice is given once"


def test_each_reason_has_a_line_and_verbose_runs_name_every_benchmark():
    rows = []
    for number in (1, 3, 5, 7):
        rows += [open_row(number, NOISE), open_row(number + 1, BUDGET)]
    ((_, said),) = sections(rows)
    assert [line.partition(";")[0] for line in said] == [
        f"4 benchmarks: {NOISE}",
        f"4 benchmarks: {BUDGET}",
    ]
    ((_, every),) = sections(rows, math.inf)
    assert len(every) == 8


def test_few_open_benchmarks_have_a_sentence_each():
    ((_, said),) = sections([open_row(number, NOISE) for number in (1, 2)])
    assert [line.partition(" is ")[0] for line in said] == ["t.py::test_1", "t.py::test_2"]


@pytest.mark.parametrize(
    "name",
    ["_PyEval_EvalFrameDefault", "PyObject_Vectorcall", "_Py_Dealloc", "cfunction_vectorcall_O"],
)
def test_the_interpreters_own_functions_are_not_named(name):
    assert risen({}, {name: 900_000, "parse_number": 10}, "instructions").startswith("parse_number")
    assert risen({}, {name: 900_000}, "instructions") == ""
