"""A script that does not parse."""

import torch.distributed as dist

def main()  # expect: syntax_error
    dist.init_process_group("gloo")
