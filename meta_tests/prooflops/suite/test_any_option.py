"""Any text for the suite's options and any row of a registry: understood, or refused with its name and value."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meta_tests.conftest import ROOT
from meta_tests.prooflops.outcomes import outcome
from prooflops.machine import device
from prooflops.model.user_model import ModelError, import_factory
from prooflops.suite.hooks import known_failures
from prooflops.suite.peaks import LEAST_FLOP_PER_S, stated_peaks
from prooflops.suite.registry import RegistryError, load_registry

WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
NUMBERS = st.floats().map(str) | st.integers().map(str) | st.sampled_from(["9" * 5000, "1e400", "0x1", "1e12"])
REGISTRY = load_registry(ROOT / "test_claims" / "registry")
in_a_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@given(dtype=st.sampled_from(["bf16", "fp8", ""]) | WORDS, sign=st.sampled_from(["=", "", "=="]), text=NUMBERS | WORDS)
def test_any_peak_is_understood_or_refused(dtype: str, sign: str, text: str) -> None:
    word = f"{dtype}{sign}{text}"
    found, refusal = outcome(ValueError, lambda: stated_peaks([word]))
    if found:
        assert all(LEAST_FLOP_PER_S <= peak < math.inf for peak in found.values())
    else:
        assert "--peak" in refusal
        assert word in refusal or repr(word.partition("=")[0]) in refusal


@given(WORDS | st.sampled_from(["cpu:0", "cpu:1", "cuda:-1", "cuda:99", "all:1", "meta", "mps:7"]))
def test_any_device_is_there_or_refused(word: str) -> None:
    found, refusal = outcome(ValueError, lambda: device.chosen(word))
    assert found or refusal.startswith(f"--device {word}: ")


@given(WORDS)
def test_any_claim_is_there_or_refused(word: str) -> None:
    found, refusal = outcome(ValueError, lambda: REGISTRY.selected([word]))
    assert found or ("--claim" in refusal and repr(word) in refusal)


@given(st.lists(WORDS | st.just("no_such_module_anywhere"), min_size=1, max_size=3).map(":".join))
def test_any_model_is_found_or_refused(spec: str) -> None:
    if spec.partition(":")[0] != "no_such_module_anywhere" and spec.partition(":")[0].isidentifier():
        return  # it may name a module, which would be imported
    with pytest.raises(ModelError) as refused:
        import_factory(spec, Path("/nowhere"))
    assert str(refused.value).startswith(f"--model {spec}: ")


@in_a_folder
@given(lines=st.lists(WORDS | st.sampled_from([*REGISTRY.claims][:3]), max_size=4), end=st.binary(max_size=2))
def test_any_file_of_known_failures_is_read_or_refused(tmp_path: Path, lines: list[str], end: bytes) -> None:
    file = tmp_path / "known"
    file.write_bytes("\n".join(lines).encode() + end)
    found, refusal = outcome(pytest.UsageError, lambda: known_failures(str(file), REGISTRY))
    assert refusal.startswith(f"--known-failures {file}: ") if found is None else found <= REGISTRY.claims.keys()


def test_a_file_of_known_failures_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    said = {"latin": "can't decode byte", "": "directory", "gone": "No such file", "x" * 400: "too long"}
    for name, why in said.items():
        with pytest.raises(pytest.UsageError, match=f"--known-failures .*{why}"):
            known_failures(str(tmp_path / name), REGISTRY)


ROW = {
    "id": '"demo.it"', "statement": '"It is so."', "sources": '["s"]', "written": '"holds"', "kind": '"behaviour"',
    "condition": '""', "needs": "[]", "on_record": "false",
}  # fmt: skip
VALUES = st.sampled_from(
    ["1", "nan", "true", '""', '"wrong"', '"holds-if"', "[]", "[1]", "[[]]", "{}", "{a = 1}", "1979-05-27", "[" * 3000]
) | WORDS  # fmt: skip


def any_registry_is_read_or_refused(folder: Path, row: dict[str, str], header: str, damage: bytes) -> None:
    text = '[[source]]\nkey = "s"\ntitle = "t"\n' + header + "\n"
    text += "".join(f"{key} = {value}\n" for key, value in {**ROW, **row}.items())
    (folder / "demo.toml").write_bytes(text.encode() + damage)
    registry, refusal = outcome(RegistryError, lambda: load_registry(folder))
    if not registry:
        assert str(folder / "demo.toml") in refusal
        return
    assert all(registry.describe(claim) for claim in registry.claims)


ROWS = st.dictionaries(st.sampled_from([*ROW, "note", "correction", "unknown"]), VALUES, max_size=2)
HEADERS = st.sampled_from(["[[claim]]", "[claim]", "[[source]]", "[[other]]", "claim = 1", ""])
DAMAGE = st.just(b"") | st.binary(max_size=2)


@in_a_folder
@given(row=ROWS, header=HEADERS, damage=DAMAGE)
def test_any_registry_is_read_or_refused(tmp_path: Path, row: dict[str, str], header: str, damage: bytes) -> None:
    any_registry_is_read_or_refused(tmp_path, row, header, damage)


@pytest.mark.prove
@settings(in_a_folder, max_examples=2000)
@given(row=ROWS, header=HEADERS, damage=DAMAGE)
def test_many_registries_are_read_or_refused(tmp_path: Path, row: dict[str, str], header: str, damage: bytes) -> None:
    any_registry_is_read_or_refused(tmp_path, row, header, damage)


def test_rows_that_are_not_tables_of_their_own_are_refused(tmp_path: Path) -> None:
    rows: dict[str, Any] = {"[claim]\nid = 1": "[[claim]]", "source = [1]": "[[source]]"}
    for text, header in rows.items():
        (tmp_path / "demo.toml").write_text(text)
        with pytest.raises(RegistryError, match=f"must be a table of its own, under \\[\\[{header[2:-2]}"):
            load_registry(tmp_path)
