"""Who holds a GPU, in words; and the check whether the job has enough of its memory."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from gpudiag.checks import limits
from gpudiag.checks.gpu.availability import given_to_job, names_instance, signs_of_use
from gpudiag.checks.gpu.products import is_coherent
from gpudiag.checks.per_device import answering, judge_devices
from gpudiag.checks.registry import Basis, FindingKind, Judgement, Restated, check, does_not_apply
from gpudiag.checks.subjects import device_subject, name_device
from gpudiag.model.context import Context
from gpudiag.model.device import Device, GpuProcess, Snapshot
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.measure import RankReport
from gpudiag.model.reading import Missing
from gpudiag.model.report import Measures
from gpudiag.model.untrusted_text import shorten_text
from gpudiag.units import format_seconds, format_size

# --- who holds it

_COMMAND_CHARACTERS = 40
_MOST_PIDS = 8  # in the evidence
# CUDA's Multi-Process Service: GPUs are shared by intention (docs.nvidia.com/deploy/mps).
_MPS_SERVER = "nvidia-cuda-mps-server"


def computing_on(device: Device, own: frozenset[int] = frozenset()) -> tuple[GpuProcess, ...]:
    """The processes that compute on the GPU, the largest first; not those in `own`."""
    processes = () if isinstance(device.processes, Missing) else device.processes
    found = [
        process
        for process in processes
        if process.kind != "graphics" and process.pid not in own and not _is_mps_server(process)
    ]
    return tuple(sorted(found, key=_memory_bytes, reverse=True))


def describe_holders(device: Device, now: datetime, own: frozenset[int] = frozenset()) -> str:
    """The process with the most GPU memory, and how many more there are; empty if none is listed."""
    holders = computing_on(device, own)
    if not holders:
        return ""
    more = len(holders) - 1
    others = f", and {more} more process{'es' * (more > 1)}" if more else ""
    return f"{describe_holder(holders[0], now)}{others}"


def describe_beside(snapshot: Snapshot, devices: Iterable[Device], own: frozenset[int]) -> str:
    """Which of the GPUs others compute on, and who; empty for none. In a container by load and memory."""
    beside = []
    for device in devices:
        signs = signs_of_use(device) if snapshot.machine.container is not None else []
        who = describe_holders(device, snapshot.taken_at, own) or ", ".join(signs)
        if who:
            beside.append(f"{name_device(device)}: {who}")
    return "; ".join(beside)


def describe_holder(process: GpuProcess, now: datetime) -> str:
    """One process, as far as known: `pid 4242 (ann, python train.py) holds 139 GiB, started 2 h ago`."""
    known = [value for value in (process.user, command_words(process)) if not isinstance(value, Missing)]
    who = f"pid {process.pid}" + (f" ({', '.join(known)})" if known else "")
    used = process.memory_used_bytes
    what = "memory of it" if isinstance(used, Missing) else format_size(used)
    if isinstance(process.started_at, Missing):
        return f"{who} holds {what}"
    age_seconds = max(0.0, (now - process.started_at).total_seconds())
    return f"{who} holds {what}, started {format_seconds(age_seconds)} ago"


def why_no_context(snapshot: Snapshot, device: Device) -> str | None:
    """How little memory is left for a CUDA context, and who has the rest; None if nobody, or unknown."""
    free, who = device.memory_free_bytes, describe_holders(device, snapshot.taken_at)
    if (
        isinstance(free, Missing)
        or device.mig_mode == "enabled"
        or (free >= limits.CONTEXT_BYTES and not who)
    ):
        return None
    return f"{name_device(device)} has {format_size(free)} free{': ' if who else ''}{who}"


def command_words(process: GpuProcess) -> str | Missing:
    """A process's command, shortened."""
    command = process.command
    return command if isinstance(command, Missing) else shorten_text(command, _COMMAND_CHARACTERS)


def own_pids(measures: Measures) -> frozenset[int]:
    """The processes of the ranks that measured: they may not have left their GPUs yet."""
    measured = (measures.collective, measures.active, measures.operations, measures.card_pairs)
    runs = [run for run in measured if not isinstance(run, Missing)]
    trained = () if isinstance(measures.training, Missing) else measures.training
    return pids_of(rank for run in (*runs, *trained) for rank in run.ranks)


def pids_of(ranks: Iterable[RankReport]) -> frozenset[int]:
    """The processes of these ranks, as far as they are known."""
    return frozenset(rank.pid for rank in ranks if not isinstance(rank.pid, Missing))


def _memory_bytes(process: GpuProcess) -> int:
    return 0 if isinstance(process.memory_used_bytes, Missing) else process.memory_used_bytes


def _is_mps_server(process: GpuProcess) -> bool:
    return not isinstance(process.command, Missing) and _MPS_SERVER in process.command


# --- how much of it is free

_BASIS = Basis(
    reads=(
        "Used and free memory of each GPU, or MIG instance, that the job is to"
        " use; the processes that NVML lists."
    ),
    limit=(
        f"{limits.LEAST_FREE_MEMORY_SHARE:.0%} free (our choice: idle GPUs in the captures have all of it"
        " free, and a CUDA context takes 0.3 to 0.6 GiB), or what --min-free-memory asks for."
    ),
    look_also=("gpudiag list", "process.foreign", "memory.leftover", "nvidia-smi"),
)
_kind = partial(
    FindingKind, severity=Severity.TRIAGE, category=Category.SW_OTHER, owner=Owner.HOST, basis=_BASIS
)
MEMORY_HELD = _kind(
    code="memory.held",
    outcome=Outcome.WARN,
    meaning="Processes hold memory of a GPU that the job is to use.",
    remedy="Wait for it, or end it if it was left behind; `gpudiag list --free 1` names a free GPU.",
)
BELOW_MINIMUM = _kind(
    code="memory.below_minimum",
    outcome=Outcome.FAIL,
    meaning="A GPU has less free memory than --min-free-memory asks for.",
    remedy="Wait for the process that holds it, or end it if it was left behind; `gpudiag list` shows it.",
    stated=True,
)
# Findings that name the owner of the same memory.
_STATED_BY = ("process.dead", "process.gone", "process.foreign", "memory.leftover")
_PAGE_CACHE = "It may be the kernel's page cache: `echo 1 > /proc/sys/vm/drop_caches` as root frees it."


@dataclass(frozen=True, slots=True)
class _Memory:
    """The memory of one GPU or MIG instance, without what ranks of this run have."""

    name: str  # as a message names it
    used_bytes: int
    free_bytes: int

    @property
    def total_bytes(self) -> int:
        """What is not the driver's own."""
        return self.used_bytes + self.free_bytes

    @property
    def is_held(self) -> bool:
        """Whether so much of it is in use that a job may fail there."""
        return self.free_bytes < limits.LEAST_FREE_MEMORY_SHARE * self.total_bytes


@check(
    "memory.free",
    title="enough memory is free on every GPU that the job is to use",
    needs=("gpus", "host_state"),  # a listing shows a busy GPU as busy, and judges none by it
    reports=(MEMORY_HELD, BELOW_MINIMUM),
    readings=("memory_used_bytes", "memory_free_bytes", "processes", "user"),
    confirmed="nvidia-smi -q of A100, H100, B200 and T4 (all of it is free on idle GPUs)",
)
def memory_free(context: Context) -> Judgement:
    """FAIL for less than a gate asks for; without a gate, WARN if others hold a tenth of a job's GPU."""
    asked = context.least_free_memory
    if all(device.memory_kind == "unified" for device in answering(context.snapshot)):
        return does_not_apply("the GPU's memory is the whole machine's")
    if not isinstance(asked, Missing) and asked.is_none:
        return does_not_apply("--min-free-memory 0 asks for none")
    found = list(_judge_memory(context))
    judgement = judge_devices(
        context.snapshot,
        ("memory_used_bytes", "memory_free_bytes"),
        lambda snapshot, device: [one for one in found if one.subject == device_subject(snapshot, device)],
    )
    held = (one for one in judgement.findings if one.code == MEMORY_HELD.code)
    return replace(judgement, restated=tuple(Restated(one, _STATED_BY) for one in held))


def _judge_memory(context: Context) -> Iterator[Finding]:
    """A finding for each GPU, or MIG instance, with too little free memory."""
    snapshot, asked, own = context.snapshot, context.least_free_memory, own_pids(context.measures)
    devices = [one for one in answering(snapshot) if one.memory_kind != "unified"]
    if not isinstance(asked, Missing):
        for device in devices:
            for memory in _memories(snapshot, device, own):
                if given_to_job(snapshot, device) is not False and memory.free_bytes < asked.of(
                    memory.total_bytes
                ):
                    yield _finding(
                        context, BELOW_MINIMUM, device, memory, asked.of(memory.total_bytes), str(asked)
                    )
        return
    held = {
        device.id: [one for one in _memories(snapshot, device, own) if one.is_held]
        for device in devices
        if _matters(snapshot, device, own)
    }
    # Where it is unknown which GPUs the job is to use, those that others use matter only if none is left.
    none_left = bool(devices) and all(held.get(device.id) for device in devices)
    for device in devices:
        given = given_to_job(snapshot, device)
        for memory in held.get(device.id, ()):
            if given or (given is None and none_left):
                least = round(limits.LEAST_FREE_MEMORY_SHARE * memory.total_bytes)
                share = f"{limits.LEAST_FREE_MEMORY_SHARE:.0%}"
                yield _finding(context, MEMORY_HELD, device, memory, least, share)


def _matters(snapshot: Snapshot, device: Device, own: frozenset[int]) -> bool:
    """Whether a user would act on memory in use: not under MPS, nor with a display.

    Memory of no process is another check's, except in a container, which does not see others' processes.
    """
    processes = () if isinstance(device.processes, Missing) else device.processes
    if any(_is_mps_server(process) for process in processes):
        return False
    if device.mig_mode == "enabled" and "MIG-" not in snapshot.machine.allocation.get(
        "CUDA_VISIBLE_DEVICES", ""
    ):
        return False
    if computing_on(device, own):
        return True
    return not processes and snapshot.machine.container is not None and not is_coherent(device)


def _memories(snapshot: Snapshot, device: Device, own: frozenset[int]) -> Iterator[_Memory]:
    """The GPU's memory, or that of each MIG instance which the job may use."""
    instances = device.mig_instances
    if device.mig_mode == "enabled" and not isinstance(instances, Missing):
        for place, instance in enumerate(instances):
            uuid, used, free = instance.uuid, instance.memory_used_bytes, instance.memory_free_bytes
            if isinstance(uuid, Missing) or not names_instance(snapshot.machine.allocation, uuid):
                continue
            if not isinstance(used, Missing) and not isinstance(free, Missing):
                yield _Memory(f"{name_device(device)}, MIG instance {place}", used, free)
        return
    used, free = device.memory_used_bytes, device.memory_free_bytes
    if isinstance(used, Missing) or isinstance(free, Missing):
        return
    processes = () if isinstance(device.processes, Missing) else device.processes
    ours = min(used, sum(_memory_bytes(process) for process in processes if process.pid in own))
    yield _Memory(name_device(device), used - ours, free + ours)


def _finding(
    context: Context, kind: FindingKind, device: Device, memory: _Memory, least: int, share: str
) -> Finding:
    snapshot, own = context.snapshot, own_pids(context.measures)
    who = describe_holders(device, snapshot.taken_at, own)
    unseen = "processes of other containers are not visible here" if snapshot.machine.container else ""
    why = who or unseen or "no process is listed"
    message = (
        f"{memory.name}: {format_size(memory.free_bytes)} of"
        f" {format_size(memory.total_bytes)} are free: {why}"
    )
    evidence = [
        Evidence("memory_free_bytes", memory.free_bytes, "bytes", least, f"NVML; limit: {share} free")
    ]
    evidence += [
        Evidence("pid", process.pid, source="NVML") for process in computing_on(device, own)[:_MOST_PIDS]
    ]
    seen = [process for process in computing_on(device, own) if process.visible]
    remedy = kind.written_remedy
    if seen:
        remedy = f"Look at it: `ps -o user,etime,args -p {seen[0].pid}`. {remedy}"
    if not who and is_coherent(device):
        remedy = _PAGE_CACHE
    owner = Owner.JOB if seen and _are_own_users(snapshot, seen) else None
    return kind.finding(device_subject(snapshot, device), message, *evidence, remedy=remedy, owner=owner)


def _are_own_users(snapshot: Snapshot, processes: Iterable[GpuProcess]) -> bool:
    """Whether all of them are of the user who runs gpudiag, who need ask nobody."""
    state = snapshot.machine.state
    return not isinstance(state, Missing) and all(process.user == state.user for process in processes)
