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
TOO_MANY = f"functions are named for {MOST_BENCHMARKS} tests at most"
NO_TIME = "no function is named: the budget ended first"
NO_PROCESS = "no function is named: the tests failed during counting"
NO_PYTHON = "no Python function executes more bytecodes"
NO_FUNCTION = "neither a Python nor a C function executes more"
# Names that callgrind or the interpreter put there: nobody's function.
NAMELESS = re.compile(r"0x[0-9a-f]+|\?\?\?|\(below main\)")
# The interpreter's own functions: all Python code runs in them.
INTERPRETER = re.compile(r"_?Py[A-Z_]\w*|(cfunction|method_vectorcall|vectorcall)(_\w+)?")
# callgrind's mark of a function that calls itself, and the compiler's of a copy or a part of one.
COPY = re.compile(r"('\d+|\.(constprop|isra|part|cold|lto_priv|localalias)(\.\d+)*)+$")


def by_function(dump: str) -> Counter[str]:
    """The instructions of each C function, from the text of a dump of callgrind.

    They exclude those of the functions it calls.

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
    """The functions whose counts rose most, without those of the interpreter.

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
    """The tests of the rows whose additional work is to be found.

    A time that grew without more instructions has none.
    """
    names = [row.test or row.name for row in rows if _is_risen(row)]
    return list(dict.fromkeys(names))


def _is_risen(row: Row) -> bool:
    has_more = row.instructions is None or row.instructions > 1
    return row.verdict in ("SLOWER", "MORE INSTRUCTIONS") and has_more


def changed_share(before: Mapping[str, int], after: Mapping[str, int]) -> float:
    """The bytecodes that functions execute more or fewer, as a share of all before.

    >>> changed_share({"a": 60, "b": 40}, {"a": 62, "b": 38, "c": 1})
    0.05
    """
    names = before.keys() | after.keys()
    changed = sum(abs(after.get(name, 0) - before.get(name, 0)) for name in names)
    return changed / max(sum(before.values()), 1)


def explained(
    rows: Sequence[Row],
    traced: Pair | None,
    sample: Callable[[Task], Pair],
    ends: float,
    say: Callable[[str], None],
    *,
    has_valgrind: bool,
) -> list[Row]:
    """The rows; those with more work name its functions, or say in a clause why they name none.

    A `traced` pair has the bytecodes of some. Those of others are counted first, as that takes
    seconds, and under valgrind what shows none.
    """
    tests = worth_explaining(rows)
    found = {test: said for test in tests if traced and (said := where_it_went(test, traced))}
    tests = [test for test in tests if test not in found]
    found |= dict.fromkeys(tests[MOST_BENCHMARKS:], TOO_MANY)
    left = tests[:MOST_BENCHMARKS]
    if left:
        say("counting the work of each function")
    for valgrind in (False, True)[: 1 + has_valgrind]:
        counting = Counting(by_function=True, valgrind=valgrind)
        task = Task(tests=tuple(left), counting=counting, ends=ends)
        try:
            pair = sample(task) if left else None
        except OutOfTime:
            found |= dict.fromkeys(left, NO_TIME)
            break
        except ReplicateFailed:
            found |= dict.fromkeys(left, NO_PROCESS)
            continue
        if pair:
            why = NO_FUNCTION if valgrind else NO_PYTHON
            found |= {test: where_it_went(test, pair) or why for test in left}
            left = [test for test in left if found[test] == why]
    return [
        replace(row, where=found[row.test or row.name]) if _is_risen(row) else row for row in rows
    ]


def first_function(where: str) -> str:
    """The function whose count rose most, or why none is named.

    >>> first_function("work.py:busy 1,000 -> 4,000 bytecodes, b 1 -> 2")
    'work.py:busy'
    >>> first_function(NO_PYTHON)
    'no Python function executes more bytecodes'
    """
    return re.split(r" [\d,]+ -> ", where)[0]
