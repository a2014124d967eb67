"""Jobs of two ranks: what their record has, who is named, how they end."""

from __future__ import annotations

import json
import socket
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import pytest
import torch

from bench.ranks import Ranks
from bench.rounds import Pace
from meta_tests.bench.stand_ins import CPU, Rounds
from meta_tests.conftest import ROOT, child_environment, fork_side_by_side

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="torch has no gloo here",
)

SLOW_RANK = """
import os, time
import torch

usual = torch.nn.Linear.forward

def forward(self, x):
    # The head is called once a step.
    if self.out_features == 10:
        time.sleep(0.1)
    return usual(self, x)

if os.environ["RANK"] == "1":
    torch.nn.Linear.forward = forward
"""

# The result of an all-reduce is wrong on rank 1, and after that an all-gather fails there, beside
# a thread that would keep the process alive.
WRONG_RANK = """
import os
import threading
import torch.distributed as dist

usual = dist.all_reduce

def all_reduce(tensor, **options):
    usual(tensor, **options)
    tensor[0] += 1

def all_gather(*arguments, **options):
    threading.Timer(10, print, ["outlived", "its failure"]).start()
    raise RuntimeError("planted")

if os.environ["RANK"] == "1":
    dist.all_reduce = all_reduce
    dist.all_gather_into_tensor = dist.all_gather_single = all_gather
"""


# pytest-benchmark's description of the CPU takes a second.
NO_MACHINE_INFO = """
def pytest_benchmark_generate_machine_info():
    return {}
"""


@dataclass
class Job:
    """What a job of two ranks said and left."""

    codes: list[int]
    said: list[str]
    # The last rank ended so long after the first.
    apart_s: float
    folder: Path

    @property
    def records(self):
        files = (self.folder / "history").rglob("*.json")
        return [json.loads(file.read_text()) for file in files if file.parent.name != "baselines"]

    @property
    def everything(self):
        return "\n".join(self.said)


def job(folder, planted, select):
    """Two ranks of bench/test_collectives.py on CPUs, whose variables are a scheduler's."""
    (folder / "planted.py").write_text(planted + NO_MACHINE_INFO)
    kept = child_environment(folder, PROOFLOPS_HISTORY=str(folder / "history"), OMP_NUM_THREADS="1")
    line = (
        f"bench/test_collectives.py --quick --device=cpu -p planted -k '{select}' "
        f"--report={folder}/report -o cache_dir={folder}/cache "
        f"--junitxml={folder}/junit.xml --benchmark-json={folder}/bench.json"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        job_of = {
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free.getsockname()[1]),
        }
    ranks = [kept | job_of | {"RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    first, second = (each[line] for each in fork_side_by_side(ROOT, [line], ranks))
    return Job(
        [first.code, second.code],
        [first.output, second.output],
        abs(first.ended - second.ended),
        folder,
    )


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A job in which rank 1 is slow at its own work."""
    return job(tmp_path_factory.mktemp("slow"), SLOW_RANK, "4KiB or step")


@pytest.fixture(scope="module")
def wrong(tmp_path_factory):
    """A job in which rank 1 first gets a wrong result, and then fails alone."""
    return job(tmp_path_factory.mktemp("wrong"), WRONG_RANK, "4KiB")


def test_a_job_leaves_one_record_with_the_figures_of_every_rank(slow):
    assert set(slow.codes) == {0}, slow.everything
    assert len(slow.records) == 1, f"{len(slow.records)} records of one job"
    record = slow.records[0]
    written = json.loads((slow.folder / "bench.json").read_text())
    assert len(written["benchmarks"]) == len(record["benchmarks"])
    assert (slow.folder / "junit.xml").read_text().count("<testsuite ") == 1
    assert slow.everything.count("test session starts") == 1, (
        "more than rank 0 wrote to the terminal"
    )
    assert record["prooflops"]["fingerprint"]["ranks"] == 2
    extras = {bench["name"]: bench["extra_info"] for bench in record["benchmarks"]}
    assert {name.partition("-4KiB")[0] for name in extras} >= {
        "test_collective[all-reduce",
        "test_collective[all-gather",
        "test_collective[reduce-scatter",
        "test_step[ddp]",
        "test_step[zero]",
    }
    for name, extra in extras.items():
        assert [rank["rank"] for rank in extra["ranks"]] == [0, 1], name
        assert extra["seconds"] >= max(rank["median_s"] for rank in extra["ranks"]) * 0.999, name
        assert extra["rounds"] >= 6
        assert extra["backend"] == "gloo"
    reduced = extras["test_collective[all-reduce-4KiB]"]
    assert reduced["bytes"] == 4096
    assert reduced["algbw_bytes_per_s"] == 4096 / reduced["seconds"]
    assert reduced["busbw_bytes_per_s"] == reduced["algbw_bytes_per_s"]
    gathered = extras["test_collective[all-gather-4KiB]"]
    assert gathered["busbw_bytes_per_s"] == gathered["algbw_bytes_per_s"] / 2


def test_a_slow_rank_is_named_in_the_record_and_on_the_terminal(slow):
    steps = [
        bench for bench in slow.records[0]["benchmarks"] if bench["name"].startswith("test_step")
    ]
    for bench in steps:
        extra = bench["extra_info"]
        assert len(extra["stragglers"]) == 1, extra
        assert extra["stragglers"][0].startswith("rank 1 ("), extra
        assert extra["ranks"][1]["own_s"] > 0.1, extra
    assert "straggler: rank 1 (" in slow.everything
    assert "straggler: rank 0 (" not in slow.everything


def test_a_wrong_result_on_one_rank_is_a_failure_of_all_that_names_it(wrong):
    for said in wrong.said:
        assert "all-reduce of 4096 bytes: wrong on 1 of 2 ranks" in said, wrong.everything
        assert "rank 1: AssertionError: Tensor-likes are not equal" in said, wrong.everything


def test_a_rank_that_fails_alone_ends_the_job_and_is_named(wrong):
    assert 0 not in wrong.codes, wrong.everything
    assert wrong.apart_s < 45, (
        f"the other rank ended {wrong.apart_s:.0f} s later: it waited for the timeout"
    )
    assert "[rank 1]" in wrong.said[1]
    assert "outlived its failure" not in wrong.everything
    for rank, said in enumerate(wrong.said):
        assert (
            f"rank {rank} of 2 failed in bench/test_collectives.py::test_collective"
            "[all-gather-4KiB], so the job ends here" in said
        )
    assert "[reduce-scatter-4KiB]" not in wrong.everything, (
        "the job went on after a rank had failed alone"
    )


class FirstOfTwo(Ranks):
    """Rank 0 of two; the other takes twice as long."""

    def __init__(self):
        self.rank, self.size, self.device, self.backend = 0, 2, CPU, "gloo"

    def barrier(self):
        pass

    def decide(self, value):
        return value

    def gather(self, value):
        return [value, [2 * seconds for seconds in value] if isinstance(value, list) else value]


def test_as_many_rounds_are_run_as_the_slowest_rank_has_time_for():
    now, times_s = 0.0, cycle([0.0009, 0.001, 0.0011])

    def call():
        nonlocal now
        now += next(times_s)

    rounds = Rounds(lambda: now, None)
    pace = Pace(0.0, 0.0, 1.2, 1.0, width=1e-5)
    seconds = FirstOfTwo().timed(
        rounds, call, pace, lambda: now, before=lambda: None, conditions=lambda: nullcontext({})
    )
    assert seconds == pytest.approx(2e-3, rel=0.01)
    assert rounds.extra_info["rounds"] * seconds == pytest.approx(1.2, rel=0.02)
