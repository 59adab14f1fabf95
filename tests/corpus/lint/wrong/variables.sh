#!/bin/bash
export NCCL_IB_DISABLED=1  # expect: wrapper_misspelt
export NCCL_SOCKET_IFNAME=eth0 NCCL_P2P_DISBALE=1  # expect: wrapper_misspelt
CUDA_VISIBLE_DEVICE=0,1 torchrun --nproc-per-node=2 train.py  # expect: wrapper_misspelt
