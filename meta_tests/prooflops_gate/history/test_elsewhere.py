"""What other tools have stored of a project is shown beside its own records, and left as it is."""

import json

import pytest

from prooflops_gate.history.elsewhere import stored_elsewhere
from prooflops_gate.history.trend import trends

COMMITS = [f"{number:040x}" for number in range(24)]


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def asv(root):
    """A year of asv: a level of 1 ms until the twelfth commit, and 1.3 ms from there."""
    results = root / ".asv" / "results"
    kinds = {"sorts.time_sort": {"type": "time"}, "sorts.track_size": {"type": "track"}}
    write(results / "benchmarks.json", {**kinds, "version": 2})
    write(results / "box" / "machine.json", {"machine": "box"})
    for number, commit in enumerate(COMMITS):
        time_s = (0.001 if number < 12 else 0.0013) * (1 + number % 3 / 1000)
        content = {
            "commit_hash": commit,
            "env_name": "virtualenv-py3.12",
            "date": 1_700_000_000_000 + 86_400_000 * number,
            "params": {"machine": "box", "cpu": "Some CPU"},
            "result_columns": ["result", "params", "version"],
            "results": {
                "sorts.time_sort": [[time_s, None], [["10", "20"]], "a1"],
                "sorts.track_size": [[7], [], "b1"],
            },
            "version": 2,
        }
        write(results / "box" / f"{commit[-8:]}-py3.12.json", content)


def test_years_of_asv_are_a_trend_with_the_commit_of_a_step(tmp_path):
    asv(tmp_path)
    found = stored_elsewhere(tmp_path)["asv"]
    assert [each.commit for each in found] == COMMITS
    (series,) = trends(found)
    assert series.name == "sorts.time_sort(10)", "failed parameters and sizes are no times"
    (step,) = series.changes
    assert (step.index, step.ratio) == (12, pytest.approx(1.3, rel=0.01))


def test_pytest_benchmark_and_codspeed_are_read_and_not_mixed(
    tmp_path,
):
    stats = {"fullname": "t.py::test_a", "stats": {"min": 0.5}}
    kept = {
        "machine_info": {"node": "box", "cpu": {"brand_raw": "Some CPU"}},
        "commit_info": {"id": "abc", "dirty": False},
        "datetime": "2026-01-02T03:04:05",
        "benchmarks": [stats],
    }
    write(tmp_path / ".benchmarks" / "Linux" / "0001_abc.json", kept)
    bench = {"name": "test_a", "uri": "t.py::test_a", "stats": {"min_ns": 5e8}}
    write(tmp_path / ".codspeed" / "results_1700000000000.json", {"benchmarks": [bench]})
    found = stored_elsewhere(tmp_path)
    assert list(found) == ["pytest-benchmark", "pytest-codspeed"]
    every = [each for group in found.values() for each in group]
    assert [each.benchmarks["t.py::test_a"].time_s for each in every] == [0.5, 0.5]
    assert len(trends(every)) == 2, "one name of two tools is two series"


@pytest.mark.parametrize("content", ["", "[]", "{", '{"benchmarks": 7}', '{"results": {"a": 1}}'])
def test_truncated_and_foreign_files_are_passed_over(tmp_path, content):
    for name in (".asv/results/box/a.json", ".benchmarks/x/a.json", ".codspeed/results_1.json"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(content)
    assert stored_elsewhere(tmp_path) == {}


def test_the_history_lists_them_and_leaves_them_alone(plain_repo):
    asv(plain_repo.root)
    before = {path: path.read_bytes() for path in plain_repo.root.rglob(".asv/**/*.json")}
    run = plain_repo.run("--gate-history", "-v", "--report=site")
    assert run.code == 0, run.output
    assert "24 results of asv in .asv, read only" in run.output
    assert "sorts.time_sort(10)" in run.output
    assert "+30" in run.output, "the step is named"
    assert "sorts.time_sort(10)" in (plain_repo.root / "site" / "history.html").read_text()
    assert before == {path: path.read_bytes() for path in before}
