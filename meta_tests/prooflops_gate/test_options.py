"""The options, ini settings and markers of the gate.

Understood, or refused by their name before anything runs.
"""

import math
import re
import runpy
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta_tests.conftest import ROOT, recorded, run_pytest_for_each
from meta_tests.prooflops_gate.foreign_repo import config_in
from meta_tests.prooflops_gate.outcomes import outcome
from prooflops_gate.child import callgrind
from prooflops_gate.history import records
from prooflops_gate.options import FLAGS, GROUPS, INI, VALUES, marker_settings
from prooflops_gate.options import settings as gate_settings
from prooflops_gate.selection import is_asked_for

# What a command line can hold: no NUL, and no half of a surrogate pair.
WORDS = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=8
)
NUMBERS = (
    st.floats().map(str)
    | st.integers().map(str)
    | st.sampled_from(["1e400", "9" * 5000, "٣", "²", "1_0", "0x1"])
)
# Any text is a path, or a list of words.
ANY_TEXT = {"gate_history", "gate_exact", "--gate-json", "--gate-markdown"}
PLACES = st.sampled_from(sorted({*VALUES, *INI} - ANY_TEXT))
ANY = WORDS | NUMBERS | NUMBERS.map("{}%".format) | WORDS.map(lambda word: word * 400)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An empty one."""
    return tmp_path_factory.mktemp("empty")


def read(folder, *words):
    """The settings that these words of a command line give."""
    return gate_settings(config_in(folder, "-p", "prooflops_gate.plugin", *words))


@pytest.mark.parametrize("usable", [True, False])
def test_instructions_decide_beside_time_where_valgrind_is_there(folder, monkeypatch, usable):
    monkeypatch.setattr(callgrind, "is_usable", lambda: usable)
    assert read(folder, "--gate-versus=HEAD").by == ("both" if usable else "time")
    refusal = outcome(pytest.UsageError, lambda: read(folder, "--gate-by=instructions"))[1]
    assert usable or "apt-get install valgrind" in refusal


def test_each_option_is_in_one_group_and_the_module_names_no_other(capsys):
    listed = " ".join(GROUPS.values()).split()
    assert sorted(listed) == sorted([*FLAGS, *VALUES])
    runpy.run_module("prooflops_gate", run_name="__main__")
    assert {*re.findall(r"--gate[a-z-]*", capsys.readouterr().out)} <= {*listed}


@given(PLACES, ANY)
def test_any_option_is_understood_or_refused(folder, name, text):
    words = [f"{name}={text}"] if name in VALUES else ["-o", f"{name}={text}"]
    found, refusal = outcome(pytest.UsageError, lambda: read(folder, *words))
    if not found:
        assert ("a baseline's name" if name == "--gate-record" else name) in refusal
        assert repr(text)[:20] in refusal
        return
    assert 0 < found.min_effect < 1
    assert 0 < found.min_memory_effect < 1
    assert 0 < found.budget_s < math.inf
    assert 0 <= found.allowed_open <= math.inf
    assert 1 <= (found.replicates or 1) < 1e6
    if name == "--gate-baseline" and text != "latest":
        with pytest.raises(records.UnknownBaseline, match="--gate-baseline"):
            records.baseline(folder, text)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | WORDS


NAMES = st.sampled_from(["min_effect", "ignore", "x"])


@given(st.lists(SCALARS, max_size=1), st.dictionaries(NAMES, SCALARS))
def test_any_marker_is_understood_or_refused(positional, named):
    found, refusal = outcome(
        ValueError, lambda: marker_settings(pytest.mark.gate(*positional, **named).mark)
    )
    if found is None:
        assert any(name in refusal for name in ("min_effect", "ignore"))
        return
    assert 0 < found.get("min_effect", 0.5) < 1
    assert found.get("ignore", False) in (True, False)


# Words of the command line, and what their refusal says.
IMPOSSIBLE = {
    words.replace("{this file}", __file__): why
    for words, why in recorded("impossible_options.txt").items()
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory):
    """What each of them got; in one process, in which no test may run."""
    folder = tmp_path_factory.mktemp("refused")
    (folder / "test_it.py").write_text("def test_it(benchmark): open('it-ran', 'w')\n")
    lines = [f"-p no:cacheprovider -p prooflops_gate.plugin {options}" for options in IMPOSSIBLE]
    runs = run_pytest_for_each(folder, lines, "scipy.stats", path=ROOT)
    assert not (folder / "it-ran").exists()
    return dict(zip(IMPOSSIBLE, runs.values(), strict=True))


@pytest.mark.parametrize("options", IMPOSSIBLE)
def test_an_impossible_option_is_refused_before_anything_runs(refusals, options):
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
    tmp_path, name, arguments, asked
):
    config = SimpleNamespace(
        rootpath=tmp_path,
        args=arguments,
        option=SimpleNamespace(),
        invocation_params=SimpleNamespace(dir=tmp_path),
    )
    assert is_asked_for(name, config) is asked
    config.option.lf = True
    assert not is_asked_for(name, config), "the other side has no last run"
