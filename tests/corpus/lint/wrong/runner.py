"""A runner class whose arguments come from a group of a parser."""

import argparse
import torch
from torch import nn
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

def parse():
    ap = argparse.ArgumentParser()
    g = ap.add_argument_group("dist")
    g.add_argument("-r", "--local-rank", dest="local_rank", default="0")  # expect: local_rank_from_argv, local_rank_string
    return ap.parse_args()

class Runner(object):
    def __init__(self, opts):
        self.opts = opts
        dist.init_process_group(backend="nccl", init_method="env://")
        torch.cuda.set_device(self.opts.local_rank)
        self.net = nn.parallel.DistributedDataParallel(nn.Linear(4, 4).cuda(), device_ids=[int(opts.local_rank)])
        ds = TensorDataset(torch.zeros(3, 4))
        self.train_loader = DataLoader(ds, 2, True)  # expect: sampler_missing
        self.optim = torch.optim.SGD(self.net.parameters(), lr=.1)

    def train_epoch(self):
        self.net.train()
        for i, (b,) in enumerate(self.train_loader):
            out = self.net(b.cuda())
            loss = out.mean()
            loss.backward()
            self.optim.step()  # expect: zero_grad_missing
    def save(self, p):
        torch.save(self.net.module.state_dict(), p)  # expect: save_on_every_rank

    def run(self):
        for e in range(3):
            self.train_epoch()
            self.save("x.pt")
        dist.destroy_process_group()

if __name__ == '__main__':
    Runner(parse()).run()
