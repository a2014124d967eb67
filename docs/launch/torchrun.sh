#!/bin/sh
# Validates each node: docs/launch/torchrun.sh NODES FIRST_NODE RANK on each of them, with its RANK from 0. The runs go to
# records/ in the clone, or to the folder that PROOFLOPS_RECORDS names.
RECORDS="${PROOFLOPS_RECORDS:-records}/$(date -u +%Y%m%dT%H%M%SZ)-$3"
export RECORDS
# After a failure that torchrun sees, the other nodes' agents hang (backend c10d) or complain (static). So it sees none,
# and this script returns it.
torchrun --nnodes="$1" --node-rank="$3" --master-addr="$2" --master-port="${MASTER_PORT:-29500}" --rdzv-backend=static \
    --nproc-per-node=1 --no-python \
    sh -c 'docs/launch/node.sh "$RECORDS" "$(hostname)" || echo $? > "$RECORDS/failed"'
launched=$?
test "$launched" -eq 0 && test ! -e "$RECORDS/failed"
