"""No module of `accounting` hides an import."""

from meta_tests.conftest import ROOT


def test_no_module_is_imported_by_a_string():
    """The import contracts see plain imports alone."""
    for file in (ROOT / "accounting").rglob("*.py"):
        assert "import_module" not in file.read_text(), file
        assert "__import__" not in file.read_text(), file
