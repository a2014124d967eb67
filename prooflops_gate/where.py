"""Says in which functions the additional work of a benchmark lies: one more pair of processes counts by function."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from prooflops_gate import sides
from prooflops_gate.console.tables import many
from prooflops_gate.history.rows import Row
from prooflops_gate.options import files_of
from prooflops_gate.process import Counted, OutOfTime, Replicate, ReplicateFailed, Side
from prooflops_gate.session import Session

SHOWN = 5  # functions
MOST = 10  # benchmarks
NAMELESS = re.compile(r"0x[0-9a-f]+|\?\?\?|\(below main\)")
RECURSION = re.compile(r"'\d+$")  # callgrind's mark of a function that calls itself


def by_function(dump: str) -> Counter[str]:
    """The instructions of each C function, without those it calls, from the text of a dump of callgrind.

    >>> by_function("fn=(1) a\\n0 5\\ncfn=(2) b'2\\ncalls=1 0\\n0 70\\n0 2\\nfn=(2)\\n0 70\\n")
    Counter({'b': 70, 'a': 7})
    """
    names: dict[str, str] = {}
    costs = Counter[str]()
    current, of_callee = "", False
    for line in dump.splitlines():
        if line.startswith(("fn=", "cfn=")):
            number, _, name = line.partition("=")[2].partition(" ")
            names.setdefault(number, RECURSION.sub("", name))
            current = names[number] if line.startswith("fn=") else current
        elif line.startswith("calls="):
            of_callee = True
        elif line[:1].isdigit() or line[:1] in ("+", "-", "*"):
            costs[current] += 0 if of_callee else int(line.split()[1])
            of_callee = False
    return costs


def risen(before: Mapping[str, int], after: Mapping[str, int], unit: str) -> str:
    """The functions whose counts rose most, the largest rise first.

    >>> risen({"a": 10, "b": 5}, {"a": 12, "b": 5, "c": 4000}, "bytecodes")
    'c 0 -> 4,000 bytecodes, a 10 -> 12'
    """
    rises = {
        name: count - before.get(name, 0)
        for name, count in after.items()
        if not NAMELESS.fullmatch(name)
    }
    names = sorted((name for name in rises if rises[name] > 0), key=lambda name: -rises[name])[
        :SHOWN
    ]
    said = [f"{name} {before.get(name, 0):,} -> {after[name]:,}" for name in names]
    return ", ".join([f"{said[0]} {unit}", *said[1:]]) if said else ""


def where_it_went(name: str, before: Replicate, after: Replicate) -> str:
    """The functions of a benchmark whose counts rose most: Python's by bytecodes, C's by instructions."""
    old, new = (
        by_function(Path(done.dumps[name]).read_text("utf-8", errors="replace"))
        if name in done.dumps
        else {}
        for done in (before, after)
    )
    python = risen(before.steps.get(name, {}), after.steps.get(name, {}), "bytecodes")
    return "; in C ".join(filter(None, [python, risen(old, new, "instructions")]))


def explained(
    session: Session, here: Side, other: Side, rows: Sequence[Row], *, valgrind: bool
) -> list[Row]:
    """The rows; those that say SLOWER or MORE INSTRUCTIONS name the functions, where the budget has time for it."""
    wanted = [row for row in rows if row.verdict in ("SLOWER", "MORE INSTRUCTIONS")]
    names = list(dict.fromkeys(row.name for row in wanted))[:MOST]
    if not names or time.monotonic() > session.ends:
        return list(rows)
    session.progress.always(
        f"one more pair counts by function where the work of {many(len(names), 'benchmark')} went"
    )
    replicates = session.replicates
    replicates.share_hash_seed()
    asked = [(side, sides.existing(files_of(names), side)) for side in (other, here)]
    try:
        with replicates.until(session.ends):
            before, after = replicates.run(
                asked, names, counted=Counted(by_function=True, valgrind=valgrind)
            )
    except (OutOfTime, ReplicateFailed):
        return list(rows)
    where = {name: where_it_went(name, before, after) for name in names}
    return [
        replace(row, where=f"where it went: {where[row.name]}")
        if row in wanted and where.get(row.name)
        else row
        for row in rows
    ]
