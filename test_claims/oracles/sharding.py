"""Data-parallel training that shards the optimizer's state (ZeRO, stage 1).

It needs no other process: this one is each rank in turn, in a fake group whose collectives return
at once.
"""

import warnings

import torch

from test_claims.oracles.tensors import state_bytes, tensor_sum


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
