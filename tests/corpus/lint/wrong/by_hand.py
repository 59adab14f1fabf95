"""Gradients averaged by hand, and never divided."""

import torch
import torch.distributed as dist


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, inputs):
        return self.layer(inputs)


def sync(net):
    for name, param in net.named_parameters():
        if param.grad is not None:
            dist.all_reduce(param.grad)  # expect: gradients_not_divided


def main():
    dist.init_process_group("gloo")
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(10):
        opt.zero_grad()
        net(torch.randn(2, 4)).sum().backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # expect: clip_before_sync
        sync(net)
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
