"""Ranks and sizes that are written into the script, and a forward pass on rank 0."""

import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group(backend="nccl", init_method="file:///tmp/store", world_size=1, rank=0)  # expect: world_size_written_down, file_store_left
torch.cuda.set_device(0)
model = DDP(torchvision.models.resnet18().cuda(), device_ids=[0])  # expect: batch_norm_apart
model.load_state_dict(torch.load("resnet.pt"))  # expect: load_without_map_location
if dist.get_rank() == 0:
    model.eval()
    with torch.no_grad():
        model(torch.randn(1, 3, 224, 224).cuda())  # expect: forward_on_one_rank
count = torch.tensor(5.0)
dist.all_reduce(count)  # expect: nccl_on_cpu
dist.destroy_process_group()
