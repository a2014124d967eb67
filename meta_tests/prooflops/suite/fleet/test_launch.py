"""The launch files on real engines: two nodes on this host, of which one dies and one is red."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from meta_tests.conftest import ROOT, child_environment, new_house
from prooflops.suite.evidence.file import EvidenceFile
from prooflops.suite.fleet.nodes import read_runs

PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "scontrol", "sinfo")
SLURM = """
ClusterName=prooflops
SlurmctldHost={host}
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SelectType=select/cons_tres
GresTypes=gpu
NodeName=n0 NodeHostname={host} Port={ports[1]} Gres=gpu:1
NodeName=n1 NodeHostname={host} Port={ports[2]} Gres=gpu:1
NodeName=n2 NodeHostname={host} Port={ports[3]} Gres=gpu:1
PartitionName=all Nodes=ALL Default=YES State=UP
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


def free_ports(number):
    with ExitStack() as bound:
        sockets = [bound.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]


@pytest.fixture
def slurm(tmp_path):
    """The configuration of a running cluster of three nodes, all of them this host."""
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing or os.geteuid():
        pytest.skip(f"needs root and slurm-wlm; missing: {', '.join(missing) or 'root'}")
    folder = tmp_path / "slurm"
    (folder / "state").mkdir(parents=True)
    configuration = folder / "slurm.conf"
    configuration.write_text(
        SLURM.format(host=socket.gethostname(), folder=folder, ports=free_ports(4))
    )
    (folder / "gres.conf").write_text("Name=gpu File=/dev/null\n")
    commands = [["slurmctld"], *(["slurmd", "-N", f"n{node}"] for node in range(3))]
    with ExitStack() as running, open(folder / "log", "wb") as log:
        for command in commands:
            line = [*command, "-D", "-f", str(configuration)]
            daemon = running.enter_context(subprocess.Popen(line, stdout=log, stderr=log))
            running.callback(daemon.terminate)
        wait_for("^3$", ["sinfo", "--noheader", "--states=idle", "--format=%D"], configuration)
        yield configuration


def wait_for(pattern, command, configuration):
    """Runs a command of Slurm until this is in its output."""
    variables = {**os.environ, "SLURM_CONF": str(configuration)}
    until = time.monotonic() + 120
    while time.monotonic() < until:
        done = subprocess.run(command, env=variables, capture_output=True, text=True)
        if found := re.search(pattern, done.stdout):
            return found
        time.sleep(0.2)
    pytest.fail(f"{command}: {done}\n{(configuration.parent / 'log').read_text()}")


@pytest.mark.prove
def test_slurm_keeps_each_node_though_others_die(clone, slurm):
    clone.test(DYING)
    subprocess.run(
        ["sbatch", "--nodes=3", "--output=job.txt", "docs/launch/slurm.sh"],
        cwd=clone.root,
        env=environment(clone, SLURM_CONF=str(slurm)),
        check=True,
    )
    # sbatch --wait asks only each minute.
    ended = wait_for(
        r"JobState=([CF]\w+ED) .*ExitCode=(\d+)", ["scontrol", "-o", "show", "job"], slurm
    )
    said = (clone.root / "job.txt").read_text()
    folder = clone.root / "records" / "1"
    assert ended.groups() == ("FAILED", str(128 + signal.SIGKILL)), said
    runs, unreadable = read_runs([str(folder)])
    assert {run.node: run.partial for run in runs} == {
        "n0-0": "",
        "n1-0": "3 of 4 tests have not run yet",
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
    (port,) = free_ports(1)
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
