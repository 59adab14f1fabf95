"""One file for one GPU or many, random batches for each rank, gradients that are exchanged in the last micro-step only."""

import os
from contextlib import nullcontext

import numpy as np
import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

gradient_accumulation_steps = 40
ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend="nccl")
    ddp_rank = int(os.environ["RANK"])
    ddp_local_rank = int(os.environ["LOCAL_RANK"])
    ddp_world_size = int(os.environ["WORLD_SIZE"])
    device = f"cuda:{ddp_local_rank}"
    torch.cuda.set_device(device)
    master_process = ddp_rank == 0
    seed_offset = ddp_rank
    assert gradient_accumulation_steps % ddp_world_size == 0
    gradient_accumulation_steps //= ddp_world_size
else:
    master_process = True
    seed_offset = 0
    device = "cuda"
torch.manual_seed(1337 + seed_offset)
data = np.memmap("train.bin", dtype=np.uint16, mode="r")


def get_batch():
    ix = torch.randint(len(data) - 64, (8,))
    x = torch.stack([torch.from_numpy(data[i : i + 64].astype(np.int64)) for i in ix])
    return x.to(device), x.to(device)


model = torch.nn.Sequential(torch.nn.Embedding(100, 8), torch.nn.Linear(8, 100))
model.to(device)
scaler = torch.cuda.amp.GradScaler(enabled=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
if ddp:
    model = DDP(model, device_ids=[ddp_local_rank])
raw_model = model.module if ddp else model
X, Y = get_batch()
for iter_num in range(1000):
    for micro_step in range(gradient_accumulation_steps):
        context = model.no_sync() if ddp and micro_step < gradient_accumulation_steps - 1 else nullcontext()
        with context:
            logits = model(X)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), Y.flatten()) / gradient_accumulation_steps
        X, Y = get_batch()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % 100 == 0 and master_process:
        print(loss.item())
        torch.save(raw_model.state_dict(), "checkpoint.pt")
if ddp:
    destroy_process_group()
