"""What one rank does, by its looks: the kind of wait or work, words, line, since when, whether it moves."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpudiag.checks.job.compiled import with_compiled_function
from gpudiag.checks.job.gpu_waits import GpuWait, find_gpu_wait, uses_gpu
from gpudiag.checks.job.loops import find_joined_loop, find_loop
from gpudiag.checks.job.movement import (
    count_steps,
    is_busy,
    made_collectives,
    moved,
    others_ran,
    others_work,
    still_since_seconds,
    took_processor,
    uses_files,
    works,
)
from gpudiag.checks.job.polling import find_poll, spins, with_lock_file
from gpudiag.checks.job.threads import with_training_threads
from gpudiag.checks.job.throttling import Throttle, children_ran, find_throttle
from gpudiag.model.job import (
    NAMELESS_SOCKET,
    Awaited,
    ChildSeen,
    Frame,
    Job,
    ProcessLook,
    RankSeen,
    ThreadLook,
)
from gpudiag.model.reading import Missing
from gpudiag.model.script import OWN_STACKS
from gpudiag.reference.stacks import (
    Call,
    asks_store,
    find_installed,
    is_at_exit,
    is_debugged,
    own_frames,
    read_call,
    since_fork,
    waits_for_work,
)
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
_WRITES = ("write", "pwrite")
_FOR_SIGNALS = ("pause", "rt_sigtimedwait", "rt_sigsuspend")
_HELD = (FILE, LOCK, TERMINAL)  # what a program without a line of its own is described by
_EVALUATES = re.compile(r"eval|valid(ate|ation)|inference|generate_samples", re.IGNORECASE)
SAVES = re.compile(
    r"check_?point|ckpt|save_(model|state|pretrained)|save_pretrained|\bsave$|upload", re.IGNORECASE
)
_PROCESS_POOL, _POOL = "/concurrent/futures/process.py", "/multiprocessing/pool.py"
_PROCESS = re.compile(r"\bpid (\d+)(?: \((?:[^()]|\([^()]*\))*\))?")  # with its command line
_RUNS_LOOP = re.compile(r"\b(asyncio|uvloop)\.run\(|\.run_(until_complete|forever)\(")
# Functions of the kernel that wait for blocks to be read or written (mm/filemap.c, block/, fs/jbd2, fs/xfs).
_DISK_AT_WORK = re.compile(
    r"^(io_schedule|folio_wait|wait_on_|blk_|rq_qos|submit_bio|balance_dirty|jbd2_|xfs_|ext4_|btrfs_|"
    r"bit_wait_io)"
)
# What a compiler's process never waits for where it goes on; for a server, as of a cache, it may.
_COMPILER_HELD = re.compile(r" the FIFO | the lock on | the terminal |is stopped")


@dataclass(frozen=True, slots=True)
class Position:
    """Where a rank is, and what it does there."""

    seen: RankSeen
    kind: str
    words: str  # `waits in all_reduce`, `reads the FIFO /data/x`
    call: Call
    moves: bool  # something of its own moves: its line, its counters, its files
    since_seconds: float | None  # since when it has been there at least; None where that is unknown
    in_loop: str = ""  # "`while True` of train.py:12", where it computes in one
    # the worker or thread that it waits for: `its loader's worker, pid 12, sleeps at data.py:6 in
    # __getitem__`
    inner: str = ""
    counters: tuple[str, ...] = ()  # variables that moved between the looks: `step 41 -> 43`
    inner_since_seconds: float | None = None  # of that worker or thread
    on_disk: bool = False  # it waits for a disk that may be at work
    busy: bool = False  # it takes processor time, and nothing else of it moves
    gpu_wait: GpuWait | None = None  # its wait for a GPU, whatever it does with that
    inner_kind: str = (
        ""  # what that worker or thread does; of a loader with workers that all stand at a lock, that
    )
    polls: bool = False  # it only asks again and again whether something has come
    # Batches that it has had and training steps that it has begun; None where it does not count them itself.
    counts: tuple[int, int] | None = None
    behind: RankSeen | None = None  # the rank at whose lock it waits, where that one is why
    throttle: Throttle | None = None  # of one that works: what its control group's quota takes from it

    @property
    def rank(self) -> int | None:
        """Its rank; None where it is unknown."""
        return None if isinstance(self.seen.rank, Missing) else self.seen.rank

    @property
    def waits_for_ranks(self) -> bool:
        """Whether it waits for other ranks, and nothing of it moves."""
        return self.kind in FOR_RANKS and not self.moves

    @property
    def waits_for_gpu(self) -> bool:
        """Whether it waits for its GPU, which may be in a collective, and nothing of it moves."""
        return self.kind == GPU and not self.moves

    @property
    def read_by(self) -> str:
        """What read its stack: py-spy, or the rank itself."""
        return OWN_STACKS if self.seen.last.stacks == OWN_STACKS else "py-spy"

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The frames of its main thread, innermost first."""
        main = self.seen.last.main
        return main.frames if main else ()

    @property
    def where(self) -> str:
        """`data.py:6 in load_batch`, with the line of a trainer that is installed.

        It is empty where no line of the user's is known.
        """
        line, inner = describe_line(self.call.own), find_installed(self.call.library)
        if inner is None or not line:
            return line
        package = inner.file.rpartition("/")[0].rpartition("/")[2]
        return f"{line}, in {inner.function} of {package}/{inner.place}"


def describe_line(frame: Frame | None) -> str:
    """`data.py:6 in load_batch`."""
    if frame is None:
        return ""
    return frame.place if frame.function == "<module>" else f"{frame.place} in {frame.function}"


def find_positions(job: Job) -> tuple[Position, ...]:
    """The positions of all ranks: of the thread that trains, where main threads only wait for it."""
    return tuple(find_position(rank, job) for rank in with_training_threads(job).ranks)


def find_position(seen: RankSeen, job: Job) -> Position:
    """The rank's position by all its looks."""
    nothing = Call(None, (), "")
    seen = with_lock_file(seen)
    first, last = next((look for look in seen.looks if look.main is not None), seen.first), seen.last
    gone = _if_gone(seen)
    if gone is not None:
        return Position(seen, GONE, gone, nothing, False, None)
    main = last.main
    call = read_call(main.frames if main else ())
    if main is None or last.state == "?":
        return Position(seen, UNSEEN, "could not be looked at", call, False, None)
    call = with_compiled_function(call, main)
    since = _since(main)
    held = _if_held(last, main)
    if held is not None:
        return Position(seen, STOPPED, held, call, False, since)
    counters = count_steps(seen.looks)
    poll = find_poll(seen.looks)
    moves, busy = moved(seen.looks), poll is None and is_busy(seen.looks)
    throttle = find_throttle(seen)
    gpu_wait = find_gpu_wait(main, rank_uses_gpu=uses_gpu(seen))
    if call.awaited == RANKS and not moves:
        # Whoever waits in a collective may spin, and is still; the threads that send and receive for it show
        # that it goes on.
        moves = others_work(first, last) or (throttle is not None and others_ran(first, last))
    if not moves and not busy and call.awaited != RANKS:
        moves = (
            works(first, last)
            if poll is None
            else others_work(first, last) or uses_files(first, last) or made_collectives(first, last)
        )
    if not moves and (busy or not (call.awaited == RANKS and main.syscall == "futex" and since is not None)):
        # One that wakes up to look, or spins, has been there between the looks at least. A collective of gloo
        # does not wake up.
        since = max(0.0 if busy else since or 0.0, still_since_seconds(seen.looks))
    if isinstance(last.stacks, Missing):
        return Position(seen, UNSEEN, _words_of_kernel(main), call, moves, since)
    kind, words = _kind(main, call, job, gpu_wait)
    if kind == RANKS and busy and not moves and not _spins_for_ranks(main, call, gpu_wait):
        kind, words = PYTHON, f"computes in {call.operation or 'a step'}"
    if poll is not None and kind in (PYTHON, SLEEP):
        kind, words = (POLL, "polls") if spins(seen.looks) else (SLEEP, "sleeps")
    inner = Inner()
    of_file = main.awaited is not None and main.awaited.kind == "lock file"
    if kind in (LOADER, PROGRAM, QUEUE, LOCK, WAITS, EXITING, COMPILER) and not of_file:
        inner = _what_it_waits_for(seen, last, kind, job)
        moves = moves or inner.moves or (throttle is not None and children_ran(seen))
    elif any(frame.polls for frame in main.frames):  # it may ask whether a program of its own has ended
        moves = moves or any(works(one.looks[0], one.looks[-1]) for one in seen.children if one.looks)
    if kind == LOADER and inner.since_seconds is not None:
        since = inner.since_seconds  # the main thread wakes up every 5 s to see whether its workers live
    if kind == COMPILER and not (moves or busy):
        words = "waits for a compiler that does not run"
    kind, words = _by_activity(kind, words, main.frames, moves)
    loop, loop_frame = (poll.polls, poll) if poll is not None else ("", None)
    if kind == PYTHON:
        loop, loop_frame = find_loop((first, last), seen.pid) or ("", None)
    elif inner.loop is not None:
        loop, loop_frame = inner.loop
    if kind in (LOCK, EXITING) and (joined := find_joined_loop((first, last))) is not None:
        moves, (loop, loop_frame, name) = True, joined
        words = f"waits for its thread {name}"
        inner = Inner(f"the thread computes at {describe_line(loop_frame)}", moves=True)
    return Position(
        seen,
        kind,
        words,
        call,
        moves,
        since,
        _name_loop(loop, loop_frame),
        inner.words,
        counters,
        inner.since_seconds,
        _is_on_disk(main) or (kind == COMPILER and not _COMPILER_HELD.search(inner.words)),
        busy and not moves,
        gpu_wait,
        inner.kind,
        poll is not None,
        throttle=throttle if moves or busy else None,
    )


def _name_loop(loop: str, frame: Frame | None) -> str:
    """The loop for people, as `while True` of train.py:12; empty without one."""
    words, _, line = loop.rpartition(" (line ")
    return (
        f"`{words}` of {frame.place.rpartition(':')[0]}:{line.rstrip(')')}"
        if frame is not None and loop
        else ""
    )


def _spins_for_ranks(main: ThreadLook, call: Call, gpu_wait: GpuWait | None) -> bool:
    """Whether a thread that uses a processor in a collective waits there, and runs no backward or hook."""
    if main.native:
        return find_native_wait(main.native) is not None
    return call.frame is not None or gpu_wait is not None


def _if_gone(seen: RankSeen) -> str | None:
    if seen.last.state == "Z":
        return "is dead, and nobody has reaped it (a zombie)"
    if seen.last.state == "X":
        return "has ended" if seen.first.state == "X" else "ended while it was looked at"
    return None


def _if_held(last: ProcessLook, main: ThreadLook) -> str | None:
    """Words for a process that is not allowed to run."""
    if last.traced_by:
        return f"is held by a debugger or tracer, {last.traced_by}"
    if last.frozen:
        return "is frozen by its control group"
    if main.state == "T":
        return "is stopped by a signal (SIGSTOP, or Ctrl-Z)"
    return "is stopped by a debugger or tracer" if main.state == "t" else None


def _kind(main: ThreadLook, call: Call, job: Job, gpu_wait: GpuWait | None = None) -> tuple[str, str]:
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
        locked = _kind_by_kernel(main, call, "", job) if is_lock else None
        return (COMPILER, "compiles") if locked is None else (LOCK, f"{locked[1]}, to compile")
    if call.awaited == GPU and not main.native:
        return GPU, "waits for its GPU"
    text = call.own.text if call.own is not None and not call.library else ""
    if asks_store(text) or _is_master(awaited, job):
        return STORE, "waits for a key of the rendezvous store"
    if main.state == "R":
        return PYTHON, "computes"
    by_kernel = _kind_by_kernel(main, call, text, job)
    return by_kernel or (PYTHON, "computes")


def _kind_by_kernel(main: ThreadLook, call: Call, text: str, job: Job) -> tuple[str, str] | None:
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
        does = "writes to a pipe that is full" if name.startswith(_WRITES) else "waits for a pipe"
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
        if name.startswith((*_WRITES, "fsync", "fdatasync"))
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


def _by_activity(kind: str, words: str, frames: Sequence[Frame], moves: bool) -> tuple[str, str]:
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


def _words_of_kernel(main: ThreadLook) -> str:
    where = f"{main.syscall or main.waits_in}{_of(main.awaited)}"
    return f"is in state {main.state}" + (f", in {where}" if where else "")


def _is_on_disk(main: ThreadLook) -> bool:
    """Whether a thread waits for a disk that may be at work, by the kernel's function; not for a server."""
    return main.state == "D" and bool(_DISK_AT_WORK.search(main.waits_in))


@dataclass(frozen=True, slots=True)
class Inner:
    """What the worker, program or thread that a rank waits for does, whether it moves, and since when."""

    words: str = ""
    moves: bool = False
    since_seconds: float | None = None
    kind: str = ""
    loop: tuple[str, Frame] | None = None  # that it computes in, and the frame


def _what_it_waits_for(seen: RankSeen, last: ProcessLook, kind: str, job: Job) -> Inner:
    ended: list[ChildSeen] = []
    busy: list[Inner] = []
    of_pool = kind == LOCK and _awaits_future(last.main)
    for child in innermost_programs(seen.children) if kind in (PROGRAM, COMPILER) else seen.children:
        if not child.looks or (of_pool and not _is_of_pool(child)):
            continue
        if child.looks[-1].state in "ZX":
            ended.append(child)
            continue
        described = _describe_child(child, job)
        if described is not None:
            busy.append(described)
    who = {LOADER: "its loader's worker", PROGRAM: "the program"}.get(kind, "its child")
    if ended and (kind == LOADER or (kind == QUEUE and not busy)):
        return Inner(f"{who} pid {ended[0].pid} is dead")
    if kind == QUEUE and not busy and (workers := _count_idle_workers(seen)):
        return Inner(
            f"all {workers} workers of its pool wait for a task: one was likely killed, and its task is lost"
        )
    if kind == COMPILER and any(works(one.looks[0], one.looks[-1]) for one in seen.children if one.looks):
        return Inner(moves=True)  # also where it compiles in a worker that is a library's alone
    if busy and (of_pool or kind in (LOADER, PROGRAM, QUEUE, COMPILER)):
        # One at a lock waits for another one: who is at something else is why, if there is one.
        still = sorted((one for one in busy if not one.moves), key=lambda one: one.kind == LOCK)
        first = (still or sorted(busy, key=lambda one: one.loop is None))[0]
        worker_kind = first.kind if len(still) == len(busy) or first.kind != LOCK else ""
        goes_on = len(still) < len(busy) if kind == PROGRAM else not still
        return Inner(f"{who}, {first.words}", goes_on, first.since_seconds, worker_kind, first.loop)
    before = {one.tid: one for one in seen.first.threads}
    idle = [one for one in last.threads if one.tid not in before or not took_processor(before[one.tid], one)]
    for thread in (*(one for one in last.threads if one not in idle), *idle):  # one that works shows most
        is_shown = thread.tid != last.pid and kind not in (LOADER, COMPILER)
        words = _describe_thread(thread, job) if is_shown else ""
        if words:
            return Inner(f"its thread {words}", since_seconds=_since(thread))
    return Inner(_if_alone(last))


def _if_alone(last: ProcessLook) -> str:
    """Words for a main thread that waits for another thread of its process, where no other runs Python."""
    main = last.main
    waits = main is not None and main.frames and main.frames[0].file.endswith(("/threading.py", "/queue.py"))
    if not waits or any(one.frames for one in last.threads if one is not main):
        return ""
    return "no other thread of it runs Python that could end this wait"


def _count_idle_workers(seen: RankSeen) -> int:
    """How many workers a pool of multiprocessing has whose result is awaited.

    It is 0 where one of them is at a task.
    """
    mains = [child.looks[-1].main for child in seen.children if child.looks]
    of_pool = [one for one in (seen.last.main, *mains) if one is not None and _has_file(one, _POOL)]
    workers = [one for one in of_pool if one is not seen.last.main]
    are_idle = all(any(is_idle(frame) for frame in read_call(one.frames).library) for one in workers)
    return len(workers) if are_idle and len(of_pool) > len(workers) else 0


def _has_file(thread: ThreadLook, file: str) -> bool:
    return any(frame.file.endswith(file) for frame in thread.frames)


def _awaits_future(main: ThreadLook | None) -> bool:
    """Whether a thread waits for what an executor of `concurrent.futures` does."""
    return main is not None and any("/concurrent/futures/" in frame.file for frame in main.frames)


def _is_of_pool(child: ChildSeen) -> bool:
    """Whether a child is a worker of a pool of processes."""
    mains = (look.main for look in child.looks if look.main is not None)
    return any(_has_file(main, _PROCESS_POOL) for main in mains)


def innermost_programs(children: Sequence[ChildSeen]) -> list[ChildSeen]:
    """Descendants of a rank without living children: a shell waits for its program, which shows more."""
    alive = [one for one in children if one.looks and one.looks[-1].state not in "ZX"]
    parents = {one.parent_pid for one in alive}
    return [one for one in children if one.pid not in parents]


def _since(thread: ThreadLook | None) -> float | None:
    if thread is None or isinstance(thread.last_ran_seconds_ago, Missing):
        return None
    return thread.last_ran_seconds_ago


def _describe_child(child: ChildSeen, job: Job) -> Inner | None:
    """`pid 12, sleeps at data.py:6 in __getitem__`; None for one that waits for work itself."""
    moves = works(child.looks[0], child.looks[-1])
    seen = [look.main for look in child.looks if look.main is not None]
    if not seen:
        return None
    main = next((one for one in reversed(seen) if one.frames), seen[-1])
    name = f"pid {child.pid} ({child.command[:60]})"
    if held := _if_held(child.looks[-1], main):
        return Inner(f"{name} {held}", since_seconds=_since(main))
    main = replace(main, frames=since_fork(main.frames))
    call = read_call(main.frames)
    if any(is_idle(frame) for frame in call.library):
        return None
    if call.own is None or call.own.file.startswith("<"):  # no Python, or `python -c`
        by_kernel = _kind_by_kernel(main, Call(None, (), ""), "", job) if main.state in "SD" else None
        is_held = by_kernel is not None and (by_kernel[0] in _HELD or main.syscall.startswith(_WRITES))
        if "python" in child.command.split(" ")[0] and (not is_held or main.syscall == "futex"):
            return None
        does = f", {by_kernel[1]}" if by_kernel is not None and is_held else ""
        return Inner(f"{name}{does}", moves, _since(child.looks[-1].main))
    if not own_frames(main.frames):
        return None
    kind, words = _kind(main, call, job)
    read = [look for look in child.looks if look.main is not None and look.main.frames]
    moves = moves or (moved(read) and len(read) > 1)
    since = max(_since(child.looks[-1].main) or 0.0, still_since_seconds(read))
    loop = find_loop((read[0], read[-1]), child.pid) if len(read) > 1 and kind == PYTHON else None
    return Inner(f"pid {child.pid}, {words} at {describe_line(call.own)}", moves, since, kind, loop)


def is_idle(frame: Frame) -> bool:
    """Whether a frame is of a worker that waits for its next task."""
    return (
        frame.function in ("_worker_loop", "_pin_memory_loop")
        or frame.file.endswith("/_utils/worker.py")
        or (frame.file.endswith((_POOL, _PROCESS_POOL)) and "worker" in frame.function)
    )


def _describe_thread(thread: ThreadLook, job: Job) -> str:
    """`uploader sleeps at train.py:9 in upload`; empty for a thread without a line of the user's."""
    own = own_frames(thread.frames)
    if not own:
        return ""
    _, words = _kind(thread, read_call(thread.frames), job)
    return f"{thread.name} {words} at {describe_line(own[0])}"
