"""Jobs that train in a thread of their own, as under Ray: it takes the main thread's place."""

from dataclasses import replace

from gpudiag.model.job import Job, ProcessLook, RankSeen, ThreadLook
from gpudiag.reference.stacks import own_frames, read_call
from gpudiag.reference.waits import RANKS

_IDLE_STATES = frozenset("SD")
# How a main thread waits for the thread that trains: a join, a future's result, an event loop.
_IDLE_FILES = (
    "/threading.py",
    "/concurrent/futures/",
    "/asyncio/",
    "/selectors.py",
    "/queue.py",
    "/signal.py",
)


def with_training_threads(job: Job) -> Job:
    """The job with the thread that trains as each rank's main one, where main threads only wait for it.

    So is one that runs a function for another rank (torch's RPC).
    """
    led = _led_by_training(job)
    return replace(led, ranks=tuple(_with_served_call(rank) for rank in led.ranks))


def _led_by_training(job: Job) -> Job:
    mains = [rank.last.main for rank in job.ranks]
    # One that polls may wait for data; where all do, and a thread of each is elsewhere, they wait for that.
    may_poll = all(main is not None and _only_waits(main, may_poll=True) for main in mains)
    functions = {
        function
        for rank in job.ranks
        if (function := _training_function(rank.last, may_poll=may_poll)) is not None
    }
    if len(functions) != 1:
        return job
    function = functions.pop()
    return replace(
        job,
        ranks=tuple(
            replace(rank, looks=tuple(_led_by(look, function, may_poll=may_poll) for look in rank.looks))
            for rank in job.ranks
        ),
    )


def _with_served_call(rank: RankSeen) -> RankSeen:
    """The rank, led by the thread that answers a remote call, if its main thread waits for ranks."""
    main = rank.last.main
    if main is None or read_call(main.frames).awaited != RANKS:
        return rank
    served = [{one.tid for one in look.threads if _serves_call(one)} for look in rank.looks]
    tid = min(set.intersection(*served), default=None)
    return rank if tid is None else replace(rank, looks=tuple(_exchange(look, tid) for look in rank.looks))


def _serves_call(thread: ThreadLook) -> bool:
    """Whether a thread of torch's RPC runs a function of the user's for another rank."""
    is_called = any(
        one.function == "_run_function" and one.file.endswith("/torch/distributed/rpc/internal.py")
        for one in thread.frames
    )
    return is_called and bool(own_frames(thread.frames))


def _training_function(look: ProcessLook, *, may_poll: bool) -> tuple[str, str] | None:
    """The function that a thread in a collective began with, while the main thread waits for a thread."""
    if look.main is None or not _only_waits(look.main, may_poll=may_poll):
        return None
    for thread in look.threads:
        own = own_frames(thread.frames)
        if thread.tid != look.pid and own and read_call(thread.frames).awaited == RANKS:
            return own[-1].file, own[-1].function
    return None


def _only_waits(main: ThreadLook, *, may_poll: bool) -> bool:
    """Whether a main thread waits for a thread: in a join, a result, an event loop.

    With `may_poll`, a loop that asks counts too.
    """
    place = next(
        (n for n, frame in enumerate(main.frames) if frame in own_frames(main.frames)), len(main.frames)
    )
    library = main.frames[:place]
    if may_poll and any(frame.polls for frame in main.frames):
        return main.state in _IDLE_STATES
    return (
        main.state in _IDLE_STATES
        and bool(library)
        and all(any(mark in frame.file for mark in _IDLE_FILES) for frame in library)
    )


def _led_by(look: ProcessLook, function: tuple[str, str], *, may_poll: bool) -> ProcessLook:
    """The look with the two threads' numbers exchanged, the one that began with that function first."""
    main = look.main
    if main is None or not _only_waits(main, may_poll=may_poll):
        return look
    for thread in look.threads:
        own = own_frames(thread.frames)
        if thread.tid != look.pid and own and (own[-1].file, own[-1].function) == function:
            return _exchange(look, thread.tid)
    return look


def _exchange(look: ProcessLook, tid: int) -> ProcessLook:
    """The look with the main thread's number exchanged with that of another thread, which comes first."""
    thread, main = next(one for one in look.threads if one.tid == tid), look.main
    if main is None:
        return look
    others = tuple(one for one in look.threads if one.tid not in (tid, main.tid))
    return replace(look, threads=(replace(thread, tid=main.tid), *others, replace(main, tid=tid)))
