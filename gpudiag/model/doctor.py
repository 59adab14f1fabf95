"""What of gpudiag works on this machine: what was seen of each part, and what each command lacks."""

from typing import ClassVar

from gpudiag.compat import StrEnum
from gpudiag.model.codec import noun
from gpudiag.model.finding import Outcome
from gpudiag.model.reading import Reading

# --- what is seen


@noun
class TorchBuild:
    """A build of torch as its files describe it, without importing it."""

    version: str
    cuda: Reading[str]  # the CUDA that it was built for; NOT_SUPPORTED for a build without
    nccl: Reading[str]  # the version of NVIDIA's package


@noun
class TraceRights:
    """What decides whether this user may look into another process of its own."""

    is_root: bool
    ptrace_scope: Reading[int]  # kernel.yama.ptrace_scope; SOURCE_ABSENT where there is no Yama
    has_capability: Reading[bool]  # SYS_PTRACE


@noun
class StateFolder:
    """The folder of gpudiag's state: whether a file could be written in it, or what refused that."""

    path: str
    problem: str  # empty where a file was written
    free_bytes: Reading[int]


@noun
class Surroundings:
    """What a doctor looks at beside the sources: each is read by itself; one that hangs costs only itself."""

    programs: Reading[dict[str, str]]  # where each program was found; those that were not are left out
    packages: Reading[dict[str, str]]  # the version of each distribution that gpudiag's own interpreter has
    job_packages: Reading[dict[str, str]]  # and of each that the job's has
    torch: Reading[TorchBuild]  # of the job's interpreter
    trace_rights: Reading[TraceRights]
    state_folder: Reading[StateFolder]
    ports: Reading[dict[str, bool]]  # whether each port of this machine is free
    closed_nodes: Reading[tuple[str, ...]]  # NVIDIA's device files that this user may not open
    kubelet: Reading[bool]  # whether this user may ask the kubelet which pod has which GPU
    page: Reading[bool]  # whether the web page was built


# --- what follows from it


class PartState(StrEnum):
    """How one part of gpudiag's surroundings is."""

    WORKS = "works"
    LIMITED = "limited"  # it works, and not in all respects
    ABSENT = "absent"  # it is optional, and not installed
    NOT_HERE = "not_here"  # this machine has none: no GPU, no Slurm
    BROKEN = "broken"  # it should work here, and does not


@noun
class DoctorPart:
    """One part: what was seen of it, and the command that repairs or installs it."""

    name: str
    state: PartState
    seen: str
    remedy: str = ""


@noun
class CommandState:
    """One command of gpudiag: whether it works here, by the parts that it needs."""

    name: str
    state: PartState
    lacks: tuple[str, ...] = ()  # the parts that keep it from working, or from working in all respects


@noun
class DoctorReport:
    """`gpudiag.doctor/2`: what of gpudiag works on one machine.

    The outcome is ERROR where a part that should work here does not, else WARN where one is limited, else
    PASS. What is optional and absent, and what this machine does not have, are neither.
    """

    SCHEMA: ClassVar[str] = "gpudiag.doctor/2"

    host: str
    version: str  # of gpudiag
    python: str  # the interpreter that was looked at
    simulated: str | None
    outcome: Outcome
    parts: tuple[DoctorPart, ...]
    commands: tuple[CommandState, ...]
    seconds: float
