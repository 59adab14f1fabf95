"""The shape of DeepSpeed's CIFAR example."""

import argparse

import deepspeed
import torch
import torch.nn as nn
import torchvision
import torchvision.transforms as transforms
from deepspeed.accelerator import get_accelerator


def add_argument():
    parser = argparse.ArgumentParser()
    parser.add_argument("-e", "--epochs", default=30, type=int)
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--log-interval", type=int, default=2000)
    parser = deepspeed.add_config_arguments(parser)
    return parser.parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 5)
        self.bn = nn.BatchNorm2d(6)
        self.fc = nn.Linear(6 * 28 * 28, 10)

    def forward(self, x):
        return self.fc(self.bn(self.conv(x)).flatten(1))


def test(model_engine, testset, local_device):
    loader = torch.utils.data.DataLoader(testset, batch_size=4, shuffle=False)
    correct = 0
    model_engine.eval()
    with torch.no_grad():
        for images, labels in loader:
            outputs = model_engine(images.to(local_device))
            correct += (outputs.argmax(1) == labels.to(local_device)).sum().item()
    if model_engine.local_rank == 0:
        print(correct)


def main(args):
    deepspeed.init_distributed()
    get_accelerator().set_device(args.local_rank)
    if torch.distributed.get_rank() != 0:
        torch.distributed.barrier()
    transform = transforms.ToTensor()
    trainset = torchvision.datasets.CIFAR10(root="./data", train=True, download=True, transform=transform)
    testset = torchvision.datasets.CIFAR10(root="./data", train=False, download=True, transform=transform)
    if torch.distributed.get_rank() == 0:
        torch.distributed.barrier()
    net = Net()
    parameters = filter(lambda p: p.requires_grad, net.parameters())
    config = {"train_batch_size": 16, "steps_per_print": 2000, "optimizer": {"type": "Adam", "params": {"lr": 0.001}}}
    model_engine, optimizer, trainloader, _ = deepspeed.initialize(
        args=args, model=net, model_parameters=parameters, training_data=trainset, config=config
    )
    device = get_accelerator().device_name(model_engine.local_rank)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        running_loss = 0.0
        for i, data in enumerate(trainloader):
            inputs, labels = data[0].to(device), data[1].to(device)
            outputs = model_engine(inputs)
            loss = criterion(outputs, labels)
            model_engine.backward(loss)
            model_engine.step()
            running_loss += loss.item()
            if model_engine.local_rank == 0 and i % args.log_interval == args.log_interval - 1:
                print(epoch, running_loss)
                running_loss = 0.0
        model_engine.save_checkpoint("out", epoch)
    test(model_engine, testset, device)


if __name__ == "__main__":
    main(add_argument())
