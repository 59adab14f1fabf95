"""A script that starts the old launcher."""

import os
import subprocess
import sys

os.system("CUDA_VISIBLE_DEVICES=0,1 python3 -m torch.distributed.launch --nproc_per_node 2 train.py")  # expect: launch_module
subprocess.run([sys.executable, "-m", "torch.distributed.launch", "--nproc_per_node=2", "train.py"], check=True)  # expect: launch_module
