"""Horovod for torch, from a helper."""

import horovod.torch as hvd
import torch
import torch.optim as optim


def make_optimizer(model, args):
    return optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)  # expect: horovod_rate_unscaled


def train(model, optimizer, batches):
    for batch in batches:
        optimizer.zero_grad()
        model(batch.cuda()).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: clip_before_sync
        optimizer.step()


def main(args, batches):
    hvd.init()
    model = torch.nn.Linear(4, 4).cuda()  # expect: set_device_missing
    optimizer = hvd.DistributedOptimizer(make_optimizer(model, args), named_parameters=model.named_parameters())  # expect: horovod_no_broadcast
    train(model, optimizer, batches)
    total = torch.ones(1)
    hvd.allreduce(total, name="total")  # expect: result_discarded
    if hvd.rank == 0:  # expect: function_not_called
        print(total)
