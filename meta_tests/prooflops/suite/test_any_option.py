"""Any option's text and any row of a registry is understood, or refused with name and value."""

from __future__ import annotations

import math
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meta_tests.prooflops_gate.outcomes import outcome
from prooflops.machine import device
from prooflops.suite.peaks import LEAST_FLOP_PER_S, stated_peaks
from prooflops.suite.registry import RegistryError, load_registry

WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
NUMBERS = (
    st.floats().map(str)
    | st.integers().map(str)
    | st.sampled_from(["9" * 5000, "1e400", "0x1", "1e12"])
)
in_a_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@given(
    dtype=st.sampled_from(["bf16", "fp8", ""]) | WORDS,
    sign=st.sampled_from(["=", "", "=="]),
    text=NUMBERS | WORDS,
)
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


ROW = {
    "id": '"demo.it"',
    "statement": '"It is so."',
    "sources": '["s"]',
    "written": '"holds"',
    "kind": '"behaviour"',
    "condition": '""',
    "needs": "[]",
    "on_record": "false",
}
TOML_VALUES = [
    *("1", "nan", "true", "1979-05-27"),
    *('""', '"wrong"', '"holds-if"'),
    *("[]", "[1]", "[[]]", "[" * 3000),
    *("{}", "{a = 1}"),
]
VALUES = st.sampled_from(TOML_VALUES) | WORDS
ROWS = st.dictionaries(st.sampled_from([*ROW, "note", "correction", "unknown"]), VALUES, max_size=2)
HEADERS = st.sampled_from(["[[claim]]", "[claim]", "[[source]]", "[[other]]", "claim = 1", ""])
DAMAGE = st.just(b"") | st.binary(max_size=2)


@in_a_folder
@given(row=ROWS, header=HEADERS, damage=DAMAGE)
def test_any_registry_is_read_or_refused(
    tmp_path: Path, row: dict[str, str], header: str, damage: bytes
) -> None:
    text = '[[source]]\nkey = "s"\ntitle = "t"\n' + header + "\n"
    text += "".join(f"{key} = {value}\n" for key, value in {**ROW, **row}.items())
    (tmp_path / "demo.toml").write_bytes(text.encode() + damage)
    registry, refusal = outcome(RegistryError, lambda: load_registry(tmp_path))
    if not registry:
        assert str(tmp_path / "demo.toml") in refusal
        return
    assert all(registry.describe(claim) for claim in registry.claims)
