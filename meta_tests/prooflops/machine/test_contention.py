"""Contention is reported where there is some, and what a process started itself is none."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from meta_tests.conftest import ROOT
from prooflops.machine import contention
from prooflops.machine.contention import Watch, label_contention

QUIET = {"others_cores": 0.02, "steal": 0.0, "involuntary_switches_per_s": 2.0}
WORK = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
HAS_WORKED = f"{WORK}\nprint(end='x', flush=True)\ninput()"  # and lives on


@contextmanager
def child(code: str, **environment: str) -> Iterator["subprocess.Popen[str]"]:
    """A process that runs `code`, from its first output to the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, **environment}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        process.stdout.read(1)
        yield process
    finally:
        process.kill()
        process.communicate()


def stat_file(path: Path, user: int, steal: int) -> Path:
    path.write_text(f"cpu  {user} 0 0 1000 0 0 0 {steal} 0 0\ncpu0 0 0\n", encoding="ascii")
    return path


@pytest.mark.parametrize(
    ("sign", "value", "why"),
    [
        ("others_cores", 1.0, "other processes kept 1.00 cores busy"),
        ("steal", 0.2, "the hypervisor took 20% of the machine's time"),
        ("involuntary_switches_per_s", 500.0, "was preempted 500 times a second"),
    ],
)
def test_each_sign_alone_is_contention_and_is_said_in_words(sign: str, value: float, why: str) -> None:
    assert label_contention(QUIET) == {"contended": False, "why": ""}
    assert label_contention({**QUIET, sign: value}) == {"contended": True, "why": why}


def test_being_preempted_by_ones_own_children_is_no_contention() -> None:
    busy = {**QUIET, "involuntary_switches_per_s": 2000.0}
    assert not label_contention({**busy, "children_cores": 0.6})["contended"]
    assert label_contention({**busy, "children_cores": 0.001})["contended"]
    assert (
        label_contention({**busy, "others_cores": 1.0, "children_cores": 0.6})["why"]
        == "other processes kept 1.00 cores busy"
    )


def test_what_others_do_meanwhile_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "SHORTEST_S", 0.0)
    file = stat_file(tmp_path / "stat", user=0, steal=0)
    watch = Watch(file)
    time.sleep(0.2)
    stat_file(file, user=40, steal=10)  # 0.4 s of work in 0.2 s
    seen = watch.stop()
    assert seen["contended"]
    assert 0.3 < seen["others_cores"] <= 2.0, f"others kept {seen['others_cores']} cores busy, should 2 or less"
    assert seen["steal"] == 0.2


def test_a_process_that_this_one_started_is_its_own_work() -> None:
    (before, _), start = contention._own_s(), time.process_time()
    while time.process_time() - start < 0.15:
        pass
    spent = contention._own_s()[0] - before
    assert abs(spent - 0.15) < 0.05, f"{spent:.2f} s are counted of 0.15 s of work"
    before, _ = contention._own_s()
    with child(HAS_WORKED):
        assert contention._own_s()[0] - before > 0.25, "the CPU time of a living child should count as its parent's"


def test_what_a_child_waited_for_stays_its_work() -> None:
    """The times of a process that has ended are its parent's: they must not vanish from the parent's sum."""
    before, _ = contention._own_s()
    waiting = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {WORK!r}])"
    with child(f"{waiting}\nprint(end='x', flush=True)\ninput()"):
        spent = contention._own_s()[0] - before
        assert spent > 0.25, f"a child's child worked for 0.3 s and has ended, but {spent:.2f} s are counted"


def own_work_of_a_rank(ranks: str, meanwhile: Callable[[], object], work: str = "") -> float:
    """The seconds that a process of a job of so many on this host, started by this process, takes for its own work."""
    code = (
        "from prooflops.machine import contention\n"
        "before, _ = contention._own_s()\nprint(end='x', flush=True)\ninput()\n"
        f"{work}\nprint(contention._own_s()[0] - before)"
    )
    with child(code, LOCAL_WORLD_SIZE=ranks) as rank:
        meanwhile()
        return float(rank.communicate("\n", timeout=60)[0])


def test_the_other_ranks_of_a_job_are_no_rivals() -> None:
    with ExitStack() as living:
        in_a_job, by_itself = (
            own_work_of_a_rank(ranks, lambda: living.enter_context(child(HAS_WORKED))) for ranks in ("2", "1")
        )
    assert in_a_job > 0.25, f"a rank that worked for 0.3 s beside an idle one: {in_a_job:.2f} s are counted"
    assert by_itself < 0.05, f"a process that is no rank counts {by_itself:.2f} s of another's work as its own"


def test_a_rank_that_has_ended_stays_the_jobs_work() -> None:
    own_s = own_work_of_a_rank("2", lambda: subprocess.run([sys.executable, "-c", WORK], check=True))
    assert own_s > 0.25, f"another rank worked for 0.3 s and has ended, but {own_s:.2f} s are counted"


def test_a_rank_counts_its_own_work_once() -> None:
    own_s = own_work_of_a_rank("2", lambda: None, work=WORK)
    assert 0.25 < own_s < 0.45, f"a rank that worked for 0.3 s counts {own_s:.2f} s"


@pytest.mark.parametrize(
    ("cores", "others_cores", "contended"),
    [(2, 0.24, False), (2, 0.26, True), (8, 0.26, True), (128, 3.9, False), (128, 4.1, True)],
)
def test_what_others_may_take_grows_with_the_cores(cores: int, others_cores: float, contended: bool) -> None:
    assert label_contention({**QUIET, "cores": cores, "others_cores": others_cores})["contended"] is contended


def test_the_cores_that_this_process_may_use_are_reported() -> None:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert Watch().stop().get("cores") == usable


def test_without_proc_nothing_is_guessed(tmp_path: Path) -> None:
    seen = Watch(tmp_path / "absent").stop()
    assert (seen["steal"], seen["others_cores"]) == (None, None)
