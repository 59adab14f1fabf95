#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
export MASTER_PORT=29500
srun torchrun --nnodes=2 --nproc-per-node=8 train.py  # expect: rendezvous_localhost
srun torchrun --standalone --nnodes=2 --nproc-per-node=8 train.py  # expect: rendezvous_localhost
