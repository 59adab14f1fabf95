"""DeepSpeed by hand."""

import argparse

import deepspeed
import torch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--accumulation", type=int, default=4)
    args = parser.parse_args()
    net = torch.nn.Linear(4, 4)
    engine, optimizer, loader, _ = deepspeed.initialize(args=args, model=net, model_parameters=net.parameters(), config_file="ds.json")  # expect: deepspeed_config
    for step in range(100):
        loss = net(torch.randn(8, 4)).sum()  # expect: module_in_step
        engine.backward(loss)
        if (step + 1) % args.accumulation == 0:
            engine.step()  # expect: engine_step_gated
    if torch.distributed.get_rank() == 0:
        engine.save_checkpoint("out")  # expect: sharded_save_on_one_rank


main()
