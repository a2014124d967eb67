"""Contention by other processes is reported, that by own children is not."""

import os
import subprocess
import sys
import time
from subprocess import PIPE

from hypothesis import given
from hypothesis import strategies as st

from prooflops_gate.machine import contention
from prooflops_gate.machine.contention import Watch, label_contention

WORK = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
# And lives on.
HAS_WORKED = f"{WORK}\nprint(end='x', flush=True)\nimport sys\nsys.stdin.read()"


@given(
    others=st.floats(0, 200),
    steal=st.floats(0, 1),
    switches=st.floats(0, 1e5),
    children=st.floats(0, 4),
    cores=st.integers(1, 256),
    stopped=st.none() | st.floats(0, 8),
)
def test_each_sign_above_its_limit_is_contention_and_is_said_in_words(
    others, steal, switches, children, cores, stopped
):
    found = label_contention(
        {
            "others_cores": others,
            "steal": steal,
            "involuntary_switches_per_s": switches,
            "children_cores": children,
            "cores": cores,
            "stopped_cores": stopped,
        }
    )
    signs = {
        "other processes kept": others > max(0.25, cores / 32),
        "the hypervisor took": steal > 0.05,
        "was preempted": switches > 100
        # Its own children are no contention.
        and children < 0.01,
        "the container's CPU quota stopped": (stopped or 0) > 0.01,
    }
    assert found["contended"] is any(signs.values())
    assert all((text in found["why"]) is seen for text, seen in signs.items())


def write_stat(root, user, steal):
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/stat").write_text(
        f"cpu  {user} 0 0 1000 0 0 0 {steal} 0 0\ncpu0 0 0\n", encoding="ascii"
    )


def test_what_others_do_meanwhile_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(contention, "SHORTEST_S", 0.0)
    write_stat(tmp_path, user=0, steal=0)
    watch = Watch(tmp_path)
    time.sleep(0.2)
    # 0.4 s of work in 0.2 s.
    write_stat(tmp_path, user=40, steal=10)
    seen = watch.stop()
    assert seen["contended"]
    assert 0.3 < seen["others_cores"] <= 2.0
    assert seen["steal"] == 0.2


def test_a_process_that_this_one_started_is_its_own_work():
    began = time.perf_counter()
    watch = Watch()
    with subprocess.Popen(
        [sys.executable, "-c", HAS_WORKED], text=True, stdin=PIPE, stdout=PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        seen = watch.stop()
        wall_s = time.perf_counter() - began
    assert seen["children_cores"] * wall_s > 0.25, (
        "the CPU time of a living child should count as its parent's"
    )


def test_without_proc_nothing_is_guessed(tmp_path):
    seen = Watch(tmp_path / "absent").stop()
    assert (seen["steal"], seen["others_cores"]) == (None, None)
    assert seen["cores"] == (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    )
