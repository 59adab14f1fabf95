"""A trainer class with aliases, a guard in the caller, and a launcher of its own."""

import os

import torch
import torch.distributed as td
from torch.nn.parallel import DistributedDataParallel as Wrapped
from torch.utils.data import DataLoader as Loader
from torch.utils.data import DistributedSampler as Shard


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.randn(4), torch.randn(4)


class Trainer:
    def __init__(self, model, data, local_rank):
        self.local_rank = local_rank
        self.rank = td.get_rank()
        self.model = Wrapped(model.to(local_rank), device_ids=[local_rank])
        self.loader = Loader(data, batch_size=8, sampler=Shard(data))  # expect: set_epoch_missing
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        self.scaler = torch.cuda.amp.GradScaler()
        self.total = 0

    def step(self, inputs, targets):
        self.optimizer.zero_grad()
        outputs = self.model.module(inputs)  # expect: module_in_step
        loss = torch.nn.functional.mse_loss(outputs, targets)
        self.scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  # expect: clip_before_sync
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def epoch(self):
        for inputs, targets in self.loader:
            self.step(inputs, targets)
        if self.rank == 0:
            self.scheduler.step()  # expect: step_on_one_rank
            self.save()

    def save(self):
        torch.save(self.model.module.state_dict(), "model.pt")
        td.barrier()  # expect: collective_on_one_rank

    def fit(self, epochs):
        for number in range(epochs):
            self.epoch()
        torch.save(self.optimizer.state_dict(), "optimizer.pt")  # expect: save_on_every_rank


def main():
    td.init_process_group("nccl")
    trainer = Trainer(torch.nn.Linear(4, 4), Data(), int(os.environ["LOCAL_RANK"]))
    trainer.fit(10)
    td.destroy_process_group()


if __name__ == "__main__":
    main()
