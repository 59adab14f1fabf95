#!/bin/bash
#SBATCH --cpus-per-task=32
srun hostname
srun -c 32 python train.py
