"""The options, ini settings and markers of the gate."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meta_tests.conftest import ROOT, ChildRun, run_pytest_for_each
from meta_tests.prooflops.gate.test_any_option import config_of, read
from prooflops.gate import settings as gate_settings
from prooflops.gate.settings import add_options, marker_settings, settings, stands_alone

IMPOSSIBLE = {
    "--gate": "--gate-baseline",
    "--gate-versus a --gate-baseline b": "exclude each other",
    "--gate-versus a --gate-bisect b": "exclude each other",
    "--gate-baseline b --gate-min-effect 3": "such as 5% or 0.05, got '3': 3 % is written 3% or 0.03",
    "--gate-baseline b --gate-min-effect=-1%": "such as 5% or 0.05",
    "--gate-replicates 0": "whole number of 1 or more",
    "--gate-budget nan": "positive number",
    "--gate-record a/b": "letters, digits",
    "--gate-baseline nowhere": "no baseline of that name",
    "--gate-allow-inconclusive": "--gate does, which is not given",
    "--gate-record a --gate-baseline b --gate-replicates 2": "compares with nothing",
    f"--gate-baseline {__file__}": "write --gate-baseline=",
    "--gate-record a --benchmark-skip": "--benchmark-skip leaves nothing",
    "--gate-versus a --benchmark-disable": "drop it, or add --benchmark-enable",
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ChildRun]:
    """What each of them got; in one process, in which no test may run."""
    folder = tmp_path_factory.mktemp("refused")
    (folder / "test_it.py").write_text("def test_it(benchmark): open('it-ran', 'w')\n")
    lines = [f"-p no:cacheprovider -p prooflops.plugin {options}" for options in IMPOSSIBLE]
    runs = run_pytest_for_each(folder, lines, "scipy.stats", path=ROOT)
    assert not (folder / "it-ran").exists()
    return dict(zip(IMPOSSIBLE, runs.values(), strict=True))


@pytest.mark.parametrize("options", IMPOSSIBLE)
def test_an_impossible_option_is_refused_before_anything_runs(refusals: dict[str, ChildRun], options: str) -> None:
    assert refusals[options].code == pytest.ExitCode.USAGE_ERROR, refusals[options].output
    assert IMPOSSIBLE[options] in refusals[options].output


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("0.1", "takes min_effect, direction, ignore by name, got 0.1"),
        ("effect=0.1", "got effect=0.1"),
        ("min_effect=3", "min_effect should be a share between"),
        ("direction='up'", "direction should be one of slower, faster, both, got 'up'"),
        ("ignore='no'", "ignore should be True or False, got 'no'"),
    ],
)
def test_a_marker_that_says_nothing_valid_is_refused_by_the_name_of_its_test(given: str, why: str) -> None:
    marker = eval(f"pytest.mark.gate({given})", {"pytest": pytest}).mark
    with pytest.raises(ValueError) as refused:
        marker_settings(marker)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("variable", "arguments", "alone"),
    [
        ("", ["--gate-versus", "../b"], True),
        ("", ["--gate-versus=../b"], False),
        ("--gate-versus ../b", [], True),
        ("-q --gate-versus=../b", ["--gate"], False),
        ("", [], False),  # of `addopts` in the ini, which has been found by then
    ],
)
def test_a_path_that_stands_alone_moves_the_rootdir_wherever_it_was_given(
    variable: str, arguments: list[str], alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", variable)
    config = SimpleNamespace(invocation_params=SimpleNamespace(args=arguments))
    assert stands_alone("--gate-versus", "../b", config) is alone  # type: ignore[arg-type]


def test_every_option_is_declared_with_its_default_and_says_what_it_is_for() -> None:
    ini: dict[str, str] = {}
    options: dict[str, dict[str, Any]] = {}
    parser: Any = SimpleNamespace(
        addini=lambda name, text, default: ini.update({name: default}) if default in text else None,
        getgroup=lambda name, text: SimpleNamespace(addoption=lambda name, **rest: options.update({name: rest})),
    )
    add_options(parser)
    assert ini == {
        "gate_history": ".prooflops/history", "gate_exact": "flops bytes peak_bytes live_bytes parameters",
        "gate_min_effect": "3%", "gate_direction": "slower", "gate_memory": "fail", "gate_min_memory_effect": "5%",
        "gate_allow_inconclusive": "10%", "gate_in_turn": "true",
    }  # fmt: skip
    flags = {name for name, rest in options.items() if rest.get("action") == "store_true"}
    assert flags == {
        "--gate",
        *(f"--gate-{name}" for name in "allow-inconclusive portable noise-floor history".split()),
    }
    texts = {name.removeprefix("--gate-"): rest["metavar"] for name, rest in options.items() if name not in flags}
    assert texts == {
        "baseline": "NAME|latest|FILE", "versus": "PYTHON|DIR|REVISION", "bisect": "GOOD", "record": "NAME",
        "replicates": "N", "min-effect": "X%", "budget": "MINUTES",
    }  # fmt: skip
    assert all(rest["help"] for rest in options.values())
    assert "(default: 10)" in options["--gate-budget"]["help"]


def test_an_option_goes_before_the_ini_setting_and_that_before_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PROOFLOPS_HISTORY", raising=False)
    found = settings(config := config_of(tmp_path, {}))
    assert settings(config) is found, "read and checked once"
    assert (found.min_effect, found.budget_s, found.allowed_open, found.replicates) == (0.03, 600.0, 0.1, None)
    assert (found.direction, found.memory, found.min_memory_effect, found.exact) == ("slower", "fail", 0.05, ("flops",))
    assert (found.folder, found.in_turn) == (tmp_path / ".prooflops", True)
    assert {found.gate, found.baseline, found.versus, found.bisect, found.record, found.portable} == {False, None}
    ini = {
        "gate_min_effect": "4%", "gate_allow_inconclusive": "true", "gate_direction": "both", "gate_memory": "off",
        "gate_min_memory_effect": "6%", "gate_exact": "a b", "gate_history": "kept", "gate_in_turn": "false",
    }  # fmt: skip
    found = read(tmp_path, {}, ini)
    assert (found.min_effect, found.allowed_open, found.direction, found.memory) == (0.04, math.inf, "both", "off")
    assert (found.min_memory_effect, found.exact, found.folder) == (0.06, ("a", "b"), tmp_path / "kept")
    assert not found.in_turn
    monkeypatch.setenv("PROOFLOPS_HISTORY", "/elsewhere")
    given = {"gate": True, "gate_versus": "b", "gate_min_effect": "0.5%", "gate_allow_inconclusive": True}
    found = read(tmp_path, {**given, "gate_budget": "2", "gate_replicates": "999999"}, ini)
    assert (found.min_effect, found.budget_s, found.replicates, found.versus) == (0.005, 120.0, 999999, "b")
    assert (found.gate, found.allowed_open, found.folder) == (True, math.inf, Path("/elsewhere"))
    for word, share in (("never", None), ("false", 0.0), ("FALSE", 0.0), ("25%", 0.25), ("True", math.inf)):
        if share is None:
            with pytest.raises(pytest.UsageError, match=r"0\.05, got 'never'; or true or false"):
                read(tmp_path, {}, {"gate_allow_inconclusive": word})
        else:
            assert read(tmp_path, {}, {"gate_allow_inconclusive": word}).allowed_open == share


@pytest.mark.parametrize(
    ("options", "orchestrated", "compares", "used"),
    [
        ("", False, False, False), ("record", False, False, True), ("baseline", False, True, True),
        ("baseline portable", False, True, True), ("versus", True, True, True), ("bisect", True, True, True),
        ("noise_floor", True, True, True), ("replicates", True, False, True), ("gate baseline", True, True, True),
        ("record replicates", True, False, True), ("gate bisect", True, True, True),
        ("record baseline", False, True, True),
    ],
)  # fmt: skip
def test_what_the_options_ask_for(options: str, orchestrated: bool, compares: bool, used: bool) -> None:
    texts = ("record", "baseline", "versus", "bisect", "replicates")
    named = {name: "2" if name in texts else True for name in options.split()}
    given: Any = {name if name == "gate" else f"gate_{name}": value for name, value in named.items()}
    found = read(Path("/nowhere"), given)
    assert (found.orchestrated, found.compares, found.used) == (orchestrated, compares, used)
    assert not read(Path("/nowhere"), {"gate_replicates": "1"}).orchestrated


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("noise_floor baseline", "--gate-noise-floor and --gate-baseline exclude each other"),
        ("noise_floor versus", "--gate-noise-floor and --gate-versus exclude each other"),
        ("baseline bisect", "--gate-baseline and --gate-bisect exclude each other"),
        ("noise_floor record", "--gate-record stores a baseline and compares nothing"),
        ("versus record", "--gate-record stores a baseline and compares nothing"),
        ("bisect record", "--gate-record stores a baseline and compares nothing"),
        ("gate baseline record", "--gate-record stores a baseline and compares nothing"),
        ("portable", "--gate-portable changes what --gate-baseline does"),
        ("portable baseline replicates", "--gate-portable compares ratios of single runs"),
        ("gate noise_floor", "--gate needs something to compare with"),
        ("versus dsession", "not measured under xdist"),
        ("baseline dsession", "not measured under xdist"),
    ],
)
def test_options_that_exclude_each_other_are_refused(options: str, why: str) -> None:
    given = {name if name in ("gate", "dsession") else f"gate_{name}": "2" for name in options.split()}
    with pytest.raises(pytest.UsageError, match=f"^{why}|{why}"):
        read(Path("/nowhere"), given)
    with pytest.raises(pytest.UsageError, match="6 digits at most, got '1000000'"):
        read(Path("/nowhere"), {"gate_replicates": "1000000"})


def test_a_path_outside_that_stands_alone_is_refused(tmp_path: Path) -> None:
    here = tmp_path / "here"
    (here / "inside").mkdir(parents=True)
    for file in (tmp_path / "a.json", here / "b.json"):
        file.touch()
    for name, text, refused in (
        ("baseline", "../a.json", True), ("baseline", "b.json", False), ("baseline", "..", False),
        ("baseline", "main", False), ("versus", "..", True), ("versus", "inside", True), ("versus", "HEAD", False),
        ("bisect", "b.json", True), ("bisect", "HEAD", False),
    ):  # fmt: skip
        given, flag = {f"gate_{name}": text}, f"--gate-{name}"
        assert getattr(settings(config_of(here, given, None, f"{flag}={text}")), name) == text
        config = config_of(here, given, None, flag, text)
        if refused:
            with pytest.raises(pytest.UsageError, match=f"{flag} {text}: write {flag}={text}, or pytest takes"):
                settings(config)
        else:
            assert getattr(settings(config), name) == text


@pytest.mark.parametrize(
    ("options", "words", "why"),
    [
        ("versus benchmark_disable", "--benchmark-disable", "--benchmark-disable leaves nothing to compare"),
        ("versus benchmark_disable benchmark_enable", "--benchmark-disable", ""),
        ("versus benchmark_disable", "", ""),  # in `addopts`, for plain runs: the gate's processes do without
        ("baseline benchmark_disable", "", "--benchmark-disable leaves nothing to compare"),
        ("versus benchmark_skip", "--benchmark-skip", "--benchmark-skip leaves nothing to compare"),
        ("versus benchmark_skip", "", ""),
        ("baseline benchmark_skip", "", "--benchmark-skip leaves nothing to compare"),
        ("noise_floor", "--benchmark-skip", ""),
    ],
)
def test_what_leaves_nothing_to_compare_is_refused(options: str, words: str, why: str) -> None:
    given: Any = {name if name.startswith("bench") else f"gate_{name}": "2" for name in options.split()}
    config = config_of(Path("/nowhere"), given, None, *words.split())
    if why:
        with pytest.raises(pytest.UsageError, match=why):
            settings(config)
    else:
        assert settings(config).used
    with pytest.raises(pytest.UsageError, match="that plugin is not active"):
        read(Path("/nowhere"), {"gate_versus": "b", "benchmark_disable": None})


def test_where_pytest_benchmark_is_not_active_its_options_have_no_say() -> None:
    config = config_of(Path("/nowhere"), {"gate_baseline": "b"})
    known = config.getoption
    config.getoption = lambda name, default=None: default if name.startswith("benchmark") else known(name, default)
    with pytest.raises(pytest.UsageError, match="that plugin is not active"):
        settings(config)


def test_the_packages_that_the_statistics_need_are_named_where_they_are_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate_settings, "find_spec", lambda name: None)
    assert not read(Path("/nowhere"), {}).used, "a run without the gate needs none"
    for option in ("gate_versus", "gate_history"):
        with pytest.raises(pytest.UsageError, match=r"need numpy and scipy, which .* -m pip install numpy scipy$"):
            read(Path("/nowhere"), {option: "b"})
    monkeypatch.setattr(gate_settings, "find_spec", lambda name: None if name == "scipy" else name)
    with pytest.raises(pytest.UsageError, match="need scipy, which"):
        read(Path("/nowhere"), {"gate_versus": "b"})


def test_the_arguments_of_a_marker_are_read() -> None:
    given = marker_settings(pytest.mark.gate(min_effect="5%", direction="both", ignore=True).mark)
    assert given == {"min_effect": 0.05, "direction": "both", "ignore": True}
    assert marker_settings(pytest.mark.gate.mark) == {}
    with pytest.raises(ValueError, match="'3', 3"):
        marker_settings(pytest.mark.gate("3", 3).mark)
