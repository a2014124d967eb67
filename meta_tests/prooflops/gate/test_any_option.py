"""Any text for any option of the gate: it is understood, or refused with the option's name and the text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meta_tests.prooflops.outcomes import outcome
from prooflops.gate.settings import Settings, marker_settings
from prooflops.gate.settings import settings as gate_settings
from prooflops.history import records

FLAGS = ("gate", "gate_allow_inconclusive", "gate_portable", "gate_noise_floor", "gate_history")
TEXTS = [f"gate_{each}" for each in "baseline versus bisect record replicates min_effect budget".split()]
INI = {
    "gate_history": ".prooflops", "gate_exact": "flops", "gate_min_effect": "3%", "gate_direction": "slower",
    "gate_memory": "fail", "gate_min_memory_effect": "5%", "gate_allow_inconclusive": "10%",
    "gate_in_turn": "true",
}  # fmt: skip
# What a command line can hold: no NUL, and no half of a surrogate pair.
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=8)
NUMBERS = st.floats().map(str) | st.integers().map(str) | st.sampled_from(["1e400", "9" * 5000, "٣", "²", "1_0", "0x1"])
ANY = WORDS | NUMBERS | NUMBERS.map("{}%".format) | WORDS.map(lambda word: word * 400)


def config_of(folder: Path, given: Mapping[str, Any], ini: Mapping[str, str] | None = None, *words: str) -> Any:
    """The configuration of a run with these options; `words`: of its command line."""
    options = {**dict.fromkeys(FLAGS, False), **dict.fromkeys(TEXTS), **given}
    return SimpleNamespace(
        stash=pytest.Stash(), rootpath=folder, getini={**INI, **(ini or {})}.__getitem__,
        getoption=lambda name, default=None: options.get(name, False if name.startswith("benchmark") else default),
        invocation_params=SimpleNamespace(dir=folder, args=words),
        pluginmanager=SimpleNamespace(hasplugin=lambda name: name in given),
    )  # fmt: skip


def read(folder: Path, given: Mapping[str, Any], ini: Mapping[str, str] | None = None) -> Settings:
    """The settings that these options give."""
    return gate_settings(config_of(folder, given, ini))


def any_option_is_understood_or_refused(name: str, text: str) -> None:
    folder = Path("/nowhere")
    given, ini = ({name: text}, {}) if name in TEXTS else ({}, {name: text})
    found, refusal = outcome(pytest.UsageError, lambda: read(folder, given, ini))
    if not found:
        called = "a baseline's name" if name == "gate_record" else name if ini else f"--{name.replace('_', '-')}"
        assert called in refusal
        assert repr(text)[:20] in refusal
        return
    assert 0 < found.min_effect < 1
    assert 0 < found.min_memory_effect < 1
    assert 0 < found.budget_s < math.inf
    assert 0 <= found.allowed_open <= math.inf
    assert 1 <= (found.replicates or 1) < 1e6
    if name == "gate_baseline" and text != "latest":
        with pytest.raises(records.UnknownBaseline, match="--gate-baseline"):
            records.baseline(folder, text, "mine", ())


PLACES = st.sampled_from([*TEXTS, *(set(INI) - {"gate_history", "gate_exact"})])
test_any_option_is_understood_or_refused = given(PLACES, ANY)(any_option_is_understood_or_refused)
test_many_options_are_understood_or_refused = pytest.mark.prove(
    settings(max_examples=3000, deadline=None)(given(PLACES, ANY)(any_option_is_understood_or_refused))
)


@given(st.dictionaries(st.sampled_from([*FLAGS, *TEXTS]), st.just("2")))
def test_any_options_together_are_understood_or_refused_by_name(given: dict[str, str]) -> None:
    found, refusal = outcome(pytest.UsageError, lambda: read(Path("/nowhere"), given))
    if not found:
        assert "--gate" in refusal
        return
    assert found.compares or not found.gate, "a gate that compares with nothing is always green"
    assert not (found.record and found.compares and found.orchestrated), "it records and compares with nothing"


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | WORDS


NAMES = st.sampled_from(["min_effect", "direction", "ignore", "x"])


@given(st.lists(SCALARS, max_size=1), st.dictionaries(NAMES, SCALARS))
def test_any_marker_is_understood_or_refused(positional: list[Any], named: dict[str, Any]) -> None:
    found, refusal = outcome(ValueError, lambda: marker_settings(pytest.mark.gate(*positional, **named).mark))
    if found is None:
        assert any(name in refusal for name in ("min_effect", "direction", "ignore"))
        return
    assert 0 < found.get("min_effect", 0.5) < 1
    assert found.get("ignore", False) in (True, False)
