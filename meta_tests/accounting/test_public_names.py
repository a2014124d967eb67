"""The names of `accounting`: what is loaded when, what a type checker knows."""

import subprocess
import sys

from meta_tests.conftest import ROOT


def test_a_module_is_loaded_when_it_is_imported():
    loaded = (
        "sorted(name for name in sys.modules if name.startswith('accounting.') or name == 'torch')"
    )
    code = f"import sys, accounting; print({loaded}); import accounting.formats; print({loaded})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n['accounting.checks', 'accounting.formats']\n", done.stderr


def test_no_module_is_imported_by_a_string():
    """The import contracts see plain imports alone."""
    for file in (ROOT / "accounting").rglob("*.py"):
        assert "import_module" not in file.read_text(), file
        assert "__import__" not in file.read_text(), file
