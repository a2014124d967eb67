"""The options, ini settings and markers of the gate.

Understood, or refused by their name before anything runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta_tests.conftest import ROOT, ChildRun, recorded, run_pytest_for_each
from meta_tests.prooflops_gate.outcomes import outcome
from prooflops_gate.child import callgrind
from prooflops_gate.history import records
from prooflops_gate.options import Settings, marker_settings
from prooflops_gate.options import settings as gate_settings
from prooflops_gate.selection import is_asked_for

FLAGS = ("gate", "gate_noise_floor", "gate_history")
TEXTS = [
    "gate_baseline",
    "gate_versus",
    "gate_bisect",
    "gate_record",
    "gate_replicates",
    "gate_min_effect",
    "gate_budget",
    "gate_by",
    "gate_min_instructions",
]
INI = {
    "gate_history": ".prooflops",
    "gate_exact": "flops",
    "gate_min_effect": "3%",
    "gate_direction": "slower",
    "gate_memory": "fail",
    "gate_min_memory_effect": "5%",
    "gate_missing": "fail",
    "gate_in_turn": "true",
    "gate_by": "time",
    "gate_min_instructions": "0.5%",
    "gate_instructions": "report",
    "gate_undecided": "pass",
}
# What a command line can hold: no NUL, and no half of a surrogate pair.
WORDS = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=8
)
NUMBERS = (
    st.floats().map(str)
    | st.integers().map(str)
    | st.sampled_from(["1e400", "9" * 5000, "٣", "²", "1_0", "0x1"])
)
PLACES = st.sampled_from([*TEXTS, *(set(INI) - {"gate_history", "gate_exact"})])
ANY = WORDS | NUMBERS | NUMBERS.map("{}%".format) | WORDS.map(lambda word: word * 400)


def config_of(
    folder: Path, given: Mapping[str, Any], ini: Mapping[str, str] | None = None, *words: str
) -> Any:
    """The configuration of a run with these options; `words`: of its command line."""
    options = {**dict.fromkeys(FLAGS, False), **dict.fromkeys(TEXTS), **given}

    def getoption(name: str, default: Any = None) -> Any:
        if name.startswith("benchmark"):
            return options.get(name, False)
        return options.get(name, default)

    return SimpleNamespace(
        stash=pytest.Stash(),
        rootpath=folder,
        getini={**INI, **(ini or {})}.__getitem__,
        getoption=getoption,
        invocation_params=SimpleNamespace(dir=folder, args=words),
        pluginmanager=SimpleNamespace(hasplugin=lambda name: name in given),
    )


def read(folder: Path, given: Mapping[str, Any], ini: Mapping[str, str] | None = None) -> Settings:
    """The settings that these options give."""
    return gate_settings(config_of(folder, given, ini))


@pytest.mark.parametrize("usable", [True, False])
def test_instructions_decide_beside_time_where_valgrind_is_there(
    monkeypatch: Any, usable: bool
) -> None:
    monkeypatch.setattr(callgrind, "is_usable", lambda: usable)
    assert read(Path("/nowhere"), {"gate_versus": "HEAD"}, {"gate_by": ""}).by == (
        "both" if usable else "time"
    )
    refusal = outcome(
        pytest.UsageError, lambda: read(Path("/nowhere"), {"gate_by": "instructions"})
    )[1]
    assert usable or "apt-get install valgrind" in str(refusal)


@given(PLACES, ANY)
def test_any_option_is_understood_or_refused(name: str, text: str) -> None:
    folder = Path("/nowhere")
    given, ini = ({name: text}, {}) if name in TEXTS else ({}, {name: text})
    found, refusal = outcome(pytest.UsageError, lambda: read(folder, given, ini))
    if not found:
        called = name if ini else f"--{name.replace('_', '-')}"
        if name == "gate_record":
            called = "a baseline's name"
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


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | WORDS


NAMES = st.sampled_from(["min_effect", "direction", "ignore", "x"])


@given(st.lists(SCALARS, max_size=1), st.dictionaries(NAMES, SCALARS))
def test_any_marker_is_understood_or_refused(positional: list[Any], named: dict[str, Any]) -> None:
    found, refusal = outcome(
        ValueError, lambda: marker_settings(pytest.mark.gate(*positional, **named).mark)
    )
    if found is None:
        assert any(name in refusal for name in ("min_effect", "direction", "ignore"))
        return
    assert 0 < found.get("min_effect", 0.5) < 1
    assert found.get("ignore", False) in (True, False)


# Words of the command line, and what their refusal says.
IMPOSSIBLE = {
    words.replace("{this file}", __file__): why
    for words, why in recorded("impossible_options.txt").items()
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ChildRun]:
    """What each of them got; in one process, in which no test may run."""
    folder = tmp_path_factory.mktemp("refused")
    (folder / "test_it.py").write_text("def test_it(benchmark): open('it-ran', 'w')\n")
    lines = [f"-p no:cacheprovider -p prooflops_gate.plugin {options}" for options in IMPOSSIBLE]
    runs = run_pytest_for_each(folder, lines, "scipy.stats", path=ROOT)
    assert not (folder / "it-ran").exists()
    return dict(zip(IMPOSSIBLE, runs.values(), strict=True))


@pytest.mark.parametrize("options", IMPOSSIBLE)
def test_an_impossible_option_is_refused_before_anything_runs(
    refusals: dict[str, ChildRun], options: str
) -> None:
    assert refusals[options].code == pytest.ExitCode.USAGE_ERROR, refusals[options].output
    assert IMPOSSIBLE[options] in refusals[options].output


@pytest.mark.parametrize(
    ("name", "arguments", "asked"),
    [
        ("tests/test_a.py::test_x", ["tests"], True),
        ("tests/test_a.py::test_x[2]", ["tests/test_a.py::test_x"], True),
        ("tests/test_a.py::test_xy", ["tests/test_a.py::test_x"], False),
        ("tests/test_a.py::TestX::test_y", ["tests/test_a.py::TestX"], True),
        ("tests/test_a.py::test_x", ["tests/test_b.py", "other"], False),
    ],
)
def test_a_benchmark_is_missing_only_where_the_command_line_covers_it(
    tmp_path: Path, name: str, arguments: list[str], asked: bool
) -> None:
    config = config_of(tmp_path, {})
    config.args, config.option = arguments, SimpleNamespace()
    assert is_asked_for(name, config) is asked
    config.option.lf = True
    assert not is_asked_for(name, config), "the other side has no last run"
