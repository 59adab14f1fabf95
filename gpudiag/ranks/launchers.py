"""The launchers that start a process for each rank, and where each of them shows which rank a process is."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gpudiag.compat import StrEnum
from gpudiag.errors import UsageError
from gpudiag.linux.proc import read_status

# What names a job: the last of the names must be set.
_JOB_NAMES = (
    ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID"),
    ("PMIX_NAMESPACE",),
    ("LSB_JOBID",),
    ("FLUX_JOB_ID",),
    ("TORCHELASTIC_RUN_ID",),
)

# --- Slurm's notation

_SCONTROL_SECONDS = 5.0
_MAX_NODES = 100_000
_BRACKETS = re.compile(r"\[([^\]]*)\]")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def expand_nodes(text: str) -> tuple[str, ...]:
    """The nodes of `gpu[01-03,7],login`, in Slurm's order (slurm.conf(5), scontrol(1)); empty for no list."""
    nodes: list[str] = []
    for part in _split_outside_brackets(text):
        for node in _expand_one(part):
            nodes.append(node)
            if len(nodes) > _MAX_NODES:
                return ()
    return tuple(nodes)


def tasks_on_node(text: str, node: int) -> int | None:
    """How many tasks node number `node` of the step has, by `4(x2),1`; None if not shown."""
    for part in text.split(","):
        match = _TASKS.fullmatch(part.strip())
        if match is None:
            return None
        node -= int(match[2] or 1)
        if node < 0:
            return int(match[1])
    return None


def node_address(node: str) -> str | None:
    """Slurm's address of this node, by `scontrol show node`, for names without one; None if unknown."""
    program = shutil.which("scontrol")
    if program is None:
        return None
    try:
        shown = subprocess.run(
            [program, "--oneliner", "show", "node", node],
            capture_output=True,
            text=True,
            timeout=_SCONTROL_SECONDS,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    fields = dict(word.partition("=")[::2] for word in shown.split())
    return fields.get("NodeAddr") or None


def outside_step(variables: Mapping[str, str]) -> int | None:
    """How many tasks the Slurm job of this batch script has; None where it is none."""
    batch = (
        "SLURM_JOB_ID" in variables and "SLURM_STEP_ID" not in variables and "SLURM_SUBMIT_DIR" in variables
    )
    tasks = variables.get("SLURM_NTASKS") or variables.get("SLURM_JOB_NUM_NODES") or ""
    return int(tasks) if batch and tasks.isdecimal() else None


def _split_outside_brackets(text: str) -> Iterator[str]:
    depth, part = 0, ""
    for character in text.strip():
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            yield part
            part = ""
        else:
            part += character
    if part:
        yield part


def _expand_one(part: str) -> Iterator[str]:
    match = _BRACKETS.search(part)
    if match is None:
        yield part
        return
    head, tail = part[: match.start()], part[match.end() :]
    for piece in match[1].split(","):
        first, dash, last = piece.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            return
        for number in range(int(first), int(last if dash else first) + 1):
            for rest in _expand_one(tail):
                yield f"{head}{number:0{len(first)}d}{rest}"


def job_name(variables: Mapping[str, str]) -> str:
    """The scheduler's or launcher's name of this job, alike in all its processes; empty where it has none."""
    for names in _JOB_NAMES:
        values = [variables.get(name, "") for name in names]
        if values[-1] and values[-1] != "none":  # torchrun's default
            return ":".join(values)
    return ""


def job_hosts(variables: Mapping[str, str]) -> tuple[str, ...]:
    """The machines of this job, where its scheduler or launcher lists them; empty where none does."""
    nodes = expand_nodes(variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST", ""))
    listed = variables.get("LSB_HOSTS", "").split()
    masters = [
        variables.get(name, "") for name in ("MASTER_ADDR", "PET_MASTER_ADDR", "HOROVOD_GLOO_RENDEZVOUS_ADDR")
    ]
    return tuple(dict.fromkeys(filter(None, (*nodes, *listed, *masters))))


# --- all launchers


class Launcher(StrEnum):
    """Who starts the ranks."""

    SPAWN = "spawn"  # gpudiag itself, on this machine
    EXPLICIT = "explicit"  # --rank, --world-size and --init-method
    TORCHRUN = "torchrun"
    RAY = "ray"  # Ray Train, which sets RANK and the rest
    VARIABLES = "variables"  # somebody else who sets RANK, WORLD_SIZE and MASTER_*
    HOROVODRUN = "horovodrun"
    MPIRUN = "mpirun"  # Open MPI, MVAPICH2
    HYDRA = "mpiexec"  # MPICH, Intel MPI
    SRUN = "srun"
    JSRUN = "jsrun"
    FLUX = "flux"
    KUBEFLOW = "kubeflow"  # PET_*, which the training operator means for torchrun
    INDEXED_JOB = "kubernetes"  # a Job of completionMode Indexed, also in a JobSet


# Ray sets it in each worker process.
RAY_VARIABLE = "RAY_JOB_ID"


@dataclass(frozen=True, slots=True)
class ProcessLauncher:
    """How such a launcher shows in the environment of the processes that it starts: names of variables."""

    launcher: Launcher
    size: str  # how many processes there are
    rank: str  # which of them this is
    local_rank: str = ""
    local_size: str = ""  # how many of them are on this machine
    nodes: str = ""  # on how many machines they are, where `local_size` is not known
    runs: tuple[str, ...] = ()  # what all processes of one run have alike, and no other run has
    needs: str = ""  # set only where a process was really started by it
    hand_on: str = "set MASTER_ADDR=HOST MASTER_PORT=PORT for all of them"


# The order is the rule for processes in which several of them show: the first one counts. MPI comes before
# Slurm, as its own daemons are a step of Slurm that the variables of the step are about. Open MPI's
# mpirun(1); MVAPICH2's user guide; Hydra's wiki and the PMI that MPICH and Intel MPI share; srun(1), "OUTPUT
# ENVIRONMENT VARIABLES"; jsrun(1); flux-environment(7); torch's argparse_util.py; Kubernetes, "Indexed Job".
PROCESS_LAUNCHERS = (
    ProcessLauncher(
        Launcher.MPIRUN,
        size="OMPI_COMM_WORLD_SIZE",
        rank="OMPI_COMM_WORLD_RANK",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
        runs=("PMIX_NAMESPACE",),
        hand_on="mpirun -x MASTER_ADDR=HOST ...",
    ),
    ProcessLauncher(
        Launcher.MPIRUN,
        size="MV2_COMM_WORLD_SIZE",
        rank="MV2_COMM_WORLD_RANK",
        local_rank="MV2_COMM_WORLD_LOCAL_RANK",
        local_size="MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    ProcessLauncher(
        Launcher.HYDRA,
        size="PMI_SIZE",
        rank="PMI_RANK",
        local_rank="MPI_LOCALRANKID",
        local_size="MPI_LOCALNRANKS",
        runs=("PMI_PORT",),
        hand_on="mpiexec -genv MASTER_ADDR HOST ...",
    ),
    ProcessLauncher(
        Launcher.SRUN,
        size="SLURM_STEP_NUM_TASKS",
        rank="SLURM_PROCID",
        local_rank="SLURM_LOCALID",
        runs=("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
        needs="SLURM_STEP_ID",
        hand_on="export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)",
    ),
    ProcessLauncher(
        Launcher.JSRUN,
        size="JSM_NAMESPACE_SIZE",
        rank="JSM_NAMESPACE_RANK",
        local_rank="JSM_NAMESPACE_LOCAL_RANK",
        local_size="JSM_NAMESPACE_LOCAL_SIZE",
        runs=("LSB_JOBID", "PMIX_NAMESPACE"),
        hand_on="jsrun --env MASTER_ADDR=HOST ...",
    ),
    ProcessLauncher(
        Launcher.FLUX,
        size="FLUX_JOB_SIZE",
        rank="FLUX_TASK_RANK",
        local_rank="FLUX_TASK_LOCAL_ID",
        nodes="FLUX_JOB_NNODES",
        runs=("FLUX_JOB_ID",),
        hand_on="flux run --env=MASTER_ADDR=HOST ...",
    ),
    ProcessLauncher(
        Launcher.KUBEFLOW,
        size="PET_NNODES",
        rank="PET_NODE_RANK",
        runs=("PET_RDZV_ID", "PET_MASTER_ADDR", "PET_RDZV_ENDPOINT"),
        hand_on="set PET_MASTER_ADDR to the name of the first pod",
    ),
    ProcessLauncher(
        Launcher.INDEXED_JOB,
        size="WORLD_SIZE",
        rank="JOB_COMPLETION_INDEX",
        hand_on="set MASTER_ADDR to the name of the pod with index 0, JOB-0.SERVICE",
    ),
)
# These count pods, which may have several ranks each.
POD_LAUNCHERS = frozenset((Launcher.KUBEFLOW, Launcher.INDEXED_JOB))
# These number each process, and can start one beside a job that runs, on each of its machines.
NUMBERING_LAUNCHERS = frozenset(one.launcher for one in PROCESS_LAUNCHERS) - POD_LAUNCHERS


@dataclass(frozen=True, slots=True)
class LaunchedProcess:
    """One of several processes that such a launcher started; `master`: None if unknown."""

    launcher: Launcher
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    run: str
    master: str | None
    read: tuple[str, ...]  # the variables that show it, the world size's last
    hand_on: str  # how a user gives the place of rank 0

    @property
    def on_one_machine(self) -> bool:
        """Whether all of them are on this machine."""
        return self.local_world_size == self.world_size


def find_launched(
    variables: Mapping[str, str],
    *,
    has_address: Callable[[str], bool],
    address_of: Callable[[str], str | None] = node_address,
    parent: Callable[[], str] = lambda: _launcher_on_this_machine(),
) -> LaunchedProcess | None:
    """This process among several that a launcher started; None where none did, or it is the only one.

    `has_address`: whether a name can be looked up; `address_of`: where a node of Slurm is that cannot;
    `parent` names the launcher's process here, for launchers that do not name their runs.

    Raises:
        UsageError: the variables contradict each other, or each pod is to start several processes.
    """
    found = next((one for one in PROCESS_LAUNCHERS if _shows(one, variables)), None)
    if found is None:
        return None
    if found.launcher is Launcher.KUBEFLOW:
        refuse_several_per_pod(variables)
    size, rank = int(variables[found.size]), parse_number(variables, found.rank)
    local_rank, local_size = _local_place(found, variables, rank, size)
    one_machine = local_size == size
    master = variables.get("MASTER_ADDR") or ("127.0.0.1" if one_machine else None)
    if master is None:
        master = _master_of(found.launcher, variables, has_address, address_of)
    named = [variables[name] for name in found.runs if variables.get(name)]
    met = [variables[name] for name in ("MASTER_ADDR", "MASTER_PORT") if variables.get(name)]
    run = "|".join([found.launcher.value, *(named or met or [parent()])])
    read = tuple(name for name in (found.needs, found.rank, found.size) if name)
    return LaunchedProcess(
        found.launcher, rank, size, local_rank, local_size, run, master, read, found.hand_on
    )


def is_one_of_several(variables: Mapping[str, str]) -> bool:
    """Whether such a launcher started this as one of several, with no other sign of the rank."""
    return "RANK" not in variables and any(_shows(one, variables) for one in PROCESS_LAUNCHERS)


def claimed_rank(variables: Mapping[str, str]) -> tuple[int, int] | None:
    """Which of how many this is by its launcher, whatever RANK is; None where none shows."""
    found = _numbered_by(variables)
    if found is None or not variables[found.rank].isdecimal():
        return None
    return int(variables[found.rank]), int(variables[found.size])


def refuse_contradiction(variables: Mapping[str, str]) -> None:
    """Raise UsageError where RANK is not the launcher's own number: it was left in the shell.

    A launcher inside of this one sets another WORLD_SIZE, or TORCHELASTIC_RUN_ID.
    """
    found, rank = _numbered_by(variables), variables.get("RANK", "")
    if (
        found is None
        or not rank.isdecimal()
        or "TORCHELASTIC_RUN_ID" in variables
        or RAY_VARIABLE in variables
    ):
        return
    size, own = variables[found.size], variables[found.rank]
    if variables.get("WORLD_SIZE", size) == size and own.isdecimal() and int(rank) != int(own):
        raise UsageError(
            f"RANK={rank} contradicts {found.launcher.value}, for which this is process"
            f" {own} of {size} ({found.rank})",
            hint=(
                "unset RANK WORLD_SIZE LOCAL_RANK in the shell that starts the job:"
                " the launcher numbers its processes itself"
            ),
        )


def _numbered_by(variables: Mapping[str, str]) -> ProcessLauncher | None:
    numbering = (one for one in PROCESS_LAUNCHERS if one.launcher in NUMBERING_LAUNCHERS)
    return next((one for one in numbering if _shows(one, variables)), None)


def refuse_several_per_pod(variables: Mapping[str, str]) -> None:
    """Raise UsageError where each pod of Kubeflow's operator runs several processes, without torchrun.

    torchrun reads PET_NPROC_PER_NODE; `auto` and the like count as one.
    """
    wanted = variables.get("PET_NPROC_PER_NODE") or "1"
    one = wanted == "1" or ("RANK" in variables and not wanted.isdecimal())
    if not one and "TORCHELASTIC_RUN_ID" not in variables:
        raise UsageError(
            f"PET_NPROC_PER_NODE={wanted}: this pod runs several processes, and"
            " torchrun did not start this one",
            hint="start it by `torchrun -m gpudiag ...`, which reads all of PET_*",
        )


def _shows(one: ProcessLauncher, variables: Mapping[str, str]) -> bool:
    size = variables.get(one.size, "")
    known = bool(variables.get(one.rank)) and (not one.needs or one.needs in variables)
    if not known or not size.isdecimal() or int(size) < 2:
        return False
    if RAY_VARIABLE in variables and one.launcher is Launcher.SRUN:
        return (
            False  # they are of the step in which `ray start` runs, and alike in all of Ray's workers there
        )
    # srun speaks PMI too (--mpi=pmi2): where both mean the same process, Slurm knows more of it.
    by_srun = variables.get("SLURM_PROCID"), variables.get("SLURM_STEP_NUM_TASKS")
    return one.launcher is not Launcher.HYDRA or by_srun != (variables.get(one.rank), size)


def _local_place(
    found: ProcessLauncher, variables: Mapping[str, str], rank: int, size: int
) -> tuple[int, int]:
    """Which process of this machine this is, and how many there are here."""
    if found.launcher is Launcher.SRUN:
        local_rank = parse_number(variables, "SLURM_LOCALID", 0)
        node = parse_number(variables, "SLURM_NODEID", 0)
        tasks = tasks_on_node(variables.get("SLURM_STEP_TASKS_PER_NODE", ""), node)
        return local_rank, tasks or local_rank + 1
    local_rank = parse_number(variables, found.local_rank, 0) if found.local_rank else 0
    if variables.get(found.nodes, "").isdecimal():
        return local_rank, -(-size // max(1, int(variables[found.nodes])))
    if not found.local_size:  # one process in each pod
        return 0, 1
    return local_rank, parse_number(variables, found.local_size, local_rank + 1)


def _master_of(
    launcher: Launcher,
    variables: Mapping[str, str],
    has_address: Callable[[str], bool],
    address_of: Callable[[str], str | None],
) -> str | None:
    """Where rank 0's machine is by the launcher's own variables; None where they do not show it."""
    if launcher is Launcher.KUBEFLOW:
        given = variables.get("PET_MASTER_ADDR") or variables.get("PET_RDZV_ENDPOINT", "").rpartition(":")[0]
        return given or None
    if launcher is Launcher.SRUN:
        nodes = expand_nodes(variables.get("SLURM_STEP_NODELIST", ""))
    elif launcher in (Launcher.MPIRUN, Launcher.HYDRA):  # both fill the job's nodes in their order
        nodes = expand_nodes(variables.get("SLURM_JOB_NODELIST", ""))
    else:
        nodes = ()
    if not nodes:
        return None
    return nodes[0] if has_address(nodes[0]) else address_of(nodes[0])


def _launcher_on_this_machine() -> str:
    """The process that started this for Hydra or the like: all here have it."""
    pid = "self"
    ancestors: list[str] = []
    while pid not in ("0", "1") and len(ancestors) < 20:
        try:
            fields = read_status(pid)
        except OSError:
            break
        if fields.get("Name", "").startswith(("hydra_pmi", "mpispawn", "orted", "prted")):
            return pid
        pid = fields.get("PPid", "0")
        ancestors.append(pid)
    return ancestors[0] if ancestors else ""


def parse_number(variables: Mapping[str, str], name: str, fallback: int | None = None) -> int:
    """The number in that variable, or `fallback` where it is not set.

    Raises:
        UsageError: it is not a number from 0 up, or not set and there is no fallback.
    """
    text = variables.get(name, "")
    if not text and fallback is not None:
        return fallback
    if not text.strip().isdecimal():
        raise UsageError(f"{name}={text} is not a number from 0 up", hint=f"set {name} as your launcher does")
    return int(text)
