"""A small house of demonstration claims in a temporary folder, and child runs of pytest in it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]

CLAIM = """
[[claim]]
id = "{id}"
statement = "{statement}"
sources = ["lecture"]
written = "{written}"
condition = "{condition}"
correction = "{correction}"
needs = {needs}
kind = "behaviour"
"""


@dataclass
class ChildRun:
    """What a child run of pytest said and left."""

    code: int
    output: str
    verdicts: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class House:
    """A copy of the suite without its claims, to be furnished by a test."""

    root: Path

    def claim(self, claim_id: str, *, statement: str = "It is so.", written: str = "holds", **rest: str) -> None:
        row = {"condition": "", "correction": "", "needs": "[]", "statement": statement, "written": written, **rest}
        file = self.root / "test_claims" / "registry" / f"{claim_id.partition('.')[0]}.toml"
        with open(file, "a", encoding="utf-8") as registry:
            registry.write(CLAIM.format(id=claim_id, **row))

    def test(self, code: str, file: str = "test_claims/test_demo.py") -> None:
        path = self.root / file
        header = "" if path.exists() else "import pytest\n"
        with open(path, "a", encoding="utf-8") as tests:
            tests.write(header + code + "\n")

    def run(self, *arguments: str, path: Path | None = None) -> ChildRun:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        environment["PYTHONPATH"] = str(path) if path else ""
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
            cwd=self.root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        file = self.root / "reports" / "verdicts.json"
        rows = json.loads(file.read_text()) if file.exists() else []
        return ChildRun(done.returncode, done.stdout + done.stderr, {row["id"]: row for row in rows})


def new_house(root: Path) -> House:
    """The suite copied to `root`, with a registry of one source and no claim."""
    for package in ("accounting", "proofline"):
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("conftest.py", "pytest.ini"):
        shutil.copy(ROOT / file, root)
    for folder in ("test_claims", "bench"):
        (root / folder).mkdir()
        (root / folder / "__init__.py").touch()
    registry = root / "test_claims" / "registry"
    registry.mkdir()
    (registry / "sources.toml").write_text('[[source]]\nkey = "lecture"\ntitle = "A lecture"\nlocator = "minute 3"\n')
    return House(root)


@pytest.fixture
def house(tmp_path: Path) -> House:
    """A house without a claim, to be furnished by the test."""
    return new_house(tmp_path)


@pytest.fixture(scope="session")
def python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs this Python on a line of code in the root of the clone."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300)

    return run
