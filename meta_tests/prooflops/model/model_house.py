"""A house with nothing in it but the tests of a user's model, and the users' models as the package `zoo`."""

import shutil
from pathlib import Path

from meta_tests.conftest import ROOT, new_house


def model_house(folder: Path, *, registry: bool = True) -> Path:
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
