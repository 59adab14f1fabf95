"""The doctor's report: every part, and each command by the parts that it needs."""

from collections.abc import Callable
from functools import partial

from gpudiag.checks.doctor import machine_parts as machine
from gpudiag.checks.doctor import software_parts as software
from gpudiag.checks.doctor.inputs import Sight
from gpudiag.model.doctor import CommandState, DoctorPart, DoctorReport, PartState
from gpudiag.model.finding import Outcome

FRAMEWORKS = ("deepspeed", "accelerate", "horovod", "tensorflow")

_JUDGES: tuple[Callable[[Sight], DoctorPart], ...] = (
    *(machine.judge_nvml, machine.judge_device_files, machine.judge_nvidia_smi, machine.judge_kernel_log),
    *(software.judge_torch, software.judge_nccl),
    *(machine.judge_shared_memory, machine.judge_cgroup, machine.judge_ports),
    *(software.judge_launchers, machine.judge_slurm, machine.judge_kubelet),
    *(software.judge_python_stacks, software.judge_c_stacks, machine.judge_tracing),
    *(machine.judge_state_folder, machine.judge_history, software.judge_postgres),
    *(software.judge_service, software.judge_page, software.judge_compiler),
    *(partial(software.judge_framework, name=name) for name in FRAMEWORKS),
)

# Of each command the parts without which it gives nothing, and those without which it gives less.
NEEDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "list": (("nvml",), ("device-files", "kernel-log")),
    "preflight": (
        (),
        ("nvml", "device-files", "kernel-log", "torch", "shared-memory", "state-folder", "history"),
    ),
    "topo": (("nvml",), ("device-files", "state-folder", "history")),
    "watch": ((), ("nvml", "device-files", "kernel-log")),
    "receipt": ((), ()),
    "compare": ((), ()),
    "nccl-test": (("torch",), ("nvml", "shared-memory")),
    "bandwidth": (("torch",), ("nvml", "device-files")),
    "train": (("torch",), ("nvml", "shared-memory")),
    "run": ((), ("python-stacks", "tracing")),
    "hang": (("python-stacks",), ("tracing", "c-stacks")),
    "serve": (("service",), ("nvml", "web-page", "ports", "state-folder", "kernel-log")),
    "history": (("state-folder", "history"), ()),
    "demo": (("compiler",), ("service", "web-page")),
    "simulate": (("compiler",), ()),
    "explain": ((), ()),
    "judge": ((), ()),
    "lint": ((), ()),
    "merge": ((), ()),
    "deploy": ((), ()),
}
_LACKS = (PartState.ABSENT, PartState.BROKEN, PartState.NOT_HERE)


def judge_doctor(sight: Sight, version: str, seconds: float) -> DoctorReport:
    """What of gpudiag works there; `version` is gpudiag's own, `seconds` how long looking took."""
    parts = tuple(judge(sight) for judge in _JUDGES)
    states = {part.state for part in parts}
    outcome = Outcome.WARN if PartState.LIMITED in states else Outcome.PASS
    return DoctorReport(
        host=sight.snapshot.host,
        version=version,
        python=sight.python,
        simulated=sight.snapshot.simulated,
        outcome=Outcome.ERROR if PartState.BROKEN in states else outcome,
        parts=parts,
        commands=judge_commands(parts),
        seconds=seconds,
    )


def judge_commands(parts: tuple[DoctorPart, ...]) -> tuple[CommandState, ...]:
    """Each command: it works, works in part, or not, and what it lacks."""
    by_name = {part.name: part for part in parts}
    return tuple(
        _judge_command(name, [by_name[one] for one in needed], [by_name[one] for one in helpful])
        for name, (needed, helpful) in NEEDS.items()
    )


def _judge_command(name: str, needed: list[DoctorPart], helpful: list[DoctorPart]) -> CommandState:
    lacking = [part for part in needed if part.state in _LACKS]
    if lacking:
        broken = any(part.state is PartState.BROKEN for part in lacking)
        here = any(part.state is PartState.ABSENT for part in lacking)
        state = PartState.BROKEN if broken else PartState.ABSENT if here else PartState.NOT_HERE
        return CommandState(name, state, tuple(part.name for part in lacking))
    less = [
        part
        for part in (*needed, *helpful)
        if part.state is PartState.LIMITED
        or (part in helpful and part.state in (PartState.ABSENT, PartState.BROKEN))
    ]
    state = PartState.LIMITED if less else PartState.WORKS
    return CommandState(name, state, tuple(part.name for part in less))
