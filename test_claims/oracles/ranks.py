"""Two processes that add up their gradients."""

import tempfile
from contextlib import contextmanager
from datetime import timedelta

import torch

# A busy machine imports torch in a fraction of this.
TIMEOUT_S = 120


@contextmanager
def beside_a_second_rank(process, elements):
    """Within, this process is one of two, and the other never late to an all-reduce.

    The other's gradient, of so many elements, is 1 everywhere.
    """
    with tempfile.TemporaryDirectory() as folder:
        print(folder, elements, sep="\n", file=process.stdin, flush=True)
        try:
            join_group(folder, rank=0)
            yield
        finally:
            process.kill()
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()


def join_group(folder, rank):
    """Makes this process a rank of a gloo group of two, with a rendezvous in `folder`."""
    # A store rather than a file:// address, whose percent-encoded spaces and umlauts torch does not
    # decode.
    store = torch.distributed.FileStore(f"{folder}/rendezvous", 2)
    timeout = timedelta(seconds=TIMEOUT_S)
    torch.distributed.init_process_group(
        "gloo", store=store, world_size=2, rank=rank, timeout=timeout
    )
