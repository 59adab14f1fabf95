"""Launchers that start several processes and say nothing that ranks can meet by: mpirun, srun and their like."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpudiag.errors import UsageError


@dataclass(frozen=True, slots=True)
class BareLauncher:
    """How one such launcher shows in the environment of the processes that it starts."""

    name: str
    size: str  # how many processes there are
    rank: str  # which of them this is
    needs: str = ""  # set only where a process was really started by it


# Open MPI's prterun(1), Hydra and the PMI that MPICH and Intel MPI share, MVAPICH2's user guide, srun(1),
# jsrun(1), flux-environment(7). In a batch script Slurm sets the job's variables and not those of a step.
_LAUNCHERS = (
    BareLauncher("mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    BareLauncher("mpirun", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    BareLauncher("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", needs="SLURM_STEP_ID"),
    BareLauncher("mpirun", "PMI_SIZE", "PMI_RANK"),
    BareLauncher("jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),
    BareLauncher("flux run", "FLUX_JOB_SIZE", "FLUX_TASK_RANK"),
)


def find_bare_launcher(variables: Mapping[str, str]) -> tuple[BareLauncher, int] | None:
    """The launcher that started this process as one of several, and how many; None if none did."""
    for launcher in _LAUNCHERS:
        size = variables.get(launcher.size, "")
        known = launcher.rank in variables and (not launcher.needs or launcher.needs in variables)
        if known and size.isdecimal() and int(size) > 1:
            return launcher, int(size)
    return None


def refuse_bare_launcher(variables: Mapping[str, str]) -> None:
    """Raise where each of several processes would run alone, and report as if it were all of them.

    Raises:
        UsageError: mpirun, srun or the like started several processes, and nobody set RANK.
    """
    found = find_bare_launcher(variables)
    if found is None or "RANK" in variables:
        return
    launcher, size = found
    raise UsageError(
        f"{launcher.name} started {size} processes, and RANK is not set: each would test by itself alone",
        hint=f"start it with torchrun, one per machine, or set RANK=${launcher.rank}, WORLD_SIZE, LOCAL_RANK, "
        "MASTER_ADDR and MASTER_PORT",
    )
