"""Checks of what the host lets a training job use: shared memory, locked memory, files, its cgroup."""

from collections.abc import Iterator
from functools import partial

from gpudiag.checks import limits
from gpudiag.checks.registry import Basis, FindingKind, Judgement, check, does_not_apply, judged, not_readable
from gpudiag.checks.subjects import host_finding, host_state, usable_gpus
from gpudiag.model.context import Context
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.number_ranges import count_of
from gpudiag.model.reading import Missing, MissingReason, Reading, value_or
from gpudiag.units import format_size

_KERNEL = "the Linux kernel's own files"
_DOCKER_SHM = (
    "Give the container more: `docker run --shm-size=16g` or `--ipc=host`; in Kubernetes an emptyDir of"
)
_SHM = f"{_DOCKER_SHM} medium Memory at /dev/shm."
_kind = partial(FindingKind, severity=Severity.CONFIG, category=Category.SW_CONFIG, owner=Owner.HOST)
_HOST_SHARED_MEMORY_BASIS = Basis(
    reads="The size of /dev/shm.",
    limit=(
        f"{format_size(limits.SHARED_MEMORY_PER_RANK_BYTES)} a rank;"
        f" {format_size(limits.SHARED_MEMORY_BYTES)} (NCCL's guide)"
    ),
    look_also=("df -h /dev/shm", "docker inspect CONTAINER | grep ShmSize"),
)
_HOST_PROCESS_LIMITS_BASIS = Basis(
    reads="/proc/self/limits: what this process, and so the ranks that it starts, may use.",
    limit=(
        f"locked memory unlimited with RDMA; {limits.OPEN_FILES} files;"
        f" {limits.PROCESSES} processes (our choice)"
    ),
    look_also=("ulimit -a", "network.rdma_error"),
)
_limit_kind = partial(_kind, outcome=Outcome.WARN, basis=_HOST_PROCESS_LIMITS_BASIS)
_HOST_CGROUP_BASIS = Basis(
    reads="cpu.max, memory.max and pids.max of the control group and of all above it; the processors that"
    " affinity allows.",
    limit=(
        f"a processor and {format_size(limits.HOST_MEMORY_PER_RANK_BYTES)}"
        " of memory for each GPU (our choice)"
    ),
    look_also=("cat /proc/self/cgroup", "host.out_of_memory_kill"),
)
SHM_TINY = _kind(
    code="host.shared_memory_too_small",
    outcome=Outcome.FAIL,
    meaning=(
        "Shared memory (/dev/shm) is smaller than the ranks of one machine need for NCCL"
        " alone (Docker's default is 64 MiB)."
    ),
    remedy=_SHM,
    basis=_HOST_SHARED_MEMORY_BASIS,
)
SHM_SMALL = _kind(
    code="host.shared_memory_small",
    outcome=Outcome.WARN,
    meaning=(
        "Shared memory (/dev/shm) is small: DataLoader workers that pass"
        " batches through it die with a bus error."
    ),
    remedy=_SHM,
    basis=_HOST_SHARED_MEMORY_BASIS,
)
LOCKED_MEMORY_LOW = _limit_kind(
    code="host.locked_memory_limit",
    meaning="Locked memory is limited; RDMA registers its buffers as locked memory, and fails at the limit.",
    remedy=(
        "Raise it: `ulimit -l unlimited`, memlock in /etc/security/limits.conf, or"
        " `docker run --ulimit memlock=-1`."
    ),
)
OPEN_FILES_LOW = _limit_kind(
    code="host.open_files_limit",
    meaning=(
        "A process may open only a few files; sockets to peers and shared tensors of workers use them up."
    ),
    remedy=(
        "Raise it: `ulimit -n 1048576`, nofile in /etc/security/limits.conf, or"
        " `docker run --ulimit nofile=1048576`."
    ),
)
PROCESSES_LOW = _limit_kind(
    code="host.processes_limit",
    meaning=(
        "Only a few processes and threads may run; ranks, NCCL and DataLoader workers start hundreds of them."
    ),
    remedy="Raise it: `ulimit -u`, pids.max of the cgroup, or `docker run --pids-limit=-1`.",
)
PROCESSORS_FEW = _kind(
    code="host.processors_few",
    outcome=Outcome.WARN,
    meaning="The job has fewer processors than GPUs: each rank needs one of its own, and its workers more.",
    remedy="Ask the scheduler for more processors (`--cpus-per-task`), or raise the container's CPU limit.",
    basis=_HOST_CGROUP_BASIS,
)
MEMORY_LIMIT_LOW = _kind(
    code="host.memory_limit_low",
    outcome=Outcome.WARN,
    meaning=(
        "The control group leaves less memory than the ranks of these GPUs need:"
        " the kernel kills one that goes above it."
    ),
    remedy="Ask the scheduler for more memory (`--mem`), or raise the container's memory limit.",
    basis=_HOST_CGROUP_BASIS,
)


@check(
    "host.shared_memory",
    title="shared memory is large enough",
    needs=("host_state",),
    reports=(SHM_TINY, SHM_SMALL),
    readings=("statvfs /dev/shm",),
    confirmed=_KERNEL,
)
def host_shared_memory(context: Context) -> Judgement:
    """FAIL where /dev/shm cannot hold what the ranks need; WARN where it is small for DataLoader workers."""
    total = context.snapshot.machine.shared_memory_total_bytes
    if isinstance(total, Missing):
        return not_readable("shared memory", total)
    gpus = usable_gpus(context)  # without one there is no NCCL, and gloo does not use it
    needed = limits.SHARED_MEMORY_PER_RANK_BYTES * gpus
    tiny = gpus > 0 and (total < needed or total <= limits.SHARED_MEMORY_PER_RANK_BYTES)
    kind, limit = (SHM_TINY, needed) if tiny else (SHM_SMALL, limits.SHARED_MEMORY_BYTES)
    if not tiny and total >= limits.SHARED_MEMORY_BYTES:
        return judged()
    evidence = Evidence("shared_memory_total_bytes", total, "bytes", limit, "statvfs /dev/shm")
    return judged(
        host_finding(context, kind, f"shared memory (/dev/shm) has {format_size(total)} in all", evidence)
    )


@check(
    "host.process_limits",
    title="limits on processes, files and locked memory are high enough",
    needs=("host_state",),
    reports=(LOCKED_MEMORY_LOW, OPEN_FILES_LOW, PROCESSES_LOW),
    readings=("/proc/self/limits", "pids.max of the control group"),
    confirmed=_KERNEL,
)
def host_process_limits(context: Context) -> Judgement:
    """WARN for each limit of this process, which ranks inherit, that is low for training."""
    found = host_state(context).process_limits
    if isinstance(found, Missing):
        return not_readable("the limits of this process", found)
    readings = (found.locked_memory_bytes, found.open_files, found.processes)
    gaps = [reading for reading in readings if isinstance(reading, Missing)]
    if len(gaps) == len(readings):
        return not_readable("the limits of this process", gaps[0])
    return judged(*_low_limits(context))


@check(
    "host.cgroup",
    title="the control group leaves enough processors and memory",
    needs=("host_state",),
    reports=(PROCESSORS_FEW, MEMORY_LIMIT_LOW),
    readings=("/sys/fs/cgroup: cpu.max, memory.max, pids.max", "Cpus_allowed_list"),
    confirmed=_KERNEL,
)
def host_cgroup(context: Context) -> Judgement:
    """WARN for too few processors or memory for a rank on each GPU; a note for less memory than a GPU has."""
    cgroup = host_state(context).cgroup
    if isinstance(cgroup, Missing):
        return not_readable("the control group", cgroup)
    if not usable_gpus(context):
        return does_not_apply("the machine has no GPU")
    limit = cgroup.memory_limit_bytes
    findings = [*_few_processors(context)]
    if limit is None or isinstance(limit, Missing):
        return judged(*findings)
    findings += _little_memory(context, limit, cgroup.path)
    largest = max((value_or(device.memory_total_bytes, 0) for device in context.snapshot.devices), default=0)
    if findings or limit >= largest:
        return judged(*findings)
    words = (
        f"the job may use {format_size(limit)} of host memory, less than the {format_size(largest)} of a GPU"
    )
    return Judgement(Outcome.PASS, reason=f"{words}: a checkpoint of that size cannot be read into it whole")


def _low_limits(context: Context) -> Iterator[Finding]:
    state = host_state(context)
    assert not isinstance(state.process_limits, Missing)  # noqa: S101 - the caller has looked
    ports = state.infiniband_ports
    found, has_rdma = state.process_limits, not isinstance(ports, Missing) and bool(ports)
    locked = found.locked_memory_bytes
    if has_rdma and locked is not None and not isinstance(locked, Missing):
        evidence = Evidence("locked_memory_bytes", locked, "bytes", "unlimited", "/proc/self/limits")
        message = f"locked memory is limited to {format_size(locked)}, and there are RDMA ports"
        yield host_finding(context, LOCKED_MEMORY_LOW, message, evidence)
    group = (
        Missing(MissingReason.NOT_ASKED)
        if isinstance(state.cgroup, Missing)
        else state.cgroup.processes_limit
    )
    for reading, kind, limit, words in (
        (found.open_files, OPEN_FILES_LOW, limits.OPEN_FILES, "open files"),
        (_lower(found.processes, group), PROCESSES_LOW, limits.PROCESSES, "processes and threads"),
    ):
        if not isinstance(reading, Missing) and reading is not None and reading < limit:
            evidence = Evidence(
                words.replace(" ", "_"), reading, None, limit, "/proc/self/limits; limit: our choice"
            )
            yield host_finding(context, kind, f"at most {reading} {words} are allowed", evidence)


def _lower(first: Reading[int | None], second: Reading[int | None]) -> Reading[int | None]:
    """The tighter of two limits; None is no limit. The known one where the other is missing."""
    if isinstance(first, Missing) or isinstance(second, Missing):
        return second if isinstance(first, Missing) else first
    known = [limit for limit in (first, second) if limit is not None]
    return min(known) if known else None


def _few_processors(context: Context) -> Iterator[Finding]:
    cgroup, gpus = host_state(context).cgroup, usable_gpus(context)
    assert not isinstance(cgroup, Missing)  # noqa: S101 - the caller has looked
    quota, allowed = cgroup.processors_limit, context.snapshot.machine.logical_processors_allowed
    counts = [
        float(value) for value in (quota, allowed) if value is not None and not isinstance(value, Missing)
    ]
    if counts and min(counts) < gpus:
        evidence = Evidence(
            "processors", min(counts), None, gpus, f"cgroup {cgroup.path} and affinity; limit: GPUs"
        )
        message = f"{min(counts):g} processors for {gpus} GPUs"
        yield host_finding(context, PROCESSORS_FEW, message, evidence)


def _little_memory(context: Context, limit: int, path: str) -> Iterator[Finding]:
    gpus = usable_gpus(context)
    needed = limits.HOST_MEMORY_PER_RANK_BYTES * gpus
    if limit < needed:
        source = (
            f"cgroup {path}; limit: {format_size(limits.HOST_MEMORY_PER_RANK_BYTES)} for each GPU, our choice"
        )
        evidence = Evidence("memory_limit_bytes", limit, "bytes", needed, source)
        message = f"the job may use {format_size(limit)} of host memory, for ranks on {count_of(gpus, 'GPU')}"
        yield host_finding(context, MEMORY_LIMIT_LOW, message, evidence)
