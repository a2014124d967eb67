"""Small changes to the code, each of which a test must notice: `python -m meta_tests.mutants [MODULE ...]`.

A mutant is one change to one module: a comparison, an operator, a number, a default, a cell of a table, an argument
left out, two exchanged, a call left out. A sample of each module is drawn by a seed. Each mutant is judged by those
tests of its module that need no conftest.py, which takes a tenth of the time, then by all of them, then by the files
of tests that name what was changed. Those that no test can notice stand in `recorded/equivalent_mutants.txt`, each
with the reason. `--record` keeps the counts of each module in `recorded/mutants.txt`.

mutmut leaves out decorated functions, properties, the fields of dataclasses and tables, which are most of the code
here; so the changes are made on the syntax tree.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = ROOT / "meta_tests" / "recorded" / "equivalent_mutants.txt"
RECORDED = ROOT / "meta_tests" / "recorded" / "mutants.txt"
INSTALLED = ("gate", "statistics", "history", "console", "plugin.py", "run_state.py")  # of prooflops, wherever it runs
COPIED = ("accounting", "bench", "docs", "meta_tests", "prooflops", "results", "test_claims")
SAMPLE, SEED, TABLE_STEP = 15, "prooflops", 1.004
OTHER_FILES = 6
GREEN = (0, 5)  # all passed; there are none
OPTIONS = ["-q", "--tb=line", "--doctest-modules", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
WHOLE = ["-x", "--quick", "--report", "reports", "-o", "gate_history=history"]
BARE = ["--noconftest", "-c", "bare.ini", "--rootdir", ".", "-p", "no:prooflops.plugin", "-m", "not prove"]
OPERATORS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div, ast.Add),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.Mult,),
    ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}
# In whose two arguments an exchange is idle.
SYMMETRIC = ("min", "max", "np.minimum", "np.maximum", "math.hypot", "math.gcd", "math.lcm")
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """One change: `before`, at these bytes of the file, becomes `after`."""

    file: str
    scope: str
    line: int
    start: int
    end: int
    before: str
    after: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.file, self.scope, self.before, self.after

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.end :]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.scope}: {self.before} -> {self.after}"


def modules() -> list[str]:
    """The files of `accounting` and of the installed part."""
    roots = [ROOT / "accounting", *(ROOT / "prooflops" / name for name in INSTALLED)]
    files = [file for root in roots for file in (root.rglob("*.py") if root.is_dir() else [root])]
    return sorted(str(file.relative_to(ROOT)) for file in files if file.name != "__init__.py")


def changes(node: ast.AST, in_table: bool) -> Iterator[ast.AST | None]:
    """What this node may become; None: it is left out."""

    def with_(**fields: object) -> ast.AST:
        new = copy.copy(node)
        for name, value in fields.items():
            setattr(new, name, value)
        return new

    if isinstance(node, ast.Compare):
        for other in OPERATORS.get(type(node.ops[0]), ()):
            yield with_(ops=[other(), *node.ops[1:]])
        if len(node.ops) > 1:
            for other in OPERATORS.get(type(node.ops[-1]), ()):
                yield with_(ops=[*node.ops[:-1], other()])
    elif isinstance(node, (ast.BinOp, ast.BoolOp)):
        for other in OPERATORS.get(type(node.op), ()):
            yield with_(op=other())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield node.operand
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield ast.Constant(not node.value)
        elif isinstance(node.value, int):
            yield ast.Constant(node.value + 1)
        elif isinstance(node.value, float):
            yield ast.Constant(node.value * TABLE_STEP if in_table and node.value else node.value * 2 or 1.0)
        elif isinstance(node.value, str) and in_table and node.value:
            yield ast.Constant(node.value + "?")
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield ast.Name(NAMES[node.id])
    elif isinstance(node, ast.IfExp):
        yield with_(body=node.orelse, orelse=node.body)
    elif isinstance(node, ast.Call):
        starred = any(isinstance(argument, ast.Starred) for argument in node.args)
        if len(node.args) == 2 and not starred and ast.unparse(node.func) not in SYMMETRIC:
            yield with_(args=node.args[::-1])
        for keyword in node.keywords:
            if keyword.arg != "strict":
                yield with_(keywords=[other for other in node.keywords if other is not keyword])
    elif isinstance(node, (ast.Expr, ast.AugAssign, ast.Raise, ast.Delete)):
        yield None
    elif isinstance(node, (ast.Assign, ast.AnnAssign)) and not in_table:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if node.value and isinstance(target, (ast.Attribute, ast.Subscript)):
            yield with_(value=ast.Constant(None))
    elif isinstance(node, ast.Return) and ast.unparse(node.value or ast.Constant(None)) not in ("None", "False", "''"):
        yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.comprehension) and node.ifs:
        yield None  # its conditions are left out
    elif isinstance(node, (ast.If, ast.While)):
        yield ast.UnaryOp(ast.Not(), node.test)


def mutants_of(file: str, source: str) -> list[Mutant]:
    """All mutants of a module."""
    lines = source.encode().splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines) + 1)]
    text, found = source.encode(), []

    def span(node: ast.AST) -> tuple[int, int]:
        return (
            starts[node.lineno - 1] + node.col_offset,  # type: ignore[attr-defined]
            starts[node.end_lineno - 1] + node.end_col_offset,  # type: ignore[attr-defined]
        )

    def visit(node: ast.AST, scope: str, in_table: bool) -> None:
        for new in changes(node, in_table):
            place = node
            if isinstance(node, ast.comprehension):
                first, last = span(node.ifs[0])[0], span(node.ifs[-1])[1]
                first = text.rindex(b"if", 0, first)
            elif isinstance(node, (ast.If, ast.While)):
                place = node.test
                first, last = span(place)
            else:
                first, last = span(node)
            after = "" if isinstance(node, ast.comprehension) else "pass" if new is None else ast.unparse(new)
            if isinstance(new, ast.expr) and not isinstance(new, (ast.Constant, ast.Name, ast.Call)):
                after = f"({after})"
            line = getattr(place, "lineno", 0) or node.ifs[0].lineno  # type: ignore[attr-defined]
            before = " ".join(text[first:last].decode().split())
            found.append(Mutant(file, scope, line, first, last, before, after))
        for child in ast.iter_child_nodes(node):
            if not skipped(node, child):
                inner, table = scope, in_table
                if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                    inner = f"{scope}.{child.name}".strip(".")
                    table = not isinstance(child, ast.FunctionDef)
                elif isinstance(node, ast.Module):
                    target = getattr(child, "targets", [getattr(child, "target", None)])[0]
                    inner = target.id if isinstance(target, ast.Name) else ""
                visit(child, inner, table)

    visit(ast.parse(source), "", True)
    return found


def skipped(node: ast.AST, child: ast.AST) -> bool:
    """Docstrings, annotations, decorators, messages and lists of names, where a change says nothing about the code."""
    if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
        return True
    if isinstance(child, ast.keyword) and child.arg == "strict":  # of a zip: it only asserts
        return True
    if child in getattr(node, "decorator_list", ()):
        return True
    if child in (getattr(node, "returns", None), getattr(node, "annotation", None)):
        return True
    if isinstance(child, (ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Assert)) or isinstance(node, ast.Raise):
        return True
    named = getattr(child, "targets", [None])[0]
    if isinstance(named, ast.Name) and (named.id == "__all__" or "TypeVar" in ast.unparse(child)):
        return True
    return isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)


def functions_without_mutants(source: str, mutants: list[Mutant]) -> list[str]:
    """The functions of a module of which nothing was changed, although they do something."""
    scopes, missing = {mutant.scope for mutant in mutants}, []

    def visit(node: ast.AST, scope: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                inner = f"{scope}.{child.name}".strip(".")
                idle = all(
                    isinstance(each, ast.Pass) or (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
                    for each in child.body
                )
                if isinstance(child, ast.FunctionDef) and not idle and inner not in scopes:
                    missing.append(inner)
            visit(child, inner)

    visit(ast.parse(source), "")
    return missing


def drawn(file: str, number: int, seed: str = SEED) -> list[Mutant]:
    """A sample of a module's mutants by the seed: one of each function in turn before a second of any."""
    by_scope: dict[str, list[Mutant]] = {}
    chance = random.Random(f"{seed} {file}")
    mutants = mutants_of(file, (ROOT / file).read_text(encoding="utf-8"))
    for mutant in chance.sample(mutants, len(mutants)):
        by_scope.setdefault(mutant.scope, []).append(mutant)
    ranked = [(rank, mutant) for scope in by_scope.values() for rank, mutant in enumerate(scope)]
    return [mutant for _, mutant in sorted(ranked, key=lambda pair: pair[0])][:number]


def known_equivalents() -> dict[tuple[str, ...], str]:
    """The reason of each mutant that no test can notice."""
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines()
    rows = [line.split(" | ") for line in lines if line and not line.startswith("#")]
    return {tuple(row[:4]): row[4] for row in rows}


# ---- judging -----------------------------------------------------------------------------------------------------


@cache
def texts() -> dict[str, str]:
    files = [*ROOT.glob("meta_tests/**/test_*.py"), *ROOT.glob("test_claims/test_*.py")]
    return {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in files}


def own_tests(file: str) -> list[str]:
    """The tests of a module: its own file among the meta tests, or those of its room, and its doctests."""
    path = Path("meta_tests") / file
    own = path.with_name(f"test_{path.name}")
    return [str(own), file] if (ROOT / own).exists() else [file]


def other_tests(mutant: Mutant) -> list[str]:
    """The files of tests that name what was changed, the shortest first."""
    names = [name.lstrip("_") for name in mutant.scope.split(".") if len(name) > 3]
    module = mutant.file.removesuffix(".py").replace("/", ".")
    imports = rf"{module}\b|from {module.rpartition('.')[0]} import [^\n]*\b{Path(mutant.file).stem}\b"
    pattern = re.compile("|".join([imports, *(rf"\b{re.escape(name)}\b" for name in names)]))
    own = own_tests(mutant.file)
    naming = [file for file, text in texts().items() if pattern.search(text) and file not in own]
    naming = [file for file in naming if "test_mutants" not in file and "test_faults" not in file]
    return sorted(naming, key=lambda file: (Path(file).parts[1] != Path(mutant.file).parts[0], len(texts()[file])))


class Copy:
    """A copy of the repository in which one file at a time is changed and its tests are run."""

    def __init__(self, folder: str) -> None:
        self.root = Path(folder)
        for name in COPIED:
            ignored = shutil.ignore_patterns("__pycache__", "api")
            shutil.copytree(ROOT / name, self.root / name, ignore=ignored)
        for path in ROOT.iterdir():
            if path.is_file():
                shutil.copy(path, self.root)
        (self.root / "bare.ini").write_text("[pytest]\n")
        self._ticks = int(time.time())

    def write(self, file: str, content: bytes) -> None:
        """Writes a file with a time of its own: Python would take what it compiled of one of the same size and time."""
        (self.root / file).write_bytes(content)
        self._ticks += 2
        os.utime(self.root / file, (self._ticks, self._ticks))

    def pytest(self, tests: list[str], limit_s: float, options: list[str] = WHOLE) -> tuple[int, str]:
        """The exit code of these tests in a fork, which has pytest and torch imported, and what they printed."""
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            if not (child := os.fork()):
                os.setsid()
                for number in (1, 2):
                    os.dup2(output.fileno(), number)
                os.chdir(self.root)
                sys.path[:] = [str(self.root), *(path for path in sys.path if path not in ("", str(ROOT)))]
                os.environ["PYTHONPATH"] = str(self.root)
                for name in [name for name in sys.modules if name.partition(".")[0] in COPIED]:
                    del sys.modules[name]  # a test that judges a mutant has imported them from where it is itself
                code = 70
                try:
                    code = int(pytest.main([*OPTIONS, *options, *tests]))
                finally:
                    sys.stdout.flush()
                    os._exit(code)
            end = time.monotonic() + limit_s
            while not (ended := os.waitpid(child, os.WNOHANG))[0]:
                if time.monotonic() > end:
                    os.killpg(child, signal.SIGKILL)
                    return os.waitpid(child, 0)[1] or 70, "out of time"
                time.sleep(0.02)
            output.seek(0)
            return os.waitstatus_to_exitcode(ended[1]), output.read()


def bare_options(file: str, copy: Copy) -> list[str]:
    """Options for those of a module's own tests that pass without conftest.py; none where none does."""
    code, output = copy.pytest(own_tests(file), 600, [*BARE, "-rfE"])
    failed = {found[1] for found in re.finditer(r"^(?:FAILED|ERROR) ([^\s\[]+)", output, re.MULTILINE)}
    if code > 1 or len(failed) >= 20:
        return []
    return [*BARE, "-x", *(f"--deselect={test}" for test in sorted(failed))]


def judge(mutant: Mutant, copy: Copy, limit_s: float, wide: bool, bare: list[str] | None = None) -> str:
    """Which files of tests notice a mutant; empty where none does."""
    original = (copy.root / mutant.file).read_bytes()
    copy.write(mutant.file, mutant.applied(original))
    try:
        own = own_tests(mutant.file)
        for options in (bare, WHOLE):
            if options and copy.pytest(own, limit_s, options)[0] not in GREEN:
                return own[0]
        for other in other_tests(mutant)[:OTHER_FILES] if wide else ():
            if copy.pytest([other], 120)[0] not in GREEN:
                return other
        return ""
    finally:
        copy.write(mutant.file, original)


def record(file: str, mutants: int, killed: int, equivalent: int) -> None:
    """Writes the counts of a module into `recorded/mutants.txt`, in place of earlier ones."""
    head, *lines = RECORDED.read_text(encoding="utf-8").splitlines()
    rows = dict(line.split(": ", 1) for line in lines)
    rows[file] = f"{mutants} mutants, {killed} killed, {equivalent} equivalent"
    RECORDED.write_text("\n".join([head, *(f"{name}: {rows[name]}" for name in sorted(rows))]) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m meta_tests.mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="such as accounting/flops.py; default: all")
    parser.add_argument("--sample", type=int, default=SAMPLE, help="mutants of each module; 0: all")
    parser.add_argument("--seed", default=SEED)
    parser.add_argument("--scope", default="", help="only mutants of functions and tables whose name has this in it")
    parser.add_argument("--own", action="store_true", help="by the module's own tests only")
    parser.add_argument("--record", action="store_true", help="keep the counts in recorded/mutants.txt")
    parser.add_argument("--json", type=Path, help="append each mutant here, one line each")
    options = parser.parse_args()
    if unknown := set(options.modules) - set(modules()):
        parser.error(f"MODULE: no module is named {sorted(unknown)}; valid are such as {modules()[:3]}")
    import einops  # noqa: F401  # what the forks would each import
    import hypothesis  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch  # noqa: F401

    equivalent, red = known_equivalents(), False
    with tempfile.TemporaryDirectory() as folder:
        tree = Copy(folder)
        for file in options.modules or modules():
            sample = drawn(file, options.sample or 10**6, options.seed)
            sample = [mutant for mutant in sample if options.scope in mutant.scope]
            start = time.monotonic()
            code, output = tree.pytest(own_tests(file), 600)
            limit_s = 30 + 4 * (time.monotonic() - start)
            if code not in GREEN:
                print(f"{file}: its tests fail without a mutant:\n{output[-3000:]}", flush=True)
                red = True
                continue
            bare, survivors, known = bare_options(file, tree), [], 0
            for mutant in sample:
                known += mutant.key in equivalent
                noticed = "" if mutant.key in equivalent else judge(mutant, tree, limit_s, not options.own, bare)
                if not noticed and mutant.key not in equivalent:
                    survivors.append(mutant)
                    print(f"  SURVIVES {mutant}", flush=True)
                if options.json:
                    with open(options.json, "a", encoding="utf-8") as lines:
                        lines.write(json.dumps({**asdict(mutant), "noticed": noticed}) + "\n")
            killed = len(sample) - known - len(survivors)
            print(f"{file}: {killed} of {len(sample) - known} killed, {known} equivalent", flush=True)
            if options.record:
                record(file, len(sample), killed, known)
            red = red or bool(survivors)
    return int(red)


if __name__ == "__main__":
    sys.exit(main())
