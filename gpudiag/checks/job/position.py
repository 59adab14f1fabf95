"""What one rank does, by its looks: the kind of wait or work, words, line, since when, whether it moves."""

import re
from dataclasses import dataclass

from gpudiag.checks.job import activity as at
from gpudiag.checks.job.activity import (
    describe_hold,
    describe_kernel,
    describe_line,
    find_activity,
    is_on_disk,
    name_by_function,
)
from gpudiag.checks.job.compiled import with_compiled_function
from gpudiag.checks.job.gpu_waits import GpuWait, find_gpu_wait, uses_gpu
from gpudiag.checks.job.inner_waits import Inner, find_inner, since_of
from gpudiag.checks.job.loops import find_joined_loop, find_loop
from gpudiag.checks.job.movement import (
    count_steps,
    is_busy,
    made_collectives,
    moved,
    others_ran,
    others_work,
    still_since_seconds,
    uses_files,
    works,
)
from gpudiag.checks.job.polling import find_poll, spins, with_lock_file
from gpudiag.checks.job.threads import with_training_threads
from gpudiag.checks.job.throttling import Throttle, children_ran, find_throttle
from gpudiag.model.job import Frame, Job, ProcessLook, RankSeen, ThreadLook
from gpudiag.model.reading import Missing
from gpudiag.model.script import OWN_STACKS
from gpudiag.reference.stacks import Call, find_installed, read_call
from gpudiag.reference.waits import COMPILER, GPU, RANKS, find_native_wait

# What a rank may do that waits for a worker, a program or a thread of its own.
_FOR_ANOTHER = (at.LOADER, at.PROGRAM, at.QUEUE, at.LOCK, at.WAITS, at.EXITING, COMPILER)
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
        return self.kind in at.FOR_RANKS and not self.moves

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


def find_positions(job: Job) -> tuple[Position, ...]:
    """The positions of all ranks: of the thread that trains, where main threads only wait for it."""
    return tuple(find_position(rank, job) for rank in with_training_threads(job).ranks)


def find_position(seen: RankSeen, job: Job) -> Position:
    """The rank's position by all its looks."""
    seen = with_lock_file(seen)
    last, nothing = seen.last, Call(None, (), "")
    gone = _if_gone(seen)
    if gone is not None:
        return Position(seen, at.GONE, gone, nothing, False, None)
    main = last.main
    if main is None or last.state == "?":
        call = read_call(main.frames if main else ())
        return Position(seen, at.UNSEEN, "could not be looked at", call, False, None)
    call = with_compiled_function(read_call(main.frames), main)
    held = describe_hold(last, main)
    if held is not None:
        return Position(seen, at.STOPPED, held, call, False, since_of(main))
    motion = _find_motion(seen, main, call)
    if isinstance(last.stacks, Missing):
        return Position(seen, at.UNSEEN, describe_kernel(main), call, motion.moves, motion.since_seconds)
    return _find_activity(seen, job, main, call, motion)


@dataclass(frozen=True, slots=True)
class _Motion:
    """Whether a rank moves between its looks, or takes processor time alone, and since when it is there."""

    moves: bool
    busy: bool
    since_seconds: float | None
    poll: Frame | None  # of the loop in which it only asks again and again
    throttle: Throttle | None


def _ends_of(seen: RankSeen) -> tuple[ProcessLook, ProcessLook]:
    """The first look at its main thread, and the last look."""
    return next((look for look in seen.looks if look.main is not None), seen.first), seen.last


def _find_motion(seen: RankSeen, main: ThreadLook, call: Call) -> _Motion:
    first, last = _ends_of(seen)
    poll, throttle, since = find_poll(seen.looks), find_throttle(seen), since_of(main)
    moves, busy = moved(seen.looks), poll is None and is_busy(seen.looks)
    for_ranks = call.awaited == RANKS
    if for_ranks and not moves:
        # Whoever waits in a collective may spin, and is still; the threads that send and receive for it show
        # that it goes on.
        moves = others_work(first, last) or (throttle is not None and others_ran(first, last))
    elif not moves and not busy and poll is None:
        moves = works(first, last)
    elif not moves and not busy:
        moves = others_work(first, last) or uses_files(first, last) or made_collectives(first, last)
    if not moves and (busy or not (for_ranks and main.syscall == "futex" and since is not None)):
        # One that wakes up to look, or spins, has been there between the looks at least. A collective of gloo
        # does not wake up.
        since = max(0.0 if busy else since or 0.0, still_since_seconds(seen.looks))
    return _Motion(moves, busy, since, poll, throttle)


def _find_activity(seen: RankSeen, job: Job, main: ThreadLook, call: Call, motion: _Motion) -> Position:
    """The position of a rank that runs, and whose stack was read."""
    moves, busy, since, poll = motion.moves, motion.busy, motion.since_seconds, motion.poll
    gpu_wait = find_gpu_wait(main, rank_uses_gpu=uses_gpu(seen))
    kind, words = find_activity(main, call, job, gpu_wait)
    if kind == RANKS and busy and not moves and not _spins_for_ranks(main, call, gpu_wait):
        kind, words = at.PYTHON, f"computes in {call.operation or 'a step'}"
    if poll is not None and kind in (at.PYTHON, at.SLEEP):
        kind, words = (at.POLL, "polls") if spins(seen.looks) else (at.SLEEP, "sleeps")
    inner = Inner()
    of_file = main.awaited is not None and main.awaited.kind == "lock file"
    if kind in _FOR_ANOTHER and not of_file:
        inner = find_inner(seen, kind, job)
        moves = moves or inner.moves or (motion.throttle is not None and children_ran(seen))
    elif any(frame.polls for frame in main.frames):  # it may ask whether a program of its own has ended
        moves = moves or any(works(one.looks[0], one.looks[-1]) for one in seen.children if one.looks)
    if kind == at.LOADER and inner.since_seconds is not None:
        since = inner.since_seconds  # the main thread wakes up every 5 s to see whether its workers live
    if kind == COMPILER and not (moves or busy):
        words = "waits for a compiler that does not run"
    kind, words = name_by_function(kind, words, main.frames, moves)
    loop, loop_frame = (poll.polls, poll) if poll is not None else ("", None)
    if kind == at.PYTHON:
        loop, loop_frame = find_loop(_ends_of(seen), seen.pid) or ("", None)
    elif inner.loop is not None:
        loop, loop_frame = inner.loop
    if kind in (at.LOCK, at.EXITING) and (joined := find_joined_loop(_ends_of(seen))) is not None:
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
        in_loop=_name_loop(loop, loop_frame),
        inner=inner.words,
        counters=count_steps(seen.looks),
        inner_since_seconds=inner.since_seconds,
        on_disk=is_on_disk(main) or (kind == COMPILER and not _COMPILER_HELD.search(inner.words)),
        busy=busy and not moves,
        gpu_wait=gpu_wait,
        inner_kind=inner.kind,
        polls=poll is not None,
        throttle=motion.throttle if moves or busy else None,
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
