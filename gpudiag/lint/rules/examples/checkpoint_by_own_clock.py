# %% wrong
import time

import torch
from accelerate import Accelerator


def train(model, loader):
    accelerator = Accelerator()
    folder = f"runs/{time.strftime('%Y-%m-%d-%H-%M-%S')}"
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        optimizer.zero_grad()
        accelerator.backward(model(batch).mean())
        optimizer.step()
    accelerator.save_state(folder)


# %% right
import torch
from accelerate import Accelerator


def train(model, loader, folder):
    accelerator = Accelerator()
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        optimizer.zero_grad()
        accelerator.backward(model(batch).mean())
        optimizer.step()
    accelerator.save_state(folder)


# %% near miss
import time

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list


def train(model, loader):
    accelerator = Accelerator()
    folder = [f"runs/{time.strftime('%Y-%m-%d-%H-%M-%S')}"]
    broadcast_object_list(folder)
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        optimizer.zero_grad()
        accelerator.backward(model(batch).mean())
        optimizer.step()
    accelerator.save_state(folder[0])
