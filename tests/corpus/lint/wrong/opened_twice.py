"""A group that each of two methods opens, one after the other."""

import torch.distributed as dist


class Job:
    def train(self):
        dist.init_process_group("gloo")
        dist.barrier()

    def evaluate(self):
        dist.init_process_group("gloo")  # expect: used_too_early
        dist.barrier()


job = Job()
job.train()
job.evaluate()
