#!/bin/bash
source ./cluster.sh
torchrun --nnodes=2 --nproc-per-node=8 "${TORCH_FLAGS[@]}" train.py
torchrun --nnodes=1 --nproc-per-node=8 train.py
torchrun --standalone --nproc-per-node=gpu train.py
