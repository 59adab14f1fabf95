#!/bin/bash
#SBATCH --nodes=1
#SBATCH --cpus-per-task=32
#SBATCH --gpus-per-node=4
srun torchrun --standalone --nproc-per-node=4 train.py  # expect: launch_counts
