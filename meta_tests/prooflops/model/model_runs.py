"""A house with nothing in it but the tests of a user's model, and runs of pytest in it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from meta_tests.conftest import ROOT, ChildRun, new_house

# Runs pytest once for each argument, in one process, and prints what came of it.
RUNS = """
import contextlib, gc, io, json, sys, pytest
for line in sys.argv[1:]:
    gc.freeze()  # pytest collects garbage five times at each end: not among all that torch has imported
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        code = int(pytest.main(line.split()))
    print(json.dumps([line, code, out.getvalue()]))
"""


def furnished_house(folder: Path, *, registry: bool = True) -> Path:
    """The suite with no tests but those of a user's model, with or without the registry, and the users' package."""
    root = new_house(folder).root
    for file in ("test_claims/conftest.py", "test_claims/test_user_model.py", "bench/test_user_model.py"):
        shutil.copy(ROOT / file, root / file)
    for file in (ROOT / "bench").glob("*.py"):
        if not file.name.startswith("test_"):
            shutil.copy(file, root / "bench")
    if registry:
        shutil.copytree(ROOT / "test_claims" / "registry", root / "test_claims" / "registry", dirs_exist_ok=True)
    shutil.copytree(ROOT / "meta_tests" / "user_models", root / "zoo", ignore=shutil.ignore_patterns("__pycache__"))
    return root


def runs_of_pytest(root: Path, lines: list[str]) -> dict[str, ChildRun]:
    command = [sys.executable, "-c", RUNS, *lines]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return {line: ChildRun(code, output) for line, code, output in map(json.loads, done.stdout.splitlines())}
