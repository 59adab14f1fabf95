"""Jobs on this machine: which processes are ranks of which job, by launchers' variables, or by stacks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from gpudiag.model.job import ALONE, JOINED, KnownBy
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.probe.job.proc import Process
from gpudiag.probe.job.py_spy import RawFrame
from gpudiag.reference.waits import is_library

# How launchers name rank, world size, local rank and local world size, and what all ranks of a run have
# alike; the first that a process shows counts (gpudiag/ranks/launchers.py has the sources).
_RANK_VARIABLES = (
    (
        "torchrun",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"),
    ),
    (
        "mpirun",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    ),
    (
        "mpirun",
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
        (),
    ),
    ("mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ("PMI_PORT",)),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "", ("SLURM_JOB_ID", "SLURM_STEP_ID")),
)
_LOOPBACK = ("localhost", "ip6-localhost", "::1")
_MOST_RANKS = 512  # of one machine
_MOST_DESCENDANTS = 48  # of one rank
_JOINS = ("/torch/multiprocessing/spawn.py", "/multiprocessing/process.py", "/multiprocessing/popen_")
# torchrun by its command line: a process that is one and has no ranks is between two attempts, or at its end.
_AGENTS = ("/torchrun", "torch.distributed.run", "torch.distributed.launch", "torch/distributed/run.py")
_TRACKERS = ("resource_tracker", "semaphore_tracker", "forkserver")


@dataclass(frozen=True, slots=True)
class FoundRank:
    """A process that is a rank of a job."""

    process: Process
    rank: Reading[int]
    local_rank: Reading[int]
    known_by: KnownBy
    descendants: tuple[Process, ...]


@dataclass(frozen=True, slots=True)
class FoundJob:
    """A job, before anyone has looked at its ranks."""

    launcher: str
    launcher_process: Process | None
    world_size: Reading[int]
    expected: tuple[int, ...] | None
    ranks: tuple[FoundRank, ...]
    master: str
    run: str
    slurm_job: str
    servers: tuple[Process, ...] = ()  # that give the ranks work, and are none

    @property
    def pids(self) -> frozenset[int]:
        """Every process of the job, its launcher and those above it that start nothing else included."""
        own = {rank.process.pid for rank in self.ranks} | {one.pid for one in self.servers}
        below = {one.pid for rank in self.ranks for one in rank.descendants}
        return frozenset(own | below | ({self.launcher_process.pid} if self.launcher_process else set()))


# The main thread's frames of a process, innermost first; empty where they cannot be read.
ReadMain = Callable[[int], Sequence[RawFrame]]


@dataclass(frozen=True, slots=True)
class _Candidate:
    process: Process
    launcher: str
    key: tuple[str, ...]
    rank: int
    size: int
    local: tuple[int | None, int | None]  # rank and size on this machine


def find_launched_jobs(processes: Mapping[int, Process]) -> list[FoundJob]:
    """The jobs whose ranks have their rank in the environment that they were started with."""
    groups: dict[tuple[str, ...], list[_Candidate]] = {}
    for process in processes.values():
        candidate = _candidate(process)
        if candidate is not None:
            groups.setdefault(candidate.key, []).append(candidate)
    groups = {key: _without_orphans(members, processes) for key, members in groups.items()}
    innermost = _without_launchers_of_others(
        (one for members in groups.values() for one in _split_by_trial(members)), processes
    )
    return [job for members in innermost if (job := _job_of(members, processes))]


def _without_orphans(members: list[_Candidate], processes: Mapping[int, Process]) -> list[_Candidate]:
    """The members without what their ranks forked and left, as a sweep its trials: it has their variables.

    Such a process is below no torchrun where others are; or its group is led by a process of the same rank
    that is no longer above it.
    """
    agents = {pid for pid, one in processes.items() if is_agent(one)}
    below = [one for one in members if agents & {*one.process.ancestors}]
    ranks = {one.process.pid: one.rank for one in members if one.process.python}

    def is_left(one: _Candidate) -> bool:
        process = one.process
        leader = process.process_group
        return leader not in (process.pid, *process.ancestors) and ranks.get(leader) == one.rank

    return [one for one in below or members if not is_left(one)]


def _split_by_trial(members: list[_Candidate]) -> list[list[_Candidate]]:
    """The members by their jobs: the trials of a sweep have one rank each, and all variables alike."""
    python = {one.process.pid for one in members if one.process.python}
    tops = [
        pid for one in members if (pid := one.process.pid) in python and not python & {*one.process.ancestors}
    ]
    if members[0].size > 1 or len(tops) < 2:
        return [members]
    return [[one for one in members if pid in (one.process.pid, *one.process.ancestors)] for pid in tops]


def _is_look(process: Process) -> bool:
    """Whether it is `gpudiag hang` itself, which a launcher may have started beside the job."""
    return any(
        one.rpartition("/")[2] == "gpudiag" and after == "hang"
        for one, after in zip(process.words, process.words[1:], strict=False)
    )


def _candidate(process: Process) -> _Candidate | None:
    variables = process.environment or {}
    if _is_look(process):
        return None
    for launcher, rank, size, local_rank, local_size, alike in _RANK_VARIABLES:
        values = variables.get(rank, ""), variables.get(size, "")
        if not all(value.isdecimal() for value in values) or int(values[0]) >= int(values[1]):
            continue
        family = "torchrun" if "TORCHELASTIC_RUN_ID" in variables else "variables"
        name = family if launcher == "torchrun" else launcher
        # Launchers of one job on one machine may name it in several ways.
        shared = (variables.get(one, "") for one in alike)
        key = (
            name,
            str(process.uid),
            values[1],
            *("127.0.0.1" if one in _LOOPBACK else one for one in shared),
        )
        local = tuple(
            int(text) if (text := variables.get(one, "")).isdecimal() else None
            for one in (local_rank, local_size)
        )
        return _Candidate(process, name, key, int(values[0]), int(values[1]), (local[0], local[1]))
    return None


def find_known_job(processes: Mapping[int, Process], pids: Mapping[int, int], world_size: int) -> FoundJob:
    """The job of ranks whose processes are known to who asks; `pids` is by rank."""
    missing: Reading[int] = Missing(MissingReason.NOT_ASKED)
    ranks = tuple(
        FoundRank(
            processes[pid], rank, missing, KnownBy.LAUNCHER, find_descendants(processes[pid], processes)
        )
        for rank, pid in sorted(pids.items())
        if pid in processes
    )
    return FoundJob("gpudiag", None, world_size, None, ranks, "", "", "")


def _without_launchers_of_others(
    groups: Iterable[list[_Candidate]], processes: Mapping[int, Process]
) -> list[list[_Candidate]]:
    """The groups without processes that started another group's ranks: `srun torchrun` is no rank itself."""
    listed = list(groups)
    found = []
    for members in listed:
        own = {one.process.pid for one in members}
        above = {
            pid
            for others in listed
            if others is not members and others[0].launcher in ("torchrun", "variables")
            for other in others
            if other.process.pid not in own
            for pid in processes[other.process.pid].ancestors
        }
        left = [one for one in members if one.process.pid not in above]
        if left:
            found.append(left)
    return found


def _job_of(members: list[_Candidate], processes: Mapping[int, Process]) -> FoundJob | None:
    """The job of some processes; each rank is the topmost Python process that has its number."""
    ranks: list[FoundRank] = []
    firsts: list[_Candidate] = []
    for number in sorted({one.rank for one in members}):
        same = {one.process.pid: one for one in members if one.rank == number}
        python = {pid: one for pid, one in same.items() if one.process.python} or same
        top = [one for one in python.values() if not set(one.process.ancestors) & python.keys()]
        # Two processes that were started with one number: both are shown, as each may be the one that hangs.
        for one in sorted(top, key=lambda candidate: candidate.process.pid)[:4]:
            local: Reading[int] = (
                Missing(MissingReason.NOT_SUPPORTED) if one.local[0] is None else one.local[0]
            )
            known = KnownBy.ENVIRONMENT if one.launcher in ("torchrun", "variables") else KnownBy.LAUNCHER
            ranks.append(
                FoundRank(one.process, number, local, known, find_descendants(one.process, processes))
            )
            firsts.append(one)
    if not ranks:
        return None
    variables = firsts[0].process.environment or {}
    master = ":".join(variables.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT")).strip(":")
    return FoundJob(
        firsts[0].launcher,
        _common_ancestor([rank.process for rank in ranks], processes),
        firsts[0].size,
        _expected(firsts),
        tuple(ranks[:_MOST_RANKS]),
        master,
        " ".join(firsts[0].key[3:]).strip(),
        variables.get("SLURM_JOB_ID", ""),
    )


def _expected(firsts: list[_Candidate]) -> tuple[int, ...] | None:
    """The ranks that should be on this machine: those around one that knows its place here."""
    found: set[int] = set()
    for one in firsts:
        local_rank, local_size = one.local
        if local_rank is not None and local_size is not None and local_rank < local_size <= one.size:
            found |= {one.rank - local_rank + place for place in range(local_size)}
    return tuple(sorted(found)) if found else None


def _common_ancestor(members: Sequence[Process], processes: Mapping[int, Process]) -> Process | None:
    """The nearest process that started all of them; None where that is init."""
    for pid in members[0].ancestors:
        if all(pid in one.ancestors for one in members[1:]):
            return processes.get(pid)
    return None


def find_descendants(process: Process, processes: Mapping[int, Process]) -> tuple[Process, ...]:
    """What a process started, and what that started, the nearest first."""
    found = [one for one in processes.values() if process.pid in one.ancestors]
    return tuple(sorted(found, key=lambda one: (len(one.ancestors), one.pid))[:_MOST_DESCENDANTS])


def with_own_descendants(job: FoundJob) -> FoundJob:
    """The job, in which what a rank started belongs to it alone.

    Lightning's rank 0 starts the other ranks.
    """
    pids = {rank.process.pid for rank in job.ranks}

    def is_own(one: Process, rank: FoundRank) -> bool:
        return next((pid for pid in (one.pid, *one.ancestors) if pid in pids), 0) == rank.process.pid

    ranks = (
        replace(rank, descendants=tuple(one for one in rank.descendants if is_own(one, rank)))
        for rank in job.ranks
    )
    return replace(job, ranks=tuple(ranks))


def with_later_descendants(job: FoundJob, processes: Mapping[int, Process]) -> FoundJob:
    """The job with what its ranks have started since it was found beside what they had then."""
    later = with_own_descendants(
        replace(
            job,
            ranks=tuple(
                replace(rank, descendants=find_descendants(rank.process, processes)) for rank in job.ranks
            ),
        )
    )

    def join(rank: FoundRank, now: FoundRank) -> FoundRank:
        known = {one.pid for one in rank.descendants}
        new = tuple(one for one in now.descendants if one.pid not in known)
        return replace(rank, descendants=(*rank.descendants, *new))

    return replace(job, ranks=tuple(map(join, job.ranks, later.ranks)))


def find_family(top: Process, processes: Mapping[int, Process], read_main: ReadMain) -> FoundJob:
    """The job of a Python process without launcher variables: it alone, or the children that it waits for.

    `torch.multiprocessing.spawn` and `multiprocessing.Process` leave no variable; what distinguishes them
    from the workers of a data loader is that the parent does nothing but wait for them to end.
    """
    children = [
        one
        for one in processes.values()
        if one.parent_pid == top.pid and (one.python or one.state == "Z") and not is_tracker(one)
    ]
    frames = read_main(top.pid) if children else ()
    joins = joins_children(frames)
    if not joins and is_agent(top):
        return FoundJob("torchrun", top, Missing(MissingReason.SOURCE_ABSENT), None, (), "", "", "")
    if not joins:
        alone = FoundRank(top, 0, 0, KnownBy.NOTHING, find_descendants(top, processes))
        return FoundJob(ALONE, None, 1, None, (alone,), "", "", "")
    ranks = [_spawned_rank(child, processes, read_main) for child in children]
    counts = [
        int(one.value)
        for frame in frames
        for one in frame.variables
        if one.name == "nprocs" and one.value.isdecimal()
    ]
    size: Reading[int] = counts[0] if counts else len(ranks)
    expected = tuple(range(counts[0])) if counts else None
    launcher = "spawn" if counts else JOINED
    return FoundJob(launcher, top, size, expected, tuple(ranks), "", "", "")


def joins_children(frames: Sequence[RawFrame]) -> bool:
    """Whether a main thread does nothing but wait for the processes that it started to end.

    The same files are in the outermost frames of a process that multiprocessing started itself.
    """
    innermost = takewhile(lambda frame: is_library(frame.file), frames[:4])
    return any(place in frame.file for frame in innermost for place in _JOINS)


def is_agent(process: Process) -> bool:
    """Whether a process is torchrun."""
    return process.python and after_launcher(process.words) is not None


def after_launcher(words: Sequence[str]) -> int | None:
    """Where torchrun's own options begin.

    It is None for another program, such as one that was given torchrun as its command.
    """
    for place, word in enumerate(words[1:], start=1):
        if word.endswith(_AGENTS):
            return place + 1
        if not word.startswith("-") and words[place - 1] not in ("-X", "-W"):
            return None
    return None


def is_tracker(process: Process) -> bool:
    """Whether a process is one that multiprocessing starts for itself."""
    return any(tracker in word for tracker in _TRACKERS for word in process.words)


def _spawned_rank(child: Process, processes: Mapping[int, Process], read_main: ReadMain) -> FoundRank:
    missing: Reading[int] = Missing(MissingReason.NOT_SUPPORTED, "its rank is unknown")
    found = FoundRank(child, missing, missing, KnownBy.NOTHING, find_descendants(child, processes))
    frames = read_main(child.pid) if child.state != "Z" else ()
    for frame in frames:
        if frame.file.endswith("/torch/multiprocessing/spawn.py") and frame.function == "_wrap":
            for one in frame.variables:
                if one.name == "i" and one.value.isdecimal():
                    return replace(
                        found, rank=int(one.value), local_rank=int(one.value), known_by=KnownBy.STACK
                    )
    for frame in reversed(frames):  # the outermost that has it: the function that the process was started for
        for one in frame.variables:
            if one.name in ("rank", "global_rank", "local_rank", "proc_id") and one.value.isdecimal():
                return replace(found, rank=int(one.value), local_rank=int(one.value), known_by=KnownBy.STACK)
    return found


def find_families(
    processes: Mapping[int, Process],
    taken: frozenset[int],
    read_main: ReadMain,
    uses_torch: Callable[[int], bool],
) -> list[FoundJob]:
    """The jobs of Python processes with torch that belong to no other job, the topmost process of each."""
    free = {
        pid: one
        for pid, one in processes.items()
        if one.python and pid not in taken and not taken & set(one.ancestors) and one.is_readable
    }
    with_torch = {pid: one for pid, one in free.items() if uses_torch(pid)}
    above_taken = {pid for one in taken if one in processes for pid in processes[one].ancestors}
    tops = [
        one
        for pid, one in with_torch.items()
        if not set(one.ancestors) & with_torch.keys() and pid not in above_taken
    ]
    return [find_family(top, processes, read_main) for top in tops]
