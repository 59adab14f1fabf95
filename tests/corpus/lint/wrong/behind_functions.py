"""Helper functions, early returns, and names that mean the same."""

import os
from argparse import ArgumentParser

import torch
from torch import distributed, nn
from torch.nn import parallel
from torch.utils.tensorboard import SummaryWriter


def get_args():
    parser = ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    return parser.parse_args()


def is_main_process():
    return distributed.get_rank() == 0


def setup():
    distributed.init_process_group("nccl")
    torch.cuda.set_device(distributed.get_rank())  # expect: rank_as_device


def average(value):
    distributed.all_reduce(value)  # expect: collective_on_one_rank
    return value / distributed.get_world_size()


def log(value):
    if not is_main_process():
        return
    print(average(value))


def average_gradients(model):
    for parameter in model.parameters():
        distributed.all_reduce(parameter.grad.data, op=distributed.ReduceOp.SUM)


def main():
    args = get_args()
    setup()
    model = nn.Linear(4, 4).cuda()
    model = parallel.DistributedDataParallel(model)
    writer = SummaryWriter("runs")  # expect: log_writer_on_every_rank
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    running = 0.0
    for epoch in range(args.epochs):
        for _ in range(100):
            loss = model(torch.randn(8, 4).cuda()).pow(2).mean()
            loss.backward()
            optimizer.step()  # expect: zero_grad_missing
            running += loss  # expect: loss_keeps_graph
        if is_main_process:  # expect: function_not_called
            writer.add_scalar("loss", running, epoch)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
