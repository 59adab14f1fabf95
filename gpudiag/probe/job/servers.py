"""Jobs of a server and its workers, without RANK: inference engines, Ray actors, processes of one program.

Ranks are recognised by what they share: a torch store or process groups (stores.py), or a group in their
stacks. A server that gives them requests is no rank, though it started them. A rank's number comes from its
process group in memory, else from a variable, its title or its name, and only where these numbers differ and
contradict nothing; else it is unknown.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gpudiag.model.job import Frame, KnownBy
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.probe.job.find import (
    FoundJob,
    FoundRank,
    ReadMain,
    find_descendants,
    find_family,
    is_agent,
    is_tracker,
    joins_children,
)
from gpudiag.probe.job.frames import describe_frames
from gpudiag.probe.job.proc import Process
from gpudiag.probe.job.py_spy import RawFrame
from gpudiag.probe.job.stores import (
    Connections,
    Meeting,
    join_meetings,
    read_connections,
    runs_process_group,
)

SERVER, RAY, TOGETHER = "server", "ray", "process group"  # how such a job came to be, as a launcher's name
_MOST_WORKERS = 64  # whose stacks are read; a machine has 8 or 16 GPUs
_FIRST_WORKERS = 8
_AT_ONCE = 8
_STARTED_TOGETHER_SECONDS = 60.0
_DEFAULT_GROUP = "0"
_DISTRIBUTED = "/torch/distributed/"
_WORLD_SIZES = ("world_size", "nprocs", "num_processes", "tensor_parallel_size", "tp_size")
# From the surest word to the least; a local rank is that of the job where its numbers fit.
_RANKS = ("rank", "global_rank", "tp_rank", "local_rank", "proc_id", "worker_rank", "worker_id", "worker")
# `VLLM::Worker_PP1_TP0`, `sglang::scheduler_DP0_TP1_EP1`, `worker 3`, `VllmWorker-2`; `SpawnProcess-3` counts
# all that a program started.
_PARTS = re.compile(r"(?<![a-zA-Z])(PP|TP)_?(\d+)(?![a-zA-Z\d])")
_LAST_NUMBER = re.compile(r"(?:^|[a-zA-Z])[-_ ]?(\d+)$")
_COUNTED_NAME = re.compile(r"^(Spawn|Fork|ForkServer|Dup|)Process-[\d:]+$")
_LOADER = "/torch/utils/data/_utils/"
# Ray's own Python processes, which talk to every actor.
_OF_RAY = ("/ray/dashboard/", "/ray/_private/", "ray/autoscaler", "dashboard_agent")

Describe = Callable[[int, Iterable[RawFrame]], Sequence[Frame]]
Connect = Callable[[Iterable[int]], Connections]


@dataclass(frozen=True, slots=True)
class _Worker:
    """A process that may be a rank, with its main thread's frames."""

    process: Process
    raw: Sequence[RawFrame] = ()
    frames: Sequence[Frame] = ()  # the same, with what they hold
    title: str = (
        ""  # what it is called: its command line where that is a title, and its name in multiprocessing
    )

    @property
    def pid(self) -> int:
        return self.process.pid


def find_served_jobs(
    processes: Mapping[int, Process],
    taken: frozenset[int],
    read_main: ReadMain,
    uses_torch: Callable[[int], bool],
    near: Process | None = None,
    *,
    connect: Connect = read_connections,
    has_group: Callable[[int], bool] = runs_process_group,
    describe: Describe = describe_frames,
) -> list[FoundJob]:
    """The jobs whose ranks share a store or a process group, of processes that belong to no launcher's job.

    Where the process that started them does nothing but join them, it is a family (find.py). With `near` only
    those whose processes have an ancestor in common with that process, or call it: the stacks of others are
    not read.
    """
    free = [
        one
        for one in processes.values()
        if one.python and one.is_readable and one.state != "Z" and one.pid not in taken
        if not taken & set(one.ancestors)
    ]
    with_torch = {one.pid: one for one in _parents_first(free) if uses_torch(one.pid)}
    if len(with_torch) < 2:
        return []
    connections = connect([one.pid for one in _parents_first(free)])
    finder = _Finder(processes, with_torch, connections, read_main, describe)
    jobs: list[FoundJob] = []
    found: set[int] = set()
    in_groups = [pid for pid in with_torch if has_group(pid)]
    meetings = join_meetings([*connections.find_stores(with_torch), *connections.find_meshes(in_groups)])
    for meeting in _without_servers(meetings, processes):
        members = [processes[pid] for pid in meeting.members]
        if not (_is_near(near, members) or (near and near.pid in connections.find_callers(meeting.members))):
            continue
        job = finder.find_by_meeting(meeting)
        if job is not None:
            jobs.append(job)
            found |= job.pids
    for siblings in _siblings(with_torch.values(), found | taken):
        if not _is_near(near, siblings):
            continue
        job = finder.find_by_stacks(siblings)
        if job is not None:
            jobs.append(job)
    return jobs


def _without_servers(meetings: Sequence[Meeting], processes: Mapping[int, Process]) -> list[Meeting]:
    """The meetings without those of processes that each started ranks: engines that share a group."""
    above = {pid: {*processes[pid].ancestors} for one in meetings for pid in one.members}
    return [
        one
        for one in meetings
        if not all(
            any(pid in found for other, found in above.items() if other not in one.members)
            for pid in one.members
        )
    ]


def _is_near(near: Process | None, members: Iterable[Process]) -> bool:
    if near is None:
        return True
    own = {near.pid, *near.ancestors}
    return any(own & {one.pid, *one.ancestors} for one in members)


def _parents_first(processes: Iterable[Process]) -> list[Process]:
    return sorted(processes, key=lambda one: (len(one.ancestors), one.pid))


def _siblings(with_torch: Iterable[Process], found: set[int] | frozenset[int]) -> list[list[Process]]:
    """Processes with torch that one process started, of no job yet."""
    by_parent: dict[int, list[Process]] = {}
    for one in with_torch:
        if one.pid not in found and not found & set(one.ancestors) and not (is_tracker(one) or is_agent(one)):
            by_parent.setdefault(one.parent_pid, []).append(one)
    return [members for parent, members in by_parent.items() if len(members) > 1 and parent > 1]


@dataclass(frozen=True, slots=True)
class _Finder:
    processes: Mapping[int, Process]
    with_torch: Mapping[int, Process]
    connections: Connections
    read_main: ReadMain
    describe: Describe

    def find_by_meeting(self, meeting: Meeting) -> FoundJob | None:
        """The job of the processes that share a store or groups; None where only one is left of them."""
        members = [self.with_torch[pid] for pid in sorted(meeting.members)]
        top = _top_of(members)
        workers = self._read_all(members)
        size = _find_size(workers)
        if top is not None and not _is_rank(workers[members.index(top)], size, len(members)):
            workers = [one for one in workers if one.process is not top]
        return self._build(workers, size, meeting) if len(workers) > 1 else None

    def find_by_stacks(self, siblings: Sequence[Process]) -> FoundJob | None:
        """The job of one process's children, where some are seen to make or to use a process group."""
        parent = self.processes.get(siblings[0].parent_pid)
        if parent is not None and parent.python and joins_children(self.read_main(parent.pid)):
            return None
        first = self._read(siblings[0])
        if any(_LOADER in frame.file for frame in first.frames):
            return None
        workers = [first, *self._read_all(siblings[1:_FIRST_WORKERS])]
        if not any(_is_meeting(one) for one in workers):
            return None  # a pool of processes that compute, as far as can be seen
        workers += self._read_all(siblings[_FIRST_WORKERS:_MOST_WORKERS])
        meeting = [one for one in workers if _is_meeting(one)]
        size = _find_size(meeting)
        if size is not None and size < len(meeting):
            return None  # several jobs of one parent, as of a sweep
        return self._build(meeting, size, None)

    def _read_all(self, processes: Sequence[Process]) -> list[_Worker]:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(self._read, processes))

    def _read(self, process: Process) -> _Worker:
        raw = self.read_main(process.pid)
        return _Worker(process, raw, self.describe(process.pid, raw), _name_of(process, raw))

    def _build(self, workers: list[_Worker], size: int | None, meeting: Meeting | None) -> FoundJob | None:
        """The job of these ranks, and of those of their siblings that are its other ones."""
        parent = self._common_parent(workers)
        if parent is not None and joins_children(self.read_main(parent.pid)):
            return find_family(parent, self.processes, self.read_main)
        numbers = _number(workers, size)
        size = (
            max(size or 0, len(workers), *(number + 1 for number in numbers.values()))
            if size or numbers
            else None
        )
        # Ray's node may have dozens of workers: their stacks are read only where a rank is missing.
        others = self._siblings_of(workers) if size is not None and size > len(workers) else []
        if size is not None and others:
            workers = [*workers, *_choose(others, size - len(workers), {*range(size)} - {*numbers.values()})]
            numbers = _number(workers, size)
        numbers = _with_last(numbers, workers, size)
        is_here = meeting is None or meeting.is_local
        ranks = tuple(self._rank(one, numbers.get(one.pid)) for one in workers)
        above_all = [self.processes[pid] for pid in self._find_shared(workers) if pid in self.processes]
        agent = next((one for one in above_all if is_agent(one)), None)
        # Whoever started torchrun gives its ranks no work.
        servers = self._find_servers(workers) if agent is None else ()
        above = agent or next(iter(servers), None)
        return FoundJob(
            self._launcher_of(workers, above),
            above,
            Missing(MissingReason.SOURCE_ABSENT) if size is None else size,
            tuple(range(size)) if size is not None and is_here else None,
            ranks,
            meeting.address if meeting is not None else "",
            "",
            (workers[0].process.environment or {}).get("SLURM_JOB_ID", ""),
            servers,
        )

    def _rank(self, worker: _Worker, number: int | None) -> FoundRank:
        rank: Reading[int] = (
            Missing(MissingReason.NOT_SUPPORTED, "its rank is unknown") if number is None else number
        )
        known = KnownBy.NOTHING if number is None else KnownBy.STACK
        return FoundRank(worker.process, rank, rank, known, find_descendants(worker.process, self.processes))

    def _launcher_of(self, workers: Sequence[_Worker], above: Process | None) -> str:
        if any(one.process.name.startswith("ray::") for one in workers):
            return RAY
        if above is None:
            return TOGETHER
        return "torchrun" if is_agent(above) else SERVER

    def _common_parent(self, workers: Sequence[_Worker]) -> Process | None:
        parents = {one.process.parent_pid for one in workers}
        found = self.processes.get(parents.pop()) if len(parents) == 1 else None
        return found if found is not None and found.python else None

    def _siblings_of(self, workers: Sequence[_Worker]) -> list[_Worker]:
        """The processes with torch, or dead ones, that were started beside the ranks by the same process."""
        parents = {one.process.parent_pid for one in workers} - {1}
        names = {one.process.name for one in workers}
        started = [one.process.started_seconds for one in workers]
        earliest, latest = min(started) - _STARTED_TOGETHER_SECONDS, max(started) + _STARTED_TOGETHER_SECONDS
        known = {one.pid for one in workers}
        beside = [
            one
            for one in self.processes.values()
            if one.parent_pid in parents and one.pid not in known and not (is_tracker(one) or is_agent(one))
        ]
        dead = (
            _Worker(one)
            for one in beside
            if one.state == "Z" and one.name in names and earliest < one.started_seconds < latest
        )
        return [*self._read_all([one for one in beside if one.pid in self.with_torch]), *dead]

    def _find_servers(self, workers: Sequence[_Worker]) -> tuple[Process, ...]:
        """The Python process that started the ranks, those above it with torch, and callers of ranks by TCP.

        Whatever else is above them, as a supervisor, gives them no work.
        """
        known = {one.pid for one in workers}
        above = [pid for pid in self._find_shared(workers) if self._serves(pid)]
        callers = [
            pid for pid in sorted(self.connections.find_callers(frozenset(known))) if self._serves(pid)
        ]
        with_torch = [pid for pid in above[1:] if pid in self.with_torch]
        pids = dict.fromkeys([*above[:1], *with_torch, *callers])
        return tuple(self.processes[pid] for pid in pids if pid not in known)

    def _find_shared(self, workers: Sequence[_Worker]) -> list[int]:
        """The processes above all of them, the nearest first."""
        first, *others = [one.process.ancestors for one in workers]
        return [pid for pid in first if all(pid in above for above in others)]

    def _serves(self, pid: int) -> bool:
        one = self.processes.get(pid)
        if one is None or not one.python or is_tracker(one) or is_agent(one):
            return False
        return not any(mark in word for word in one.words for mark in _OF_RAY)


def _top_of(members: Sequence[Process]) -> Process | None:
    """The process that started all others of them."""
    return next(
        (top for top in members if all(top.pid in one.ancestors for one in members if one is not top)), None
    )


def _is_rank(top: _Worker, size: int | None, members: int) -> bool:
    """Whether the process that started the others is a rank itself, as an engine's driver may be."""
    if is_agent(top.process):
        return False
    if size is not None:
        return members <= size
    return _default_group(top.frames) is not None


def _is_meeting(worker: _Worker) -> bool:
    """Whether a process makes or uses a process group of several."""
    return (_find_size([worker]) or 0) > 1 and any(_DISTRIBUTED in frame.file for frame in worker.frames)


def _default_group(frames: Iterable[Frame]) -> tuple[int, int] | None:
    """Rank and size of the default process group, where a frame is in a call of it."""
    for frame in frames:
        if frame.group is not None and frame.group.name == _DEFAULT_GROUP:
            return frame.group.rank, frame.group.size
    return None


def _find_size(workers: Iterable[_Worker]) -> int | None:
    """The size of the job: the default group's in memory, else that of torch's variables and the user's."""
    listed = list(workers)
    groups = {found[1] for one in listed if (found := _default_group(one.frames)) is not None}
    if len(groups) == 1:
        return groups.pop()
    for name in _WORLD_SIZES:
        sizes = {int(value) for one in listed for value in _values(one.raw, name)}
        if len(sizes) == 1 and (size := sizes.pop()) > 1:
            return size
    return None


def _values(frames: Sequence[RawFrame], name: str) -> list[str]:
    """The whole numbers of that name in frames and in their dicts of arguments, the outermost first."""
    inside = re.compile(rf'"{name}": (\d+)')
    found = []
    for one in (variable for frame in reversed(frames) for variable in frame.variables):
        if one.name == name and one.value.isdecimal():
            found.append(one.value)
        elif one.value.startswith("{"):
            found += inside.findall(one.value)
    return found


def _name_of(process: Process, raw: Iterable[RawFrame]) -> str:
    """What a process is called: a title in place of its command line, else its name in multiprocessing."""
    words = " ".join(process.words)
    if words and not (process.words[0].startswith("/") or "python" in process.words[0]):
        return words
    for frame in raw:
        for one in frame.variables:
            if one.name == "preparation_data" and (found := re.search(r'"name": "([^"]*)"', one.value)):
                return "" if _COUNTED_NAME.match(found.group(1)) else found.group(1)
    return ""


def _number(workers: Sequence[_Worker], size: int | None) -> dict[int, int]:
    """The ranks by pid, as far as known: from the surest source on, each where it contradicts nothing."""
    known = {one.pid: found[0] for one in workers if (found := _default_group(one.frames)) is not None}
    if len(set(known.values())) < len(known):
        return {}
    sources = [
        *(
            {one.pid: int(values[0]) for one in workers if (values := _values(one.raw, name))}
            for name in _RANKS
        ),
        _number_by_titles(workers),
    ]
    for numbers in sources:
        joined = {**numbers, **known}
        agrees = all(numbers[pid] == known[pid] for pid in numbers.keys() & known.keys())
        fits = size is None or all(number < size for number in numbers.values())
        if numbers and agrees and fits and len(set(joined.values())) == len(joined):
            known = joined
    return known


def _with_last(numbers: dict[int, int], workers: Sequence[_Worker], size: int | None) -> dict[int, int]:
    """The numbers, where the only rank without one has the only one that is left."""
    unknown = [one.pid for one in workers if one.pid not in numbers]
    left = {*range(size or 0)} - {*numbers.values()}
    return {**numbers, unknown[0]: left.pop()} if len(unknown) == 1 and len(left) == 1 else numbers


def _number_by_titles(workers: Sequence[_Worker]) -> dict[int, int]:
    """Ranks by the processes' names: `VLLM::Worker_PP1_TP0`, by pipeline stage, or a number at the end."""
    parts = {one.pid: {name: int(number) for name, number in _PARTS.findall(one.title)} for one in workers}
    named = {pid: found for pid, found in parts.items() if found}
    if named:
        width = max(found.get("TP", 0) for found in named.values()) + 1
        return {pid: found.get("PP", 0) * width + found.get("TP", 0) for pid, found in named.items()}
    return {one.pid: int(found.group(1)) for one in workers if (found := _LAST_NUMBER.search(one.title))}


def _choose(others: Sequence[_Worker], missing: int, left: set[int]) -> list[_Worker]:
    """Those of a rank's siblings that are the ranks which are missing; none where it is unknown which."""
    if len(others) <= missing:
        return list(others)
    numbers = _number(others, None)
    fitting = [one for one in others if numbers.get(one.pid) in left]
    return fitting if len(fitting) <= missing else []
