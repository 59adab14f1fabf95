#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
set -eo pipefail
RDZV_HOST=$(scontrol show hostnames "${SLURM_STEP_NODELIST:-localhost}" | head -1 || echo localhost)
srun --container-image=train.sqsh bash -c "torchrun --nnodes=2 --node-rank=\$SLURM_NODEID --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=localhost:29500 train.py"  # expect: rendezvous_localhost
