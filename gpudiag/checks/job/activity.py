"""What a thread waits for, or does, by its frames and by the kernel: a kind, and words for people."""

import re
from collections.abc import Sequence
from dataclasses import replace

from gpudiag.checks.job.gpu_waits import GpuWait
from gpudiag.model.job import NAMELESS_SOCKET, Awaited, Frame, Job, ProcessLook, ThreadLook
from gpudiag.model.reading import Missing
from gpudiag.reference.stacks import Call, asks_store, is_at_exit, is_debugged, own_frames, waits_for_work
from gpudiag.reference.waits import COMPILER, GPU, RANKS, find_call, find_native_wait

STORE, LOADER, FILE, LOCK, NETWORK, PROGRAM, QUEUE = (
    "store",
    "loader",
    "file",
    "lock",
    "network",
    "program",
    "queue",
)
SLEEP, PYTHON, CHECKPOINT, DEBUGGER, TERMINAL = "sleep", "python", "checkpoint", "debugger", "terminal"
STOPPED, GONE, EXITING, STARTING, UNSEEN, WAITS = "stopped", "gone", "exiting", "starting", "unseen", "waits"
EVALUATION, DATABASE, POLL = "evaluation", "database", "poll"
WORK = "work"  # for the next request of a server
FOR_RANKS = frozenset((RANKS, STORE))
# What a loader's worker may well do between two batches.
MAY_BE_SLOW = frozenset((SLEEP, NETWORK, DATABASE))

FILE_LOCKS = ("flock", "fcntl")  # system calls
_SLEEPS = ("nanosleep", "clock_nanosleep")
WRITES = ("write", "pwrite")
_FOR_SIGNALS = ("pause", "rt_sigtimedwait", "rt_sigsuspend")
_EVALUATES = re.compile(r"eval|valid(ate|ation)|inference|generate_samples", re.IGNORECASE)
SAVES = re.compile(
    r"check_?point|ckpt|save_(model|state|pretrained)|save_pretrained|\bsave$|upload", re.IGNORECASE
)
_PROCESS = re.compile(r"\bpid (\d+)(?: \((?:[^()]|\([^()]*\))*\))?")  # with its command line
_RUNS_LOOP = re.compile(r"\b(asyncio|uvloop)\.run\(|\.run_(until_complete|forever)\(")
# Functions of the kernel that wait for blocks to be read or written (mm/filemap.c, block/, fs/jbd2, fs/xfs).
_DISK_AT_WORK = re.compile(
    r"^(io_schedule|folio_wait|wait_on_|blk_|rq_qos|submit_bio|balance_dirty|jbd2_|xfs_|ext4_|btrfs_|"
    r"bit_wait_io)"
)


def describe_line(frame: Frame | None) -> str:
    """`data.py:6 in load_batch`."""
    if frame is None:
        return ""
    return frame.place if frame.function == "<module>" else f"{frame.place} in {frame.function}"


def describe_hold(last: ProcessLook, main: ThreadLook) -> str | None:
    """Words for a process that is not allowed to run."""
    if last.traced_by:
        return f"is held by a debugger or tracer, {last.traced_by}"
    if last.frozen:
        return "is frozen by its control group"
    if main.state == "T":
        return "is stopped by a signal (SIGSTOP, or Ctrl-Z)"
    return "is stopped by a debugger or tracer" if main.state == "t" else None


def find_activity(main: ThreadLook, call: Call, job: Job, gpu_wait: GpuWait | None = None) -> tuple[str, str]:
    """The kind of what the main thread does, by its frames and by the kernel."""
    if not main.frames:
        return STARTING, "runs no Python: its interpreter is starting or ending"
    if is_debugged(main.frames):
        return DEBUGGER, "waits at a debugger's prompt"
    if is_at_exit(main.frames):
        return EXITING, "has ended its script and does not exit"
    awaited = main.awaited
    if call.awaited == RANKS:
        return RANKS, f"waits in {call.operation or 'a collective'}"
    if call.awaited == LOADER:
        return LOADER, "waits for its data loader's workers"
    if call.awaited == "storage":
        return CHECKPOINT, f"loads or saves a checkpoint{_of(awaited)}"
    if gpu_wait is not None:
        return GPU, f"waits for its GPU ({gpu_wait.call})"
    if (native := find_native_wait(main.native)) is not None and native.awaited == RANKS:
        return RANKS, "waits in NCCL"
    if call.awaited == COMPILER:
        is_lock = main.syscall in FILE_LOCKS or (awaited is not None and awaited.kind == "lock file")
        locked = find_by_kernel(main, call, "", job) if is_lock else None
        return (COMPILER, "compiles") if locked is None else (LOCK, f"{locked[1]}, to compile")
    if call.awaited == GPU and not main.native:
        return GPU, "waits for its GPU"
    text = call.own.text if call.own is not None and not call.library else ""
    if asks_store(text) or _is_master(awaited, job):
        return STORE, "waits for a key of the rendezvous store"
    if main.state == "R":
        return PYTHON, "computes"
    by_kernel = find_by_kernel(main, call, text, job)
    return by_kernel or (PYTHON, "computes")


def find_by_kernel(main: ThreadLook, call: Call, text: str, job: Job) -> tuple[str, str] | None:
    """The kind and words of what a thread waits for in the kernel; None where it is in no system call.

    `text` is its line of the user's.
    """
    awaited, name = _with_ranks(main.awaited, job), main.syscall
    if call.awaited == PROGRAM or (awaited is not None and awaited.kind == "process"):
        return PROGRAM, f"waits for a program that it started{_of(awaited)}"
    if name in FILE_LOCKS:
        return LOCK, f"waits for the lock on the file {awaited.name if awaited else ''}".rstrip() + _detail(
            awaited
        )
    if awaited is not None and awaited.kind in ("file", "fifo", "terminal", "device"):
        return _file_wait(awaited, name, main.state)
    if call.awaited == QUEUE:
        return QUEUE, "waits for a queue or a pipe"
    if (awaited is None or awaited.name == NAMELESS_SOCKET) and _is_in_event_loop(call, text):
        return WAITS, "waits in its asyncio event loop: no task of it has anything to do"
    if awaited is not None and awaited.kind in ("socket", "listener"):
        what = "for a connection at" if awaited.kind == "listener" else "for an answer from"
        return NETWORK, f"waits {what} {awaited.name}{_detail(awaited)}"
    if awaited is not None and awaited.kind == "pipe":
        does = "writes to a pipe that is full" if name.startswith(WRITES) else "waits for a pipe"
        return QUEUE, f"{does}{_detail(awaited)}"
    if awaited is not None and awaited.kind == "lock file":
        return LOCK, f"waits for the lock file {awaited.name}{_detail(awaited)}"
    if name in _SLEEPS:
        if re.search(r"\.(execute|executemany|executescript|commit)\(", text) or "sqlite" in text:
            return DATABASE, "waits for a database that is locked"
        return SLEEP, "sleeps"
    if main.state == "D":
        where = f", in {main.waits_in} of the kernel" if main.waits_in else ""
        return FILE, f"is in uninterruptible sleep: it waits for a disk, a file server or a driver{where}"
    if name in _FOR_SIGNALS:
        return WAITS, "waits for a signal"
    if name == "futex" or call.awaited == LOCK:
        return _futex(call, text)
    if call.awaited == NETWORK:
        return NETWORK, "waits for an answer over the network"
    return (WAITS, f"waits in the system call {name}") if name else None


def _is_in_event_loop(call: Call, text: str) -> bool:
    return any("/asyncio/" in frame.file for frame in call.library) or bool(_RUNS_LOOP.search(text))


def _futex(call: Call, text: str) -> tuple[str, str]:
    """A wait in user space: a lock, another thread, or a collective whose call left no frame."""
    known = find_call(text.rpartition("=")[2].strip()) if text else None
    if known is not None and known.awaited == GPU:
        return GPU, "waits for its GPU or for an earlier operation"
    if (
        call.awaited == LOCK
        or (known is not None and known.awaited == LOCK)
        or text.startswith(("with ", "async with "))
    ):
        return LOCK, "waits for a lock or another thread"
    if waits_for_work(text):
        return RANKS, "waits for an operation that it started"
    return LOCK, "waits for a lock or another thread"


def _file_wait(awaited: Awaited, name: str, state: str) -> tuple[str, str]:
    if awaited.kind == "terminal":
        return TERMINAL, f"waits for input at the terminal {awaited.name}"
    if awaited.kind == "fifo":
        what = "opens" if name.startswith("open") else "writes to" if name.startswith("write") else "reads"
        return FILE, f"{what} the FIFO {awaited.name} (no writer, or no other end)"
    verb = (
        "opens"
        if name.startswith("open")
        else "writes"
        if name.startswith((*WRITES, "fsync", "fdatasync"))
        else "reads"
    )
    stuck = ", in uninterruptible sleep" if state == "D" else ""
    return FILE, f"{verb} {awaited.name}{_detail(awaited)}{stuck}"


def _of(awaited: Awaited | None) -> str:
    return f", {awaited.name}" if awaited is not None and awaited.kind in ("file", "process", "fifo") else ""


def _with_ranks(awaited: Awaited | None, job: Job) -> Awaited | None:
    """What is waited for, with the ranks of processes in it: `held by rank 0, pid 12`."""
    ranks = {one.pid: one.rank for one in job.ranks if not isinstance(one.rank, Missing)}

    def name(match: re.Match[str]) -> str:
        rank = ranks.get(int(match[1]))
        return match[0] if rank is None else f"rank {rank}, pid {match[1]}"

    return awaited and replace(awaited, detail=_PROCESS.sub(name, awaited.detail))


def _detail(awaited: Awaited | None) -> str:
    return f" ({awaited.detail})" if awaited is not None and awaited.detail else ""


def _is_master(awaited: Awaited | None, job: Job) -> bool:
    port = job.master.rpartition(":")[2]
    return (
        awaited is not None and awaited.kind == "socket" and bool(port) and awaited.name.endswith(f":{port}")
    )


def name_by_function(kind: str, words: str, frames: Sequence[Frame], moves: bool) -> tuple[str, str]:
    """The kind, named an evaluation or a checkpoint where the user's own functions are called so."""
    names = [frame.function.rpartition(".")[2] for frame in own_frames(frames)]
    if kind in (PYTHON, GPU):
        for pattern, activity, act in (
            (SAVES, CHECKPOINT, "saves a checkpoint"),
            (_EVALUATES, EVALUATION, "evaluates"),
        ):
            found = next((name for name in names if pattern.search(name)), None)
            if found:
                return activity, f"{act} ({found})" + (", waiting for its GPU" if kind == GPU else "")
    elif kind in (FILE, NETWORK, SLEEP) or (kind == CHECKPOINT and not moves):
        found = next((name for name in names if SAVES.search(name)), None)
        if found and kind != CHECKPOINT:
            return kind, f"{words}, to save a checkpoint ({found})"
    return kind, words


def describe_kernel(main: ThreadLook) -> str:
    """`is in state D, in nfs_wait_bit_killable`: what the kernel shows of a thread without a stack."""
    where = f"{main.syscall or main.waits_in}{_of(main.awaited)}"
    return f"is in state {main.state}" + (f", in {where}" if where else "")


def is_on_disk(main: ThreadLook) -> bool:
    """Whether a thread waits for a disk that may be at work, by the kernel's function; not for a server."""
    return main.state == "D" and bool(_DISK_AT_WORK.search(main.waits_in))
