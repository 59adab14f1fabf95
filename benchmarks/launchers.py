"""How each launcher starts a Python program once for every rank, all of them on this machine."""

import sys

LAUNCHERS = ("torchrun", "srun", "mpirun", "mpiexec")


def command_of(launcher: str, world_size: int) -> tuple[str, ...]:
    """What stands before a Python program and its arguments to start it once for each rank."""
    if launcher == "torchrun":
        run = (sys.executable, "-m", "torch.distributed.run", "--standalone")
        return (*run, "--nproc-per-node", str(world_size))
    ranks = ("-n", str(world_size))
    starts = {
        "srun": ("srun", "--immediate=30", "--nodes=1", "--overcommit", *ranks),
        "mpirun": ("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", *ranks),
        "mpiexec": ("mpiexec.hydra", *ranks),
    }
    return (*starts[launcher], sys.executable)
