#!/bin/sh
# Validates each node; runs, pages and output lie in records/JOB. sbatch docs/launch/slurm.sh, from the shared clone.
#SBATCH --job-name=prooflops
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-task=1
#SBATCH --exclusive
#SBATCH --time=00:30:00
export RECORDS="records/$SLURM_JOB_ID"
mkdir -p "$RECORDS"
# A node that is red, or dies, ends its own task alone.
srun --kill-on-bad-exit=0 sh -c '
    node="$SLURMD_NODENAME-$SLURM_LOCALID"
    exec docs/launch/node.sh "$RECORDS" "$node" > "$RECORDS/$node.txt" 2>&1'
validated=$?
python -m prooflops compare records --report="$RECORDS"
compared=$?
exit $((validated > compared ? validated : compared))
