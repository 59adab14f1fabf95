"""Checks of what others left on the GPUs: memory without an owner, processes that are dead or not ours."""

from collections.abc import Iterator
from functools import partial

from gpudiag.checks import limits
from gpudiag.checks.gpu.availability import granted, is_granted
from gpudiag.checks.gpu.holders import command_words
from gpudiag.checks.gpu.products import is_coherent
from gpudiag.checks.per_device import answering, judge_devices
from gpudiag.checks.registry import Basis, FindingKind, Judgement, check, does_not_apply
from gpudiag.checks.subjects import device_subject, name_device
from gpudiag.model.context import Context
from gpudiag.model.device import Device, GpuProcess, Snapshot
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.units import format_size

_WSL_NODE = "/dev/dxg"
# By how much two readings of one memory, one after the other and by two sources, may differ: our choice.
_APART_BYTES = 2 << 30
_kind = partial(FindingKind, category=Category.SW_OTHER, owner=Owner.HOST)
_PROCESS_DEAD_BASIS = Basis(
    reads="The processes that NVML lists, and their state in /proc/PID/stat; state D in two snapshots.",
    limit=f"{limits.DEAD_PROCESS_SECONDS:.0f} s in state D (gcm); a zombie at once",
    look_also=("ps -o pid,ppid,stat,wchan:32,cmd -p PID", "host.blocked_task", "fuser -v /dev/nvidia*"),
)
MEMORY_LEFTOVER = _kind(
    code="memory.leftover",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    meaning="Memory of the GPU is in use, and no process on this machine accounts for it.",
    remedy=(
        "Find the process that holds the device (`fuser -v /dev/nvidia*` as root) and end"
        " it; if there is none, [reset: reset the GPU]."
    ),
    basis=Basis(
        reads="Used memory of each GPU (without the driver's reserve), and the processes that NVML lists.",
        limit=(
            f"{format_size(limits.LEFTOVER_BYTES)} (our choice; idle GPUs in captures show 0), and on GH200,"
            " GB200 and GB300 what the system uses on NUMA nodes without processors;"
            f" {format_size(limits.LEFTOVER_OLD_DRIVER_BYTES)} where an older driver counts its own use in"
        ),
        look_also=("fuser -v /dev/nvidia*", "process.dead"),
    ),
)
PROCESS_DEAD = _kind(
    code="process.dead",
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    meaning="A process that holds this GPU is dead or stuck in the kernel, and does not release it.",
    remedy="[host] End its parent if it is a zombie; a process stuck in the kernel (state D) needs a reboot.",
    basis=_PROCESS_DEAD_BASIS,
)
PROCESS_GONE = _kind(
    code="process.gone",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    meaning="The driver lists a process on this GPU that does not exist on this machine.",
    remedy=(
        "Check again in a minute; if it is still there, [reset: reset the GPU while no process"
        " uses it (`nvidia-smi -i INDEX -r`)]."
    ),
    basis=_PROCESS_DEAD_BASIS,
)
PROCESS_FOREIGN = _kind(
    code="process.foreign",
    outcome=Outcome.WARN,
    severity=Severity.TRIAGE,
    meaning="This GPU was given to this job, and someone else is computing on it.",
    remedy="Notify the other user or the administrator; ask the scheduler to constrain devices.",
    basis=Basis(
        reads="Who owns each compute process on a GPU that the allocation gives to this job.",
        limit="no compute process of another user",
        look_also=("gpudiag list", "env | grep -e SLURM -e VISIBLE"),
    ),
)


@check(
    "memory.leftover",
    title="all memory in use belongs to a process",
    needs=("gpus",),
    reports=(MEMORY_LEFTOVER,),
    readings=("memory_used_bytes", "processes"),
    confirmed="nvidia-smi -q of A100, H100, B200 and T4 (0 MiB used, no process)",
)
def memory_leftover(context: Context) -> Judgement:
    """WARN for a GPU with memory in use and no process on it."""
    container = context.snapshot.machine.container
    if container is not None:
        words = f"inside a container ({container.words}) the driver does not list other containers' processes"
        return does_not_apply(words)
    nodes = context.snapshot.machine.device_nodes
    if not isinstance(nodes, Missing) and _WSL_NODE in nodes:
        return does_not_apply("under WSL the driver does not list the processes of Windows")
    if all(device.memory_kind == "unified" for device in answering(context.snapshot)):
        return does_not_apply("the GPU's memory is the whole machine's")
    if _is_the_systems(context.snapshot):
        return does_not_apply(
            "the system itself uses memory of the GPUs (page cache on NUMA nodes without processors)"
        )
    return judge_devices(context.snapshot, ("memory_used_bytes", "processes"), _judge_memory)


def _is_the_systems(snapshot: Snapshot) -> bool:
    """Whether what is in use on coherent GPUs is at most the system's on nodes without processors."""
    system = snapshot.machine.memory_only_nodes_used_bytes
    devices = [device for device in answering(snapshot) if is_coherent(device)]
    used = [
        device.memory_used_bytes for device in devices if not isinstance(device.memory_used_bytes, Missing)
    ]
    if isinstance(system, Missing) or not used:
        return False
    return sum(used) <= system + len(used) * (limits.LEFTOVER_BYTES + _APART_BYTES)


@check(
    "process.dead",
    title="no dead process holds a GPU",
    needs=("gpus",),
    reports=(PROCESS_DEAD, PROCESS_GONE),
    readings=("processes", "/proc/PID/stat"),
    confirmed="the Linux kernel's process states",
)
def process_dead(context: Context) -> Judgement:
    """FAIL for a zombie or stuck process on a GPU; WARN for a process that the machine does not have."""
    container = context.snapshot.machine.container
    if container is not None:
        words = f"inside a container ({container.words}) the driver names processes by the host's numbers"
        return does_not_apply(words)
    return judge_devices(
        context.snapshot, ("processes",), lambda snapshot, device: _judge_processes(context, device)
    )


@check(
    "process.foreign",
    title="nobody else is computing on this job's GPUs",
    needs=("gpus", "host_state"),
    reports=(PROCESS_FOREIGN,),
    readings=("processes", "user", "CUDA_VISIBLE_DEVICES", "SLURM_*"),
    confirmed="the Linux kernel's process owners",
)
def process_foreign(context: Context) -> Judgement:
    """WARN for another user's compute process on a GPU that was given to this job."""
    state, snapshot = context.snapshot.machine.state, context.snapshot
    assert not isinstance(state, Missing)  # noqa: S101 - the runner answers for the need
    user = state.user
    if granted(snapshot.machine.allocation) is None:
        return does_not_apply("no setting gives these GPUs to this job alone")
    if isinstance(user, Missing):
        return does_not_apply("gpudiag does not know which user runs this")
    return judge_devices(
        snapshot, ("processes",), lambda snapshot, device: _judge_foreign(snapshot, device, user)
    )


def _judge_memory(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    used, processes = device.memory_used_bytes, device.processes
    if isinstance(used, Missing) or isinstance(processes, Missing) or processes:
        return
    counts_its_own = isinstance(device.memory_reserved_bytes, Missing)
    limit = limits.LEFTOVER_OLD_DRIVER_BYTES if counts_its_own else limits.LEFTOVER_BYTES
    if used > limit:
        message = f"{name_device(device)}: {format_size(used)} of memory in use, and no process on it"
        evidence = Evidence("memory_used_bytes", used, "bytes", limit, "NVML; limit: our choice")
        yield MEMORY_LEFTOVER.finding(device_subject(snapshot, device), message, evidence)


def _judge_processes(context: Context, device: Device) -> Iterator[Finding]:
    snapshot, processes = context.snapshot, device.processes
    subject = device_subject(snapshot, device)
    for process in () if isinstance(processes, Missing) else processes:
        who = f"{name_device(device)}: process {process.pid}{_words(process)}"
        if not process.visible and _is_hidden(process):
            continue
        if not process.visible:
            evidence = Evidence("pid", process.pid, source="NVML; not in /proc")
            yield PROCESS_GONE.finding(subject, f"{who} is listed on it and does not exist", evidence)
        elif process.state == "Z":
            evidence = Evidence("state", "Z", source=f"/proc/{process.pid}/stat")
            pid = Evidence("pid", process.pid, source="NVML")
            remedy = f"End its parent, which has not waited for it (`ps -o ppid= -p {process.pid}`)."
            yield PROCESS_DEAD.finding(
                subject, f"{who} is a zombie and holds it", evidence, pid, remedy=remedy
            )
        elif process.state == "D" and _was_stuck(context, process):
            evidence = Evidence(
                "state", "D", limit=limits.DEAD_PROCESS_SECONDS, source=f"/proc/{process.pid}/stat"
            )
            pid = Evidence("pid", process.pid, source="NVML")
            remedy = (
                f"[host] `cat /proc/{process.pid}/stack` as root shows where;"
                f" drain the machine and reboot it."
            )
            yield PROCESS_DEAD.finding(
                subject, f"{who} is stuck in the kernel (state D)", evidence, pid, remedy=remedy
            )


def _is_hidden(process: GpuProcess) -> bool:
    """Whether /proc shows this user only processes of its own (mounted with hidepid)."""
    return isinstance(process.user, Missing) and process.user.reason is MissingReason.NO_PERMISSION


def _was_stuck(context: Context, process: GpuProcess) -> bool:
    """Whether a much earlier snapshot has the same process in the same state: D may last a moment."""
    earlier = context.earlier
    if isinstance(earlier, Missing):
        return False
    if (context.snapshot.taken_at - earlier.taken_at).total_seconds() < limits.DEAD_PROCESS_SECONDS:
        return False
    before = (
        one
        for device in earlier.devices
        if not isinstance(device.processes, Missing)
        for one in device.processes
    )
    return any(
        one.pid == process.pid and one.state == "D" and one.started_at == process.started_at for one in before
    )


def _judge_foreign(snapshot: Snapshot, device: Device, user: str) -> Iterator[Finding]:
    processes = device.processes
    if isinstance(processes, Missing) or not is_granted(snapshot, device):
        return
    for process in processes:
        owner = process.user
        if process.kind == "compute" and not isinstance(owner, Missing) and owner != user:
            message = (
                f"{name_device(device)}: {owner} is computing on it (process {process.pid}{_words(process)})"
            )
            evidence = Evidence("user", owner, limit=user, source=f"/proc/{process.pid}")
            pid = Evidence("pid", process.pid, source="NVML")
            yield PROCESS_FOREIGN.finding(device_subject(snapshot, device), message, evidence, pid)


def _words(process: GpuProcess) -> str:
    """A process's command, shortened, in brackets; empty where it is not known."""
    command = command_words(process)
    return "" if isinstance(command, Missing) else f" ({command})"
