"""Fixtures that several topics share."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from prooflops.memory import why_uncounted
from test_claims.oracles.tensors import metered, warm_up
from test_claims.strategies import draw_dtypes_of


@pytest.fixture(scope="session", autouse=True)
def _dtypes_of_the_device(device):
    """Has the strategies draw the dtypes of the device under test alone."""
    draw_dtypes_of(device)


@pytest.fixture(scope="session")
def metered_device(device):
    """The device under test if torch counts the bytes of tensors on it, else (mps) the CPU."""
    return metered(device)


@pytest.fixture
def memory_device(device):
    """The device under test, where torch counts the bytes on it; warmed up."""
    if why := why_uncounted(device):
        pytest.skip(why)
    warm_up(device)
    return device


@pytest.fixture
def default_dtype():
    """The default dtype, which is restored afterwards."""
    before = torch.get_default_dtype()
    yield before
    torch.set_default_dtype(before)


# A second process: its answers, and then the second of two ranks, until it is killed.
FRESH = """
import sys
import torch
class Idle:
    def __getattr__(self, _):
        return lambda function=None, *_, **__: function
# torch imports its compiler with the first optimizer, which takes longer than all the rest.
torch._dynamo = sys.modules["torch._dynamo"] = Idle()
of = torch.backends
print(torch.get_float32_matmul_precision(), of.cuda.matmul.allow_tf32, of.cudnn.allow_tf32)
from test_claims.oracles.training import random_run
# A sum is divided among the threads, and rounded by their number: claims have one.
torch.set_num_threads(1)
print(random_run(torch.device("cpu"), 7), flush=True)
del sys.modules["torch._dynamo"]
from test_claims.oracles.ranks import join_group
join_group(sys.stdin.readline().strip(), rank=1)
ones = torch.ones(int(sys.stdin.readline()))
while True:
    torch.distributed.all_reduce(ones.fill_(1))
"""


@pytest.fixture(scope="session")
def fresh_process():
    """Another Python's answers on its torch, and the process.

    They are the precision of products, and a run from a seed.
    """
    command = [sys.executable, "-W", "ignore", "-c", FRESH]
    environment = {key: value for key, value in os.environ.items() if "TF32" not in key}
    root = Path(__file__).resolve().parents[1]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=root, env=environment, **pipes) as process:
        answers = [process.stdout.readline().strip() for _ in range(2)]
        yield *answers, process
        process.kill()


@pytest.fixture(scope="session")
def gloo():
    """A test can make this process a rank of its own group of processes."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_gloo_available()):
        pytest.skip("needs a torch with torch.distributed and gloo")
    if distributed.is_initialized():
        pytest.skip("must not run inside a job of several processes")
