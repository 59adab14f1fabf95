"""Good code that looks like a mistake: paired barriers, guards by helpers, partitions of one's own."""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, Subset
from torch.utils.tensorboard import SummaryWriter
from torchvision import datasets


@contextlib.contextmanager
def zero_first(local_rank):
    if local_rank not in (-1, 0):
        dist.barrier(device_ids=[local_rank])
    yield
    if local_rank == 0:
        dist.barrier(device_ids=[0])


def is_dist():
    return dist.is_available() and dist.is_initialized()


def get_rank():
    if not is_dist():
        return 0
    return dist.get_rank()


def is_main_process():
    return get_rank() == 0


def save_on_master(*args, **kwargs):
    if is_main_process():
        torch.save(*args, **kwargs)


class Saver:
    def __init__(self, folder):
        self.folder = folder

    def save(self, state):
        torch.save(state, os.path.join(self.folder, "model.pt"))


class Mine(Dataset):
    def __init__(self, size):
        self.indices = list(range(get_rank(), size, dist.get_world_size()))

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, index):
        return torch.randn(4)


def reduce_dict(values):
    world_size = dist.get_world_size()
    if world_size < 2:
        return values
    with torch.no_grad():
        stacked = torch.stack(list(values.values()))
        dist.reduce(stacked, dst=0)
        if dist.get_rank() == 0:
            stacked /= world_size
    return dict(zip(values, stacked, strict=True))


def subgroup(rank):
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(torch.ones(1, device="cuda"), group=pair)
    if rank == 0:
        dist.send(torch.ones(1, device="cuda"), dst=1)
    elif rank == 1:
        dist.recv(torch.ones(1, device="cuda"), src=0)


def evaluate(model, loader, device):
    correct = torch.zeros(2, device=device)
    model.eval()
    with torch.no_grad():
        for batch in loader:
            output = model.module(batch.to(device))
            correct[0] += (output > 0).sum()
            correct[1] += output.numel()
    dist.all_reduce(correct)
    return (correct[0] / correct[1]).item()


def main():
    local_rank = int(os.environ.get("LOCAL_RANK", -1))
    distributed = local_rank != -1
    if distributed:
        torch.cuda.set_device(local_rank)
        dist.init_process_group("nccl", init_method="env://")
    device = torch.device("cuda", max(local_rank, 0))
    with zero_first(local_rank):
        data = datasets.MNIST("data", download=True)
    subset = Subset(data, range(100))
    sampler = DistributedSampler(subset) if distributed else None
    batches = BatchSampler(sampler, 8, drop_last=True)
    loader = DataLoader(subset, batch_sampler=batches)
    other = DataLoader(Mine(100), batch_size=8, shuffle=True)
    model = nn.Linear(4, 4).to(device)
    if distributed:
        model = DDP(model, device_ids=[local_rank], output_device=local_rank)
    elif torch.cuda.device_count() > 1:
        model = nn.DataParallel(model).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    writer = SummaryWriter() if is_main_process() else None
    saver = Saver("out") if get_rank() == 0 else None
    meter = 0.0
    for epoch in range(3):
        if distributed:
            loader.batch_sampler.sampler.set_epoch(epoch)
        for step, batch in enumerate(other):
            loss = model(batch.to(device)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                reduced = reduce_dict({"loss": loss.detach()})
                meter += reduced["loss"].item()
                if writer is not None:
                    writer.add_scalar("loss", meter, step)
        accuracy = evaluate(model, other, device)
        save_on_master({"model": model.state_dict(), "accuracy": accuracy}, "last.pt")
        if saver is not None:
            saver.save(model.state_dict())
        stop = torch.tensor(accuracy > 0.99, device=device)
        dist.broadcast(stop, src=0)
        if stop:
            break
    torch.save(optimizer.state_dict(), f"optimizer-{get_rank()}.pt")
    if not is_main_process():
        dist.destroy_process_group()
        return
    print(meter)
    torch.save(model.state_dict(), "final.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
