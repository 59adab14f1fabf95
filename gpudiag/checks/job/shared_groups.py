"""Process groups that several threads of a rank call, in an order that differs by chance between ranks.

A backend matches calls by each rank's order. A thread that saves a checkpoint, fetches batches or shares
metrics in the main thread's group comes first on one rank and second on another: each waits for the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gpudiag.checks.job import activity as at
from gpudiag.checks.job import kinds
from gpudiag.checks.job.activity import describe_line
from gpudiag.checks.job.groups import Group, describe_seconds, name_positions
from gpudiag.checks.job.hang_limits import HangLimits
from gpudiag.checks.job.position import Position
from gpudiag.checks.job.subgroups import JOINS, members_of
from gpudiag.model.evidence import Evidence, HostSubject
from gpudiag.model.finding import Finding
from gpudiag.model.job import GroupSeen, Job, ProcessLook, ThreadLook
from gpudiag.model.number_ranges import name_ranks
from gpudiag.model.reading import Missing
from gpudiag.reference.stacks import Call, own_frames, read_call, shape_of
from gpudiag.reference.waits import RANKS

# Of two ranks alone, and matched by tags: a thread may wait in one for as long as nobody has work for it.
_BETWEEN_TWO = frozenset(
    ("send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list")
)
_STARTS_THREADS = ("/threading.py", "/concurrent/futures/thread.py")
_WAITS_FOR_END = frozenset(("join", "_wait_for_tstate_lock", "result", "Thread.join", "Future.result"))
_DEFAULT_GROUP = "0"
_MAIN = ("", "main thread")
# How a main thread waits for another one: for what it puts into a queue, a lock that it holds, its end.
_FOR_THREADS = frozenset((at.QUEUE, at.LOCK, at.EXITING))


@dataclass(frozen=True, slots=True)
class ThreadCall:
    """A thread that stands in a collective, and with which function it began."""

    position: Position  # of its rank
    thread: ThreadLook
    call: Call
    began: tuple[str, str]
    since_seconds: float

    @property
    def is_main(self) -> bool:
        """Whether it is the rank's main thread."""
        return self.began == _MAIN

    @property
    def where(self) -> str:
        """`job.py:27 in main`; of a thread without a line of the user's, which of them started it."""
        return describe_line(self.call.own) if self.call.own is not None else self.thread.started_by


def judge_shared_groups(job: Job, positions: Sequence[Position], limits: HangLimits) -> tuple[Finding, ...]:
    """The findings for process groups in which several threads stand; none where a rank does not wait."""
    calls = [call for one in positions for call in _find_calls(one)]
    found = []
    for same in _by_group(calls):
        between = {call.began for call in same}
        if len(between) < 2 or not all(_only_waits(one, same) for one in positions):
            continue
        if not _in_one_rank(same) and any(_waits_for_its_end(call) for call in same):
            continue  # on no rank two threads at once, and who joins a thread fixes the order
        # A kernel before the call may be long, and a wait for a GPU spins all the while.
        spin = any(one.busy or one.waits_for_gpu for one in positions)
        found.append(_describe(job, same, limits.idle if spin else limits.still))
    return tuple(found)


def _find_calls(position: Position) -> list[ThreadCall]:
    """The collectives in which threads of a rank stood in all looks."""
    looks = [look for look in position.seen.looks if look.threads]
    found = []
    for thread in looks[-1].threads if looks else ():
        call = read_call(thread.frames)
        is_main = thread.tid == position.seen.pid
        if call.awaited != RANKS or (_group_of(call) is None and not is_main):
            continue
        if call.operation in JOINS | _BETWEEN_TWO or (since := _stood_seconds(thread, looks)) is None:
            continue
        found.append(ThreadCall(position, thread, call, _MAIN if is_main else _began(thread), since))
    return found


def _stood_seconds(thread: ThreadLook, looks: Sequence[ProcessLook]) -> float | None:
    """For how long a thread has stood where it is, at least; None if some look differs."""
    for look in looks:
        earlier = next((one for one in look.threads if one.tid == thread.tid), None)
        if earlier is None or shape_of(earlier.frames) != shape_of(thread.frames):
            return None
    seen = looks[-1].at_seconds - looks[0].at_seconds
    ago = thread.last_ran_seconds_ago
    return seen if isinstance(ago, Missing) else max(seen, ago)


def _began(thread: ThreadLook) -> tuple[str, str]:
    """The function that the thread was started for: the outermost that does not start threads itself."""
    outer = (frame for frame in reversed(thread.frames) if not frame.file.endswith(_STARTS_THREADS))
    return next(((frame.file, frame.function) for frame in outer), ("", thread.name))


def _group_of(call: Call) -> GroupSeen | None:
    """The process group of a call; None if unknown, as in a backward pass with DDP's gradients."""
    group = call.frame.group if call.frame is not None else None
    return group if group is not None and group.name else None


def _by_group(calls: Sequence[ThreadCall]) -> list[list[ThreadCall]]:
    """The calls of each process group, without names that stand for other members on another rank.

    A main thread in an unknown group is put to the default one, which DDP takes unless it is given another.
    """
    groups: dict[tuple[str, int], list[ThreadCall]] = {}
    unknown = []
    for call in calls:
        group = _group_of(call.call)
        if group is None:
            unknown.append(call)
        else:
            groups.setdefault((group.name, group.size), []).append(call)
    for (name, _), same in groups.items():
        if name == _DEFAULT_GROUP:
            same += unknown
    return [same for same in groups.values() if len(_members(same)) < 2]


def _members(calls: Sequence[ThreadCall]) -> set[tuple[int, ...]]:
    groups = (_group_of(one.call) for one in calls)
    return {group.ranks for group in groups if group is not None and group.ranks}


def _only_waits(one: Position, calls: Sequence[ThreadCall]) -> bool:
    """Whether a rank waits for others, or for nothing else than its own thread in one of the calls."""
    if one.waits_for_ranks or one.waits_for_gpu:
        return True
    main = one.seen.last.main
    for_thread = one.kind in _FOR_THREADS and main is not None and main.syscall == "futex"
    return for_thread and not (one.moves or one.busy) and any(call.position is one for call in calls)


def _in_one_rank(calls: Sequence[ThreadCall]) -> bool:
    ranks = [call.position.seen.pid for call in calls]
    return len(set(ranks)) < len(ranks)


def _waits_for_its_end(call: ThreadCall) -> bool:
    """Whether a rank's main thread joins one of its threads that the user wrote: the two do not overlap."""
    if call.is_main or not own_frames(call.thread.frames):
        return False
    library = call.position.call.library
    return any(frame.function in _WAITS_FOR_END for frame in library)


def _describe(job: Job, calls: Sequence[ThreadCall], hang_seconds: float) -> Finding:
    """`the thread Saver_0 of ranks 0 and 1 waits in the gather_object ..., while their main threads ...`."""
    beside = [call for call in calls if not call.is_main]
    others = [call for call in calls if call.is_main]
    if not others:  # several threads beside one that only waits for them
        others = [call for call in beside if call.began != beside[0].began]
        beside = [call for call in beside if call.began == beside[0].began]
    since = min(call.since_seconds for call in calls)
    group = _name_group(beside[0], job)
    unknown = "" if _group_of(others[0].call) is not None else " (DDP takes it, unless it is given another)"
    message = (
        f"{_name_threads(beside)} {_wait(beside)} in {_name_call(beside[0])} of {group}, while"
        f" {_name_threads(others)} {_wait(others)} in {_name_call(others[0])} of the same group{unknown},"
        f" {describe_seconds(since)} so far: the order of the calls of two threads differs between ranks"
    )
    facts = tuple(fact for call in (*beside[:2], *others[:2]) for fact in _facts(call))
    if since < hang_seconds:
        return kinds.NOT_YET.finding(
            HostSubject(job.host), f"{message}; for {since:.1f} s, too short to call it a hang", *facts
        )
    return kinds.SHARED_GROUP.finding(
        HostSubject(job.host), message, *facts, remedy=_remedy(beside[0], group)
    )


def _name_threads(calls: Sequence[ThreadCall]) -> str:
    """`the thread prefetch of ranks 0 and 1`, `the main thread of rank 2`."""
    names = list(
        dict.fromkeys("main thread" if call.is_main else f"thread {call.thread.name}" for call in calls)
    )
    positions = list({call.position.seen.pid: call.position for call in calls}.values())
    named = names[0] if len(names) == 1 or calls[0].is_main else f"{names[0]}, {names[1]}"
    plural = named if len(positions) == 1 else named.replace("thread", "threads", 1)
    return f"the {plural} of {name_positions(positions)}"


def _wait(calls: Sequence[ThreadCall]) -> str:
    return "waits" if len({call.position.seen.pid for call in calls}) == 1 else "wait"


def _name_call(call: ThreadCall) -> str:
    """`the all_reduce (job.py:27 in main)`, `the gather_object (started by async_save at job.py:14)`."""
    started = "" if call.call.own is not None or not call.thread.started_by else "started by "
    return f"the {call.call.operation}" + (f" ({started}{call.where})" if call.where else "")


def _name_group(call: ThreadCall, job: Job) -> str:
    group = _group_of(call.call)
    if group is None or group.name == _DEFAULT_GROUP:
        return "the default process group"
    members = group.ranks or tuple(members_of(call.position, job))
    return f"the process group of {name_ranks(members)}" if members else f"process group {group.name}"


def _facts(call: ThreadCall) -> list[Evidence]:
    name = f"{call.thread.name} of {Group((call.position,)).name}"
    own = own_frames(call.thread.frames)
    line = own[0] if own else call.thread.frames[0]
    text = f"{describe_line(line)}: {line.text}" if line.text else describe_line(line)
    facts = [
        Evidence(f"line of {name}", text, source="py-spy"),
        Evidence(f"last ran, {name}", round(call.since_seconds, 1), "seconds ago at least", source="looks"),
    ]
    if call.thread.started_by:
        facts.append(Evidence(f"started by, {name}", call.thread.started_by, source="sources"))
    return facts


def _remedy(call: ThreadCall, group: str) -> str:
    saves = call.thread.started_by.startswith("async_save")
    made = 'dist.new_group(backend="gloo")' if saves else "dist.new_group()"
    used = (
        "dcp.async_save(..., process_group=own)" if saves else f"dist.{call.call.operation}(..., group=own)"
    )
    return (
        f"Give the thread {call.thread.name} a process group of its own instead of {group}: `own = {made}`"
        f" on all ranks, once, before it starts; then `{used}`."
    )
