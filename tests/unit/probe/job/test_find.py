from dataclasses import replace

from gpudiag.model.job import KnownBy
from gpudiag.probe.job.find import (
    FoundJob,
    find_families,
    find_family,
    find_known_job,
    find_launched_jobs,
    with_later_descendants,
    with_own_descendants,
)
from gpudiag.probe.job.proc import Process
from gpudiag.probe.job.py_spy import RawFrame, Variable

SPAWN = "/opt/venv/lib/python3.11/site-packages/torch/multiprocessing/spawn.py"


def table(*processes: Process) -> dict[int, Process]:
    """The processes by pid, with their ancestors."""
    found = {one.pid: one for one in processes}

    def above(pid: int) -> tuple[int, ...]:
        chain = []
        while pid in found and found[pid].parent_pid in found:
            pid = found[pid].parent_pid
            chain.append(pid)
        return tuple(chain)

    return {pid: replace(one, ancestors=above(pid)) for pid, one in found.items()}


def process(pid: int, parent: int, *, python: bool = True, state: str = "S", **variables: str) -> Process:
    return Process(pid, parent, state, 1.0, "python", ("python", "train.py"), 0, variables, python)


def torchrun_rank(
    pid: int, parent: int, rank: int, size: int = 4, local_size: int = 4, port: str = "29500"
) -> Process:
    return process(
        pid,
        parent,
        RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_RANK=str(rank % local_size),
        LOCAL_WORLD_SIZE=str(local_size),
        TORCHELASTIC_RUN_ID="none",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=port,
    )


def ranks_of(job: FoundJob) -> dict[object, int]:
    return {rank.rank: rank.process.pid for rank in job.ranks}


def no_frames(pid: int) -> tuple[RawFrame, ...]:
    return ()


def test_the_ranks_of_torchrun_are_its_topmost_children_and_loaders_workers_are_theirs():
    forked = replace(torchrun_rank(30, 20, 0), words=("python", "train.py"))
    jobs = find_launched_jobs(
        table(process(10, 1), torchrun_rank(20, 10, 0), torchrun_rank(21, 10, 1), forked)
    )
    assert len(jobs) == 1
    assert ranks_of(jobs[0]) == {0: 20, 1: 21}
    assert [one.pid for one in jobs[0].ranks[0].descendants] == [30]
    assert jobs[0].expected == (0, 1, 2, 3)
    assert jobs[0].launcher_process is not None
    assert jobs[0].launcher_process.pid == 10
    assert jobs[0].master == "127.0.0.1:29500"


def test_two_jobs_are_two_and_a_second_node_expects_its_own_ranks():
    jobs = find_launched_jobs(
        table(
            *(torchrun_rank(20 + rank, 10, rank, size=8) for rank in (4, 5, 6, 7)),
            *(torchrun_rank(40 + rank, 11, rank, size=2, local_size=2, port="29501") for rank in (0, 1)),
        )
    )
    assert sorted(job.expected or () for job in jobs) == [(0, 1), (4, 5, 6, 7)]


def test_two_launchers_of_one_job_on_one_machine_are_one_job_however_they_name_the_master():
    first = torchrun_rank(20, 10, 0, size=2, local_size=1)
    second = torchrun_rank(21, 11, 1, size=2, local_size=1)
    assert second.environment is not None
    second = replace(second, environment={**second.environment, "MASTER_ADDR": "localhost"})
    (job,) = find_launched_jobs(table(process(10, 1), process(11, 1), first, second))
    assert ranks_of(job) == {0: 20, 1: 21}
    assert job.expected == (0, 1)
    assert job.launcher_process is None


def test_trials_of_a_sweep_with_the_same_variables_are_jobs_of_their_own():
    """`for lr in ...; do python train.py $lr & done` in a shell that has RANK=0 and WORLD_SIZE=1."""
    one = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    shell = process(10, 1, python=False, **one)
    trials = [process(pid, 10, **one) for pid in (20, 21, 22)]
    jobs = find_launched_jobs(table(shell, *trials, process(30, 21, **one)))
    assert [ranks_of(job) for job in jobs] == [{0: 20}, {0: 21}, {0: 22}]
    assert [one.pid for one in jobs[1].ranks[0].descendants] == [30]
    (alone,) = find_launched_jobs(table(shell, trials[0]))
    assert ranks_of(alone) == {0: 20}


def test_a_trial_that_a_rank_forked_and_left_is_no_rank():
    """By a second fork its parent is init: what is left is its process group, or that it is below no torchrun."""
    ranks = [replace(torchrun_rank(20 + rank, 10, rank, 2, 2), process_group=20 + rank) for rank in (0, 1)]
    torchrun = replace(process(10, 1), words=("python", "/opt/venv/bin/torchrun", "sweep.py"))
    of_group = replace(torchrun_rank(90, 1, 1, 2, 2), process_group=21)
    of_session = replace(torchrun_rank(91, 1, 0, 2, 2), process_group=91)
    trials = (of_group, of_session)
    (job,) = find_launched_jobs(table(torchrun, *ranks, *trials))
    assert ranks_of(job) == {0: 20, 1: 21}
    assert job.launcher_process is not None
    assert not job.pids & {90, 91}
    # Where rank 1 has ended, its trial does not take its place.
    (job,) = find_launched_jobs(table(torchrun, ranks[0], *trials))
    assert ranks_of(job) == {0: 20}
    assert job.expected == (0, 1)
    # Started by hand, each by itself: the group alone shows it, and a new session does not.
    by_hand = [replace(one, parent_pid=1) for one in ranks]
    (job,) = find_launched_jobs(table(*by_hand, *trials))
    assert [(one.rank, one.process.pid) for one in job.ranks] == [(0, 20), (0, 91), (1, 21)]
    # Ranks in the background of one shell are all in its group.
    of_shell = [replace(one, process_group=10) for one in ranks]
    (job,) = find_launched_jobs(table(process(10, 1, python=False), *of_shell))
    assert ranks_of(job) == {0: 20, 1: 21}


def test_a_shell_around_a_rank_is_not_the_rank():
    variables = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    shell = process(20, 10, python=False, **variables)
    jobs = find_launched_jobs(table(process(10, 1), shell, process(21, 20, **variables)))
    assert ranks_of(jobs[0]) == {0: 21}
    assert (jobs[0].launcher, jobs[0].ranks[0].known_by) == ("mpirun", KnownBy.LAUNCHER)


def test_torchrun_under_srun_is_no_rank_of_slurm():
    slurm = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "42", "SLURM_STEP_ID": "0"}
    agent = process(10, 1, **slurm)
    ranks = [torchrun_rank(20 + rank, 10, rank) for rank in range(4)]
    ranks = [replace(one, environment={**(one.environment or {}), **slurm}) for one in ranks]
    jobs = find_launched_jobs(table(agent, *ranks))
    assert [job.launcher for job in jobs] == ["torchrun"]
    assert jobs[0].slurm_job == "42"


def test_processes_with_numbers_that_are_none_are_no_ranks():
    assert (
        find_launched_jobs(
            table(process(20, 1, RANK="4", WORLD_SIZE="4"), process(21, 1, RANK="x", WORLD_SIZE="2"))
        )
        == []
    )


def frame(file: str, function: str, **variables: str) -> RawFrame:
    return RawFrame(file, function, 1, tuple(Variable(name, value, 0) for name, value in variables.items()))


def test_ranks_of_spawn_are_told_by_their_stacks():
    stacks = {
        10: (
            frame("/usr/lib/python3.11/multiprocessing/connection.py", "wait"),
            frame(SPAWN, "join"),
            frame(SPAWN, "start_processes", nprocs="3"),
        ),
        20: (frame("train.py", "work"), frame(SPAWN, "_wrap", i="1")),
        21: (frame("train.py", "work"), frame(SPAWN, "_wrap", i="0")),
    }
    processes = table(process(10, 1), process(20, 10), process(21, 10), process(22, 10, state="Z"))
    job = find_family(processes[10], processes, lambda pid: stacks.get(pid, ()))
    assert {rank.rank for rank in job.ranks if isinstance(rank.rank, int)} == {0, 1}
    assert job.expected == (0, 1, 2)
    assert job.launcher == "spawn"


def test_a_process_with_workers_of_a_loader_is_one_rank():
    stacks = {
        10: (frame("/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", "_get_data"),)
    }
    processes = table(process(10, 1), process(20, 10), process(21, 10))
    job = find_family(processes[10], processes, lambda pid: stacks.get(pid, ()))
    assert [rank.process.pid for rank in job.ranks] == [10]
    assert [one.pid for one in job.ranks[0].descendants] == [20, 21]


def test_only_processes_with_torch_that_belong_to_nobody_are_families():
    processes = table(process(10, 1), process(11, 1), torchrun_rank(20, 9, 0, local_size=4))
    jobs = find_families(processes, frozenset((20,)), no_frames, lambda pid: pid != 11)
    assert [job.ranks[0].process.pid for job in jobs] == [10]


def test_what_a_rank_started_belongs_to_no_rank_above_it():
    """Lightning's rank 0 starts the other ranks; each has a loader's worker."""
    processes = table(process(20, 1), process(21, 20), process(30, 20), process(31, 21))
    job = with_own_descendants(find_known_job(processes, {0: 20, 1: 21}, 2))
    assert [[one.pid for one in rank.descendants] for rank in job.ranks] == [[30], [31]]


def test_what_a_rank_starts_after_the_job_was_found_is_its_own_too():
    processes = table(process(20, 1), process(21, 20), process(30, 20))
    job = with_own_descendants(find_known_job(processes, {0: 20, 1: 21}, 2))
    later = with_later_descendants(
        job, table(process(20, 1), process(21, 20), process(31, 21), process(32, 31), process(40, 1))
    )
    assert [[one.pid for one in rank.descendants] for rank in later.ranks] == [[30], [31, 32]]
