"""The worker, program or thread that a rank waits for: what it does, whether it moves, and since when."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpudiag.checks.job import activity as at
from gpudiag.checks.job.activity import describe_hold, describe_line, find_activity, find_by_kernel
from gpudiag.checks.job.loops import find_loop
from gpudiag.checks.job.movement import moved, still_since_seconds, took_processor, works
from gpudiag.model.job import ChildSeen, Frame, Job, ProcessLook, RankSeen, ThreadLook
from gpudiag.model.reading import Missing
from gpudiag.reference.stacks import Call, own_frames, read_call, since_fork
from gpudiag.reference.waits import COMPILER

_HELD = (at.FILE, at.LOCK, at.TERMINAL)  # what a program without a line of its own is described by
_PROCESS_POOL, _POOL = "/concurrent/futures/process.py", "/multiprocessing/pool.py"


@dataclass(frozen=True, slots=True)
class Inner:
    """What the worker, program or thread that a rank waits for does, whether it moves, and since when."""

    words: str = ""
    moves: bool = False
    since_seconds: float | None = None
    kind: str = ""
    loop: tuple[str, Frame] | None = None  # that it computes in, and the frame


def find_inner(seen: RankSeen, kind: str, job: Job) -> Inner:
    """What the rank, which does `kind`, waits for in itself; empty where that is not seen."""
    last = seen.last
    ended: list[ChildSeen] = []
    busy: list[Inner] = []
    of_pool = kind == at.LOCK and _awaits_future(last.main)
    for child in innermost_programs(seen.children) if kind in (at.PROGRAM, COMPILER) else seen.children:
        if not child.looks or (of_pool and not _is_of_pool(child)):
            continue
        if child.looks[-1].state in "ZX":
            ended.append(child)
            continue
        described = _describe_child(child, job)
        if described is not None:
            busy.append(described)
    who = {at.LOADER: "its loader's worker", at.PROGRAM: "the program"}.get(kind, "its child")
    if ended and (kind == at.LOADER or (kind == at.QUEUE and not busy)):
        return Inner(f"{who} pid {ended[0].pid} is dead")
    if kind == at.QUEUE and not busy and (workers := _count_idle_workers(seen)):
        return Inner(
            f"all {workers} workers of its pool wait for a task: one was likely killed, and its task is lost"
        )
    if kind == COMPILER and any(works(one.looks[0], one.looks[-1]) for one in seen.children if one.looks):
        return Inner(moves=True)  # also where it compiles in a worker that is a library's alone
    if busy and (of_pool or kind in (at.LOADER, at.PROGRAM, at.QUEUE, COMPILER)):
        # One at a lock waits for another one: who is at something else is why, if there is one.
        still = sorted((one for one in busy if not one.moves), key=lambda one: one.kind == at.LOCK)
        first = (still or sorted(busy, key=lambda one: one.loop is None))[0]
        worker_kind = first.kind if len(still) == len(busy) or first.kind != at.LOCK else ""
        goes_on = len(still) < len(busy) if kind == at.PROGRAM else not still
        return Inner(f"{who}, {first.words}", goes_on, first.since_seconds, worker_kind, first.loop)
    before = {one.tid: one for one in seen.first.threads}
    idle = [one for one in last.threads if one.tid not in before or not took_processor(before[one.tid], one)]
    for thread in (*(one for one in last.threads if one not in idle), *idle):  # one that works shows most
        is_shown = thread.tid != last.pid and kind not in (at.LOADER, COMPILER)
        words = _describe_thread(thread, job) if is_shown else ""
        if words:
            return Inner(f"its thread {words}", since_seconds=since_of(thread))
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


def since_of(thread: ThreadLook | None) -> float | None:
    """Seconds since the thread last ran, at its look; None where that is unknown."""
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
    if held := describe_hold(child.looks[-1], main):
        return Inner(f"{name} {held}", since_seconds=since_of(main))
    main = replace(main, frames=since_fork(main.frames))
    call = read_call(main.frames)
    if any(is_idle(frame) for frame in call.library):
        return None
    if call.own is None or call.own.file.startswith("<"):  # no Python, or `python -c`
        by_kernel = find_by_kernel(main, Call(None, (), ""), "", job) if main.state in "SD" else None
        is_held = by_kernel is not None and (by_kernel[0] in _HELD or main.syscall.startswith(at.WRITES))
        if "python" in child.command.split(" ")[0] and (not is_held or main.syscall == "futex"):
            return None
        does = f", {by_kernel[1]}" if by_kernel is not None and is_held else ""
        return Inner(f"{name}{does}", moves, since_of(child.looks[-1].main))
    if not own_frames(main.frames):
        return None
    kind, words = find_activity(main, call, job)
    read = [look for look in child.looks if look.main is not None and look.main.frames]
    moves = moves or (moved(read) and len(read) > 1)
    since = max(since_of(child.looks[-1].main) or 0.0, still_since_seconds(read))
    loop = find_loop((read[0], read[-1]), child.pid) if len(read) > 1 and kind == at.PYTHON else None
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
    _, words = find_activity(thread, read_call(thread.frames), job)
    return f"{thread.name} {words} at {describe_line(own[0])}"
