"""The options, ini settings and markers of the gate."""

from types import SimpleNamespace

import pytest

from meta_tests.conftest import ROOT, ChildRun, run_pytest_for_each
from prooflops.gate.settings import marker_settings, stands_alone

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
