#!/bin/sh
# One run on each node; the records go to the shared folder. sbatch docs/launch/slurm.sh, from the shared clone.
#SBATCH --job-name=prooflops
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --exclusive
#SBATCH --time=00:30:00
export PROOFLOPS_HISTORY="$PWD/records"
srun --kill-on-bad-exit=0 sh -c 'python -m pytest bench --quick -o floor_undecided=fail --report="reports/$(hostname)"'
python -m pytest --report-compare="$PROOFLOPS_HISTORY" --report=reports
