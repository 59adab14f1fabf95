"""Which launcher is recognised from what it sets, also where several show, and where it says that rank 0 is.

The variables are those that Slurm 22.05, Open MPI 4.1, MPICH 4.0 and Kubeflow's training operator 1.8 set.
"""

import socket
from collections.abc import Mapping

import pytest

from gpudiag.errors import UsageError
from gpudiag.ranks.environment import RankEnvironment, read_claim, read_environment
from gpudiag.ranks.launchers import (
    LaunchedProcess,
    Launcher,
    find_launched,
    is_one_of_several,
    job_hosts,
    job_name,
    outside_step,
)

SRUN = (
    {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_CLUSTER_NAME": "gpudiag"}
    | {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_NUM_TASKS": "4"}
    | {"SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": "n[01-02]"}
    | {"SLURM_JOB_NODELIST": "n[01-02]", "SLURM_SUBMIT_DIR": "/home/a"}
)
BATCH = {
    "SLURM_JOB_ID": "7",
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_NNODES": "2",
    "SLURM_SUBMIT_DIR": "/home/a",
}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"} | {
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "1317208065",
    "PMIX_RANK": "1",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "4", "PMI_FD": "6", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
FLUX = {
    "FLUX_TASK_RANK": "2",
    "FLUX_JOB_SIZE": "4",
    "FLUX_TASK_LOCAL_ID": "0",
    "FLUX_JOB_NNODES": "2",
    "FLUX_JOB_ID": "f1",
}
KUBEFLOW = {
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
    "PET_NPROC_PER_NODE": "1",
    "PET_MASTER_ADDR": "job-master-0",
    "PET_MASTER_PORT": "23456",
}
INDEXED = {"JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-0.job", "MASTER_PORT": "29500"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"} | {
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "a1",
    "MASTER_PORT": "29500",
}


def find(
    variables: Mapping[str, str], *, resolves: bool = True, address: str | None = None
) -> LaunchedProcess:
    found = find_launched(
        variables, has_address=lambda _: resolves, address_of=lambda _: address, parent=lambda: "4711"
    )
    assert found is not None
    return found


def read(variables: Mapping[str, str]) -> RankEnvironment:
    environment = read_environment(variables)
    assert environment is not None
    return environment


@pytest.mark.parametrize(
    ("variables", "launcher", "place", "master"),
    [
        (SRUN, Launcher.SRUN, (3, 4, 1, 2), "n01"),
        (MPIRUN, Launcher.MPIRUN, (1, 4, 1, 4), "127.0.0.1"),
        ({**MPIRUN, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, Launcher.MPIRUN, (1, 4, 1, 2), None),
        (HYDRA, Launcher.HYDRA, (1, 4, 1, 4), "127.0.0.1"),
        (FLUX, Launcher.FLUX, (2, 4, 0, 2), None),
        (KUBEFLOW, Launcher.KUBEFLOW, (1, 2, 0, 1), "job-master-0"),
        (INDEXED, Launcher.INDEXED_JOB, (1, 2, 0, 1), "job-0.job"),
    ],
    ids=lambda value: value.value if isinstance(value, Launcher) else "",
)
def test_each_launcher_says_the_place_in_its_own_words(
    variables: dict[str, str], launcher: Launcher, place: tuple[int, ...], master: str | None
) -> None:
    found = find(variables)
    assert (found.launcher, found.master) == (launcher, master)
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size) == place


@pytest.mark.parametrize(
    ("variables", "launcher"),
    [
        ({**SRUN, **TORCHRUN}, Launcher.TORCHRUN),  # torchrun started by srun
        ({**MPIRUN, **TORCHRUN}, Launcher.TORCHRUN),
        (
            {**SRUN, **{name: TORCHRUN[name] for name in TORCHRUN if name != "TORCHELASTIC_RUN_ID"}},
            Launcher.VARIABLES,
        ),
        ({**BATCH, **MPIRUN}, Launcher.MPIRUN),  # mpirun in a batch script
        # mpirun in a batch script of two nodes: its daemons are a step of one task per node.
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "2", **MPIRUN}, Launcher.MPIRUN),
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "2", **HYDRA}, Launcher.HYDRA),
    ],
    ids=[
        "torchrun in srun",
        "torchrun in mpirun",
        "RANK in srun",
        "mpirun in sbatch",
        "mpirun by srun",
        "mpiexec by srun",
    ],
)
def test_of_several_the_written_rule_says_which_counts(variables: dict[str, str], launcher: Launcher) -> None:
    assert read(variables).launcher is launcher


def test_what_srun_says_by_pmi_too_is_srun() -> None:
    found = find({**SRUN, "PMI_RANK": "3", "PMI_SIZE": "4"})  # srun --mpi=pmi2
    assert (found.launcher, found.local_world_size) == (Launcher.SRUN, 2)


@pytest.mark.parametrize(
    "variables",
    [
        BATCH,
        {**SRUN, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
        {**MPIRUN, "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        {**SRUN, "RAY_JOB_ID": "01000000"},  # of the step in which `ray start` runs
        {"JOB_COMPLETION_INDEX": "3"},  # one of many pods that have nothing to do with each other
        {"MASTER_ADDR": "a1", "PATH": "/bin"},
    ],
    ids=["batch script", "step of one task", "mpirun of one", "ray in srun", "indexed job", "nothing"],
)
def test_a_process_that_is_alone_is_taken_for_none_of_several(variables: dict[str, str]) -> None:
    assert not is_one_of_several(variables)


def test_a_batch_script_is_told_apart_from_a_step_and_from_no_job() -> None:
    assert outside_step(BATCH) == 4
    assert outside_step(SRUN) is None
    assert outside_step({}) is None


def test_all_processes_of_a_run_meet_at_one_place_and_those_of_another_elsewhere() -> None:
    first, last = (
        read({**SRUN, "MASTER_ADDR": "n01"}),
        read({**SRUN, "MASTER_ADDR": "n01", "SLURM_PROCID": "2"}),
    )
    other = read({**SRUN, "MASTER_ADDR": "n01", "SLURM_STEP_ID": "1"})
    assert (first.init_method, first.run_key) == (last.init_method, last.run_key)
    assert first.run_key != other.run_key
    assert first.init_method != other.init_method


def test_a_port_that_somebody_chose_is_taken() -> None:
    assert read({**MPIRUN, "MASTER_PORT": "29511"}).init_method == "tcp://127.0.0.1:29511"


def test_a_run_without_a_name_has_that_of_its_launcher_s_process() -> None:
    assert find(HYDRA).run == "mpiexec|4711"


def test_a_node_whose_name_leads_nowhere_is_met_at_the_address_that_slurm_uses() -> None:
    assert find(SRUN, resolves=False, address="127.0.0.1").master == "127.0.0.1"
    assert find(SRUN, resolves=False).master is None


def test_processes_of_several_machines_whose_rank_0_nobody_names_are_refused_with_what_to_add() -> None:
    with pytest.raises(UsageError, match="no variable names rank 0's machine") as refused:
        read({**MPIRUN, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"})
    assert "mpirun -x MASTER_ADDR=HOST" in refused.value.hint


def test_rank_0_finds_out_that_it_is_not_where_it_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.77", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: elsewhere)
    with pytest.raises(UsageError, match="and srun's variables have n01"):
        read({**SRUN, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"})


@pytest.mark.parametrize("wanted", ["8", "auto"])
def test_a_pod_that_is_to_have_several_processes_is_sent_to_torchrun(wanted: str) -> None:
    with pytest.raises(UsageError, match=f"PET_NPROC_PER_NODE={wanted}") as refused:
        read({**KUBEFLOW, "PET_NPROC_PER_NODE": wanted})
    assert "torchrun -m gpudiag" in refused.value.hint


def test_pods_that_the_operator_counts_one_by_one_are_ranks() -> None:
    given = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
    environment = read({**KUBEFLOW, **given, "PET_NPROC_PER_NODE": "auto"})
    assert (environment.launcher, environment.rank, environment.local_world_size) == (Launcher.KUBEFLOW, 1, 1)


def test_ray_s_workers_are_named_as_such() -> None:
    assert read({**TORCHRUN, "TORCHELASTIC_RUN_ID": "", "RAY_JOB_ID": "01"}).launcher is Launcher.TORCHRUN
    without = {name: value for name, value in TORCHRUN.items() if name != "TORCHELASTIC_RUN_ID"}
    assert read({**without, "RAY_JOB_ID": "01"}).launcher is Launcher.RAY


def test_the_line_names_the_launcher_its_variables_and_where_rank_0_is() -> None:
    line = read({**SRUN, "MASTER_ADDR": "n01"}).describe()
    assert (
        line == "started by srun (SLURM_STEP_ID, SLURM_PROCID, SLURM_STEP_NUM_TASKS): 4 ranks, rank 0 on n01"
    )


@pytest.mark.parametrize(
    "variables",
    [
        {**SRUN, "RANK": "0"},
        {**SRUN, "RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "n01", "MASTER_PORT": "29500"},
        {**MPIRUN, "RANK": "0", "WORLD_SIZE": "4"},
    ],
)
def test_a_rank_that_was_left_in_the_shell_is_refused_at_once(variables: dict[str, str]) -> None:
    with pytest.raises(
        UsageError, match=r"RANK=0 contradicts (srun|mpirun), for which this is process \d of 4"
    ):
        read_environment(variables)


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "3", "WORLD_SIZE": "4"},  # a script that hands Slurm's own number on
        {"RANK": "0", "WORLD_SIZE": "32", "LOCAL_RANK": "0"},  # a launcher that runs in each task
        {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "7"},
        {"RANK": "0", "WORLD_SIZE": "4", "RAY_JOB_ID": "01000000"},
    ],
)
def test_a_rank_that_a_launcher_within_gives_is_no_contradiction(variables: dict[str, str]) -> None:
    meeting = {"MASTER_ADDR": "n01", "MASTER_PORT": "29500"}
    environment = read_environment({**SRUN, **meeting, **variables})
    assert environment is not None
    assert environment.rank == int(variables["RANK"])


@pytest.mark.parametrize(
    ("variables", "claim"),
    [
        ({"RANK": "2", "WORLD_SIZE": "4"}, (2, 4)),
        ({**SRUN, "RANK": "0", "WORLD_SIZE": "4"}, (3, 4)),  # Slurm knows better
        ({"RANK": "x", "WORLD_SIZE": "4"}, None),
        ({"RANK": "0"}, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({}, None),
    ],
)
def test_who_a_process_is_that_cannot_start_is_known_if_anybody_says_so(
    variables: dict[str, str], claim: tuple[int, int] | None
) -> None:
    assert read_claim(variables) == claim
    assert read_claim({}, rank=1, world_size=3) == (1, 3)


def test_a_job_s_name_and_hosts_are_its_scheduler_s() -> None:
    assert job_name(SRUN) == "gpudiag:7"
    assert job_name({"TORCHELASTIC_RUN_ID": "none"}) == ""
    assert job_name({"TORCHELASTIC_RUN_ID": "job-1"}) == "job-1"
    assert job_hosts({**SRUN, "MASTER_ADDR": "n09"}) == ("n01", "n02", "n09")
    assert job_hosts({"LSB_HOSTS": "h1 h1 h2"}) == ("h1", "h2")
    assert job_hosts({}) == ()
