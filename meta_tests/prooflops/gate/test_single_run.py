"""One run compared with the history, or stored as a baseline."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meta_tests.prooflops.foreign import Foreign
from meta_tests.prooflops.gate.without_processes import FINGERPRINT, SETTINGS, A, B, config
from prooflops.gate import single_run
from prooflops.history import records
from prooflops.run_state import RECORD_PATH, STORAGE_ERROR


def test_a_recorded_run_is_listed_named_and_compared(plain_repo: Foreign) -> None:
    run = plain_repo.run("--gate-record", "main")
    assert run.code == 0
    plain_repo.test(4)
    run = plain_repo.run("--gate-baseline", "main", "--benchmark-autosave")
    assert "1 CHANGED" in run.output
    assert "INCONCLUSIVE" in run.output
    assert len(plain_repo.records()) == 2
    assert len(list(plain_repo.root.glob(".benchmarks/*/*.json"))) == 1, "pytest-benchmark's own storage should go on"
    plain_repo.test(4, name="test_renamed")
    run = plain_repo.run("--gate-baseline", "latest")
    assert "1 MISSING" in run.output
    assert "1 NEW" in run.output
    listed = plain_repo.run("--gate-history", "-v").output
    assert "3 records" in listed, listed
    assert "baseline main" in listed, listed
    assert "test_renamed" in listed, listed


def test_a_run_that_did_not_succeed_is_no_baseline(plain_repo: Foreign) -> None:
    (plain_repo.root / "test_last.py").write_text("def test_last():\n    assert False\n")
    for options, code, why in (([], 1, "tests failed"), (["-k", "nothing"], 5, "no test ran")):
        run = plain_repo.run("--gate-record", "main", *options)
        assert (run.code, f"not stored as main: {why}" in run.output) == (code, True)
    assert not records.baselines(plain_repo.root / ".prooflops" / "history")


def test_a_benchmark_that_is_skipped_is_not_missing(plain_repo: Foreign) -> None:
    assert plain_repo.run("--gate-record", "main").code == 0
    (plain_repo.root / "conftest.py").write_text(
        "import pytest\ndef pytest_runtest_setup(): pytest.skip('not today')\n"
    )
    run = plain_repo.run("--gate-baseline", "main")
    assert "MISSING" not in run.output
    assert "INCONCLUSIVE: skipped this time: not today" in run.output


def test_another_machines_baseline_is_refused_with_the_difference_named(
    plain_repo: Foreign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # of whoever runs this test
    assert plain_repo.run("--gate-record", "main").code == 0
    run = plain_repo.run("--gate-baseline", "main", OMP_NUM_THREADS="7")
    assert run.code == pytest.ExitCode.USAGE_ERROR
    assert "OMP_NUM_THREADS: None -> 7" in run.output
    assert len(plain_repo.records()) == 1, "the refused run left a record"


def test_the_latest_is_the_last_run_that_had_these_benchmarks(plain_repo: Foreign) -> None:
    (plain_repo.root / "test_other.py").write_text(
        "def test_other(benchmark):\n    benchmark.pedantic(sum, args=([1],))\n"
    )
    for file in ("test_it.py", "test_other.py"):
        assert plain_repo.run(file, "--gate-record", file.removesuffix(".py")).code == 0
    run = plain_repo.run("test_it.py", "--gate-baseline", "latest")
    assert "MISSING" not in run.output, run.output
    assert "NEW" not in run.output, run.output
    assert "test_it.py::test_sum" in run.output, run.output


def test_the_version_of_torch_counts_only_where_the_tests_import_it(plain_repo: Foreign) -> None:
    (plain_repo.root / "torch.py").write_text("class Tensor: pass\n")  # seconds sooner than the real one
    for uses, name in ((False, "without"), (True, "with")):
        imports = "import torch\n" if uses else ""
        (plain_repo.root / "test_it.py").write_text(
            imports + "def test_sum(benchmark):\n    benchmark.pedantic(sum, args=([1],))\n    import torch\n"
        )
        assert plain_repo.run("--gate-record", name).code == 0
        record = records.read(plain_repo.records()[-1])
        assert ("torch" in record["prooflops"]["fingerprint"]["packages"]) == uses, name
        assert plain_repo.run("--gate-baseline", name).code == 0, "its own next run is another machine's"


def stored(folder: Path, fingerprint: dict[str, Any], *, mfu: float = 0.5, **times: float) -> Path:
    """A record of these benchmarks."""
    rows = [
        {"fullname": {"a": A, "b": B}[name], "stats": {"min": seconds}, "extra_info": {"flops": 7, "mfu": mfu}}
        for name, seconds in times.items()
    ]
    return records.append(folder, {"benchmarks": rows, "prooflops": {"fingerprint": fingerprint}}, fingerprint)


def test_a_baseline_is_checked_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_run, "fingerprint", lambda config: FINGERPRINT)
    settings, run = replace(SETTINGS, folder=tmp_path, baseline="main"), config(tmp_path)
    with pytest.raises(pytest.UsageError, match="--gate-baseline main: no baseline of that name"):
        single_run.check_baseline(run, settings, [A])
    other = [stored(tmp_path, {"name": "slide rule"}, a=1.0) for _ in range(2)]
    records.store_baseline("main", other)
    with pytest.raises(pytest.UsageError, match=r"other conditions \(name: slide rule -> abacus\), and times"):
        single_run.check_baseline(run, settings, [A])
    single_run.check_baseline(run, replace(settings, portable=True), [A])
    records.store_baseline("main", [stored(tmp_path, FINGERPRINT, a=1.0)])
    single_run.check_baseline(run, settings, [A])
    assert [each.benchmarks[A].exact for each in run.stash[single_run.BASELINE]] == [{"flops": 7}]
    same = SimpleNamespace(path=stored(tmp_path, FINGERPRINT, a=1.0))
    assert "(the digest of the fingerprint)" in single_run.refusal(settings, same, FINGERPRINT)  # type: ignore[arg-type]


def test_a_run_is_compared_with_its_baseline_by_time_and_exact_figure(tmp_path: Path) -> None:
    settings = replace(SETTINGS, folder=tmp_path, baseline="main")
    then = [records.read_summary(stored(tmp_path, FINGERPRINT, a=1.0, b=1.0), ("flops",)) for _ in range(2)]
    run = config(tmp_path)
    run.stash[single_run.BASELINE] = then
    run.stash[RECORD_PATH] = stored(tmp_path, FINGERPRINT, a=1.0)
    skipped = pytest.TestReport(B, ("", 0, ""), {}, "skipped", ("t.py", 1, "Skipped: later"), "call")
    others = [
        pytest.TestReport(A, ("", 0, ""), {}, outcome, longrepr, "call")
        for outcome, longrepr in (("passed", None), ("skipped", "xfail"), ("failed", ("t.py", 1, "no")))
    ]
    run.pluginmanager.get_plugin = lambda name: SimpleNamespace(stats={"skipped": [skipped, *others]})
    single_run.finish(run, settings, pytest.ExitCode.OK)
    assert single_run.skip_reasons([skipped, *others]) == {B: "later"}
    head, first, second, last = run.stash[single_run.OUTCOME]
    assert head.split()[0] == "benchmark"
    assert (first.split()[0], second.split()[0]) == (A, B)
    assert "INCONCLUSIVE: skipped this time: later" in second
    assert last == "against main (2 records): 2 INCONCLUSIVE, 1 SAME"
    printed: list[str] = []
    terminal: Any = SimpleNamespace(
        config=run, section=printed.append, write_line=lambda line, **_: printed.append(line)
    )
    single_run.print_summary(terminal)
    assert printed == ["compared with the history", *run.stash[single_run.OUTCOME]]
    printed.clear()
    run.stash[single_run.OUTCOME] = []
    single_run.print_summary(terminal)
    assert printed == []


def test_the_drift_that_is_known_and_only_ratios_of_another_machine_count(tmp_path: Path) -> None:
    settings = replace(SETTINGS, folder=tmp_path, baseline="main")
    then = [records.read_summary(stored(tmp_path, FINGERPRINT, a=1.0 + i / 1e4), ("flops",)) for i in range(8)]
    mine = records.read_summary(stored(tmp_path, FINGERPRINT, a=1.1), ("flops",))
    own = records.fingerprint_id(FINGERPRINT)
    for floor in (0.5, None):
        records.store_noise_floors(tmp_path, own, {A: {"floor": floor}})
        (line, *_) = [line for line in single_run.compared(then, mine, settings, {}) if line.startswith(A)]
        assert ("within the 50.0% that drift" in line) == (floor == 0.5), line
    (*_, last) = single_run.compared(then, mine, replace(settings, portable=True), {})
    assert last == "against main (8 records): 1 INCONCLUSIVE, 1 SAME"
    none = [records.read_summary(stored(tmp_path, FINGERPRINT, a=1.0, mfu=0.0), ()) for _ in range(2)]
    (line,) = single_run.compared(none, none[0], replace(settings, portable=True), {})
    assert line == "against main (2 records): nothing to compare; no ratio that both sides have"


@pytest.mark.parametrize(
    ("status", "why"),
    [(1, "tests failed"), (2, "the run was interrupted"), (5, "no test ran"), (3, "the run ended with exit code 3")],
)
def test_why_a_run_is_no_baseline(tmp_path: Path, status: int, why: str) -> None:
    run = config(tmp_path)
    run.stash[RECORD_PATH] = stored(tmp_path / "history", FINGERPRINT, a=1.0)
    settings = replace(SETTINGS, folder=tmp_path / "history", record="main")
    single_run.finish(run, settings, status)
    assert run.stash[single_run.OUTCOME] == [f"not stored as main: {why}"]
    single_run.finish(run, settings, pytest.ExitCode.OK)
    path = run.stash[RECORD_PATH]
    file = path.parent / "baselines" / "main.json"
    inside = f"{path.parent.name}/{path.name}"
    assert run.stash[single_run.OUTCOME] == [f"baseline main: this run ({inside}), named in {file}"]
    single_run.finish(run, replace(settings, folder=tmp_path / "elsewhere"), pytest.ExitCode.OK)
    assert run.stash[single_run.OUTCOME] == [f"baseline main: this run ({path}), named in {file}"]
    file.unlink()
    file.parent.rmdir()
    file.parent.touch()
    single_run.finish(run, settings, pytest.ExitCode.OK)
    assert run.stash[single_run.OUTCOME] == []
    assert run.stash[STORAGE_ERROR].startswith("the baseline main could not be stored: ")
    single_run.finish(run, replace(settings, record=None), pytest.ExitCode.TESTS_FAILED)
    assert run.stash[single_run.OUTCOME] == []
