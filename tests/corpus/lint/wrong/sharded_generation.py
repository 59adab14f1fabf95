import os
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, AutoTokenizer
from torch.utils.data import DataLoader, DistributedSampler


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    tokenizer = AutoTokenizer.from_pretrained("gpt2")
    model = AutoModelForCausalLM.from_pretrained("gpt2").cuda()
    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)
    prompts = ["a", "bb", "ccc", "dddd"] * 8
    loader = DataLoader(prompts, batch_size=1, sampler=DistributedSampler(prompts, shuffle=False))
    model.eval()
    with torch.no_grad():
        for prompt in loader:
            inputs = tokenizer(prompt, return_tensors="pt").to("cuda")
            tokens = model.generate(**inputs, max_new_tokens=200, eos_token_id=tokenizer.eos_token_id)  # expect: generate_out_of_step
            length = torch.tensor([tokens.shape[1]], device="cuda")
            dist.all_reduce(length)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
