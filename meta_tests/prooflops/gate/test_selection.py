"""Which tests a run was asked for."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prooflops.gate.selection import files_of, is_asked_for, selects_by_expression, without_fixture


def test_a_benchmark_that_vanished_is_missing_where_its_file_was_asked_for(tmp_path: Path) -> None:
    def asked(name: str, *arguments: str, **option: bool) -> bool:
        params = SimpleNamespace(dir=tmp_path / "sub")
        config = SimpleNamespace(
            rootpath=tmp_path, args=list(arguments), invocation_params=params, option=SimpleNamespace(**option)
        )
        return is_asked_for(name, config)  # type: ignore[arg-type]

    assert asked("sub/test_a.py::test_old", "test_a.py")
    assert asked("sub/test_a.py::test_old", str(tmp_path))
    assert asked("sub/test_a.py::test_old", "test_a.py::test_old")
    assert asked("sub/test_a.py::Test::test_old[3]", "test_a.py::Test::test_old")
    assert asked("sub/test_a.py::Test::test_old[3]", "test_b.py", "test_a.py::Test")
    assert not asked("sub/test_a.py::test_old", "test_a.py", lf=True)
    assert not asked("sub/test_a.py::test_old", "test_a.py", stepwise=True)
    assert not asked("test_a.py::test_old", "test_a.py")
    assert not asked("sub/test_ab.py::test_old", "test_a.py")
    assert not asked("sub/test_a.py::test_older", "test_a.py::test_old")


def test_the_files_of_tests_are_named_once_and_in_order() -> None:
    assert files_of(["b.py::test_1", "a.py::Test::test_2", "b.py::test_3"]) == ["b.py", "a.py"]


@pytest.mark.parametrize("option", ["keyword", "markexpr", "deselect", "claim"])
def test_each_option_that_selects_among_the_tests_of_a_path_is_known(option: str) -> None:
    def config(**options: object) -> Any:
        return SimpleNamespace(option=SimpleNamespace(**{"keyword": "", "markexpr": "", **options}))

    assert selects_by_expression(config(**{option: "a"})) is True
    assert selects_by_expression(config()) is False


def test_what_pytest_codspeed_alone_measures_is_named() -> None:
    def item(name: str, marked: bool, *fixtures: str) -> Any:
        return SimpleNamespace(nodeid=name, fixturenames=fixtures, get_closest_marker=lambda _: marked or None)

    measured, plain, marked = (
        item("a", True, "benchmark"),
        item("b", False),
        item("test_c.py::test_c", True, "tmp_path"),
    )
    assert without_fixture([measured, plain]) == ""
    assert "1 tests with the marker `benchmark` that do not use its fixture, the first test_c.py::test_c" in (
        without_fixture([measured, plain, marked])
    )
