"""The launch files start each node apart: one that dies or is red costs no other its run."""

import os
import shutil
import subprocess

import pytest

from meta_tests.conftest import ROOT, child_environment

# Stand for commands of a cluster: `srun` runs a task for each of three nodes and returns the last
# bad code, and each notes what it is asked for.
COMMANDS = {
    "python": 'echo "$PROOFLOPS_HISTORY$MASTER_ADDR $*" >> calls\n'
    'case "$*" in *$FAILING*) exit 3; esac',
    "srun": 'shift\nworst=0\nfor node in n0 n1 n2; do SLURMD_NODENAME=$node SLURM_LOCALID=0 "$@" '
    "|| worst=$?; done\nexit $worst",
    "torchrun": 'while [ "$1" != sh ]; do shift; done\n"$@"\necho $? > returned',
}


@pytest.fixture
def launch(tmp_path):
    """Runs a launch file in which the calls that match `failing` fail; returns its exit code."""
    shutil.copytree(ROOT / "docs" / "launch", tmp_path / "docs" / "launch")
    (tmp_path / "bin").mkdir()
    for name, script in COMMANDS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)

    def launched(name, *arguments, failing):
        environment = child_environment(
            PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            PROOFLOPS_ARGS="--device=cpu -n0",
            MASTER_ADDR="a job's",
            SLURM_JOB_ID="1",
            FAILING=failing,
        )
        command = ["sh", f"docs/launch/{name}", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment).returncode

    return launched


@pytest.mark.parametrize(("failing", "code"), [("n1-0", 3), ("compare", 3), ("nothing", 0)])
def test_slurm_runs_each_node_apart_and_compares_them_whatever_fails(
    launch, tmp_path, failing, code
):
    assert launch("slurm.sh", failing=failing) == code
    *nodes, compared = (tmp_path / "calls").read_text().splitlines()
    for number, call in enumerate(nodes):
        run = f"records/1/n{number}-0"
        assert call.startswith(f".prooflops/nodes/n{number}-0 -m prooflops.suite.evidence --quick ")
        assert call.endswith(f" --device=cpu -n0 --out={run}.jsonl --report={run}")
        assert (tmp_path / f"{run}.jsonl").exists(), "a node whose run never begins is named"
    assert number == 2
    assert compared.endswith(" -m prooflops compare records --report=records/1")


@pytest.mark.parametrize(("failing", "code"), [("evidence", 1), ("nothing", 0)])
def test_torchrun_sees_no_failure_which_its_launch_file_returns(launch, tmp_path, failing, code):
    assert launch("torchrun.sh", "2", "localhost", "0", failing=failing) == code
    assert (tmp_path / "returned").read_text() == "0\n"
    assert len([*tmp_path.glob("records/*-0/*.jsonl")]) == 1
