"""A house with nothing in it but the tests of a user's model, and the users' models as the package `zoo`."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from meta_tests.conftest import ROOT, ChildRun, new_house

SPECS = {"resnet": "zoo.resnet:factory", "gpt": "zoo.gpt:factory", "own": "zoo.own:Factories.factory"}
BRIEF = "Pace(0.005, 0.01, 0.01,"
LAST_VALIDATION = ("verdicts.json", "report.md")
each_model = pytest.mark.parametrize("name", SPECS)


@dataclass(frozen=True)
class Examined:
    """What a run over one model said, and the facts that it left."""

    run: ChildRun
    facts: dict[str, Any]
    page: str


def model_house(folder: Path, *, registry: bool = True) -> Path:
    """The suite with no tests but those of a user's model, with or without the registry, and the users' package."""
    root = new_house(folder).root
    for file in (
        "test_claims/conftest.py",
        "test_claims/strategies.py",
        "test_claims/test_user_model.py",
        "bench/test_user_model.py",
    ):
        shutil.copy(ROOT / file, root / file)
    for file in (ROOT / "bench").glob("*.py"):
        if not file.name.startswith("test_"):
            shutil.copy(file, root / "bench")
    for file, slow, brief in (("test_user_model.py", "2**28", "2**20"), ("pace.py", "Pace(0.02, 0.05, 0.08,", BRIEF)):
        text = (root / "bench" / file).read_text()
        assert slow in text, f"{file} lacks {slow}, which takes most of a run's time"
        (root / "bench" / file).write_text(text.replace(slow, brief))
    if registry:
        shutil.copytree(ROOT / "test_claims" / "registry", root / "test_claims" / "registry", dirs_exist_ok=True)
    shutil.copytree(ROOT / "meta_tests" / "user_models", root / "zoo", ignore=shutil.ignore_patterns("__pycache__"))
    return root
