"""Contention is told where there is some, and what a process started itself is none."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from proofline import contention
from proofline.contention import Watch, judged

QUIET = {"others_cores": 0.02, "steal": 0.0, "involuntary_switches_per_s": 2.0}
BUSY_LOOP = "import sys\nsys.stdout.write('x'); sys.stdout.flush()\nwhile True: pass"


def busy_process() -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([sys.executable, "-c", BUSY_LOOP], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read(1)
    return process


def stat_file(path: Path, user: int, steal: int) -> Path:
    path.write_text(f"cpu  {user} 0 0 1000 0 0 0 {steal} 0 0\ncpu0 0 0\n", encoding="ascii")
    return path


@pytest.mark.parametrize(
    ("sign", "value", "why"),
    [
        ("others_cores", 1.0, "other processes kept 1.00 cores busy"),
        ("steal", 0.2, "the hypervisor took 20% of the machine's time"),
        ("involuntary_switches_per_s", 500.0, "made room for others 500 times a second"),
    ],
)
def test_each_sign_alone_is_contention_and_is_said_in_words(sign: str, value: float, why: str) -> None:
    assert judged(QUIET) == {"contended": False, "why": ""}
    assert judged({**QUIET, sign: value}) == {"contended": True, "why": why}


def test_making_room_for_ones_own_children_is_no_contention() -> None:
    busy = {**QUIET, "involuntary_switches_per_s": 2000.0}
    assert not judged({**busy, "children_cores": 0.6})["contended"]
    assert judged({**busy, "children_cores": 0.01})["contended"]
    assert judged({**busy, "others_cores": 1.0, "children_cores": 0.6})["why"] == "other processes kept 1.00 cores busy"


def test_what_others_do_meanwhile_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    before, _ = contention._own_s()
    process = busy_process()
    try:
        time.sleep(0.4)
        assert contention._own_s()[0] - before > 0.05, "the CPU time of a living child should count as its parent's"
    finally:
        process.kill()
        process.communicate()


def test_what_a_child_waited_for_stays_its_work() -> None:
    """The times of a process that has ended are its parent's: they must not vanish from the parent's sum."""
    work = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    code = (
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {work!r}])\nprint(end='x', flush=True)\ninput()"
    )
    before, _ = contention._own_s()
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.read(1)
        spent = contention._own_s()[0] - before
        assert spent > 0.25, f"a child's child worked for 0.3 s and has ended, but {spent:.2f} s are told"
    finally:
        child.kill()
        child.communicate()


def test_without_proc_nothing_is_guessed(tmp_path: Path) -> None:
    seen = Watch(tmp_path / "absent").stop()
    assert (seen["steal"], seen["others_cores"]) == (None, None)
