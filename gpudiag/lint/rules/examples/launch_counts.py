# %% wrong
import subprocess

subprocess.run(
    "srun --nodes=2 --ntasks-per-node=8 torchrun --nnodes=2 "
    "--nproc-per-node=8 --rdzv-endpoint=node-a:29500 train.py",
    shell=True,
    check=True,
)


# %% right
import subprocess

subprocess.run(
    "srun --nodes=2 --ntasks-per-node=1 torchrun --nnodes=2 "
    "--nproc-per-node=8 --rdzv-endpoint=node-a:29500 train.py",
    shell=True,
    check=True,
)


# %% near miss
import subprocess

subprocess.run(
    "srun --nodes=2 --ntasks-per-node=8 python train.py",
    shell=True,
    check=True,
)
