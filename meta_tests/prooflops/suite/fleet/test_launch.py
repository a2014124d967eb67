"""The launch files start each node apart: one that dies or is red costs no other its run."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from meta_tests.conftest import ROOT, child_environment, new_house
from prooflops.suite.evidence.file import EvidenceFile
from prooflops.suite.fleet.nodes import read_runs

# Stands for Slurm's command: runs a task for each of three nodes and returns the last bad code.
SRUN = """#!/bin/sh
shift
worst=0
for node in n0 n1 n2; do
    SLURMD_NODENAME=$node SLURM_LOCALID=0 "$@" || worst=$?
done
exit $worst
"""
# A node's process is killed in its run, or before it.
DYING = """
import os, signal

@pytest.mark.claim("demo.holds")
@pytest.mark.parametrize("n", range(3))
def test_holds(n):
    if n and os.environ.get("SLURMD_NODENAME") == "n1":
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()
"""
PYTHON = """#!/bin/sh
test "$SLURMD_NODENAME" = n2 && kill -KILL $$
exec {python} "$@"
"""
RED_AT_ONCE = """
import os, time

@pytest.mark.claim("demo.holds")
def test_holds():
    is_first = os.environ["GROUP_RANK"] == "0"
    time.sleep(0 if is_first else 8)
    assert not is_first
"""
BENCHMARK = "def test_sum(benchmark):\n    benchmark.pedantic(sum, args=([1, 2],), rounds=5)"


@pytest.fixture
def clone(tmp_path):
    """A clone with the launch files, whose `python` is this one."""
    house = new_house(tmp_path / "clone")
    house.claim("demo.holds")
    house.test(BENCHMARK, "bench/test_demo.py")
    shutil.copytree(ROOT / "docs" / "launch", house.root / "docs" / "launch")
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(PYTHON.format(python=sys.executable))
    python.chmod(0o755)
    return house


def environment(clone, **variables):
    folders = [clone.root.parent / "bin", Path(sys.executable).parent, os.environ["PATH"]]
    path = os.pathsep.join(map(str, folders))
    return child_environment(
        PATH=path, OMP_NUM_THREADS="1", PROOFLOPS_ARGS="--device=cpu -n0", **variables
    )


@pytest.mark.prove
def test_slurm_keeps_each_node_though_others_die(clone):
    clone.test(DYING)
    srun = clone.root.parent / "bin" / "srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    done = subprocess.run(
        ["sh", "docs/launch/slurm.sh"],
        cwd=clone.root,
        env=environment(clone, SLURM_JOB_ID="1"),
        capture_output=True,
        text=True,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 128 + signal.SIGKILL, said
    folder = clone.root / "records" / "1"
    runs, unreadable = read_runs([str(folder)])
    assert {run.node: run.partial for run in runs} == {
        "n0-0": "",
        "n1-0": "3 of 4 tests not run yet",
    }, said
    (never_began,) = unreadable
    assert "n2-0.jsonl: the run ended before its first test" in never_began
    assert "2 runs of 2 machines" in said
    pages = {path.name for path in folder.glob("*.html")}
    assert pages == {"n0-0.html", "compare.html"}
    assert "n2-0.jsonl: the run ended" in (folder / "compare.html").read_text()


@pytest.mark.prove
def test_torchrun_keeps_each_node_though_the_first_is_red(clone):
    clone.test(RED_AT_ONCE)
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    variables = environment(clone, MASTER_PORT=str(port))
    with ExitStack() as running:
        nodes = []
        for rank in "01":
            line = ["docs/launch/torchrun.sh", "2", "localhost", rank]
            nodes.append(subprocess.Popen(line, cwd=clone.root, env=variables))
            running.callback(nodes[-1].terminate)
        assert [node.wait(timeout=170) for node in nodes] == [1, 0]
    verdicts = {}
    for path in clone.root.glob("records/*/*.jsonl"):
        assert path.with_suffix(".html").exists()
        (row,) = EvidenceFile(path).rows("verdicts")
        verdicts[path.parent.name[-1]] = row["verdicts"]["demo.holds"][0]
    assert verdicts == {"0": "FAILS", "1": "holds"}
