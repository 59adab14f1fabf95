"""What an incident of ranks is reported as: the kinds of findings, and what each rests on."""

from functools import partial

from gpudiag.checks.registry import Basis, FindingKind
from gpudiag.model.finding import Category, Outcome, Owner, Severity

_RANK_DIED_BASIS = Basis(
    reads="/proc of each rank, by the agent on its own host; the wait status; the rank's exception; the"
    " collective that it last entered.",
    limit=(
        "Silent: the others have waited for 1.2 s longer than max(1 s, 10 times the predicted time),"
        " times the load of the host; with `--timeout`, for that time."
    ),
    look_also=("rank.killed", "host.out_of_memory_kill", "dmesg -T | tail -50", "py-spy dump --pid PID"),
)
_kind = partial(
    FindingKind, outcome=Outcome.FAIL, category=Category.SW_OTHER, owner=Owner.JOB, basis=_RANK_DIED_BASIS
)
_RANK_PAUSED_BASIS = Basis(
    reads=(
        "/proc of each rank and the position that it reported, ten times a"
        " second; only while the agent itself ran."
    ),
    limit=(
        "A stop of 0.3 s, a hang of max(1 s, 10 times the predicted time), times the load of"
        " the host; then the rank continued."
    ),
    look_also=("rank.late", "rank.stopped", "collective.stalled", "dmesg -T | tail -50"),
)
RANK_DIED = _kind(
    code="rank.died",
    severity=Severity.ISOLATE,
    meaning="A rank's process ended by a signal, or with an exit status and no Python exception.",
    remedy="Read `dmesg -T | tail -50` on that host for the OOM killer, Xid lines and segmentation faults.",
)
RANK_STOPPED = _kind(
    code="rank.stopped",
    severity=Severity.TRIAGE,
    meaning="A rank's process is stopped: a signal (SIGSTOP, SIGTSTP) or a debugger holds it.",
    remedy=(
        "Find who stopped it (a scheduler that suspends jobs, a debugger), then"
        " continue it: `kill -CONT` and its pid."
    ),
)
RANK_RAISED = _kind(
    code="rank.raised",
    severity=Severity.TRIAGE,
    category=Category.SW_LIBRARY,
    owner=Owner.SOFTWARE,
    meaning="A rank ended with a Python exception that no other rank caused.",
    remedy="Read the exception; for CUDA and NCCL errors, run `gpudiag list --sources all` on that host.",
)
RANK_OUT_OF_GPU_MEMORY = _kind(
    code="rank.out_of_gpu_memory",
    outcome=Outcome.ERROR,
    severity=Severity.CONFIG,
    meaning=(
        "A rank found too little free memory on its GPU, so it was not tested"
        " there; the GPU need not be at fault."
    ),
    remedy=(
        "Find who holds the GPU's memory (`gpudiag list`); wait for that"
        " process, or ask for less (--max-bytes)."
    ),
)
RANK_SHORTAGE = FindingKind(
    code="rank.shortage",
    outcome=Outcome.ERROR,
    severity=Severity.CONFIG,
    category=Category.SW_OTHER,
    owner=Owner.JOB,
    meaning=(
        "A rank was refused memory of the host, a process, a thread or a file by a"
        " limit, so nothing was tested with it."
    ),
    remedy=(
        "Raise the limit (`ulimit -a` shows all; in a container --pids-limit, --memory,"
        " --ulimit), or ask for fewer ranks: --nproc."
    ),
    basis=Basis(
        reads="The exception or the standard error with which a rank of gpudiag's own tests has ended.",
        limit=(
            "The words of Python, glibc and C++ for what a limit refuses;"
            " a GPU's memory is rank.out_of_gpu_memory."
        ),
        look_also=("ulimit -a", "gpudiag doctor", "rank.died", "rank.raised"),
    ),
)
RANK_SILENT = _kind(
    code="rank.silent",
    severity=Severity.TRIAGE,
    meaning="The other ranks wait in a collective, or in a later stage, that this rank never reached.",
    remedy="Look at that host: load, memory, a file system that hangs, a process in state D.",
)
RANK_ENDED_EARLY = FindingKind(
    code="rank.ended_early",
    outcome=Outcome.FAIL,
    severity=Severity.TRIAGE,
    category=Category.SW_OTHER,
    owner=Owner.JOB,
    meaning="A rank finished normally, without an error, while others still needed it in a collective.",
    remedy="Give every rank the same number of steps: drop the last uneven batches, or join uneven inputs.",
    basis=Basis(
        reads="When each rank returned its result, on its host's clock; when the first"
        " of the others lost its connection, or how long it has waited.",
        limit="No rank may finish while another one still needs it.",
        look_also=("gpudiag train --script", "rank.silent", "collective.mismatched"),
    ),
)
RANK_THROTTLED = FindingKind(
    code="rank.throttled",
    outcome=Outcome.WARN,
    severity=Severity.CONFIG,
    category=Category.PERF_VIOLATION,
    owner=Owner.HOST,
    meaning="The processor quota of a rank's control group throttles it, and the others wait for it.",
    remedy=(
        "Raise the quota: CPUQuota= of systemd, resources.limits.cpu of Kubernetes, `cpu.max` of the group."
    ),
    basis=Basis(
        reads="cpu.stat of the rank's control group and of those above it, since the"
        " rank was first seen there.",
        limit="At least 5 periods, and more than half of them, throttled, and not on all ranks.",
        look_also=("rank.late", "cat /proc/PID/cgroup", "cat /sys/fs/cgroup/cpu.stat"),
    ),
)
RANK_PAUSED = FindingKind(
    code="rank.paused",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    category=Category.PERF_VIOLATION,
    owner=Owner.HOST,
    meaning=(
        "A rank was stopped, or was late while the others waited; then it continued, and nothing was lost."
    ),
    remedy="Find what delayed it at that time: a suspended machine, a debugger, a disk, another job.",
    basis=_RANK_PAUSED_BASIS,
)
COLLECTIVE_INTERRUPTED = FindingKind(
    code="collective.interrupted",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    category=Category.PERF_VIOLATION,
    owner=Owner.HOST,
    meaning=(
        "For some time no data moved between the ranks, though all were inside"
        " collectives; then it moved again."
    ),
    remedy="Look for an outage at that time: `dmesg -T`, `ip -s link`, the switch's log.",
    basis=_RANK_PAUSED_BASIS,
)
RANK_NOT_STARTED = _kind(
    code="rank.not_started",
    outcome=Outcome.ERROR,
    severity=Severity.CONFIG,
    category=Category.SW_CONFIG,
    meaning="A rank never joined the rendezvous, so nothing could be measured.",
    remedy=(
        "Make sure that the same command runs for that rank, with the same MASTER_ADDR, MASTER_PORT and"
        " WORLD_SIZE, and that its host can reach that address."
    ),
)
_SKEW_BASIS = Basis(
    reads=(
        "Of the process that starts a rank: the versions of gpudiag, Python, torch, CUDA and"
        " NCCL, and the variables NCCL_*, TORCH_NCCL_* and GLOO_*, except those that name a"
        " machine's own interfaces and files."
    ),
    limit="None: they must be the same on every rank. The usual value is that of most ranks.",
    look_also=("machines.versions_differ", "env | grep NCCL_", "gpudiag preflight, under the same launcher"),
)
RANK_VERSIONS_DIFFER = FindingKind(
    code="rank.versions_differ",
    outcome=Outcome.WARN,
    severity=Severity.CONFIG,
    category=Category.SW_OTHER,
    owner=Owner.SOFTWARE,
    meaning="The ranks of this run have different versions of something that must be the same.",
    remedy=(
        "Give all machines the same environment or image; NCCL refuses, hangs or crashes with mixed versions."
    ),
    basis=_SKEW_BASIS,
)
RANK_VARIABLES_DIFFER = FindingKind(
    code="rank.variables_differ",
    outcome=Outcome.WARN,
    severity=Severity.CONFIG,
    category=Category.SW_CONFIG,
    owner=Owner.JOB,
    meaning="A variable that changes collectives differs between the ranks of this run.",
    remedy=(
        "Set it to the same value for all ranks, by the launcher (srun --export, mpirun -x)"
        " and not in a shell's start-up file."
    ),
    basis=_SKEW_BASIS,
)
RANK_START_FAILED = FindingKind(
    code="rank.start_failed",
    outcome=Outcome.ERROR,
    severity=Severity.CONFIG,
    category=Category.SW_LIBRARY,
    owner=Owner.SOFTWARE,
    meaning=(
        "The process that starts the ranks could not start them: an import failed, hung or was"
        " killed, or no process could be created."
    ),
    remedy=(
        "Try it by hand, in this folder and with the same interpreter:"
        " `python -c 'import torch'`; see `ulimit -u -v`."
    ),
    basis=Basis(
        reads=(
            "The last report of the process that imports torch and forks the ranks,"
            " how it ended, and its standard error."
        ),
        limit="120 s for the import.",
        look_also=("python -c 'import torch'", "ulimit -u -v", "rank.not_started"),
    ),
)
RANK_TEARDOWN = _kind(
    code="rank.teardown",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    category=Category.SW_LIBRARY,
    owner=Owner.SOFTWARE,
    meaning="A rank failed after its results were complete, while the process group was being destroyed.",
    remedy="The measurements are valid. If it happens again, report it with the versions of torch and NCCL.",
)
RANK_LATE = FindingKind(
    code="rank.late",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    category=Category.PERF_VIOLATION,
    owner=Owner.HOST,
    meaning="A rank came to the collectives later than the others, which waited for it.",
    remedy=(
        "Look at what that rank waits for (input, a lock), at what else runs on its host's"
        " processors, and at the clocks of its GPU."
    ),
    basis=Basis(
        reads="When each rank enters each collective, on its host's clock.",
        limit="The other ranks of the same run: a rank that they wait for again and again.",
        look_also=("gpudiag list --wide", "top -H", "nvidia-smi -q -d CLOCK,PERFORMANCE"),
    ),
)
COLLECTIVE_STALLED = FindingKind(
    code="collective.stalled",
    outcome=Outcome.FAIL,
    severity=Severity.TRIAGE,
    category=Category.SW_LIBRARY,
    owner=Owner.HOST,
    meaning=(
        "Every rank is inside the same collective, alive, and nothing moves:"
        " the transport between them hangs."
    ),
    remedy="Check the links between these ranks: network interface, firewall, NVLink, PCIe peer access. "
    "`gpudiag nccl-test --localise` finds the pair that hangs.",
    basis=Basis(
        reads="Where every rank is: its stage, the collective that it is inside, and whether anything moves.",
        limit="Stall: 9 s longer than max(1 s, 10 times the predicted time), times"
        " the load of the host. Whole run: `--timeout`.",
        look_also=(
            "network.no_route",
            "network.wrong_interface",
            "gpu.peer_access_broken",
            "NCCL_DEBUG=INFO",
        ),
    ),
)
COLLECTIVE_MISMATCHED = FindingKind(
    code="collective.mismatched",
    outcome=Outcome.FAIL,
    severity=Severity.TRIAGE,
    category=Category.SW_OTHER,
    owner=Owner.SOFTWARE,
    meaning="Ranks entered different collectives, or the same one with another size or dtype.",
    remedy="Make every rank call the same collectives in the same order, with the same size and dtype.",
    basis=Basis(
        reads="Operation, sequence number, dtype and number of elements that each"
        " rank announces before it enters a collective.",
        limit="None: they must be the same on every rank.",
        look_also=("TORCH_DISTRIBUTED_DEBUG=DETAIL", "training.uneven_inputs"),
    ),
)
