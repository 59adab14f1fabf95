"""The shape of Horovod's MNIST example for torch."""

import argparse
import os

import horovod.torch as hvd
import torch
import torch.nn.functional as F
import torch.optim as optim
import torch.utils.data.distributed
from filelock import FileLock
from torchvision import datasets, transforms

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--no-cuda", action="store_true", default=False)
parser.add_argument("--use-adasum", action="store_true", default=False)


def metric_average(value, name):
    tensor = torch.tensor(value)
    return hvd.allreduce(tensor, name=name).item()


def main(args):
    args.cuda = not args.no_cuda and torch.cuda.is_available()
    hvd.init()
    if args.cuda:
        torch.cuda.set_device(hvd.local_rank())
    data_dir = "./data"
    with FileLock(os.path.expanduser("~/.horovod_lock")):
        train = datasets.MNIST(data_dir, train=True, download=True, transform=transforms.ToTensor())
    train_sampler = torch.utils.data.distributed.DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())
    kwargs = {"num_workers": 1, "pin_memory": True} if args.cuda else {}
    loader = torch.utils.data.DataLoader(train, batch_size=args.batch_size, sampler=train_sampler, **kwargs)
    test = datasets.MNIST(data_dir, train=False, transform=transforms.ToTensor())
    test_sampler = torch.utils.data.distributed.DistributedSampler(test, num_replicas=hvd.size(), rank=hvd.rank())
    test_loader = torch.utils.data.DataLoader(test, batch_size=1000, sampler=test_sampler, **kwargs)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    lr_scaler = hvd.size() if not args.use_adasum else 1
    if args.cuda:
        model.cuda()
    optimizer = optim.SGD(model.parameters(), lr=args.lr * lr_scaler, momentum=0.5)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for epoch in range(1, args.epochs + 1):
        model.train()
        train_sampler.set_epoch(epoch)
        for batch_idx, (data, target) in enumerate(loader):
            if args.cuda:
                data, target = data.cuda(), target.cuda()
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
            if batch_idx % 10 == 0 and hvd.rank() == 0:
                print(epoch, loss.item())
        model.eval()
        accuracy = 0.0
        with torch.no_grad():
            for data, target in test_loader:
                accuracy += (model(data).argmax(1) == target).float().mean().item()
        accuracy = metric_average(accuracy / len(test_loader), "accuracy")
        if hvd.rank() == 0:
            torch.save(model.state_dict(), f"model-{epoch}.pt")
            print(accuracy)


if __name__ == "__main__":
    main(parser.parse_args())
