"""Engines with workers: who is a rank, which one, and who only gives the ranks their work."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpudiag.model.job import Frame, GroupSeen
from gpudiag.model.reading import Missing
from gpudiag.probe.job.find import FoundJob
from gpudiag.probe.job.proc import Process
from gpudiag.probe.job.py_spy import RawFrame, Variable
from gpudiag.probe.job.servers import find_served_jobs
from gpudiag.probe.job.stores import Connections
from tests.unit.probe.job.test_find import process, table
from tests.walking import walk

C10D = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
SPAWN = "/usr/lib/python3.11/multiprocessing/spawn.py"
DATALOADER = "/opt/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py"
JOIN = "/usr/lib/python3.11/multiprocessing/process.py"
SERVER, CORE, RANKS = 10, 11, (20, 21, 22, 23)
PORT = ("net:[1]", 29500)
Stacks = Mapping[int, Sequence[RawFrame]]


def frame(file: str, function: str, **variables: str) -> RawFrame:
    return RawFrame(file, function, 1, tuple(Variable(name, value, 0) for name, value in variables.items()))


def in_group(rank: int, size: int = 4) -> tuple[RawFrame, ...]:
    """The stack of a rank in a collective of the default group."""
    return (frame(C10D, "all_reduce", group=f"{rank} {size}"), frame("engine.py", "execute"))


def describe(_: int, raw: Iterable[RawFrame]) -> tuple[Frame, ...]:
    """The frames with the process groups that `in_group` put there."""
    found = []
    for one in raw:
        numbers = [variable.value.split() for variable in one.variables if variable.name == "group"]
        group = GroupSeen(int(numbers[0][1]), int(numbers[0][0]), "0") if numbers else None
        found.append(Frame(one.file, one.function, one.line, group=group))
    return tuple(found)


def engine(*more: Process) -> dict[int, Process]:
    """A server, its engine, and four workers that the engine started."""
    workers = (process(pid, CORE) for pid in RANKS)
    found = table(process(SERVER, 1), process(CORE, SERVER), *workers, *more)
    return found


def named(processes: dict[int, Process], pid: int, title: str) -> dict[int, Process]:
    """The processes, one of them renamed."""
    return {**processes, pid: replace(processes[pid], name=title[:15], words=(title,))}


def find(
    processes: dict[int, Process],
    stacks: Stacks | None = None,
    *,
    connected: Iterable[int] = RANKS,
    torch: Iterable[int] | None = None,
    near: Process | None = None,
    connections: Connections | None = None,
    groups: Iterable[int] = (),
) -> list[FoundJob]:
    """The jobs, where these processes share a store."""
    clients = frozenset(connected)
    owner = frozenset((min(clients),)) if clients else frozenset()
    told = connections or Connections({PORT: owner}, {PORT: clients}, {PORT: "127.0.0.1"}, frozenset())
    with_torch = frozenset(processes if torch is None else torch)
    groups = frozenset(groups)
    return find_served_jobs(
        processes,
        frozenset(),
        lambda pid: (stacks or {}).get(pid, ()),
        with_torch.__contains__,
        near,
        connect=lambda _: told,
        has_group=groups.__contains__,
        describe=describe,
    )


def ranks_of(job: FoundJob) -> dict[int, object]:
    return {one.process.pid: one.rank if isinstance(one.rank, int) else None for one in job.ranks}


def test_the_server_and_its_engine_are_no_ranks_and_the_workers_are_one_job() -> None:
    (job,) = find(engine(), {21: in_group(1), 20: in_group(0), 23: in_group(3)})
    assert ranks_of(job) == {20: 0, 21: 1, 22: 2, 23: 3}  # the last by what is left
    assert [one.pid for one in job.servers] == [CORE, SERVER]
    assert (job.launcher, job.world_size, job.expected, job.master) == (
        "server",
        4,
        (0, 1, 2, 3),
        "127.0.0.1:29500",
    )
    assert job.launcher_process is not None
    assert job.launcher_process.pid == CORE


# What tells the numbers of ranks beside a process group: titles and names, and variables, by pid; None: it
# cannot be told.
NUMBERS: dict[str, tuple[Mapping[int, str], Stacks, list[int | None]]] = {
    "vLLM's titles": ({pid: f"VLLM::Worker_TP{n}" for n, pid in enumerate(RANKS)}, {}, [0, 1, 2, 3]),
    "two pipeline stages": (
        {20: "VLLM::Worker_PP0_TP0", 21: "VLLM::Worker_PP0_TP1", 22: "VLLM::Worker_PP1_TP0",
            23: "VLLM::Worker_PP1_TP1"}, {}, [0, 1, 2, 3],
    ),
    "SGLang's titles": ({pid: f"sglang::scheduler_DP0_TP{3 - n}_EP{n}" for n, pid in enumerate(RANKS)}, {},
        [3, 2, 1, 0]),
    "a variable": ({}, {pid: (frame("engine.py", "work", rank=str(n)),) for n, pid in enumerate(RANKS)},
        [0, 1, 2, 3]),
    "arguments in a dict": (
        {}, {pid: (frame("engine.py", "main", kwargs=f'{{"local_rank": {n}, "rank": {n}}}'),) for n,
            pid in enumerate(RANKS)}, [0, 1, 2, 3],
    ),
    "a name": (
        {}, {pid: (frame(SPAWN, "_main", preparation_data=f'{{"name": "VllmWorker-{n}", "x": 1}}'),) for n,
            pid in enumerate(RANKS)}, [0, 1, 2, 3],
    ),
    "a name that counts processes": (
        {}, {pid: (frame(SPAWN, "_main", preparation_data=f'{{"name": "SpawnProcess-{n + 2}"}}'),) for n,
            pid in enumerate(RANKS)}, [None] * 4,
    ),
    "a variable that is alike": ({}, {pid: (frame("engine.py", "work", rank="0"),) for pid in RANKS},
        [None] * 4),
    "titles that contradict the group": (
        {pid: f"VLLM::Worker_TP{n}" for n, pid in enumerate(RANKS)}, {20: in_group(1), 21: in_group(0)},
        [1, 0, None, None],
    ),
    "a local rank of another engine beside it": (
        {}, {pid: (*(in_group(0) if n == 0 else ()), frame("engine.py", "work", local_rank=str(n + 4))) for n,
            pid in enumerate(RANKS)},
        [0, None, None, None],
    ),
}  # fmt: skip


@walk(NUMBERS)
def test_a_number_counts_where_it_differs_and_contradicts_nothing(name: str) -> None:
    titles, stacks, expected = NUMBERS[name]
    processes = engine()
    for pid, title in titles.items():
        processes = named(processes, pid, title)
    (job,) = find(processes, stacks)
    assert list(ranks_of(job).values()) == expected


def test_a_supervisor_above_is_no_server() -> None:
    (job,) = find(engine(), {20: in_group(0)}, torch=(CORE, *RANKS))
    assert [one.pid for one in job.servers] == [CORE]


def test_an_engine_that_multiprocessing_started_does_not_join_its_workers() -> None:
    """The file of a join is in the outermost frames of every process that was started so."""
    core = (
        frame("engine.py", "result"),
        frame("engine.py", "run"),
        frame(JOIN, "run"),
        frame(JOIN, "_bootstrap"),
    )
    (job,) = find(engine(), {CORE: core, 20: in_group(0)})
    assert job.launcher == "server"


def test_a_worker_that_has_not_joined_yet_is_the_missing_rank_and_a_detokenizer_is_none() -> None:
    processes = engine(process(24, CORE))
    for number, pid in enumerate(RANKS):
        processes = named(processes, pid, f"sglang::scheduler_TP{number}")
    processes = named(processes, 24, "sglang::detokenizer")
    init = frame(C10D, "init_process_group", world_size="4")
    (job,) = find(processes, {20: (init,), 21: (init,), 23: (init,)}, connected=(20, 21, 23))
    assert ranks_of(job) == {20: 0, 21: 1, 22: 2, 23: 3}


def test_where_two_may_be_the_missing_rank_neither_is_taken() -> None:
    init = frame(C10D, "init_process_group", world_size="4")
    (job,) = find(engine(process(24, CORE)), {20: (init,), 21: (init,)}, connected=(20, 21, 23))
    assert set(ranks_of(job)) == {20, 21, 23}
    assert job.expected == (0, 1, 2, 3)


def test_a_dead_worker_that_nobody_has_reaped_belongs_to_the_job() -> None:
    processes = engine()
    processes[22] = replace(processes[22], state="Z", words=())
    (job,) = find(processes, {20: in_group(0)}, connected=(20, 21, 23))
    assert 22 in ranks_of(job)
    assert job.world_size == 4


def test_of_workers_with_titles_a_gap_tells_that_one_is_gone() -> None:
    processes = {pid: one for pid, one in engine().items() if pid != 22}
    for number, pid in enumerate(RANKS):
        if pid in processes:
            processes = named(processes, pid, f"VLLM::Worker_TP{number}")
    (job,) = find(processes, connected=(20, 21, 23))
    assert (job.world_size, job.expected) == (4, (0, 1, 2, 3))


def test_a_driver_that_works_beside_its_workers_is_a_rank() -> None:
    processes = table(process(SERVER, 1), *(process(pid, SERVER) for pid in RANKS[1:]))
    (job,) = find(processes, {21: in_group(1)}, connected=(SERVER, *RANKS[1:]))
    assert ranks_of(job).keys() == {SERVER, 21, 22, 23}


def test_torchrun_that_serves_the_store_is_no_rank_though_its_ranks_lost_their_environment() -> None:
    """setproctitle writes over the variables too, as /proc shows them."""
    agent = replace(process(CORE, SERVER), words=("python", "-m", "torch.distributed.run"))
    (job,) = find(engine(agent), {20: in_group(0)}, connected=(CORE, *RANKS))
    assert set(ranks_of(job)) == set(RANKS)
    assert (job.launcher, CORE in job.pids) == ("torchrun", True)
    assert job.servers == ()


def test_without_a_store_the_ranks_are_those_that_make_a_process_group() -> None:
    init = frame(C10D, "init_process_group", world_size="4")
    stacks = {pid: (init, frame("engine.py", "work", rank=str(number))) for number, pid in enumerate(RANKS)}
    (job,) = find(engine(), stacks, connected=())
    assert ranks_of(job) == {20: 0, 21: 1, 22: 2, 23: 3}
    del stacks[20]  # it is the one that has not come, and would serve the store
    (job,) = find(engine(), stacks, connected=())
    assert set(ranks_of(job)) == set(RANKS)


NO_JOBS: dict[str, tuple[dict[int, Process], Stacks]] = {
    "workers of a loader": (engine(), {pid: (frame(DATALOADER, "_worker_loop"),) for pid in RANKS}),
    "a pool that computes": (engine(), {pid: (frame("work.py", "compute", rank="1"),) for pid in RANKS}),
    "a sweep of single processes": (
        engine(), {pid: (frame(C10D, "init_process_group", world_size="1"),) for pid in RANKS},
    ),
    "processes that are joined: a family": (
        engine(),
        {CORE: (frame(JOIN, "join"),),
         **{pid: (frame(C10D, "init_process_group", world_size="4"),) for pid in RANKS}},
    ),
    "two torchruns of one shell in their rendezvous": (
        {}, {pid: (frame("/x/site-packages/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py",
            "next", world_size="2"),) for pid in RANKS},
    ),
}  # fmt: skip


def _agents() -> dict[int, Process]:
    words = ("python", "/opt/venv/bin/torchrun")
    return table(process(SERVER, 1), *(replace(process(pid, SERVER), words=words) for pid in RANKS[:2]))


@walk(NO_JOBS)
def test_processes_that_share_nothing_are_no_job(name: str) -> None:
    processes, stacks = NO_JOBS[name]
    assert find(processes or _agents(), stacks, connected=()) == []


def test_rays_actors_have_no_python_above_them_and_their_driver_calls_them() -> None:
    raylet = process(CORE, 1, python=False)
    driver, agent = (
        process(SERVER, 1),
        replace(process(12, CORE), words=("python", "/x/ray/dashboard/agent.py")),
    )
    actors = [replace(process(pid, CORE), name="ray::RayWorker", words=("ray::RayWorker",)) for pid in RANKS]
    processes = table(raylet, driver, agent, *actors)
    ports = {pid: ("net:[1]", 40000 + pid) for pid in RANKS}
    connections = Connections(
        {PORT: frozenset((20,)), **{ports[pid]: frozenset((pid,)) for pid in RANKS}},
        {PORT: frozenset(RANKS), **{ports[pid]: frozenset((SERVER, 12)) for pid in RANKS}},
        {},
        frozenset(),
    )
    (job,) = find(processes, connections=connections)
    assert set(ranks_of(job)) == set(RANKS)
    assert [one.pid for one in job.servers] == [SERVER]
    assert job.launcher == "ray"
    assert isinstance(job.world_size, Missing)
    assert SERVER in job.pids
    assert find(processes, near=processes[SERVER], connections=connections)


def test_the_stacks_of_jobs_that_are_not_near_are_not_read() -> None:
    other = process(90, 1)
    processes = engine(other)
    assert find(processes, {20: in_group(0)}, near=processes[90]) == []
    assert find(processes, {20: in_group(0)}, near=processes[CORE])


class Asked(dict[int, Sequence[RawFrame]]):
    """Stacks, with the processes that were asked for theirs."""

    def __init__(self, stacks: Stacks) -> None:
        super().__init__(stacks)
        self.pids: list[int] = []

    def get(self, pid: int, default: Sequence[RawFrame] = ()) -> Sequence[RawFrame]:  # type: ignore[override]
        self.pids.append(pid)
        return super().get(pid, default)


def test_processes_beside_the_ranks_are_asked_for_stacks_only_where_a_rank_is_missing() -> None:
    """Ray's node starts workers for many actors: each stack may take seconds on a busy machine."""
    idle = [process(pid, CORE) for pid in range(50, 70)]
    for connected, are_asked in ((RANKS, False), (RANKS[:3], True)):
        stacks = Asked({pid: in_group(number) for number, pid in enumerate(connected)})
        assert find(engine(*idle), stacks, connected=connected)
        beside = [pid for pid in stacks.pids if pid >= 50]
        assert beside == [] if not are_asked else len(beside) == len(idle), connected


def test_two_engines_of_one_server_are_two_jobs() -> None:
    more = [process(30, 12), process(31, 12), process(12, SERVER)]
    connections = Connections(
        {PORT: frozenset((20,)), ("net:[1]", 29501): frozenset((30,))},
        {PORT: frozenset(RANKS), ("net:[1]", 29501): frozenset((30, 31))},
        {},
        frozenset(),
    )
    jobs = find(engine(*more), {20: in_group(0), 30: in_group(0, 2)}, connections=connections)
    assert sorted(len(job.ranks) for job in jobs) == [2, 4]


def connected_in_pairs(*pairs: tuple[int, int]) -> Connections:
    """Connections from the second to a port of the first, each pair its own."""
    ports = {pair: ("net:[1]", 41000 + number) for number, pair in enumerate(pairs)}
    return Connections(
        {port: frozenset(pair[:1]) for pair, port in ports.items()},
        {port: frozenset(pair[1:]) for pair, port in ports.items()},
        {},
        frozenset(),
    )


def test_where_the_store_is_a_file_the_ranks_are_those_with_groups_that_are_connected_to_each_other() -> None:
    """As vLLM's workers. The engine talks to them over TCP too, and has no process group."""
    connections = connected_in_pairs((20, 21), (22, 21), (23, 22), (CORE, 20), (CORE, 21))
    (job,) = find(engine(), {20: in_group(0)}, connections=connections, groups=RANKS)
    assert set(ranks_of(job)) == set(RANKS)
    assert find(engine(), connections=connections, groups=()) == []


def test_engines_that_share_a_group_of_their_own_are_servers_of_their_workers() -> None:
    more = [process(30, 12), process(31, 12), process(12, SERVER)]
    connections = connected_in_pairs((20, 21), (21, 22), (22, 23), (30, 31), (CORE, 12))
    jobs = find(engine(*more), connections=connections, groups=(*RANKS, 30, 31, CORE, 12))
    assert sorted(tuple(ranks_of(job)) for job in jobs) == [RANKS, (30, 31)]


def test_a_rank_of_another_machine_is_not_expected_here() -> None:
    connections = Connections({PORT: frozenset((20,))}, {PORT: frozenset(RANKS)}, {}, frozenset((PORT,)))
    (job,) = find(engine(), {20: in_group(0, 8)}, connections=connections)
    assert (job.world_size, job.expected) == (8, None)
