"""Which process may be named to `gpudiag hang`: a rank, whatever started ranks, and what is told of
everything else.
"""

from dataclasses import replace

import pytest

from gpudiag.model.reading import Missing, MissingReason
from gpudiag.probe.job import choose
from gpudiag.probe.job.choose import choose_jobs
from gpudiag.probe.job.proc import Process
from gpudiag.probe.job.py_spy import RawFrame, Variable
from gpudiag.probe.job.stores import Connections, Meeting
from gpudiag.probe.job.wait_targets import Call
from tests.walking import walk

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "x"}
NO_PYTHON = Missing(MissingReason.NOT_SUPPORTED, "it runs no Python")


def process(
    pid: int, parent: int, name: str = "python", above: tuple[int, ...] = (), **more: object
) -> Process:
    made = Process(pid, parent, "S", 5.0, name, (name,), 0, {}, python=name == "python", ancestors=above)
    return replace(made, **more)  # type: ignore[arg-type]


def machine(first: str, *more: Process) -> dict[int, Process]:
    """Process 1, a shell that started torchrun with one rank, and others."""
    known = (
        process(1, 0, first),
        process(10, 1, "bash"),
        process(11, 10, above=(10,)),
        process(12, 11, above=(11, 10), environment=TORCHRUN),
        process(20, 1, "sleep"),
        *more,
    )
    return {one.pid: one for one in known}


FOLLOWED = (
    {"the rank": ("systemd", 12), "torchrun": ("systemd", 11), "the script": ("systemd", 10)}
    | {"a container's bash": ("bash", 1), "a container's tini": ("tini", 1)}
    | {"a container's torchrun": ("python", 1), "a dead rank": ("systemd", 13), "srun": ("systemd", 14)}
)


@walk(FOLLOWED)
def test_whatever_started_ranks_is_followed(name: str) -> None:
    first, pid = FOLLOWED[name]
    dead = process(13, 11, above=(11, 10), state="Z", words=())
    processes = machine(first, dead, process(14, 1, "srun", environment={"SLURM_JOB_ID": "42"}))
    processes[12] = replace(processes[12], environment={**TORCHRUN, "SLURM_JOB_ID": "42"})
    (job,) = choose_jobs(processes, pid, None).jobs
    assert [rank.process.pid for rank in job.ranks] == [12]


REFUSED = {
    "a program": (20, NO_PYTHON, "process 20 (sleep) runs no Python, and no rank of a job is below it"),
    "the machine's first": (1, NO_PYTHON, "process 1 (systemd) runs no Python"),
    "another's program": (20, Missing(MissingReason.NO_PERMISSION, "EPERM"), "may not be looked into"),
    "gone": (4194304, NO_PYTHON, "there is no process 4194304 here: it has ended"),
    "dead": (21, NO_PYTHON, "process 21 (python) has ended"),
    "a dead launcher beside another": (22, NO_PYTHON, "process 22 (python) has ended"),
}


@walk(REFUSED)
def test_what_is_no_rank_and_started_none_is_refused_in_one_sentence(name: str) -> None:
    pid, stacks, words = REFUSED[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "read_stacks", lambda *_, **__: stacks)
        dead = (process(21, 1, state="Z", words=()), process(22, 10, above=(10,), state="Z", words=()))
        chosen = choose_jobs(machine("systemd", *dead), pid, None)
    assert not chosen.jobs
    assert chosen.refusal is not None
    assert words in chosen.refusal[0]
    assert "`gpudiag hang`" in chosen.refusal[1]


def test_a_program_with_a_python_in_it_and_another_users_python_are_looked_at() -> None:
    """The first may be a job; of the second the look itself says which command is allowed to."""
    refused = Missing(MissingReason.NO_PERMISSION, "EPERM")
    hidden = process(22, 1, environment=None, is_readable=False)
    for pid, stacks in ((20, ({}, "py-spy")), (22, refused)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(choose, "read_stacks", lambda *_, answer=stacks, **__: answer)
            chosen = choose_jobs(machine("systemd", hidden), pid, None)
        assert [rank.process.pid for rank in chosen.jobs[0].ranks] == [pid]


def test_an_engine_beside_a_job_of_the_same_shell_is_found_by_each_of_its_processes() -> None:
    """Two ranks that were started by hand have that shell for their launcher."""
    by_hand = [
        process(pid, 10, above=(10,), environment={"RANK": str(pid - 30), "WORLD_SIZE": "2"})
        for pid in (30, 31)
    ]
    engine = [process(40, 10, above=(10,)), *(process(pid, 40, above=(40, 10)) for pid in (41, 42))]
    helper = process(43, 40, above=(40, 10))
    # Other jobs of a sweep: by a script of their own, and by that of the server.
    trials = [
        process(44, 40, above=(40, 10), words=("python", "trial.py")),
        process(45, 40, above=(40, 10), words=("python", "sweep.py", "--trial", "3")),
    ]
    engine[0] = replace(engine[0], words=("python", "sweep.py"))
    processes = machine("systemd", *by_hand, *engine, helper, *trials)
    meeting = Meeting("127.0.0.1:29500", frozenset((41, 42)), is_local=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "_uses_torch", lambda _: True)
        patch.setattr(choose, "_read_main", lambda _: ())
        patch.setattr(Connections, "find_stores", lambda *_: [meeting])
        for pid in (44, 45):
            (own,) = choose_jobs(processes, pid, None).jobs
            assert [rank.process.pid for rank in own.ranks] == [pid]
        for pid in (40, 41, 42, 43):
            (job,) = choose_jobs(processes, pid, None).jobs
            assert [rank.process.pid for rank in job.ranks] == [41, 42]
            assert [one.pid for one in job.servers] == [40]
        every = choose_jobs(processes, None, None).jobs
    assert [[rank.process.pid for rank in job.ranks] for job in every] == [[12], [30, 31], [41, 42]]


def test_processes_that_are_joined_are_one_job_where_they_have_ranks_and_else_trials() -> None:
    """Of a process that is named; of the one that joins them, all are looked at."""
    joins = (RawFrame("/opt/python/lib/python3.11/multiprocessing/popen_fork.py", "poll", 27, ()),)
    meets = (RawFrame("/opt/site-packages/torch/distributed/rendezvous.py", "rendezvous", 70, ()),)
    numbered = (RawFrame("/home/ann/train.py", "main", 8, (Variable("rank", "1", 0),)),)
    below = [process(pid, 40, above=(40,)) for pid in (41, 42)]
    processes = machine("systemd", process(40, 1), *below)
    for stack, pids in (((), [42]), (meets, [41, 42]), (numbered, [41, 42])):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(choose, "_uses_torch", lambda _: False)
            stacks = {40: joins, 41: stack}
            patch.setattr(choose, "_read_main", lambda pid, known=stacks: known.get(pid, ()))
            patch.setattr(choose, "runs_process_group", lambda _: False)
            (job,) = choose_jobs(processes, 42, None).jobs
            assert sorted(rank.process.pid for rank in job.ranks) == pids, stack
            (family,) = choose_jobs(processes, 40, None).jobs
            assert sorted(rank.process.pid for rank in family.ranks) == [41, 42]


def test_the_child_that_trains_is_the_rank_where_its_parent_only_waits_for_it() -> None:
    """A sweep under torchrun that starts one trial after the other, which forks a loader's worker."""
    trial = process(13, 12, above=(12, 11, 10), environment=TORCHRUN)
    worker = process(14, 13, above=(13, 12, 11, 10), environment=TORCHRUN)
    second = process(15, 12, above=(12, 11, 10), environment=TORCHRUN)

    def rank(call: str, groups: set[int], *more: Process) -> tuple[int, list[int]]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(choose, "runs_process_group", lambda pid: pid in groups)
            patch.setattr(choose, "read_system_call", lambda pid, tid, folder: Call(pid, tid, call, ()))
            (job,) = choose_jobs(machine("systemd", trial, worker, *more), 12, None).jobs
        (found,) = job.ranks
        return found.process.pid, [one.pid for one in found.descendants]

    assert rank("wait4", {13}) == (13, [14])
    assert rank("wait4", {13, 14}) == (13, [14])
    assert rank("futex", {13}) == (12, [13, 14])  # it goes on beside its trial
    assert rank("wait4", {12, 13}) == (12, [13, 14])
    assert rank("wait4", set()) == (12, [13, 14])
    assert rank("wait4", {13, 15}, second) == (12, [13, 15, 14])  # which of them is not known
