"""Parallel computing on Linux, with an address of its own."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.optim as optim

parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int)
parser.add_argument("--world_size", type=int)
args = parser.parse_args()


def train():
    dist.init_process_group("nccl", init_method="tcp://localhost:23456", world_size=args.world_size, rank=args.rank)  # expect: tcp_under_torchrun
    model = nn.Linear(10, 2).cuda()
    ddp_model = nn.DataParallel(model)  # expect: data_parallel_called_ddp, data_parallel_in_group
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.Adam(ddp_model.parameters(), lr=0.001)
    for _ in range(10):
        inputs, labels = torch.randn(20, 10).cuda(), torch.randint(0, 2, (20,)).cuda()
        optimizer.zero_grad()
        criterion(ddp_model(inputs), labels).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    train()
