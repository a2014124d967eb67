"""Which tests a run was asked for."""

from pathlib import Path
from types import SimpleNamespace

from prooflops.gate.selection import is_asked_for


def test_a_benchmark_that_vanished_is_missing_where_its_file_was_asked_for(tmp_path: Path) -> None:
    def asked(name: str, *arguments: str, **option: bool) -> bool:
        params = SimpleNamespace(dir=tmp_path / "sub")
        config = SimpleNamespace(
            rootpath=tmp_path, args=list(arguments), invocation_params=params, option=SimpleNamespace(**option)
        )
        return is_asked_for(name, config)  # type: ignore[arg-type]

    assert asked("sub/test_a.py::test_old", "test_a.py")
    assert asked("sub/test_a.py::test_old", str(tmp_path))
    assert asked("sub/test_a.py::Test::test_old[3]", "test_a.py::Test::test_old")
    assert asked("sub/test_a.py::Test::test_old[3]", "test_b.py", "test_a.py::Test")
    assert not asked("sub/test_a.py::test_old", "test_a.py", lf=True)
    assert not asked("sub/test_a.py::test_old", "test_a.py", stepwise=True)
    assert not asked("test_a.py::test_old", "test_a.py")
    assert not asked("sub/test_ab.py::test_old", "test_a.py")
    assert not asked("sub/test_a.py::test_older", "test_a.py::test_old")
