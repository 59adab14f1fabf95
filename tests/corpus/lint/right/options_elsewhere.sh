#!/bin/bash
source ./cluster.sh
torchrun --nnodes=2 --nproc-per-node=8 "${TORCH_FLAGS[@]}" train.py
torchrun --nnodes=1 --nproc-per-node=8 train.py
torchrun --standalone --nproc-per-node=gpu train.py
MASTER_ADDRESS=$(hostname)
export NCCL_P2P_NVL_CHUNKSIZE=131072 NCCL_LL128_BUFFSIZE=-2
mpirun -x NCCL_DEBUG=INFO python train.py --address "$MASTER_ADDRESS"
