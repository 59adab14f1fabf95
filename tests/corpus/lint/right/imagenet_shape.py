"""The shape of PyTorch's ImageNet example: one script for one GPU, several in one process, and several processes."""

import argparse
import os
import shutil
import time

import torch
import torch.backends.cudnn as cudnn
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.parallel
import torch.utils.data
import torch.utils.data.distributed
import torchvision.datasets as datasets
import torchvision.models as models
import torchvision.transforms as transforms

parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--epochs", default=90, type=int)
parser.add_argument("-b", "--batch-size", default=256, type=int)
parser.add_argument("--lr", default=0.1, type=float)
parser.add_argument("--world-size", default=-1, type=int)
parser.add_argument("--rank", default=-1, type=int)
parser.add_argument("--dist-url", default="tcp://224.66.41.62:23456", type=str)
parser.add_argument("--dist-backend", default="nccl", type=str)
parser.add_argument("--gpu", default=None, type=int)
parser.add_argument("--evaluate", action="store_true")
parser.add_argument("--multiprocessing-distributed", action="store_true")
best = 0.0


def main():
    args = parser.parse_args()
    if args.dist_url == "env://" and args.world_size == -1:
        args.world_size = int(os.environ["WORLD_SIZE"])
    args.distributed = args.world_size > 1 or args.multiprocessing_distributed
    per_node = torch.cuda.device_count()
    if args.multiprocessing_distributed:
        args.world_size = per_node * args.world_size
        mp.spawn(worker, nprocs=per_node, args=(per_node, args))
    else:
        worker(args.gpu, per_node, args)


def worker(gpu, per_node, args):
    global best
    args.gpu = gpu
    if args.distributed:
        if args.dist_url == "env://" and args.rank == -1:
            args.rank = int(os.environ["RANK"])
        if args.multiprocessing_distributed:
            args.rank = args.rank * per_node + gpu
        dist.init_process_group(backend=args.dist_backend, init_method=args.dist_url, world_size=args.world_size, rank=args.rank)
    model = models.__dict__["resnet50"]()
    if args.distributed:
        if args.gpu is not None:
            torch.cuda.set_device(args.gpu)
            model.cuda(args.gpu)
            args.batch_size = int(args.batch_size / per_node)
            model = nn.parallel.DistributedDataParallel(model, device_ids=[args.gpu])
        else:
            model.cuda()
            model = nn.parallel.DistributedDataParallel(model)
    elif args.gpu is not None:
        torch.cuda.set_device(args.gpu)
        model = model.cuda(args.gpu)
    else:
        model = nn.DataParallel(model).cuda()
    criterion = nn.CrossEntropyLoss().cuda(args.gpu)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30)
    cudnn.benchmark = True
    train = datasets.ImageFolder(os.path.join(args.data, "train"), transforms.ToTensor())
    valid = datasets.ImageFolder(os.path.join(args.data, "val"), transforms.ToTensor())
    sampler = torch.utils.data.distributed.DistributedSampler(train) if args.distributed else None
    loader = torch.utils.data.DataLoader(train, batch_size=args.batch_size, shuffle=(sampler is None), sampler=sampler)
    valid_loader = torch.utils.data.DataLoader(valid, batch_size=args.batch_size, shuffle=False)
    for epoch in range(args.epochs):
        if args.distributed:
            sampler.set_epoch(epoch)
        fit(loader, model, criterion, optimizer, args)
        accuracy = validate(valid_loader, model, args)
        scheduler.step()
        is_best = accuracy > best
        best = max(accuracy, best)
        if not args.multiprocessing_distributed or (args.multiprocessing_distributed and args.rank % per_node == 0):
            save_checkpoint({"epoch": epoch + 1, "state_dict": model.state_dict()}, is_best)
    if args.distributed:
        dist.destroy_process_group()


def fit(loader, model, criterion, optimizer, args):
    model.train()
    end = time.time()
    for step, (images, target) in enumerate(loader):
        images = images.cuda(args.gpu, non_blocking=True)
        target = target.cuda(args.gpu, non_blocking=True)
        loss = criterion(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(loss.item(), time.time() - end)


def validate(loader, model, args):
    model.eval()
    correct = torch.zeros(1).cuda(args.gpu)
    with torch.no_grad():
        for images, target in loader:
            output = model(images.cuda(args.gpu))
            correct += (output.argmax(1) == target.cuda(args.gpu)).sum()
    if args.distributed:
        dist.all_reduce(correct, dist.ReduceOp.SUM)
    return correct.item()


def save_checkpoint(state, is_best, filename="checkpoint.pth.tar"):
    torch.save(state, filename)
    if is_best:
        shutil.copyfile(filename, "model_best.pth.tar")


if __name__ == "__main__":
    main()
