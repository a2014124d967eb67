#!/bin/sh
# On each node: docs/launch/torchrun.sh NODES FIRST_NODE. Without MASTER_ADDR each process is a run of its own, and no
# rank of a job; the records go to the folder that PROOFLOPS_HISTORY names, which all nodes share.
export PROOFLOPS_HISTORY="${PROOFLOPS_HISTORY:-$PWD/records}"
exec torchrun --nnodes="$1" --nproc-per-node=1 --rdzv-backend=c10d --rdzv-endpoint="$2:29500" --no-python \
    env -u MASTER_ADDR python -m pytest bench --quick -o floor_undecided=fail --report="reports/$(hostname)"
