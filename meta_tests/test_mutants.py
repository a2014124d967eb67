"""The mutants reach all code, and a sample of them is noticed; `python -m meta_tests.mutants` judges more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meta_tests import mutants, mutations
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
    log.last = None
    log.a, log.b = a, b
    return min(x for x in (a, b) if x > 0)
'''


def test_tables_fields_properties_and_decorated_functions_are_changed() -> None:
    found = {(mutant.scope, mutant.before, mutant.after) for mutant in mutations.mutants_of("a.py", SOURCE)}
    expected = {
        ("RATES", "2.5", "2.51"), ("RATES", "True", "False"), ("RATES", '"a"', "'a?'"), ("Size", "3", "4"),
        ("Size.is_empty", "self.rows == 0", "(self.rows != 0)"), ("Size.half", "self.rows // 2", "(self.rows * 2)"),
        ("least", "if x > 0", ""), ("least", "min", "max"), ("least", 'log(a, b, end="")', "pass"),
        ("least", "log.a, log.b = a, b", "log.b, log.a = (a, b)"),
        ("least", 'log(a, b, end="")', "log(b, a, end='')"), ("least", 'log(a, b, end="")', "log(a, b)"),
    }  # fmt: skip
    assert expected <= found, f"missing: {expected - found}, found: {sorted(found)}"
    assert not [mutant for mutant in found if mutant[1] == mutant[2]], "a mutant without a change"
    assert not [mutant for mutant in found if "docstring" in mutant[1] or "frozen" in mutant[1]]


def test_keys_and_cells_of_a_table_are_changed_but_not_its_prose() -> None:
    source = '{"rows": [{"label": "é", "units": 8, "note": "why", "ok": true, "rate": {"a": null}}]}'
    found = {(mutant.scope, mutant.before, mutant.after) for mutant in mutations.mutants_of("a.json", source)}
    cells = [("8", "8.032"), ("true", "false"), ("null", "false"), ('"é"', '"\\u00e9?"')]
    keys = [(f'"{key}"', f'"{key}?"') for key in ("label", "units", "ok", "rate", "a")]
    assert found == {("rows", '"rows"', '"rows?"'), *(("rows.é", *change) for change in [*cells, *keys])}


def test_a_function_of_which_nothing_is_changed_is_named() -> None:
    source = "def f(x):\n    return x\n\nclass A:\n    @property\n    def g(self):\n        x = self\n"
    assert mutations.functions_without_mutants(source, mutations.mutants_of("a.py", source)) == ["A.g"]


@pytest.mark.prove(sample=25)
@pytest.mark.parametrize("file", mutants.modules())
def test_every_function_has_mutants_and_each_of_them_is_python(file: str) -> None:
    source = (ROOT / file).read_text(encoding="utf-8")
    found = mutations.mutants_of(file, source)
    is_table = file.endswith(".json")
    missing = [] if is_table else mutations.functions_without_mutants(source, found)
    assert not missing, f"nothing of these functions of {file} is changed: {missing}"
    for mutant in found[:: max(1, len(found) // 3)]:
        changed = mutant.applied(source.encode())
        json.loads(changed) if is_table else compile(changed, file, "exec")


def test_what_no_test_can_notice_is_in_the_code_and_has_a_reason() -> None:
    files = {file for file, *_ in mutants.known_equivalents()}
    found = {m.key for file in files for m in mutations.mutants_of(file, (ROOT / file).read_text(encoding="utf-8"))}
    stale = {key: why for key, why in mutants.known_equivalents().items() if key not in found or not why}
    assert not stale, f"equivalent_mutants.txt names mutants that there are not: {stale}"


@pytest.mark.parametrize("file", ["prooflops/history/plain.py"])
def test_a_mutant_is_noticed_by_the_tests_of_its_module_and_nothing_else(file: str, tmp_path: Path) -> None:
    copy, mutant = mutants.Copy(str(tmp_path)), mutants.drawn(file, 1)[0]
    assert copy.pytest(mutants.own_tests(file), 120)[0] == 0, "the tests fail without a mutant"
    assert mutants.judge(mutant, copy, 120, wide=False), f"{mutant} goes unnoticed"
    assert (tmp_path / file).read_bytes() == (ROOT / file).read_bytes()
