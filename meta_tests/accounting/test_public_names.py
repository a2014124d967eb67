"""The names of `accounting`: what is loaded when, what a type checker knows."""

import subprocess
import sys
from pathlib import Path

import pytest

from meta_tests.conftest import ROOT


def test_a_module_is_loaded_when_it_is_imported() -> None:
    loaded = (
        "sorted(name for name in sys.modules if name.startswith('accounting.') or name == 'torch')"
    )
    code = f"import sys, accounting; print({loaded}); import accounting.formats; print({loaded})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n['accounting.checks', 'accounting.formats']\n", done.stderr


def test_no_module_is_imported_by_a_string() -> None:
    """The import contracts see plain imports alone."""
    for file in (ROOT / "accounting").rglob("*.py"):
        assert "import_module" not in file.read_text(), file
        assert "__import__" not in file.read_text(), file


def test_a_type_checker_knows_the_formulas(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    (tmp_path / "snippet.py").write_text(
        "from accounting import models\nreveal_type(models.parameter_count)\nmodels.nonsense\n"
    )
    settings = tmp_path / "mypy.ini"
    # Without following torch it takes seconds, not minutes.
    settings.write_text(
        f"[mypy]\nmypy_path = {ROOT}\n[mypy-torch.*,numpy.*,scipy.*]\nfollow_imports = skip\n"
    )
    cache = ROOT / ".mypy_cache" / "names"
    options = ["--config-file", settings, "--cache-dir", cache, "--follow-imports", "silent"]
    output, errors, _ = api.run([*map(str, options), str(tmp_path / "snippet.py")])
    assert 'Revealed type is "def (model: accounting.models.' in output, (
        f"the type of accounting.models.parameter_count is unknown to mypy: {output}{errors}"
    )
    assert '3: error: Module has no attribute "nonsense"' in output, f"any name passes: {output}"
