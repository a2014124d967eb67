"""The names of `accounting`: what a type checker knows, what is loaded when."""

import subprocess
import sys
from pathlib import Path

import pytest

import accounting
from meta_tests.conftest import ROOT


def test_a_module_is_loaded_when_it_is_first_used() -> None:
    loaded = (
        "sorted(name for name in sys.modules if name.startswith('accounting.') or name == 'torch')"
    )
    code = f"import sys, accounting; print({loaded}); accounting.formats; print({loaded})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n['accounting.checks', 'accounting.formats']\n", done.stderr


def test_a_type_checker_knows_every_name_and_no_other(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    reveals = "\n".join(f"reveal_type(accounting.{name})" for name in accounting.__all__)
    (tmp_path / "snippet.py").write_text(
        f"import accounting\nreveal_type(accounting.models.parameter_count)\naccounting.nonsense\n{reveals}\n"
    )
    settings = tmp_path / "mypy.ini"
    settings.write_text(
        f"[mypy]\nmypy_path = {ROOT}\n[mypy-torch.*,numpy.*,scipy.*]\nfollow_imports = skip\n"  # seconds, not minutes
    )
    options = [
        "--config-file",
        settings,
        "--cache-dir",
        ROOT / ".mypy_cache" / "names",
        "--follow-imports",
        "silent",
    ]
    output, errors, _ = api.run([*map(str, options), str(tmp_path / "snippet.py")])
    assert 'Revealed type is "def (model: accounting.models.' in output, (
        f"the type of accounting.models.parameter_count is unknown to mypy: {output}{errors}"
    )
    assert '3: error: Module has no attribute "nonsense"' in output, (
        f"mypy lets any name pass: {output}"
    )
    assert output.count("types.ModuleType") == len(accounting.__all__), (
        f"mypy lacks a module: {output}"
    )
