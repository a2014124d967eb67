#!/bin/sh
# Validates this node: docs/launch/node.sh FOLDER NODE, from a clone. FOLDER gets the run (NODE.jsonl), its page (NODE.html)
# and the report of this node (NODE/report.html). PROOFLOPS_ARGS are more options of pytest.
set -e
mkdir -p "$1"
# The comparison names a node even if its run never begins.
: >> "$1/$2.jsonl"
# Nodes may share a clone, and have records of their own.
export PROOFLOPS_HISTORY=".prooflops/nodes/$2"
# Without it a node is a run of its own, and no rank of a job.
unset MASTER_ADDR
# shellcheck disable=SC2086
exec python -m prooflops.suite.evidence --quick -o floor_undecided=fail $PROOFLOPS_ARGS --out="$1/$2.jsonl" --report="$1/$2"
