"""Says in which functions the additional work of a benchmark lies.

One more pair of processes counts by function.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from prooflops_gate.rows import Row
from prooflops_gate.task import Counting, OutOfTime, Pair, Replicate, ReplicateFailed, Task

MOST_FUNCTIONS = 5
MOST_BENCHMARKS = 10
# What callgrind or the interpreter put there: no function of anybody's.
NAMELESS = re.compile(r"0x[0-9a-f]+|\?\?\?|\(below main\)")
# The interpreter's own functions: all Python code runs in them.
INTERPRETER = re.compile(r"_?Py[A-Z_]\w*|(cfunction|method_vectorcall|vectorcall)(_\w+)?")
# callgrind's mark of a function that calls itself, and the compiler's of a copy or a part of one.
COPY = re.compile(r"('\d+|\.(constprop|isra|part|cold|lto_priv|localalias)(\.\d+)*)+$")


def by_function(dump: str) -> Counter[str]:
    """The instructions of each C function, without those it calls, from the text of a dump of
    callgrind.

    >>> text = "fn=(1) a\\n0 5\\ncfn=(2) b.isra.0'2\\ncalls=1 0\\n0 70\\n0 2\\nfn=(2)\\n0 70\\n"
    >>> by_function(text)
    Counter({'b': 70, 'a': 7})
    """
    names: dict[str, str] = {}
    costs = Counter[str]()
    current, of_callee = "", False
    for line in dump.splitlines():
        if line.startswith(("fn=", "cfn=")):
            number, _, name = line.partition("=")[2].partition(" ")
            names.setdefault(number, COPY.sub("", name))
            current = names[number] if line.startswith("fn=") else current
        elif line.startswith("calls="):
            of_callee = True
        elif line[:1].isdigit() or line[:1] in ("+", "-", "*"):
            costs[current] += 0 if of_callee else int(line.split()[1])
            of_callee = False
    return costs


def risen(before: Mapping[str, int], after: Mapping[str, int], unit: str) -> str:
    """The functions whose counts rose most, the largest rise first, without those of the
    interpreter.

    >>> risen({"a": 10, "b": 5}, {"a": 12, "b": 5, "c": 4000}, "bytecodes")
    'c 0 -> 4,000 bytecodes, a 10 -> 12'
    >>> risen({}, {"_PyEval_EvalFrameDefault": 900, "sum_of": 7}, "instructions")
    'sum_of 0 -> 7 instructions'
    """
    rises = {}
    for name, count in after.items():
        is_named = not (NAMELESS.fullmatch(name) or INTERPRETER.fullmatch(name))
        if is_named and count > before.get(name, 0):
            rises[name] = count - before.get(name, 0)
    names = sorted(rises, key=lambda name: -rises[name])[:MOST_FUNCTIONS]
    if not names:
        return ""
    said = [f"{name} {before.get(name, 0):,} -> {after[name]:,}" for name in names]
    return ", ".join([f"{said[0]} {unit}", *said[1:]])


def where_it_went(test: str, pair: Pair) -> str:
    """The functions of a test whose counts rose most.

    Python's by bytecodes, C's by instructions.
    """
    before, after = pair
    python = risen(before.steps.get(test, {}), after.steps.get(test, {}), "bytecodes")
    c = risen(_of_c(test, before), _of_c(test, after), "instructions")
    return "; in C ".join(filter(None, [python, c]))


def _of_c(test: str, done: Replicate) -> Mapping[str, int]:
    if test not in done.dumps:
        return {}
    return by_function(Path(done.dumps[test]).read_text("utf-8", errors="replace"))


def worth_explaining(rows: Sequence[Row]) -> list[str]:
    """The tests of the rows whose additional work is to be found."""
    verdicts = ("SLOWER", "MORE INSTRUCTIONS")
    names = [row.test or row.name for row in rows if row.verdict in verdicts]
    return list(dict.fromkeys(names))[:MOST_BENCHMARKS]


def explained(
    rows: Sequence[Row], sample: Callable[[Task], Pair], ends: float, *, has_valgrind: bool
) -> list[Row]:
    """The rows.

    Those that say SLOWER or MORE INSTRUCTIONS name the functions, where there is time for it.
    """
    tests = worth_explaining(rows)
    if not tests:
        return list(rows)
    counting = Counting(by_function=True, valgrind=has_valgrind)
    try:
        pair = sample(Task(tests=tuple(tests), counting=counting, ends=ends))
    except (OutOfTime, ReplicateFailed):
        return list(rows)
    found = {test: where_it_went(test, pair) for test in tests}
    return [_with_where(row, found.get(row.test or row.name, "")) for row in rows]


def _with_where(row: Row, where: str) -> Row:
    if row.verdict in ("SLOWER", "MORE INSTRUCTIONS") and where:
        return replace(row, where=f"where it went: {where}")
    return row
