"""Which files of the house each file imports, read from the sources: lazily imported and named in strings included."""

import ast
import itertools
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from meta_tests.conftest import ROOT

PACKAGES = ("accounting", "prooflops", "bench", "test_claims", "meta_tests")
OPTION = re.compile(rf"(?:^|\s)-[pm] ((?:{'|'.join(PACKAGES)})[\w.]*)")
LOADERS = {"import_module", "__import__", "importorskip", "import_plugin"}


def sources() -> dict[str, str]:
    """The text of every Python file of the house, by its path."""
    files = [ROOT / "conftest.py", *(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))]
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}


def module_of(path: str) -> str:
    """The name by which the file at `path` is imported.

    >>> module_of("prooflops/gate/run.py"), module_of("accounting/counted/__init__.py")
    ('prooflops.gate.run', 'accounting.counted')
    """
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@lru_cache(maxsize=1024)
def names_in(path: str, source: str) -> frozenset[str]:
    """The modules that a source names: by import statements at any depth, and by strings that are loaded.

    `from a import b` is a.b here, whether b is a module or not. Strings: what `importlib.import_module` and its
    like are given, `pytest_plugins`, modules of the house that follow `-p` or `-m` on a command line, and paths of its
    files. Tests of the suite itself name files of all kinds, so their paths are not looked at.
    """
    nodes = [*ast.walk(ast.parse(source))]
    files = () if path.startswith("meta_tests/") else _files_named(path, nodes)
    return frozenset(itertools.chain(_imported(nodes), _loaded(nodes), files))


def _imported(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _loaded(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Call):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function in LOADERS:
                yield from _texts(node.args[:1])
        elif isinstance(node, ast.Assign) and "pytest_plugins" in {getattr(each, "id", "") for each in node.targets}:
            yield from _texts(ast.walk(node.value))
        elif isinstance(node, ast.List | ast.Tuple):
            words = [next(iter(_texts([each])), "") for each in node.elts]
            yield from OPTION.findall(" ".join(words))
    for text in _texts(nodes):
        yield from OPTION.findall(text)


def _files_named(path: str, nodes: list[ast.AST]) -> Iterator[str]:
    """The modules of the paths in strings: from the root, beside this file, or from its package."""
    for text in (*_texts(nodes), *map(_joined, nodes)):
        if text and re.fullmatch(r"[\w/]+\.py(::\w+)?", text):
            named = text.partition("::")[0]
            for folder in ("", f"{Path(path).parent}/", f"{Path(path).parts[0]}/"):
                if (ROOT / folder / named).is_file():
                    yield module_of(folder + named)


def _joined(node: ast.AST) -> str:
    """The strings at the end of `base / "folder" / "file.py"`, as a path."""
    parts: list[str] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and (text := [*_texts([node.right])]):
        parts, node = text + parts, node.left
    return "/".join(parts)


def _texts(nodes: "Iterator[ast.AST] | list[ast.expr] | list[ast.AST]") -> Iterator[str]:
    return (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def graph(files: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """The files of the house that each file imports, by path."""
    paths = {module_of(path): path for path in files}

    def imported(path: str, source: str) -> Iterator[str]:
        for name in names_in(path, source):
            yield paths.get(name) or paths.get(name.rpartition(".")[0], path)  # a module, or what stands in one

    return {path: frozenset(imported(path, source)) - {path} for path, source in files.items()}


def circles(imported: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """The groups of files each of which imports all the others, directly or through one another."""
    reached = {path: reachable(imported, path) for path in imported}
    groups = {frozenset(other for other in reached[path] if path in reached[other]) for path in imported}
    return sorted(sorted(group) for group in groups if group)


def reachable(imported: Mapping[str, frozenset[str]], *starts: str) -> frozenset[str]:
    """All files that these import, directly or not; a start only if it is imported itself."""
    found: set[str] = set()
    todo = [*starts]
    while todo:
        new = imported[todo.pop()] - found
        found |= new
        todo += new
    return frozenset(found)
