"""Small changes to the code, each of which a test must notice: `python -m meta_tests.mutants [MODULE ...]`.

A mutant is one change to one module: a comparison, an operator, a number, a default, a cell of a table, an argument
left out, two exchanged, a call left out. A sample of each module is drawn by a seed. Each mutant is judged by those
tests of its module that need no conftest.py, which takes a tenth of the time, the short ones first, then by all of
them, then by the files of tests that name what was changed and by those beside its own. Those that no test can notice
stand in `recorded/equivalent_mutants.txt`, each with the reason. `--record` keeps the counts of each module in
`recorded/mutants.txt`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path

import pytest

from meta_tests.mutations import Mutant, mutants_of

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = ROOT / "meta_tests" / "recorded" / "equivalent_mutants.txt"
RECORDED = ROOT / "meta_tests" / "recorded" / "mutants.txt"
INSTALLED = ("gate", "statistics", "history", "console", "plugin.py", "run_state.py")  # of prooflops, wherever it runs
COPIED = ("accounting", "bench", "docs", "meta_tests", "prooflops", "results", "test_claims")
SAMPLE, SEED = 15, "prooflops"
OTHER_FILES = 6
GREEN = (0, 5)  # all passed; there are none
OPTIONS = ["-q", "--tb=line", "--doctest-modules", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
WHOLE = ["-x", "--quick", "--report", "reports", "-o", "gate_history=history"]
BARE = ["--noconftest", "-c", "bare.ini", "--rootdir", ".", "-p", "no:prooflops.plugin", "-m", "not prove"]


def modules() -> list[str]:
    """The files and tables of `accounting` and of the installed part."""
    roots = [ROOT / "accounting", *(ROOT / "prooflops" / name for name in INSTALLED)]
    files = [file for root in roots for file in (root.rglob("*.*") if root.is_dir() else [root])]
    files = [file for file in files if file.suffix in (".py", ".json") and file.name != "__init__.py"]
    return sorted(str(file.relative_to(ROOT)) for file in files)


def drawn(file: str, number: int, seed: str = SEED, scope: str = "") -> list[Mutant]:
    """A sample of a module's mutants by the seed: one of each function in turn before a second of any.

    `scope`: of functions and tables alone whose name has this in it.
    """
    by_scope: dict[str, list[Mutant]] = {}
    chance = random.Random(f"{seed} {file}")
    mutants = [each for each in mutants_of(file, (ROOT / file).read_text(encoding="utf-8")) if scope in each.scope]
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
    """The tests of a module: its own file among the meta tests, and its doctests; of a table those of its reader."""
    if file.endswith(".json"):
        folder, name = (ROOT / file).parent, Path(file).name
        reader = next(each for each in folder.glob("*.py") if f'("{name}")' in each.read_text(encoding="utf-8"))
        file = str(reader.relative_to(ROOT))
    path = Path("meta_tests") / file
    own = path.with_name(f"test_{path.name.replace('__', '')}")  # of __main__.py test_main.py
    return [str(own), file] if (ROOT / own).exists() else [file]


def other_tests(mutant: Mutant) -> list[str]:
    """The files of tests that name what was changed, then those beside the module's own, the shortest first."""
    names = [name.lstrip("_") for name in mutant.scope.split(".") if len(name) > 3]
    module = mutant.file.removesuffix(".py").replace("/", ".")
    imports = rf"{module}\b|from {module.rpartition('.')[0]} import [^\n]*\b{Path(mutant.file).stem}\b"
    pattern = re.compile("|".join([imports, *(rf"\b{re.escape(name)}\b" for name in names)]))
    own = own_tests(mutant.file)
    naming = [file for file, text in texts().items() if pattern.search(text) and file not in own]
    naming = [file for file in naming if "test_mutants" not in file and "test_faults" not in file]
    naming.sort(key=lambda file: (Path(file).parts[1] != Path(mutant.file).parts[0], len(texts()[file])))
    del naming[OTHER_FILES:]
    folder = str(Path(own[0]).parent)  # a package is tested by its public names, which need not name what was changed
    beside = [file for file in texts() if file.startswith(f"{folder}/test_") and file not in own + naming]
    return naming + sorted(beside, key=lambda file: len(texts()[file]))


class Copy:
    """A copy of the repository in which one file at a time is changed and its tests are run."""

    def __init__(self, folder: str) -> None:
        self.root = Path(folder)
        self._ticks = int(time.time())
        self.fill()

    def fill(self) -> None:
        for name in COPIED:
            ignored = shutil.ignore_patterns("__pycache__", "api")
            shutil.copytree(ROOT / name, self.root / name, ignore=ignored, dirs_exist_ok=True)
        for path in ROOT.iterdir():
            if path.is_file():
                shutil.copy(path, self.root)
        (self.root / "bare.ini").write_text("[pytest]\n")

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


def quick_options(file: str, copy: Copy) -> list[list[str]]:
    """Options for those of a module's own tests that pass without conftest.py, at first for the short ones of them."""
    code, output = copy.pytest(own_tests(file), 600, [*BARE, "-rfE", "--durations=0", "--durations-min=1"])
    failed = {found[1] for found in re.finditer(r"^(?:FAILED|ERROR) ([^\s\[]+)", output, re.MULTILINE)}
    long = {found[1] for found in re.finditer(r"^[\d.]+s call +([^\s\[]+)", output, re.MULTILINE)} - failed
    if code > 1 or len(failed) >= 20:
        return []
    left_out = [failed | long, failed] if long else [failed]
    return [[*BARE, "-x", *(f"--deselect={test}" for test in sorted(tests))] for tests in left_out]


def judge(mutant: Mutant, copy: Copy, limit_s: float, wide: bool, quick: Sequence[list[str]] = ()) -> str:
    """Which files of tests notice a mutant; empty where none does."""
    original = (copy.root / mutant.file).read_bytes()
    copy.write(mutant.file, mutant.applied(original))
    try:
        own = own_tests(mutant.file)
        for options in (*quick, WHOLE):
            if copy.pytest(own, limit_s, options)[0] not in GREEN:
                return own[0]
        for other in other_tests(mutant) if wide else ():
            if copy.pytest([other], 120)[0] not in GREEN:
                return other
        return ""
    finally:
        if not (copy.root / mutant.file).exists():
            copy.fill()  # a mutant of what removes folders has removed it
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
            sample = drawn(file, options.sample or 10**6, options.seed, options.scope)
            start = time.monotonic()
            code, output = tree.pytest(own_tests(file), 600)
            limit_s = 30 + 4 * (time.monotonic() - start)
            if code not in GREEN:
                print(f"{file}: its tests fail without a mutant:\n{output[-3000:]}", flush=True)
                red = True
                continue
            quick, survivors, known = quick_options(file, tree), [], 0
            for mutant in sample:
                known += mutant.key in equivalent
                noticed = "" if mutant.key in equivalent else judge(mutant, tree, limit_s, not options.own, quick)
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
