"""One machine, several cards, as tutorials show it."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParalled as DDP  # expect: wrapper_misspelt
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, transforms

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", default=0)  # expect: local_rank_string, local_rank_from_argv
args = parser.parse_args()

dist.init_process_group("nccl")  # expect: destroy_missing
torch.cuda.set_device(args.local_rank)
os.environ["CUDA_VISIBLE_DEVICES"] = "0,1,2,3"  # expect: cuda_visible_devices_late
device = torch.device("cuda", int(args.local_rank))

train = datasets.MNIST("data", train=True, transform=transforms.ToTensor(), download=True)  # expect: download_on_every_rank
test = datasets.MNIST("data", train=False, transform=transforms.ToTensor())
train_sampler = DistributedSampler(train)  # expect: set_epoch_missing
test_sampler = DistributedSampler(test)
train_loader = DataLoader(train, batch_size=32, num_workers=2, sampler=train_sampler)
test_loader = DataLoader(test, batch_size=32, num_workers=2, sampler=test_sampler)

model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).to(dev)  # expect: undefined_name
model = DDP(model, device_ids=[args.local_rank], output_device=args.local_rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(10):
    for images, labels in train_loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

correct = 0
with torch.no_grad():
    for images, labels in test_loader:
        correct += (model(images.to(device)).argmax(1) == labels.to(device)).sum().item()
print(correct / len(test))
