"""Changes single decisions of the project's code, and counts the changes that its tests notice.

    python -m meta_tests.mutants --sample 50 --seed TEXT

Mutmut makes the changes, except the kinds that it lacks. Its runner stays unused: it cannot draw
a sample, changes no constant of a module, and misses what a test starts in another process.
"""

import argparse
import contextlib
import io
import random
import re
import subprocess
import tempfile
from collections import Counter
from decimal import Decimal
from functools import partial
from itertools import count
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
# A test that takes longer hangs.
LIMIT = ("-o", "faulthandler_timeout=120", "-o", "faulthandler_exit_on_timeout=true")
OPTIONS = ("-xq", "--quick", "--doctest-modules", *LIMIT)
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


def tests_of(mutant, code):
    """Paths of tests, the narrowest first.

    The file's doctests; tests that name the file or the function, those of its room before others;
    the rest of the room.
    """
    path = Path(mutant.path)
    above = "\n".join(code.splitlines()[: mutant.line])
    function = re.findall(r"^(?:def |class )?(\w+)", above, re.MULTILINE)
    module = mutant.path.removesuffix(".py").replace("/", ".")
    named = re.compile(rf"\b({module}|{path.parent.name} import .*\b{path.stem}|{function[-1]})\b")
    room = ROOT / "meta_tests" / path.parent
    while not room.is_dir():
        room = room.parent
    inside = sorted(room.rglob("test_*.py"))
    tests = inside + sorted((ROOT / "meta_tests").rglob("test_*.py"))
    if path.parts[0] == "accounting":
        tests += sorted((ROOT / "test_claims").glob("test_*.py"))
    naming = [test for test in tests if named.search(test.read_text(encoding="utf-8"))]
    return [test.relative_to(ROOT) for test in dict.fromkeys([ROOT / path, *naming, *inside])]


def is_killed(mutant, copy):
    """Whether a test fails, or hangs, with the mutant in a copy of the project."""
    file = copy / mutant.path
    code = file.read_text(encoding="utf-8")
    file.write_text(mutant.code, encoding="utf-8")
    tests = map(str, tests_of(mutant, code))
    # Compiled files are told apart by seconds and sizes, which mutants may share.
    variables = {"path": copy, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        run = fork_pytest(copy, *OPTIONS, *tests, imported=SUITE, **variables)
        return run.code not in NOTHING_FAILED
    except AssertionError:
        # The process was killed.
        return True
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
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        subprocess.run(["git", "clone", "-q", "--shared", ROOT, copy], check=True)
        for mutant in mutants:
            with contextlib.redirect_stdout(io.StringIO()):
                killed = is_killed(mutant, copy)
            if not killed:
                survivors.append(mutant)
                print(f"{mutant.path}:{mutant.line}\n{mutant.before}\n{mutant.after}", flush=True)
    found = f"Drawn by {options.seed[:12]}:\n\n{table(mutants, survivors)}"
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(SECTION.sub(found, page), encoding="utf-8")


if __name__ == "__main__":
    main()
