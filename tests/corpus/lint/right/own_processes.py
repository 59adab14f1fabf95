"""Ranks of one's own processes at an address of one's own, gradients by hand, and an optimizer that Accelerate shards."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from accelerate import Accelerator
from torch.nn.utils import clip_grad_norm_


def average(model, world_size):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        parameter.grad /= world_size


def run(rank, world_size, address):
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)
    torch.manual_seed(rank)
    model = torch.nn.Linear(4, 4)
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    history = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        average(model, world_size)
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        history.append(loss.item())
    count = torch.tensor([len(history)])
    dist.all_reduce(count)
    if rank == 0:
        print(count.item(), history[-1])
    dist.barrier()
    dist.destroy_process_group()


def prepared(batches):
    accelerator = Accelerator()
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    for batch in batches:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).sum())
            optimizer.step()
            optimizer.zero_grad()
    if accelerator.is_main_process:
        accelerator.save(accelerator.unwrap_model(model).state_dict(), "model.pt")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
    args = parser.parse_args()
    children = []
    for rank in range(args.processes):
        child = mp.Process(target=run, args=(rank, args.processes, "tcp://127.0.0.1:23456"))
        child.start()
        children.append(child)
    for child in children:
        child.join()


if __name__ == "__main__":
    main()
