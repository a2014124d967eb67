"""Contention by other processes is reported, that by a process's own is not; and a call's instructions are counted."""

import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta_tests.conftest import ROOT
from prooflops.machine import contention, instructions
from prooflops.machine.contention import Watch, label_contention
from prooflops.machine.instructions import EMPTY_CALLS, call_counted, is_permitted

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


@given(
    others=st.floats(0, 200), steal=st.floats(0, 1), switches=st.floats(0, 1e5), children=st.floats(0, 4),
    cores=st.integers(1, 256),
)  # fmt: skip
def test_each_sign_above_its_limit_is_contention_and_is_said_in_words(
    others: float, steal: float, switches: float, children: float, cores: int
) -> None:
    found = label_contention({
        "others_cores": others, "steal": steal, "involuntary_switches_per_s": switches, "children_cores": children,
        "cores": cores,
    })  # fmt: skip
    signs = {
        "other processes kept": others > max(0.25, cores / 32),
        "the hypervisor took": steal > 0.05,
        "was preempted": switches > 100 and children < 0.01,  # by its own children it is no contention
    }
    assert found["contended"] is any(signs.values())
    assert all((text in found["why"]) is seen for text, seen in signs.items())


def stat_file(path: Path, user: int, steal: int) -> Path:
    path.write_text(f"cpu  {user} 0 0 1000 0 0 0 {steal} 0 0\ncpu0 0 0\n", encoding="ascii")
    return path


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


def test_the_work_of_this_process_is_not_that_of_others(tmp_path: Path) -> None:
    file = stat_file(tmp_path / "stat", user=0, steal=0)
    watch, start = Watch(file), time.process_time()
    while time.process_time() - start < 0.2:
        pass
    stat_file(file, user=20, steal=0)  # the same 0.2 s
    seen = watch.stop()
    assert seen["others_cores"] < 0.1, f"{seen}"
    assert seen["cpu_over_wall"] > 0.1


def test_a_process_that_this_one_started_is_its_own_work() -> None:
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


def test_without_proc_nothing_is_guessed(tmp_path: Path) -> None:
    seen = Watch(tmp_path / "absent").stop()
    assert (seen["steal"], seen["others_cores"]) == (None, None)
    assert seen["cores"] == (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())


# ---- instructions ------------------------------------------------------------------------------------------------

# Readings around empty calls of 250 instructions, one of which was disturbed.
EMPTY = [
    reading for number in range(EMPTY_CALLS) for reading in (1000 * number, 1000 * number + 250 + 99 * (number == 2))
]


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives the system a counter with these readings: (instructions, time enabled, time running); none refuses it."""

    def readings(*made: Sequence[int]) -> None:
        source, sink = os.pipe()
        os.write(sink, b"".join(struct.pack("=QQQ", *each) for each in made))
        os.close(sink)
        monkeypatch.setattr(instructions, "_system_call", lambda *_: source if made else -1)
        monkeypatch.setattr("sys.platform", "linux")
        monkeypatch.setattr("platform.machine", lambda: "x86_64")

    return readings


@pytest.mark.parametrize(
    ("readings", "found"),
    [
        ([(10_000, 5, 5), (11_250, 5, 5)], 1000),  # less those of an empty call
        ([(10_000, 9, 9), (11_250, 20, 15)], None),  # other counters had the hardware meanwhile
        ([], None),  # it ended
    ],
)
def test_a_call_retires_the_counted_instructions_less_an_empty_calls(
    count: Callable[..., None], readings: list[Sequence[int]], found: int | None
) -> None:
    count(*((value, 5, 5) for value in EMPTY), *readings)
    assert call_counted(sorted, [2, 1], reverse=False) == ([1, 2], found)


def test_a_call_is_made_once_if_counting_is_not_permitted(count: Callable[..., None]) -> None:
    count()
    calls: list[int] = []
    assert call_counted(calls.append, 1) == (None, None)
    assert (calls, is_permitted()) == ([1], False)


def test_an_error_of_the_function_is_its_own_and_closes_the_counter(count: Callable[..., None]) -> None:
    count(*((value, 5, 5) for value in [*EMPTY, 10_000]))
    before = len([*Path("/dev/fd").iterdir()])
    with pytest.raises(ZeroDivisionError):
        call_counted(divmod, 1, 0)
    assert len([*Path("/dev/fd").iterdir()]) == before - 1


def test_this_machine_counts_more_for_more_work_if_it_permits_counting() -> None:
    if not is_permitted():
        pytest.skip("this system doesn't permit perf_event_open, or has no counter of instructions")
    few, many = (call_counted(sum, range(count))[1] for count in (10_000, 20_000))
    assert few
    assert many
    assert 1.9 < many / few < 2.1
