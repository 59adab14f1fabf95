import re

import pytest

from gpudiag.errors import UsageError
from gpudiag.ranks.environment import read_environment
from gpudiag.ranks.launchers import Launcher

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "a1",
    "MASTER_PORT": "29500",
}


def test_nobody_started_us() -> None:
    assert read_environment({"MASTER_ADDR": "a1", "PATH": "/bin"}) is None


def test_torchrun_is_recognised() -> None:
    environment = read_environment(TORCHRUN)
    assert environment is not None
    assert environment.launcher is Launcher.TORCHRUN
    assert (environment.rank, environment.world_size) == (3, 4)
    assert (environment.local_rank, environment.local_world_size) == (1, 2)
    assert environment.init_method == "env://"


def test_somebody_who_sets_the_variables_is_recognised() -> None:
    variables = {
        name: TORCHRUN[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    }
    environment = read_environment(variables)
    assert environment is not None
    assert environment.launcher is Launcher.VARIABLES


def test_a_restart_is_another_run() -> None:
    again = {**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"}
    first, second = read_environment(TORCHRUN), read_environment(again)
    assert first is not None
    assert second is not None
    assert first.run_key != second.run_key


def test_all_ranks_of_a_run_have_the_same_key() -> None:
    first = read_environment(TORCHRUN)
    other = read_environment({**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0"})
    assert first is not None
    assert other is not None
    assert first.run_key == other.run_key


def test_one_process_per_host_needs_no_local_rank() -> None:
    variables = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "a1", "MASTER_PORT": "29500"}
    environment = read_environment(variables)
    assert environment is not None
    assert (environment.local_rank, environment.local_world_size) == (0, 1)
    assert not environment.on_one_machine


def test_ranks_that_meet_on_a_loopback_address_are_all_on_this_host() -> None:
    variables = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    environment = read_environment(variables)
    assert environment is not None
    assert (environment.local_rank, environment.local_world_size) == (3, 4)


def test_several_processes_per_host_need_a_local_rank() -> None:
    variables = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "a1", "MASTER_PORT": "29500"}
    with pytest.raises(UsageError, match="LOCAL_RANK not"):
        read_environment({**variables, "LOCAL_WORLD_SIZE": "2"})


def test_a_rank_that_somebody_set_from_mpis_is_believed() -> None:
    environment = read_environment({**TORCHRUN, "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"})
    assert environment is not None


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_a_variable_that_is_not_set_is_named(name: str) -> None:
    variables = {key: value for key, value in TORCHRUN.items() if key != name}
    with pytest.raises(UsageError, match=f"{name} not"):
        read_environment(variables)


def test_a_local_rank_alone_is_told_as_the_flag_that_set_it() -> None:
    with pytest.raises(UsageError, match="--local-rank is set") as refused:
        read_environment({"LOCAL_RANK": "0"})
    assert "leave out --local-rank" in refused.value.hint


@pytest.mark.parametrize("address", ["foo", "tcp://127.0.0.1", "tcp://:1", "tcp://h:port", "file://"])
def test_an_address_where_ranks_cannot_meet_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="no address for a rendezvous"):
        read_environment({}, rank=0, world_size=2, init_method=address)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": "4"}, "RANK 4 contradicts WORLD_SIZE 4"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT=99999 is not a port"),
        ({"RANK": "-1"}, "RANK=-1 is not a number"),
        ({"WORLD_SIZE": "four"}, "WORLD_SIZE=four is not a number"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK 2 and LOCAL_WORLD_SIZE 2 contradict"),
        ({"LOCAL_WORLD_SIZE": "8"}, "LOCAL_WORLD_SIZE 8 contradict"),
    ],
)
def test_contradicting_variables_are_named(changes: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        read_environment({**TORCHRUN, **changes})


def test_a_port_that_nobody_can_know_is_refused_unless_nobody_else_comes() -> None:
    with pytest.raises(UsageError, match="MASTER_PORT is 0"):
        read_environment({**TORCHRUN, "MASTER_PORT": "0"})
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    assert read_environment({**TORCHRUN, **alone, "MASTER_PORT": "0"}) is not None


def test_a_meeting_place_of_the_environment_is_read_and_what_lacks_is_named() -> None:
    variables = {"MASTER_ADDR": "fd00::2", "MASTER_PORT": "29500"}
    environment = read_environment(variables, rank=1, world_size=2, init_method="env://")
    assert environment is not None
    assert (environment.init_method, environment.master) == ("tcp://[fd00::2]:29500", "fd00::2")
    with pytest.raises(UsageError, match="reads MASTER_PORT, and it is not set"):
        read_environment({"MASTER_ADDR": "a1"}, rank=1, world_size=2, init_method="env://")


def test_ranks_that_all_have_local_rank_0_are_counted_by_their_group() -> None:
    """As `torchrun --virtual-local-rank` sets them."""
    environment = read_environment({**TORCHRUN, "LOCAL_RANK": "0", "GROUP_RANK": "1"})
    assert environment is not None
    assert (environment.rank, environment.local_rank) == (3, 1)


def test_flags_make_an_explicit_rank() -> None:
    environment = read_environment({}, rank=0, world_size=2, init_method="tcp://127.0.0.1:29500")
    assert environment is not None
    assert environment.launcher is Launcher.EXPLICIT
    assert (environment.rank, environment.world_size, environment.local_world_size) == (0, 2, 2)


def test_explicit_ranks_that_meet_elsewhere_are_not_taken_to_share_a_machine() -> None:
    environment = read_environment({}, rank=3, world_size=4, init_method="tcp://a1:29500")
    assert environment is not None
    assert (environment.local_rank, environment.local_world_size) == (0, 1)


def test_flags_come_together() -> None:
    with pytest.raises(UsageError, match="--world-size and --init-method missing"):
        read_environment({}, rank=0)


def test_flags_that_contradict_the_environment_are_refused() -> None:
    with pytest.raises(UsageError, match="--rank 1 contradicts RANK=3"):
        read_environment(TORCHRUN, rank=1, world_size=4, init_method="tcp://a1:29501")


def test_a_rank_beyond_the_world_size_is_refused() -> None:
    with pytest.raises(UsageError, match="--rank 2 contradicts --world-size 2"):
        read_environment({}, rank=2, world_size=2, init_method="tcp://a1:29501")
