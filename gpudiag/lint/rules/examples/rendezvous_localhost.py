# %% wrong
import subprocess

subprocess.run(
    "torchrun --nnodes=2 --rdzv-endpoint=localhost:29500 train.py",
    shell=True,
    check=True,
)


# %% right
import subprocess

subprocess.run(
    "torchrun --nnodes=2 --rdzv-endpoint=node-a:29500 train.py",
    shell=True,
    check=True,
)


# %% near miss
import subprocess

subprocess.run(
    "torchrun --nnodes=1 --rdzv-endpoint=localhost:29500 train.py",
    shell=True,
    check=True,
)
