"""What `gpudiag hang` may find: the code of each way to hang, what it means, and what to do."""

from collections.abc import Mapping
from types import MappingProxyType

from gpudiag.checks.job import activity as at
from gpudiag.checks.registry import Basis, FindingKind
from gpudiag.model.finding import Category, Outcome, Owner, Severity
from gpudiag.reference.waits import COMPILER as A_COMPILER
from gpudiag.reference.waits import GPU

_BASIS = Basis(
    reads=(
        "Two looks or more, a second apart, at every rank: Python stacks with variables and tensors'"
        " shapes, thread states, system calls and what they wait for, processor time, reads and"
        " writes, children, all from outside."
    ),
    limit=(
        "A rank stands still if its stack, processor time, reads and writes do not change between the looks."
        " A loop that only asks again stands still. It is blamed after 3 s of that while others wait for it,"
        " after 60 s if none does; after 20 s if all workers of its loader wait for a lock; 30 s after the"
        " last rank came; after nine tenths of torchrun's limit for a node (our choice)."
    ),
    look_also=("gpudiag hang --json", "py-spy dump --pid PID", "docs/hang.md"),
)
_BASIS_OF_WORK = Basis(
    reads=(
        "As for every rank of a running job: stacks, processor time, reads and writes of two looks or more."
    ),
    limit=(
        "Others wait for it for 10 s (warned), 300 s (`--limit`, blamed); 5 s if it is in an"
        " endless loop of Python (our choice)."
    ),
    look_also=("gpudiag hang --limit SECONDS", "py-spy top --pid PID", "docs/hang.md"),
)
_OTHER_JOBS = "this job hangs; another one may start"


def _kind(
    code: str,
    meaning: str,
    remedy: str,
    *,
    owner: Owner = Owner.JOB,
    category: Category = Category.SW_OTHER,
    outcome: Outcome = Outcome.FAIL,
    basis: Basis = _BASIS,
) -> FindingKind:
    # A job that hangs by its own fault does not predict the next one; a fault of the machine's parts does.
    spares_jobs = outcome is Outcome.FAIL and owner is Owner.JOB
    return FindingKind(
        code=code,
        outcome=outcome,
        severity=Severity.TRIAGE,
        category=category,
        owner=owner,
        meaning=meaning,
        remedy=remedy,
        basis=basis,
        jobs_may_start=_OTHER_JOBS if spares_jobs else "",
    )


STOPPED = _kind(
    "hang.stopped",
    "A rank is not allowed to run: a signal stopped it, its control group is"
    " frozen, or a debugger or tracer holds it.",
    "Continue it: `kill -CONT PID`, thaw its control group, or detach the"
    " debugger; then find who stopped it.",
)
GONE = _kind(
    "hang.rank_gone",
    "A rank's process has ended, or is a zombie, and other ranks wait for it.",
    "Find why it ended in the job's log (`gpudiag explain LOG`) and for an OOM kill in"
    " the kernel log (`gpudiag preflight`).",
)
AT_EXIT = _kind(
    "hang.at_exit",
    "A rank has ended its script and waits at its exit, while others wait for it in a collective.",
    "Find why it ended earlier: fewer batches, a `return`, an exception that was caught."
    " Threads that are not daemons keep it from exiting.",
)
LOADER = _kind(
    "hang.loader",
    "A rank waits for a worker of its data loader.",
    "Look at the worker's line. A worker that was forked while a lock was held waits forever: use"
    ' `multiprocessing_context="spawn"`, and set `timeout=` of the DataLoader, which turns the wait into an'
    " error.",
)
FILE = _kind(
    "hang.file",
    "A rank waits for a file, a FIFO or a disk.",
    "Check whether the file's server answers (`timeout 5 stat PATH`, `df PATH`), and"
    " which program should write to the FIFO.",
)
LOCK = _kind(
    "hang.lock",
    "A rank waits for a lock, on a file or between threads, that its holder does not release.",
    "Find the holder: the thread or process named, or, in a forked process, the copy"
    " of a lock that was held at the fork.",
)
DATABASE = _kind(
    "hang.database",
    "A rank waits for a database that another process or thread has locked.",
    "Find the transaction that is open (`fuser FILE`); use no database that"
    " ranks share inside the training loop.",
)
NETWORK = _kind(
    "hang.network",
    "A rank waits for an answer over the network, and not from the job's own ranks.",
    "Check whether that server answers; give the call a time limit, and make it outside the training loop.",
    category=Category.SW_OTHER,
)
PROGRAM = _kind(
    "hang.program",
    "A rank waits for a program that it started.",
    "Look at that program; give it a time limit (`timeout=` of subprocess).",
)
COMPILER = _kind(
    "hang.compiler",
    "A rank waits for a compiler that it started, and no process of the compiler runs.",
    "Look at what the compiler's process waits for, and end it (`kill PID`): the rank then gets an error."
    " Keep the compiler's cache on a local disk: `TORCHINDUCTOR_CACHE_DIR`, `TRITON_CACHE_DIR`.",
)
QUEUE = _kind(
    "hang.queue",
    "A rank waits for a queue or a pipe that nothing fills, or writes to one that nobody empties.",
    "Find the thread or process that should fill it, or read from it: it ended, or waits itself."
    " Give `get` and `put` a `timeout=`.",
)
SLEEP = _kind(
    "hang.sleep",
    "A rank sleeps while others wait for it.",
    "Look at its line: what it waits for may never come. Give the loop of sleeps a limit.",
)
LOOP = _kind(
    "hang.loop",
    "A rank runs an endless Python loop while others wait for it in a collective.",
    "Look at the loop's condition; `py-spy top --pid PID` shows where it spends its time.",
    basis=_BASIS_OF_WORK,
)
WORKS_LONG = _kind(
    "hang.works_too_long",
    "A rank works while others wait for it in a collective, for longer than the limit.",
    "If this work is expected, allow more time: `gpudiag hang --limit SECONDS`, and a longer timeout of the"
    " process group. If not, look at its line, and let all ranks share the work.",
    basis=_BASIS_OF_WORK,
)
WORKS_ALONE = _kind(
    "hang.works_alone",
    "Some ranks work while the others wait for them in a collective; it is not a hang yet.",
    "Look again later. If it is expected, let all ranks share the work, or do it outside the training loop;"
    " the process group's timeout (10 minutes with NCCL) ends the wait.",
    outcome=Outcome.WARN,
    basis=_BASIS_OF_WORK,
)
THROTTLED = _kind(
    "hang.throttled",
    "The processor quota of a rank's control group throttles it, and the others wait for it: it is slow,"
    " and no hang while it moves.",
    "Raise the quota: resources.limits.cpu of Kubernetes, `docker update --cpus N`, CPUQuota= of systemd,"
    " `cpu.max` of the group.",
    outcome=Outcome.WARN,
    owner=Owner.HOST,
    category=Category.PERF_VIOLATION,
    basis=Basis(
        reads="cpu.stat and cpu.max (cpu.cfs_quota_us) of the rank's control group and of those above it.",
        limit="At least 5 periods between two looks, and more than half of them throttled (our choice).",
        look_also=("rank.throttled", "cat /proc/PID/cgroup", "gpudiag hang --json"),
    ),
)
NOT_YET = _kind(
    "hang.still",
    "Something stands still, but not yet for long enough to call it a hang.",
    "Run `gpudiag hang` again in a few seconds.",
    outcome=Outcome.WARN,
)
CHECKPOINT = _kind(
    "hang.checkpoint",
    "A rank stands still in loading or saving a checkpoint.",
    "Check whether its storage answers (`timeout 5 stat PATH`, `df PATH`) and has room;"
    " look at the other ranks' part of the save.",
)
DEBUGGER = _kind(
    "hang.debugger",
    "A rank waits at a debugger's prompt.",
    "Remove the `breakpoint()` or `set_trace()`, or answer the prompt.",
)
TERMINAL = _kind(
    "hang.terminal",
    "A rank waits for keyboard input.",
    "Remove `input()`, or the program that asks, from the job; or answer the prompt.",
)
OTHER_COLLECTIVE = _kind(
    "hang.other_collective",
    "Ranks wait in different collectives: one skipped a call, made another one, or is ahead or behind.",
    "Let all ranks make the same calls in the same order: no collective under `if rank`, the same number of"
    " batches, no exception swallowed. `TORCH_DISTRIBUTED_DEBUG=DETAIL` refuses such calls at once.",
)
SWALLOWED = _kind(
    "hang.exception_swallowed",
    "A rank skipped a collective inside a `try`, and the `except`"
    " continued: an exception was swallowed there.",
    "Let the exception end the rank (`raise`), or let all ranks agree before they continue;"
    " look for the exception in that rank's log.",
)
OTHER_SIZE = _kind(
    "hang.other_size",
    "Ranks are in the same collective with tensors of different size or type.",
    "Let all ranks pass the same shape and type: pad the last batch, or `drop_last=True`.",
)
OTHER_PEER = _kind(
    "hang.other_peer",
    "Ranks are in the same call and name different ranks or groups in it.",
    "Let all ranks pass the same `src`, `dst` and group; `src` is a rank of the whole job, not of the group.",
)
CALLS_APART = _kind(
    "hang.calls_apart",
    "Ranks are in the same collective, and some of them in another step: they skipped calls or made more.",
    "Find what differs in that step: an exception that was swallowed, a `continue`, fewer batches.",
)
SHORTER_DATA = _kind(
    "hang.shorter_data",
    "Ranks had fewer batches than the others, which wait for them in the next step.",
    "Give every rank the same number of batches: drop_last=True in its sampler and its loader, or a fixed"
    " number of steps, or wrap the loop in `torch.distributed.algorithms.join.Join`.",
    basis=Basis(
        reads="The batches and steps that each rank of `gpudiag train --script` counts, and where all wait.",
        limit="All ranks wait for each other, and their counts differ.",
        look_also=("train.script_hung", "gpudiag explain hang.calls_apart"),
    ),
)
SHARED_GROUP = _kind(
    "hang.threads_share_group",
    "Two threads of a rank call collectives of one process group, and each waits for the other ranks:"
    " the order of their calls differs between ranks.",
    "Give each thread a process group of its own: `own = dist.new_group()` on all ranks, once,"
    " before the thread starts; `dcp.async_save(..., process_group=own)` for a checkpoint,"
    " `group=own` in the thread's calls.",
)
GROUP_MADE_BY_SOME = _kind(
    "hang.group_made_by_some",
    "A process group was made by some ranks and not by others: `new_group` and `DeviceMesh` must be called"
    " by all ranks of the job, in the same order.",
    "Call `dist.new_group` and `DeviceMesh` on all ranks, members or not, in the same order, outside of any"
    " condition on the rank: `group = dist.new_group(members)`, and only then `if rank in members:`;"
    " or make all meshes by one `init_device_mesh`.",
)
NEVER_JOINED = _kind(
    "hang.never_joined",
    "Ranks wait for others to join the process group or to set a key of the store.",
    "Look at the missing ranks: they have not started, or wait elsewhere. MASTER_ADDR, MASTER_PORT and"
    " WORLD_SIZE must be the same everywhere.",
)
ALL_WAIT = _kind(
    "hang.all_wait",
    "All ranks are in the same collective, and nothing moves: the network between them or a GPU is at fault.",
    "Test them: `gpudiag nccl-test`, `gpudiag preflight`; look at"
    " `NCCL_DEBUG=INFO` logs with `gpudiag explain`.",
    owner=Owner.HOST,
)
GPU_WAITS = _kind(
    "hang.gpu",
    "A rank waits for its GPU, and nothing of the job moves: a kernel does not end, or a"
    " collective that others have not started.",
    "Look at the GPU and at its log: `gpudiag preflight`, `gpudiag explain xid N`."
    " End the job to end a kernel that does not end. To find the rank whose GPU has not begun a"
    " collective, start the job under `gpudiag run`.",
    owner=Owner.HARDWARE,
)
_BASIS_OF_GPU = Basis(
    reads=(
        "As for every rank of a running job; C functions (py-spy --native) where the Python line does not"
        " show a wait for the GPU; NVML's utilization, power and activities of the ranks' GPUs; NCCL's RAS."
    ),
    limit=(
        "Processor time is no sign of work: a wait for a GPU spins. It is called a hang"
        " after 60 s of looking without a sign of movement (`--watch`), or where no backward"
        " pass ran for 300 s (`--limit`; our choice)."
    ),
    look_also=("gpudiag hang --watch 60 PID", "py-spy dump --native --pid PID", "docs/hang.md"),
)
UNKNOWN = _kind(
    "hang.unknown",
    "Nothing of the job moves but processor time, and whether it hangs is unknown: a GPU may run a"
    " long kernel, or one that never ends.",
    "Watch it for longer: `gpudiag hang --watch 60 PID`. To find the GPU that does not begin a collective,"
    " start the job under `gpudiag run`, or with `TORCH_FR_BUFFER_SIZE=2000"
    " TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/fr_ TORCH_NCCL_ENABLE_TIMING=1`.",
    outcome=Outcome.ERROR,
    basis=_BASIS_OF_GPU,
)
WAITS = _kind(
    "hang.wait",
    "A rank waits for a signal, in an idle event loop, or in a system call that gpudiag does not know.",
    "Look at its line and its stack in C: `pystack remote --native PID`.",
)

_BASIS_OF_RECORDS = Basis(
    reads=(
        "What the job reports about itself: two answers of NCCL's RAS (localhost:28028 or"
        " NCCL_RAS_ADDR, from NCCL 2.24), the dumps of torch's flight recorder, torch's debug"
        " server. RAS counts launches, not completions."
    ),
    limit=(
        "Counts that do not change between two answers a second apart; calls that did not end for 3 s (our"
        " choice). RAS calls a process dead after 60 s without an answer (NCCL's limit)."
    ),
    look_also=("ncclras -v", "gpudiag hang --json", "docs/hang.md"),
)
NOT_LAUNCHED = _kind(
    "hang.not_launched",
    "The job's own records show that a rank has not launched a collective in"
    " which the others of its group wait.",
    "Look at what that rank does: `gpudiag hang` on its machine, or `py-spy dump --pid PID`.",
    basis=_BASIS_OF_RECORDS,
)
UNRESPONSIVE = _kind(
    "hang.unresponsive",
    "The process of a rank does not answer NCCL's RAS: it is stopped, has"
    " died, or its machine cannot be reached.",
    "Check whether the process exists: `gpudiag hang` on its machine. After a minute RAS calls it dead.",
    owner=Owner.HOST,
    outcome=Outcome.WARN,
    basis=_BASIS_OF_RECORDS,
)
NCCL_ERROR = _kind(
    "hang.nccl_error",
    "A rank has an NCCL error, and its job still waits.",
    "Look for the first warning of NCCL in that rank's log: `gpudiag explain LOG`;"
    " `TORCH_NCCL_ASYNC_ERROR_HANDLING=1` ends such a job.",
    basis=_BASIS_OF_RECORDS,
)

# How a rank that others wait for is reported, by the kind of its position.
OF_POSITION: Mapping[str, FindingKind] = MappingProxyType(
    {
        at.STOPPED: STOPPED,
        at.GONE: GONE,
        at.EXITING: AT_EXIT,
        at.LOADER: LOADER,
        at.FILE: FILE,
        at.LOCK: LOCK,
        at.DATABASE: DATABASE,
        at.NETWORK: NETWORK,
        at.PROGRAM: PROGRAM,
        A_COMPILER: COMPILER,
        at.QUEUE: QUEUE,
        at.WORK: QUEUE,
        at.SLEEP: SLEEP,
        at.POLL: LOOP,
        at.CHECKPOINT: CHECKPOINT,
        at.DEBUGGER: DEBUGGER,
        at.TERMINAL: TERMINAL,
        at.STORE: NEVER_JOINED,
        at.WAITS: WAITS,
        GPU: GPU_WAITS,
    }
)
# A rank that is held or gone, and calls that do not fit: true however short ranks have stood still.
NEED_NO_TIME = frozenset(
    one.code
    for one in (
        *(STOPPED, GONE, DEBUGGER, TERMINAL, UNRESPONSIVE, NCCL_ERROR),
        *(OTHER_COLLECTIVE, OTHER_SIZE, OTHER_PEER, CALLS_APART, SHORTER_DATA, SWALLOWED),
        *(SHARED_GROUP, GROUP_MADE_BY_SOME),
    )
)
HANG_FINDINGS = (
    *(
        STOPPED,
        GONE,
        AT_EXIT,
        LOADER,
        FILE,
        LOCK,
        DATABASE,
        NETWORK,
        PROGRAM,
        COMPILER,
        QUEUE,
        SLEEP,
        LOOP,
        WORKS_LONG,
        WORKS_ALONE,
        THROTTLED,
    ),
    *(
        NOT_YET,
        CHECKPOINT,
        DEBUGGER,
        TERMINAL,
        OTHER_COLLECTIVE,
        SWALLOWED,
        OTHER_SIZE,
        OTHER_PEER,
        CALLS_APART,
        SHORTER_DATA,
        SHARED_GROUP,
        GROUP_MADE_BY_SOME,
        NEVER_JOINED,
    ),
    *(ALL_WAIT, GPU_WAITS, WAITS, UNKNOWN),
    *(NOT_LAUNCHED, UNRESPONSIVE, NCCL_ERROR),
)
