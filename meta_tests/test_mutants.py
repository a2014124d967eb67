"""The mutants reach all code, and a sample of them is noticed; `python -m meta_tests.mutants` judges more."""

from __future__ import annotations

from pathlib import Path

import pytest

from meta_tests import mutants
from meta_tests.conftest import ROOT

SOURCE = '''
"""A module."""
RATES = {"a": 2.5, "b": (1, True)}

@dataclass(frozen=True)
class Size:
    """A docstring."""
    rows: int = 3

    @property
    def is_empty(self) -> bool:
        return self.rows == 0

    @cached_property
    def half(self) -> int:
        return self.rows // 2

def least(a: int, b: int) -> int:
    log(a, b, end="")
    return min(x for x in (a, b) if x > 0)
'''


def test_tables_fields_properties_and_decorated_functions_are_changed() -> None:
    found = {(mutant.scope, mutant.before, mutant.after) for mutant in mutants.mutants_of("a.py", SOURCE)}
    expected = {
        ("RATES", "2.5", "2.51"), ("RATES", "True", "False"), ("RATES", '"a"', "'a?'"), ("Size", "3", "4"),
        ("Size.is_empty", "self.rows == 0", "(self.rows != 0)"), ("Size.half", "self.rows // 2", "(self.rows * 2)"),
        ("least", "if x > 0", ""), ("least", "min", "max"), ("least", 'log(a, b, end="")', "pass"),
        ("least", 'log(a, b, end="")', "log(b, a, end='')"), ("least", 'log(a, b, end="")', "log(a, b)"),
    }  # fmt: skip
    assert expected <= found, f"missing: {expected - found}, found: {sorted(found)}"
    assert not [mutant for mutant in found if "docstring" in mutant[1] or "frozen" in mutant[1]]


def test_a_function_of_which_nothing_is_changed_is_named() -> None:
    source = "def f(x):\n    return x\n\nclass A:\n    @property\n    def g(self):\n        x = self\n"
    assert mutants.functions_without_mutants(source, mutants.mutants_of("a.py", source)) == ["A.g"]


@pytest.mark.prove(sample=25)
@pytest.mark.parametrize("file", mutants.modules())
def test_every_function_has_mutants_and_each_of_them_is_python(file: str) -> None:
    source = (ROOT / file).read_text(encoding="utf-8")
    found = mutants.mutants_of(file, source)
    missing = mutants.functions_without_mutants(source, found)
    assert not missing, f"nothing of these functions of {file} is changed: {missing}"
    for mutant in found[:: max(1, len(found) // 3)]:
        compile(mutant.applied(source.encode()), file, "exec")


def test_what_no_test_can_notice_is_in_the_code_and_has_a_reason() -> None:
    files = {file for file, *_ in mutants.known_equivalents()}
    found = {m.key for file in files for m in mutants.mutants_of(file, (ROOT / file).read_text(encoding="utf-8"))}
    stale = {key: why for key, why in mutants.known_equivalents().items() if key not in found or not why}
    assert not stale, f"equivalent_mutants.txt names mutants that there are not: {stale}"


@pytest.mark.parametrize("file", ["prooflops/history/plain.py"])
def test_a_mutant_is_noticed_by_the_tests_of_its_module_and_nothing_else(file: str, tmp_path: Path) -> None:
    copy, mutant = mutants.Copy(str(tmp_path)), mutants.drawn(file, 1)[0]
    assert copy.pytest(mutants.own_tests(file), 120)[0] == 0, "the tests fail without a mutant"
    assert mutants.judge(mutant, copy, 120, wide=False), f"{mutant} goes unnoticed"
    assert (tmp_path / file).read_bytes() == (ROOT / file).read_bytes()
