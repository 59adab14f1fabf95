# %% wrong
import os

import torch

torch.cuda.set_device(0)
os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"


# %% right
import os

os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"

import torch

torch.cuda.set_device(0)


# %% near miss
import os

import torch

device_ids = "0,1"
print(torch.__version__)
os.environ["CUDA_VISIBLE_DEVICES"] = device_ids
model = torch.nn.Linear(4, 4).cuda()
