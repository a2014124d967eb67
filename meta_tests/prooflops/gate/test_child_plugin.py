"""What a fresh process leaves for the gate, with the plugin and without it."""

import inspect
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from meta_tests.conftest import ROOT
from meta_tests.prooflops.gate.without_processes import config
from prooflops.gate.child_plugin import RECORD, TASK, Replicate, look_between_rounds
from prooflops.gate.processes import ReplicateFailed, Replicates, Side

TESTS = """
import numpy

def test_timed(benchmark):
    benchmark.extra_info["flops"] = numpy.int64(7)
    benchmark.pedantic(sum, args=([1, 2],), rounds=5)

def test_not_asked_for(benchmark):
    benchmark(sum, [1, 2])
"""

BRIEF = {"": {"max_time": 0.01, "min_rounds": 2}}  # of every benchmark


class Item(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def item(name: str, *fixtures: str, marker: pytest.Mark | None = None) -> Any:
    """A test, with what the gate's plugin asks of it."""
    markers: list[Any] = []
    plugins = SimpleNamespace(hasplugin=lambda _: False)
    return Item(
        nodeid=name, fixturenames=fixtures, funcargs={}, get_closest_marker=lambda _: marker, markers=markers,
        add_marker=lambda mark, append: markers.append((mark.args, mark.kwargs, append)),
        config=SimpleNamespace(pluginmanager=plugins),
    )  # fmt: skip


def chosen(ids: list[str] | None, benchmarks_only: bool, items: list[Any], *given: str) -> tuple[Replicate, list[str]]:
    """The plugin, and what was deselected; the rest stays in `items`."""
    paces = {"": {"max_time": 1.0, "min_rounds": 3}, "b": {"max_time": 2.0}}
    replicate = Replicate(ids, benchmarks_only, paces, [], set(given), None, 1.0, None)
    dropped: list[str] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: dropped.append(" ".join(each.nodeid for each in items)))
    replicate.pytest_collection_modifyitems(SimpleNamespace(hook=hook), items)  # type: ignore[arg-type]
    return replicate, dropped


def test_what_was_asked_for_is_kept_and_paced_where_its_marker_does_not_pace_it() -> None:
    own = pytest.mark.benchmark("x", max_time=0.5).mark
    items = [item("a", "benchmark"), item("b", "benchmark"), item("c"), item("d", "benchmark", marker=own)]
    whole = list(items)
    assert chosen(None, False, items)[1] == []
    assert items == whole
    assert [each.markers for each in items] == [
        [((), {"max_time": 1.0, "min_rounds": 3}, False)], [((), {"max_time": 2.0}, False)], [],
        [(("x",), {"max_time": 0.5, "min_rounds": 3}, False)],
    ]  # fmt: skip
    assert chosen(None, True, items)[1] == ["c"]
    replicate, dropped = chosen(["b", "c", "d"], True, items := list(whole), "max_time")
    assert (dropped, [each.nodeid for each in items]) == (["a c"], ["b", "d"])
    assert [len(each.markers) for each in items] == [2, 3], "nothing is left to choose for b"
    assert [replicate.is_fixed(each) for each in items] == [True, True]
    assert not chosen(None, True, items)[0].is_fixed(whole[0])


def test_the_speed_of_the_core_is_looked_at_around_a_benchmark_and_between_its_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replicate, _ = chosen(None, True, [])
    did: list[str] = []
    speed: Any = SimpleNamespace(
        begin=lambda: did.append("begin"),
        look=lambda last=False: did.append("last" if last else "look"),
        stretch_s=7.0,
        own_switches=0,
    )
    replicate.speed = speed
    for each in (item("a", "benchmark"), item("c")):
        call = replicate.pytest_runtest_call(each)
        next(call)
        did.append("call")
        assert next(call, None) is None
    assert did == ["begin", "look", "call", "last", "call"]
    assert replicate.calls.keys() == replicate.contention.keys() == {"a"}
    assert replicate.calls["a"]["stretch_s"] == 7.0
    assert 0 < replicate.calls["a"]["seconds"] < 60
    hook = SimpleNamespace(pytest_report_to_serializable=lambda config, report: (config.hook is hook, report))
    report = replicate.pytest_runtest_makereport(SimpleNamespace(config=SimpleNamespace(hook=hook)))  # type: ignore[arg-type]
    next(report)
    with pytest.raises(StopIteration):
        report.send(SimpleNamespace(get_result=lambda: "report"))
    assert replicate.reports == [(True, "report")], "what other plugins may add to"
    fixture: Any = type("Fixture", (), {"_make_runner": lambda self, *args: lambda *rest, **named: (args, rest, named)})
    monkeypatch.setattr("pytest_benchmark.fixture.BenchmarkFixture", fixture)
    did.clear()
    look_between_rounds(speed)
    benchmark = fixture()
    run = benchmark._make_runner(1)
    assert run(2, timer=3) == ((1,), (2,), {"timer": 3})
    assert did == [], "calibration is no round"
    benchmark.stats = object()
    for _ in range(2):
        run()
    benchmark.stats = object()
    run()
    assert did == ["begin", "look", "look", "begin", "look"]
    monkeypatch.delattr(fixture, "_make_runner")
    look_between_rounds(speed)
    assert not hasattr(fixture, "_make_runner"), "a look before and after must do"


def test_the_record_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RECORD, str(tmp_path / "record.json"))
    replicate, _ = chosen(None, True, [])
    stats, gone = SimpleNamespace(min=0.5), list[str]()
    benches = [
        None,
        SimpleNamespace(has_error=True, fullname="failed"),
        SimpleNamespace(has_error=False, fullname="a", stats=stats, extra_info={"flops": 7}),
    ]
    plugins = SimpleNamespace(unregister=lambda name: gone.append(name))
    run: Any = SimpleNamespace(pluginmanager=plugins, _benchmarksession=SimpleNamespace(benchmarks=benches))
    replicate.contention["a"] = {"contended": False}
    theirs: list[dict[str, Any]] = [{"fullname": "the plugin's", "extra_info": {}}]
    for imported in (True, False):
        if not imported:
            monkeypatch.delitem(sys.modules, "hypothesis")
            run._benchmarksession = None
            (tmp_path / "record.json").write_text(json.dumps({"benchmarks": theirs}))
        else:
            monkeypatch.setitem(sys.modules, "hypothesis", SimpleNamespace())  # type: ignore[arg-type]
        finish = replicate.pytest_sessionfinish(SimpleNamespace(config=run))  # type: ignore[arg-type]
        next(finish)
        assert next(finish, None) is None
        record = json.loads((tmp_path / "record.json").read_text())
        if imported:
            extra = {"flops": 7, "contention": {"contended": False}}
            assert record["benchmarks"] == [{"fullname": "a", "stats": {"min": 0.5}, "extra_info": extra}]
    assert record["benchmarks"] == theirs
    assert gone == ["hypothesispytest"], "its plugin imports all of it at the end, for nothing"
    assert record["replicate"]["was_fast"] is False
    assert record["replicate"]["prefix"] == sys.prefix
    assert replicate.benchmarks(run) == []
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]
    assert (RECORD, TASK) == ("PROOFLOPS_RECORD_TO", "PROOFLOPS_GATE_TASK")


LEAVING = """
import atexit
import os
from pathlib import Path

class Slow:
    def __del__(self, mkdir=os.mkdir):
        mkdir("cleared")

slow = Slow()

def test_timed(benchmark):
    atexit.register(Path("registered").touch)
    benchmark(sum, [1, 2])
    assert 1 + 1 == 3
"""


def test_a_process_ends_with_its_own_code_after_what_tests_registered_and_clears_no_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, process = list[Any](), Replicates._process
    monkeypatch.setattr(Replicates, "_process", lambda *given: started.append(process(*given)) or started[-1])
    (tmp_path / "test_it.py").write_text(LEAVING)
    side = Side("here", sys.executable, tmp_path, paths=(str(tmp_path), str(ROOT)))
    with Replicates(config(tmp_path), limit_s=60) as replicates:
        done = replicates.run(side, ["test_it.py"], None)
        printed = (replicates.folder / "0001.txt").read_text()
    assert [report["outcome"] for report in done.reports if report["when"] == "call"] == ["failed"]
    assert "1 failed" in printed
    assert [process.returncode for process in started] == [1]
    assert {path.name for path in tmp_path.iterdir()} >= {"test_it.py", "registered"}
    assert not (tmp_path / "cleared").exists()


@pytest.mark.parametrize("plugin", ["prooflops.plugin", "no:prooflops.plugin"])
def test_one_file_has_what_comparing_needs_with_the_plugin_and_without(
    tmp_path: Path, plugin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr("prooflops.gate.processes.passed_on", lambda _: ["-p", plugin])
    (tmp_path / "test_it.py").write_text(TESTS)
    if plugin.startswith("no:"):
        (tmp_path / "prooflops.py").write_text("raise ImportError('not on this side')\n")
    side = Side("here", sys.executable, tmp_path, paths=(str(tmp_path),))
    with Replicates(config(tmp_path), limit_s=60) as replicates:
        done = replicates.run(side, ["test_it.py"], ["test_it.py::test_timed"])
        left = [path.name for path in replicates.folder.iterdir() if path.name.startswith("0001")]
    assert sorted(left) == ["0001.json", "0001.task", "0001.txt"]
    assert (done.fingerprint is None) == plugin.startswith("no:")
    (benchmark,) = done.record["benchmarks"]
    assert (benchmark["fullname"], benchmark["extra_info"]["flops"]) == ("test_it.py::test_timed", 7)
    assert benchmark["stats"]["min"] > 0
    assert "contended" in benchmark["extra_info"]["contention"]
    assert {report["nodeid"] for report in done.reports} == {"test_it.py::test_timed"}
    assert "test_it" in done.modules


def test_the_processes_of_a_pair_share_their_hash_seed_and_other_pairs_have_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    monkeypatch.setattr("prooflops.gate.processes.PATIENCE", 0)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr("prooflops.gate.processes.passed_on", lambda _: ["-p", "prooflops.plugin"])
    body = (
        "benchmark.extra_info['flops'] = hash('a')",
        "benchmark(sum, [1])",
        "assert 'PYTHONHASHSEED' not in os.environ",
    )
    (tmp_path / "test_it.py").write_text("\n    ".join(["import os\ndef test_timed(benchmark):", *body]))
    side = Side("here", sys.executable, tmp_path)
    with Replicates(config(tmp_path), limit_s=60) as replicates:
        done = []
        for _ in range(2):
            replicates.share_hash_seed()
            done += [replicates.run(side, ["test_it.py"], None, paces=BRIEF) for _ in range(2)]
    hashes = [each.record["benchmarks"][0]["extra_info"]["flops"] for each in done]
    assert hashes[0] == hashes[1] != hashes[2] == hashes[3]
    assert [report["outcome"] for each in done for report in each.reports if report["when"] == "call"] == ["passed"] * 4
    prints = [each.fingerprint for each in done]
    assert prints == [prints[0]] * 4, "the seed of a pair counts as a setting of the machine"


@pytest.mark.parametrize("own", ["", "/tmp"])
def test_processes_that_may_write_no_bytecode_share_what_the_first_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    if own:
        monkeypatch.setenv("PYTHONPYCACHEPREFIX", own)
    (tmp_path / "work.py").write_text("def busy():\n    pass\n")
    body = (
        "benchmark(work.busy)",
        "assert os.environ['PYTHONDONTWRITEBYTECODE'] == '1'",
        f"assert os.environ.get('PYTHONPYCACHEPREFIX', '') == {own!r}",
    )
    (tmp_path / "test_it.py").write_text("\n    ".join(["import os, work\ndef test_timed(benchmark):", *body]))
    with Replicates(config(tmp_path), limit_s=60) as replicates:
        done = replicates.run(Side("here", sys.executable, tmp_path), ["test_it.py"], None, paces=BRIEF)
        compiled = [path.name.partition(".")[0] for path in replicates.folder.glob(f"bytecode/{tmp_path}/*.pyc")]
    assert [report["outcome"] for report in done.reports if report["when"] == "call"] == ["passed"], done.reports
    assert sorted(compiled) == ([] if own else ["test_it", "work"])
    assert not list(tmp_path.rglob("*.pyc")), "the project asked for none in its folders"


def test_preemptions_that_looking_at_the_cores_brings_about_are_no_contention(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("""
import time
from prooflops_gate import contention, core_speed

look, switches = core_speed.CoreSpeed.look, [0]

def and_preempt(self, **options):
    look(self, **options)
    self.own_switches += 1000
    switches[0] += 1000

core_speed.CoreSpeed.look = and_preempt
contention.involuntary_switches = lambda: switches[0]
""")
    lines = ["def test_{0}(benchmark):", "    benchmark.pedantic(time.sleep, args=(0.03,), rounds=5)"]
    lines += ["    switches[0] += {1}", ""]
    text = "\n".join(lines)
    head = "import time\nfrom conftest import switches\n"
    (tmp_path / "test_it.py").write_text(head + text.format("quiet", 0) + text.format("preempted", 500))
    with Replicates(config(tmp_path), limit_s=60) as replicates:
        done = replicates.run(Side("here", sys.executable, tmp_path), ["test_it.py"], None, paces=BRIEF)
    why = {bench["fullname"]: bench["extra_info"]["contention"]["why"] for bench in done.record["benchmarks"]}
    assert len(why) == 2
    assert "preempted" not in why["test_it.py::test_quiet"]
    assert "preempted" in why["test_it.py::test_preempted"]


def test_a_benchmark_beside_which_the_core_never_ran_as_fast_as_before_is_labelled(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_timed(benchmark):\n    benchmark(sum, [1, 2])\n")
    side = Side("here", sys.executable, tmp_path)
    with Replicates(config(tmp_path), limit_s=60) as replicates:
        first = replicates.run(side, ["test_it.py"], None, paces=BRIEF)
        assert 0 < replicates._patience_s <= 2 * first.wall_s
        replicates._fastest_s["here"] /= 100  # as if an earlier process had seen such a core
        replicates._patience_s = 0.02
        then = replicates.run(side, ["test_it.py"], None, paces=BRIEF)
    assert replicates._patience_s == 0.01, "the next process should wait for half as long"
    assert first.calls["test_it.py::test_timed"]["stretch_s"] < 1.0
    (benchmark,) = then.record["benchmarks"]
    contention = benchmark["extra_info"]["contention"]
    assert contention["contended"], contention
    assert "of its speed" in contention["why"], contention


def test_a_file_that_cannot_be_collected_is_named_with_its_error(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("raise RuntimeError('broken on purpose')\n")
    with Replicates(config(tmp_path), limit_s=60) as replicates, pytest.raises(ReplicateFailed) as failed:
        replicates.run(Side("here", sys.executable, tmp_path), ["test_it.py"], None)
    assert "replicate 1 (here:" in str(failed.value)
    assert "ended with exit code 2" in str(failed.value)
    assert "broken on purpose" in str(failed.value)
    replicate, _ = chosen(None, True, [])
    for is_broken in (True, False):
        report: Any = SimpleNamespace(failed=is_broken, nodeid="test_it.py", longreprtext="broken on purpose")
        replicate.pytest_collectreport(report)
    assert replicate.errors == ["test_it.py: broken on purpose"], "shown in place of all that was printed"


PACED = """
import pytest

def test_plain(benchmark):
    benchmark(sum, [1, 2])

@pytest.mark.benchmark(max_time=0.002, group="own")
def test_own(benchmark):
    benchmark(sum, [1, 2])

def test_pedantic(benchmark):
    benchmark.pedantic(sum, args=([1, 2],), rounds=7)
"""


@pytest.mark.parametrize("given", [(), ("--benchmark-max-time=0.003",)])
def test_the_gate_paces_what_neither_the_project_nor_the_command_line_does(
    tmp_path: Path, given: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr("prooflops.gate.processes.passed_on", lambda _: ["-p", "prooflops.plugin", *given])
    (tmp_path / "test_it.py").write_text(PACED)
    with Replicates(config(tmp_path), limit_s=60) as replicates:
        done = replicates.run(Side("here", sys.executable, tmp_path), ["test_it.py"], None, paces=BRIEF)
    found = {bench["name"]: bench for bench in done.record["benchmarks"]}
    assert found["test_plain"]["options"]["max_time"] == (0.003 if given else 0.01)
    assert found["test_plain"]["options"]["min_rounds"] == 2
    assert (found["test_own"]["options"]["max_time"], found["test_own"]["group"]) == (0.002, "own")
    assert found["test_pedantic"]["stats"]["rounds"] == 7
    assert {name.partition("::")[2]: call["fixed"] for name, call in done.calls.items()} == {
        "test_plain": bool(given),
        "test_own": True,
        "test_pedantic": True,
    }
    assert 0 < sum(call["seconds"] for call in done.calls.values()) < done.wall_s


OBEYING = """
def test_obeys(benchmark, request, gate_replicate):
    seconds, least_rounds, examined = gate_replicate.pace(request.node)
    if not examined:
        gate_replicate.leave_out(request.node, 1000.0)
    benchmark.extra_info["asked"] = [seconds, least_rounds, examined]
    benchmark.pedantic(sum, args=([1, 2],), rounds=least_rounds)
"""


def test_a_benchmark_that_chooses_its_own_rounds_may_ask_for_the_pace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr("prooflops.gate.processes.passed_on", lambda _: ["-p", "prooflops.plugin"])
    (tmp_path / "test_it.py").write_text(OBEYING)
    with Replicates(config(tmp_path), limit_s=60) as replicates:
        for examined in (False, True):
            done = replicates.run(Side("here", sys.executable, tmp_path), ["test_it.py"], None, paces=BRIEF)
            (benchmark,) = done.record["benchmarks"]
            assert benchmark["extra_info"]["asked"] == [0.01, 2, examined]
            call = done.calls["test_it.py::test_obeys"]
            assert (call["fixed"], call["once_s"]) == (False, 0.0 if examined else 1000.0)
            # A thousand seconds are more than the call took.
            assert (call["seconds"] > 0) is examined, "the plan takes the examination for what every process costs"
            replicates.examined = ["test_it.py::test_obeys"]
        unpaced = replicates.run(Side("here", sys.executable, tmp_path), ["test_it.py"], None)
    assert "'NoneType' object has no attribute 'pace'" in str(unpaced.reports), "a process without a pace asks for one"


FORMS = """
import asyncio
import pytest

async def work(n=20):
    await asyncio.sleep(0)
    return sum(range(n))

@pytest.fixture(scope="module")
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()

@pytest.fixture
def bench(benchmark):
    return benchmark

@pytest.fixture
def run_async(benchmark, loop):
    return lambda call: benchmark(lambda: loop.run_until_complete(call()))

def test_async(benchmark, loop):
    assert benchmark(lambda: loop.run_until_complete(work())) == 190

def test_async_by_a_fixture(run_async):
    run_async(work)

class TestClass:
    n = 3

    @pytest.mark.benchmark(group="sums")
    @pytest.mark.parametrize("size", [1, 2], ids=["one", "two, with a space"])
    def test_in_a_class(self, benchmark, size):
        benchmark(sum, range(self.n * size))

@pytest.mark.benchmark(group="own", warmup=True)
def test_by_a_fixture_of_its_own(bench):
    bench(sum, [1, 2])

def test_pedantic_with_a_setup(benchmark):
    benchmark.extra_info["flops"] = 2
    benchmark.pedantic(sum, setup=lambda: (([1, 2],), {}), teardown=lambda values: None, rounds=4)

@pytest.mark.benchmark
def test_marked_only():
    assert sum([1, 2]) == 3

@pytest.mark.benchmark(group="named")
class TestMarkedOnly:
    def test_it(self):
        assert sum([1, 2]) == 3
"""
TEARDOWN = "teardown=lambda values: None, "


def test_every_form_of_a_benchmark_is_measured_and_paced_unless_its_rounds_are_fixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr("prooflops.gate.processes.passed_on", lambda _: ["-p", "prooflops.plugin"])
    has_teardown = "teardown" in inspect.signature(BenchmarkFixture.pedantic).parameters  # not pytest-benchmark 5.0
    (tmp_path / "test_it.py").write_text(FORMS if has_teardown else FORMS.replace(TEARDOWN, ""))
    with Replicates(config(tmp_path), limit_s=60) as replicates:
        side = Side("here", sys.executable, tmp_path)
        done = replicates.run(side, ["test_it.py"], None, paces=BRIEF)
        chosen = list(done.calls)
        again = replicates.run(side, ["test_it.py"], chosen, paces=BRIEF)
    assert not [report for report in done.reports if report["outcome"] != "passed"]
    assert {name.partition("::")[2]: call["fixed"] for name, call in done.calls.items()} == {
        "test_async": False,
        "test_async_by_a_fixture": False,
        "TestClass::test_in_a_class[one]": False,
        "TestClass::test_in_a_class[two, with a space]": False,
        "test_by_a_fixture_of_its_own": False,
        "test_pedantic_with_a_setup": True,
    }
    assert list(again.calls) == chosen, "the ids of the first process do not select the same tests"
    found = {bench["name"]: bench for bench in done.record["benchmarks"]}
    assert len(found) == len(chosen)
    assert {bench["options"]["max_time"] for bench in found.values()} == {0.01}
    assert found["test_by_a_fixture_of_its_own"]["group"] == "own"
    assert found["test_pedantic_with_a_setup"]["extra_info"]["flops"] == 2


IN_TURN = """
import time
from pathlib import Path
import pytest

LOG = Path(__file__).parent.parent / "log"
SIDE = Path(__file__).parent.name

def note(what):
    with LOG.open("a") as log:
        log.write(f"{SIDE} {what} {time.monotonic()}\\n")

@pytest.fixture
def prepared():
    note("begins")
    time.sleep(0.02)
    yield
    time.sleep(0.02)
    note("ends")

@pytest.mark.parametrize("number", range(3))
def test_it(benchmark, prepared, number):
    benchmark(sum, [1, 2])
"""
LOCKED = """
import os
import time

while True:
    try:
        os.mkdir("../lock")
        break
    except FileExistsError:
        time.sleep(0.01)

def test_it(benchmark):
    benchmark(sum, [1, 2])
"""
FINISHED = "from test_it import note\ndef pytest_sessionfinish(session):\n    note('finishes')\n"


def test_two_processes_run_one_test_at_a_time_with_its_fixtures_and_the_other_side_first_with_each(
    tmp_path: Path,
) -> None:
    sides = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "test_it.py").write_text(IN_TURN)
        (tmp_path / name / "conftest.py").write_text(FINISHED)
        sides.append(Side(name, sys.executable, tmp_path / name, paths=(str(tmp_path / name),)))
    ids = [f"test_it.py::test_it[{number}]" for number in range(3)]
    with Replicates(config(tmp_path), limit_s=60) as replicates:
        done = replicates.run_in_turn([(side, ["test_it.py"]) for side in sides], ids, BRIEF, 60)
    log = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert [each[:2] for each in log[:12]] == [
        [side, what] for side in ("a", "b", "b", "a", "a", "b") for what in ("begins", "ends")
    ]
    assert sorted(each[:2] for each in log[12:]) == [["a", "finishes"], ["b", "finishes"]]
    assert [each.side for each in done] == sides
    assert [[bench["fullname"] for bench in each.record["benchmarks"]] for each in done] == [ids, ids]
    shared_s = float(log[11][2]) - float(log[0][2])
    assert all(each.wall_s > 0 for each in done)
    assert max(each.footprint["peak_bytes"] for each in done) > 1e6
    alone_s = sum(float(end[2]) - float(begin[2]) for begin, end in zip(log[:12:2], log[1:12:2], strict=True)) / 2
    assert shared_s > 1.5 * alone_s


def test_a_pair_in_which_one_waits_for_what_the_other_holds_is_ended(tmp_path: Path) -> None:
    sides = [Side(name, sys.executable, tmp_path / name, paths=(str(tmp_path / name),)) for name in ("a", "b")]
    for side in sides:
        side.root.mkdir()
        (side.root / "test_it.py").write_text(LOCKED)
    with Replicates(config(tmp_path), limit_s=60) as replicates:
        began = time.monotonic()
        with pytest.raises(ReplicateFailed):
            replicates.run_in_turn([(side, ["test_it.py"]) for side in sides], ["test_it.py::test_it"], BRIEF, 4.0)
        assert 4 <= time.monotonic() - began < 30
