"""Changes single decisions of the project's code, and counts the changes that its tests notice.

    python -m meta_tests.mutants --sample 50 --seed TEXT

One run of the rooms' tests, with the plugin `meta_tests.reach`, finds those that enter a changed
function. A minute of these, quick files first, runs with the change, in a fork that imports the
project anew.

Mutmut makes the changes, except the kinds that it lacks. Its runner stays unused: it cannot draw
a sample, changes no constant of a module, and misses what a test starts in another process.
"""

import argparse
import ast
import contextlib
import io
import json
import os
import random
import re
import subprocess
import tempfile
from collections import Counter
from decimal import Decimal
from functools import partial
from itertools import accumulate, chain, count
from pathlib import Path
from typing import NamedTuple

import libcst as cst
import pytest
from mutmut.mutation import mutators

from meta_tests.conftest import ROOT, SUITE, commit, fork_pytest

ROOMS = (
    "accounting",
    "bench",
    "prooflops/counted",
    "prooflops/memory",
    "prooflops/suite",
    "prooflops_gate/history",
    "prooflops_gate/instruments",
    "prooflops_gate/rows.py",
    "prooflops_gate/statistics",
)
LEAST_KILLED = 0.85
# A test that takes longer hangs; healthy ones take a tenth of it.
LIMIT = ("-o", "faulthandler_timeout=120", "-o", "faulthandler_exit_on_timeout=true")
OPTIONS = ("-q", "--quick", "--doctest-modules", *LIMIT)
FAILURE = re.compile(r"^(?:FAILED|ERROR|BELOW FLOOR) .*", re.MULTILINE)
NOTHING_FAILED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
PAGE = ROOT / "docs" / "claims" / "depth.md"
SECTION = re.compile(r"(?<=<!-- mutants -->\n).*(?=<!-- end of mutants -->)", re.DOTALL)
OPPOSITES = {"any": "all", "all": "any", "min": "max", "max": "min"}
# Whether a helper is in a traceback, and whether a length is checked that is known, decide nothing.
NO_DECISION = re.compile(r"__tracebackhide__ = \w+|strict=\w+")
decision = partial(NO_DECISION.sub, "")
ARITHMETIC = (cst.Add, cst.Subtract, cst.Multiply, cst.Divide, cst.FloorDivide)


def other_operator(node):
    if not isinstance(node.operator, cst.BitOr):
        yield from mutators.operator_swap_op(node)
    for other in mutators.operator_keywords(node.operator):
        yield node.with_changes(operator=other)


def opposite(node):
    other = OPPOSITES.get(getattr(node.func, "value", None))
    if other:
        yield node.with_changes(func=cst.Name(other))


def one_operand(node):
    if isinstance(node, cst.BooleanOperation) or isinstance(node.operator, ARITHMETIC):
        yield from (node.left, node.right)


def decided(node):
    for answer in ("True", "False"):
        yield node.with_changes(test=cst.Name(answer))


def unfiltered(node):
    if node.ifs:
        yield node.with_changes(ifs=node.ifs[1:])


def last_digit(node):
    number = Decimal(node.value.replace("_", ""))
    unit = Decimal((0, (1,), number.as_tuple().exponent))
    yield node.with_changes(value=str(float(number + unit)))


def no_result(node):
    if node.value:
        yield node.with_changes(value=cst.Name("None"))


def swapped(node):
    # The order of what is compared decides nothing.
    if getattr(node.func, "value", None) in OPPOSITES:
        return
    if len(node.args) > 1 and not any(each.keyword or each.star for each in node.args):
        first, second, *rest = node.args
        other_way = [first.with_changes(value=second.value), second.with_changes(value=first.value)]
        yield node.with_changes(args=[*other_way, *rest])


OPERATIONS = (cst.BinaryOperation, cst.BooleanOperation, cst.ComparisonTarget, cst.AugAssign)
# A sample has as many of each kind.
KINDS = (
    {OPERATIONS: other_operator},
    {cst.Call: opposite},
    {OPERATIONS[:2]: one_operand},
    {(cst.If, cst.IfExp): decided, cst.CompFor: unfiltered},
    {cst.UnaryOperation: mutators.operator_remove_unary_ops},
    {cst.Integer: mutators.operator_number, cst.Float: last_digit},
    {cst.Name: mutators.operator_name},
    {cst.Return: no_result},
    {cst.Call: swapped},
)


class Mutant(NamedTuple):
    """A changed line of a file, and the file's code with it."""

    path: str
    line: int
    before: str
    after: str
    code: str

    @property
    def room(self):
        return next(room for room in ROOMS if self.path.startswith(room))


def changes(node, kind):
    """Each node below this one that the kind can change, and what replaces it."""
    if isinstance(node, (cst.Annotation, cst.Decorator)):
        return
    for node_type, changed in kind.items():
        if isinstance(node, node_type):
            yield from ((node, other) for other in changed(node))
    for child in node.children:
        yield from changes(child, kind)


def drawn(sample, seed):
    """Mutants of files of all rooms, as many of each kind, a long file's more often."""
    draw = random.Random(seed)
    listed = subprocess.check_output(["git", "ls-files", *ROOMS], cwd=ROOT, text=True)
    paths = re.findall(r"^.*/(?!test_|conftest)\w+\.py$", listed, re.MULTILINE)
    codes = {path: (ROOT / path).read_text(encoding="utf-8") for path in paths}
    mutants = set()
    while len(mutants) < sample:
        ((path, code),) = draw.choices([*codes.items()], [*map(len, codes.values())])
        tree = cst.parse_module(code)
        if found := [*changes(tree, KINDS[len(mutants) % len(KINDS)])]:
            mutant = tree.deep_replace(*draw.choice(found)).code
            lines = zip(count(1), code.splitlines(), mutant.splitlines(), strict=False)
            changed = [each for each in lines if decision(each[1]) != decision(each[2])]
            mutants.update(Mutant(path, *each, mutant) for each in changed[:1])
    return sorted(mutants)


def mark(copy, mutants):
    """Has the function of each mutant touch a file of MARKS named by the mutant's number.

    Where a mutant is outside functions, those of its file do.
    """
    trees = {}
    for number, mutant in enumerate(mutants):
        file = copy / mutant.path
        tree = trees.setdefault(file, ast.parse(file.read_text(encoding="utf-8")))
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        around = [node for node in functions if node.lineno <= mutant.line <= node.end_lineno]
        touch = f"__import__('pathlib').Path(__import__('os').environ['MARKS'], '{number}').touch()"
        # The innermost is walked last.
        for function in around[-1:] or functions:
            start = ast.get_docstring(function) is not None
            function.body[start:start] = ast.parse(touch).body
    for file, tree in trees.items():
        file.write_text(ast.unparse(tree), encoding="utf-8")


def run_tests(copy, *arguments, **variables):
    with contextlib.redirect_stdout(io.StringIO()):
        return fork_pytest(copy, *OPTIONS, *arguments, imported=SUITE, path=copy, **variables)


def tests_of(room):
    """The doctests of a room, the room of meta_tests that has its name, and claims of formulas."""
    path = Path("meta_tests", room)
    claims = ["test_claims"] if room == "accounting" else []
    return room, str(path.with_name(f"test_{path.name}") if path.suffix else path), *claims


def entering(copy, mutants):
    """For each mutant, the seconds of the tests that enter its function: of its room, or of all."""
    seconds = [Counter() for _ in mutants]
    mark(copy, mutants)
    with tempfile.TemporaryDirectory() as folder:
        tests = chain(*map(tests_of, ROOMS))
        run_tests(copy, "-n2", "--dist=loadfile", "-p", "meta_tests.reach", *tests, MARKS=folder)
        rows = "".join(each.read_text("utf-8") for each in Path(folder).glob("*/tests"))
    subprocess.run(["git", "checkout", "-q", "."], cwd=copy, check=True)
    for test, duration, *numbers in map(str.split, rows.splitlines()):
        for number in map(int, numbers):
            seconds[number][test] += float(duration)
    for mutant, all_rooms in zip(mutants, seconds, strict=True):
        own = {
            test: all_rooms[test] for test in all_rooms if test.startswith(tests_of(mutant.room))
        }
        yield own or all_rooms


def first_minute(seconds):
    """The tests of quick files, and of others while they take no longer than a minute."""

    def file_of(test):
        return test.partition("::")[0]

    of_file = Counter()
    for test in seconds:
        of_file[file_of(test)] += seconds[test]
    tests = sorted(seconds, key=lambda test: (of_file[file_of(test)], file_of(test), seconds[test]))
    ends = accumulate(map(seconds.get, tests))
    return [test for test, end in zip(tests, ends, strict=True) if end <= 60] or tests[:1]


def killer(mutant, time_s, copy, seconds):
    """What fails, or hangs, with a mutant in a copy of the project; empty if nothing does."""
    tests = first_minute(seconds)
    if not tests:
        return ""
    file = copy / mutant.path
    code = file.read_text(encoding="utf-8")
    file.write_text(mutant.code, encoding="utf-8")
    # Compiled files are told apart by whole seconds and sizes, which mutants may share.
    os.utime(file, (time_s, time_s))
    try:
        run = run_tests(copy, "-x", *tests)
        if run.code in NOTHING_FAILED:
            return ""
        return "".join(FAILURE.findall(run.output)[:1]) or f"exit code {run.code}"
    except AssertionError:
        return "the process was killed"
    finally:
        file.write_text(code, encoding="utf-8")


def table(mutants, survivors):
    """The rows of killed and run by room, and the rooms in which too many survive."""
    run = Counter(mutant.room for mutant in mutants)
    killed = run - Counter(mutant.room for mutant in survivors)
    rows = ["| room | killed | of |", "| --- | --- | --- |"]
    rows += [f"| `{room}` | {killed[room]} | {run[room]} |" for room in ROOMS if run[room]]
    rows += [f"| all | {killed.total()} | {run.total()} |", ""]
    low = [room for room in run if killed[room] < LEAST_KILLED * run[room]]
    if low:
        rows += [f"Below {LEAST_KILLED:.0%}: {', '.join(sorted(low))}.", ""]
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(prog="python -m meta_tests.mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=50)
    parser.add_argument("--seed", default=commit())
    options = parser.parse_args()
    mutants = drawn(options.sample, options.seed)
    random.Random(options.seed).shuffle(mutants)
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        subprocess.run(["git", "clone", "-q", "--shared", ROOT, copy], check=True)
        for number, seconds in enumerate(entering(copy, mutants)):
            mutant = mutants[number]
            by = killer(mutant, number, copy, seconds)
            if not by:
                survivors.append(mutant)
            print(json.dumps([*mutant[:4], by]), flush=True)
    found = f"Drawn by {options.seed[:12]}:\n\n{table(mutants, survivors)}"
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(SECTION.sub(found, page), encoding="utf-8")


if __name__ == "__main__":
    main()
