"""The names of `accounting`: what a reader completes, what a type checker knows, what is loaded when."""

import importlib
import inspect
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import accounting
from accounting import devices, families, optimizers
from meta_tests.conftest import ROOT

PRIVATE = {"checks"}
MODULES = {path.stem for path in (ROOT / "accounting").glob("[a-z]*") if path.suffix == ".py" or path.is_dir()}


def test_dir_shows_the_public_modules_and_nothing_else() -> None:
    assert dir(accounting) == accounting.__all__ == sorted(MODULES - PRIVATE)


@pytest.mark.parametrize("name", accounting.__all__)
def test_every_public_module_is_an_attribute(name: str) -> None:
    assert getattr(accounting, name).__name__ == f"accounting.{name}"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'accounting' has no attribute 'flop'"):
        _ = accounting.flop


def test_a_module_is_loaded_when_it_is_first_used(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    loaded = "sorted(name for name in sys.modules if name.startswith('accounting.') or name == 'torch')"
    done = python("-c", f"import sys, accounting; print({loaded}); accounting.formats; print({loaded})")
    assert done.stdout == "[]\n['accounting.checks', 'accounting.formats']\n", done.stderr


def public_objects() -> dict[str, object]:
    """The functions and classes that a file of formulas defines under a public name, or that a room of data offers."""
    files = [path.stem for path in (ROOT / "accounting").glob("[a-z]*.py")]
    modules = [importlib.import_module(f"accounting.{name}") for name in files]
    offered = [
        (room.__name__, name, getattr(room, name)) for room in (devices, families, optimizers) for name in room.__all__
    ]
    return {
        f"{room}.{name}": value for room, name, value in offered if inspect.isclass(value) or inspect.isfunction(value)
    } | {
        f"{module.__name__}.{name}": value
        for module in modules
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
        and (inspect.isclass(value) or inspect.isfunction(value))
    }


def test_every_public_function_and_class_has_an_example() -> None:
    lacking = [name for name, value in public_objects().items() if ">>>" not in (value.__doc__ or "")]
    assert not lacking, f"give these a doctest, which shows a newcomer what they say: {', '.join(lacking)}"


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
    options = ["--config-file", settings, "--cache-dir", ROOT / ".mypy_cache" / "names", "--follow-imports", "silent"]
    output, errors, _ = api.run([*map(str, options), str(tmp_path / "snippet.py")])
    assert 'Revealed type is "def (model: accounting.models.' in output, (
        f"the type of accounting.models.parameter_count is unknown to mypy: {output}{errors}"
    )
    assert '3: error: Module has no attribute "nonsense"' in output, f"mypy lets any name pass: {output}"
    assert output.count("types.ModuleType") == len(accounting.__all__), f"mypy lacks a module: {output}"
