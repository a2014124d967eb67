"""What is changed to make a mutant: the syntax tree of a module, the cells of a table of JSON.

mutmut leaves out decorated functions, properties, the fields of dataclasses and tables, which are most of the code
here; so the changes are made on the syntax tree.
"""

from __future__ import annotations

import ast
import copy
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

TABLE_STEP = 1.004
PROSE = ("sources", "note", "evidence")  # of a table of JSON

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
        differing = len(node.args) == 2 == len(set(map(ast.unparse, node.args)))
        if differing and not starred and ast.unparse(node.func) not in SYMMETRIC:
            yield with_(args=node.args[::-1])
        for keyword in node.keywords:
            if keyword.arg != "strict":
                yield with_(keywords=[other for other in node.keywords if other is not keyword])
    elif isinstance(node, (ast.Expr, ast.AugAssign, ast.Raise, ast.Delete)):
        yield None
    elif isinstance(node, (ast.Assign, ast.AnnAssign)) and not in_table:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        is_none = isinstance(node.value, ast.Constant) and node.value.value is None
        if node.value and not is_none and isinstance(target, (ast.Attribute, ast.Subscript)):
            yield with_(value=ast.Constant(None))
        elif isinstance(target, ast.Tuple) and isinstance(target.elts[0], ast.Attribute):
            yield with_(targets=[ast.Tuple([*target.elts[1::-1], *target.elts[2:]])])  # another attribute takes each
    elif isinstance(node, ast.Return) and ast.unparse(node.value or ast.Constant(None)) not in ("None", "False", "''"):
        yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.comprehension) and node.ifs:
        yield None  # its conditions are left out
    elif isinstance(node, (ast.If, ast.While)):
        yield ast.UnaryOp(ast.Not(), node.test)


def spans(source: str) -> Callable[[ast.AST], tuple[int, int]]:
    """Finds the first byte of a node, and the one behind it."""
    starts = [0, *accumulate(map(len, source.encode().splitlines(keepends=True)))]

    def span(node: ast.AST) -> tuple[int, int]:
        return (
            starts[node.lineno - 1] + node.col_offset,  # type: ignore[attr-defined]
            starts[node.end_lineno - 1] + node.end_col_offset,  # type: ignore[attr-defined]
        )

    return span


def cells_of(file: str, source: str) -> list[Mutant]:
    """All mutants of a table of JSON, which Python's parser reads too: of each key and each cell but for prose."""
    span, found = spans(source), []

    def visit(node: ast.AST, scope: tuple[str, ...]) -> None:
        if isinstance(node, ast.Constant):
            new = node.value + "?" if isinstance(node.value, str) else round(node.value * TABLE_STEP, 6)
        elif isinstance(node, ast.Name):  # true, false, null
            new = node.id == "false"
        elif isinstance(node, ast.Dict):
            cells = {key.value: value for key, value in zip(node.keys, node.values, strict=True)}  # type: ignore[union-attr]
            label = [cells["label"].value] if "label" in cells else []
            for key, (name, value) in zip(node.keys, cells.items(), strict=True):
                if name not in PROSE:
                    inner = (*scope, *(label or [name]))
                    visit(key, inner)  # type: ignore[arg-type]
                    visit(value, inner)
            return
        else:
            for child in ast.iter_child_nodes(node):
                visit(child, scope)
            return
        first, last = span(node)
        before = source.encode()[first:last].decode()
        found.append(Mutant(file, ".".join(scope[:2]), node.lineno, first, last, before, json.dumps(new)))

    visit(ast.parse(source, mode="eval").body, ())
    return found


def mutants_of(file: str, source: str) -> list[Mutant]:
    """All mutants of a module or table."""
    if file.endswith(".json"):
        return cells_of(file, source)
    text, span, found = source.encode(), spans(source), []

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
    if isinstance(named, ast.Name) and (named.id == "__all__" or re.search("TypeVar|ParamSpec", ast.unparse(child))):
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
