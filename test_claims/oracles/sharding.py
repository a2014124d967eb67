"""Data-parallel training between processes, which may shard the optimizer's state (ZeRO, stage 1).

`held_by_fake_ranks` needs no other process: this one is each rank in turn, in a fake group whose
collectives return at once. `beside_a_second_rank` makes this process one of two that add up their
gradients.
"""

import tempfile
import warnings
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch.multiprocessing import start_processes

from test_claims.oracles.tensors import state_bytes, tensor_sum

# A busy machine imports torch in a fraction of this.
TIMEOUT_S = 120


def held_after_training(widths):
    """Bytes of parameters, gradients and optimizer state after two steps of a sharded Adam.

    The net is one square matrix of each width, and this process one rank of its group.
    """
    with warnings.catch_warnings():
        # The import compiles TorchScript, which is deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer
    parameters = [torch.nn.Parameter(torch.ones(n, n)) for n in widths]
    optimizer = ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.Adam, lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        sum(parameter.square().mean() for parameter in parameters).backward()
        optimizer.step()
    return (
        tensor_sum(parameters),
        tensor_sum(each.grad for each in parameters),
        state_bytes(optimizer.optim),
    )


def held_by_fake_ranks(widths, devices):
    """The bytes of each rank of a fake group, whose weights are wrong."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    held = []
    for rank in range(devices):
        torch.distributed.init_process_group(
            "fake", store=FakeStore(), world_size=devices, rank=rank
        )
        try:
            held.append(held_after_training(widths))
        finally:
            torch.distributed.destroy_process_group()
    return held


@contextmanager
def beside_a_second_rank(elements):
    """Within, this process is one of two, and the other never late to an all-reduce.

    The other's gradient, of so many elements, is 1 everywhere.
    """
    with tempfile.TemporaryDirectory() as folder:
        context = start_processes(
            add_ones, (folder, elements), nprocs=1, join=False, start_method="spawn"
        )
        try:
            join_group(folder, rank=0)
            yield
        finally:
            for process in context.processes:
                process.kill()
                process.join()
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()


def add_ones(_index, folder, elements):
    """The second of two ranks, until it is killed."""
    join_group(folder, rank=1)
    gradient = torch.empty(elements)
    while True:
        torch.distributed.all_reduce(gradient.fill_(1))


def join_group(folder, rank):
    """Makes this process a rank of a gloo group of two, with a rendezvous in `folder`."""
    # A store rather than a file:// address, whose percent-encoded spaces and umlauts torch does not
    # decode.
    store = torch.distributed.FileStore(f"{folder}/rendezvous", 2)
    timeout = timedelta(seconds=TIMEOUT_S)
    torch.distributed.init_process_group(
        "gloo", store=store, world_size=2, rank=rank, timeout=timeout
    )
