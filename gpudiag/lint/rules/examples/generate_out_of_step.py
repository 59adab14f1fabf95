# %% wrong
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM

dist.init_process_group("nccl")
model = AutoModelForCausalLM.from_pretrained("gpt2")
fully_shard(model)


def answer(tokens):
    return model.generate(tokens, max_new_tokens=100)


answer([[1]])
dist.destroy_process_group()


# %% right
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM

dist.init_process_group("nccl")
model = AutoModelForCausalLM.from_pretrained("gpt2")
fully_shard(model)


def answer(tokens):
    return model.generate(tokens, max_new_tokens=100, synced_gpus=True)


answer([[1]])
dist.destroy_process_group()


# %% near miss
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM

dist.init_process_group("nccl")
model = DistributedDataParallel(AutoModelForCausalLM.from_pretrained("gpt2"))


def answer(tokens):
    return model.module.generate(tokens, max_new_tokens=100)


answer([[1]])
dist.destroy_process_group()
