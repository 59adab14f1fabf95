"""Which launcher started this process, and so which rank it is, if any."""

import hashlib
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from gpudiag.errors import UsageError
from gpudiag.model.number_ranges import join_words
from gpudiag.ranks.agents.own_addresses import MEETING_PORTS, has_address, is_own_address
from gpudiag.ranks.launchers import (
    PROCESS_LAUNCHERS,
    RAY_VARIABLE,
    LaunchedProcess,
    Launcher,
    claimed_rank,
    find_launched,
    is_one_of_several,
    parse_number,
    refuse_contradiction,
    refuse_several_per_pod,
)

_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
_MASTER_VARIABLES = ("MASTER_ADDR", "MASTER_PORT")
_MAX_PORT = 65535
# What makes a process a rank: without them it is one of its own.
LAUNCHER_VARIABLES = frozenset(
    (*_RANK_VARIABLES, *_MASTER_VARIABLES, "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "HOROVOD_RANK")
) | frozenset(name for launcher in PROCESS_LAUNCHERS for name in (launcher.size, launcher.rank))

_WORDS = {
    Launcher.EXPLICIT: "this process's rank is given",
    Launcher.VARIABLES: "the environment gives this process's rank",
    Launcher.KUBEFLOW: "started by Kubeflow's training operator",
    Launcher.INDEXED_JOB: "started by an indexed Job",
}


@dataclass(frozen=True, slots=True)
class RankEnvironment:
    """This process's place in a launch; ranks meet at `init_method`, `run_key` is of one run."""

    launcher: Launcher
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    init_method: str
    run_key: str
    master: str | None = None  # the name or address of rank 0's machine
    read: tuple[str, ...] = ()  # the variables or flags that show it
    master_port: int | None = None  # where they meet there; None for a file

    @property
    def on_one_machine(self) -> bool:
        """Whether all ranks of the run are on this machine."""
        return self.local_world_size == self.world_size

    def describe(self) -> str:
        """Who starts how many ranks, by which variables, and where they meet, in one line."""
        machines = "all on this machine" if self.on_one_machine else f"rank 0 on {self.master}"
        ranks = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks, {machines}"
        words = _WORDS.get(self.launcher, f"started by {self.launcher.value}")
        return f"{words} ({', '.join(self.read)}): {ranks}"


def read_environment(
    variables: Mapping[str, str],
    *,
    rank: int | None = None,
    world_size: int | None = None,
    init_method: str | None = None,
) -> RankEnvironment | None:
    """The rank that a launcher gave this process; None if none did, so that gpudiag spawns the ranks.

    First the flags `rank`, `world_size`, `init_method` count, then torchrun, RANK, horovodrun, and the
    launcher that `launchers` finds (docs/launchers.md).

    Raises: UsageError: they are incomplete, contradict each other, or are no numbers; or nothing shows rank
    0's machine.
    """
    flags = {"--rank": rank, "--world-size": world_size, "--init-method": init_method}
    if any(value is not None for value in flags.values()):
        return _read_flags(variables, flags)
    if "RANK" not in variables and "TORCHELASTIC_RUN_ID" not in variables:
        if "HOROVOD_RANK" in variables:
            return _read_horovodrun(variables)
        launched = find_launched(variables, has_address=has_address)
        if launched is not None:
            return _read_launched(variables, launched)
    if any(name in variables for name in ("TORCHELASTIC_RUN_ID", *_RANK_VARIABLES)):
        refuse_contradiction(variables)
        return _read_variables(variables)
    return None


def read_claim(
    variables: Mapping[str, str], *, rank: int | None = None, world_size: int | None = None
) -> tuple[int, int] | None:
    """Which rank of how many this process is by flags, launcher, or RANK and WORLD_SIZE; None if alone.

    For a process whose place is refused: others may miss it.
    """
    if rank is None or world_size is None:
        names = ("RANK", "WORLD_SIZE")
        given = [variables.get(name, "") for name in names]
        claimed = claimed_rank(variables)
        if claimed is None and not all(text.isdecimal() for text in given):
            return None
        rank, world_size = claimed or (int(given[0]), int(given[1]))
    return (rank, world_size) if 0 <= rank < world_size and world_size > 1 else None


def read_launch(
    variables: Mapping[str, str],
    *,
    rank: int | None = None,
    world_size: int | None = None,
    init_method: str | None = None,
) -> RankEnvironment | None:
    """The place that flags or a launcher gave this process among several; None where it is alone.

    Incomplete variables are no launcher's: a look at a machine needs no rank.

    Raises:
        UsageError: the flags are incomplete, or a launcher started several processes without a meeting point.
    """
    explicit = any(flag is not None for flag in (rank, world_size, init_method))
    try:
        environment = read_environment(variables, rank=rank, world_size=world_size, init_method=init_method)
    except UsageError:
        if explicit or is_one_of_several(variables):
            raise
        return None
    return None if environment is None or environment.world_size < 2 else environment


def _read_launched(variables: Mapping[str, str], launched: LaunchedProcess) -> RankEnvironment:
    """The place among the processes of srun, mpirun and the like; its port by the run."""
    if launched.master is None:
        raise UsageError(
            f"{launched.launcher.value} started {launched.world_size} processes on several machines, and no"
            " variable names rank 0's machine",
            hint=launched.hand_on,
        )
    address = launched.master
    named = bool(variables.get("MASTER_ADDR"))
    if launched.rank == 0 and not named and has_address(address) and not is_own_address(address):
        raise UsageError(
            f"rank 0 is on {socket.gethostname()}, and {launched.launcher.value}'s variables have {address}",
            hint=launched.hand_on,
        )
    digest = int(hashlib.sha256(launched.run.encode()).hexdigest()[:8], 16)
    port = parse_number(variables, "MASTER_PORT", MEETING_PORTS[digest % len(MEETING_PORTS)])
    _refuse_port(port, launched.world_size)
    environment = RankEnvironment(
        launched.launcher,
        launched.rank,
        launched.world_size,
        launched.local_rank,
        launched.local_world_size,
        init_method=_tcp_url(address, port),
        run_key=launched.run,
        master=address,
        read=launched.read,
        master_port=port,
    )
    return _checked(environment, launched.read[-2], launched.read[-1])


def _read_flags(variables: Mapping[str, str], flags: Mapping[str, int | str | None]) -> RankEnvironment:
    absent = [flag for flag, value in flags.items() if value is None]
    if absent:
        raise UsageError(
            f"{join_words(absent)} missing: --rank, --world-size and --init-method need each other",
            hint="or leave out all three, and gpudiag starts the ranks itself",
        )
    rank, world_size = int(flags["--rank"] or 0), int(flags["--world-size"] or 0)
    init_method = _meeting_place(variables, str(flags["--init-method"]))
    for flag, name, value in (("--rank", "RANK", rank), ("--world-size", "WORLD_SIZE", world_size)):
        if name in variables and parse_number(variables, name) != value:
            raise UsageError(
                f"{flag} {value} contradicts {name}={variables[name]} in the environment",
                hint=f"leave out the flag, or unset {name}",
            )
    on_this_machine = _meets_on_this_machine(init_method)
    local_rank = parse_number(variables, "LOCAL_RANK", rank if on_this_machine else 0)
    local_world_size = parse_number(
        variables, "LOCAL_WORLD_SIZE", world_size if on_this_machine else local_rank + 1
    )
    environment = RankEnvironment(
        Launcher.EXPLICIT,
        rank,
        world_size,
        local_rank,
        local_world_size,
        init_method,
        f"explicit|{init_method}",
        master=urlsplit(init_method).hostname,
        read=tuple(flags),
        master_port=urlsplit(init_method).port,
    )
    return _checked(environment, "--rank", "--world-size")


def _meeting_place(variables: Mapping[str, str], init_method: str) -> str:
    """The address at which ranks meet; `env://`: MASTER_ADDR and MASTER_PORT. Raises UsageError: none."""
    if init_method == "env://":
        absent = [name for name in _MASTER_VARIABLES if not variables.get(name)]
        if absent:
            raise UsageError(
                f"--init-method env:// reads {join_words(absent)}, and"
                f" {'it is' if len(absent) == 1 else 'they are'} not set",
                hint="set MASTER_ADDR to rank 0's machine, and MASTER_PORT to a port that is free there",
            )
        init_method = _tcp_url(variables["MASTER_ADDR"], parse_number(variables, "MASTER_PORT"))
    url = urlsplit(init_method)
    try:
        reachable = url.hostname is not None and url.port is not None
    except ValueError:  # not a valid port
        reachable = False
    if not ((url.scheme == "tcp" and reachable) or (url.scheme == "file" and url.path)):
        raise UsageError(
            f"--init-method {init_method} is no address for a rendezvous",
            hint="such as tcp://HOST:PORT, on rank 0's machine, file:///PATH, which all ranks see, or env://",
        )
    return init_method


def _read_variables(variables: Mapping[str, str]) -> RankEnvironment:
    needed = ("RANK", "WORLD_SIZE", *_needed_local_rank(variables), *_MASTER_VARIABLES)
    absent = [name for name in needed if not variables.get(name)]
    if absent:
        known = (*_RANK_VARIABLES, *_MASTER_VARIABLES, "TORCHELASTIC_RUN_ID")
        present = [name for name in known if variables.get(name)]
        if present == ["LOCAL_RANK"]:
            raise UsageError(
                f"LOCAL_RANK or --local-rank is set, but {join_words(absent)} are not:"
                " no launcher started this process",
                hint="leave out --local-rank, or unset LOCAL_RANK, and gpudiag starts the ranks itself",
            )
        raise UsageError(
            f"{join_words(present)} set but {join_words(absent)} not: a launcher sets all of them",
            hint=f"set {' '.join(absent)}, or unset {' '.join(present)} and gpudiag starts the ranks itself",
        )
    launcher = _setter_of_rank(variables)
    by_torchrun = launcher is Launcher.TORCHRUN
    refuse_several_per_pod(variables)
    world_size = parse_number(variables, "WORLD_SIZE")
    port = parse_number(variables, "MASTER_PORT")
    _refuse_port(port, world_size, by_torchrun=by_torchrun)
    run_key = "|".join(
        variables.get(name, "")
        for name in (
            "TORCHELASTIC_RUN_ID",
            "TORCHELASTIC_RESTART_COUNT",
            "MASTER_ADDR",
            "MASTER_PORT",
        )
    )
    # A launcher of one process per host need not set LOCAL_RANK; on a loopback address all are on this host.
    here = _is_loopback(variables["MASTER_ADDR"])
    rank = parse_number(variables, "RANK")
    alone = not variables.get("LOCAL_RANK") and not here
    local_world_size = parse_number(variables, "LOCAL_WORLD_SIZE", 1 if alone else world_size)
    local_rank = parse_number(variables, "LOCAL_RANK", rank if here else 0)
    environment = RankEnvironment(
        launcher=launcher,
        rank=rank,
        world_size=world_size,
        local_rank=_real_local_rank(variables, rank, local_rank, local_world_size),
        local_world_size=local_world_size,
        init_method="env://",
        run_key=run_key,
        master=variables["MASTER_ADDR"],
        master_port=port,
        read=tuple(name for name in ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE") if name in variables),
    )
    return _checked(environment, "RANK", "WORLD_SIZE")


def _needed_local_rank(variables: Mapping[str, str]) -> tuple[str, ...]:
    """LOCAL_RANK, if it must be set: several processes on one host, or a launcher that always sets it."""
    several = variables.get("LOCAL_WORLD_SIZE", "1") != "1"
    return ("LOCAL_RANK",) if several or "TORCHELASTIC_RUN_ID" in variables else ()


def _setter_of_rank(variables: Mapping[str, str]) -> Launcher:
    """Who set RANK, by what he set beside it."""
    if "TORCHELASTIC_RUN_ID" in variables:
        return Launcher.TORCHRUN
    if RAY_VARIABLE in variables:
        return Launcher.RAY
    return Launcher.KUBEFLOW if "PET_NNODES" in variables else Launcher.VARIABLES


def _real_local_rank(variables: Mapping[str, str], rank: int, local_rank: int, local_world_size: int) -> int:
    """Which of this machine's ranks this is; `torchrun --virtual-local-rank` sets LOCAL_RANK 0 for all.

    torchrun numbers ranks machine by machine.
    """
    group = variables.get("GROUP_RANK", "")
    if local_rank != 0 or "TORCHELASTIC_RUN_ID" not in variables or not group.isdecimal():
        return local_rank
    place = rank - int(group) * local_world_size
    return place if 0 <= place < local_world_size else local_rank


def _refuse_port(port: int, world_size: int, *, by_torchrun: bool = False) -> None:
    """Raise at port 0, where rank 0 gets any port, and the others wait for ever (torchrun hands it on)."""
    if port == 0 and world_size > 1:
        raise UsageError(
            "MASTER_PORT is 0: the ranks have no rendezvous port",
            hint="start it with `torchrun --standalone`, or with a --master-port that is free"
            if by_torchrun
            else "set MASTER_PORT to a port that is free on rank 0's machine",
        )
    if port > _MAX_PORT:
        raise UsageError(
            f"MASTER_PORT={port} is not a port: ports go up to {_MAX_PORT}",
            hint="set it to a port that is free on rank 0's machine",
        )


def _read_horovodrun(variables: Mapping[str, str]) -> RankEnvironment:
    """The rank that horovodrun gave this process, and its rendezvous: where it runs rank 0, else MASTER_ADDR.

    The port is derived from horovodrun's own, which no two runs share.
    """
    address = variables.get("MASTER_ADDR") or variables.get("HOROVOD_GLOO_RENDEZVOUS_ADDR", "")
    if not address:
        raise UsageError(
            "HOROVOD_RANK is set, and HOROVOD_GLOO_RENDEZVOUS_ADDR is not: the rendezvous address is unknown",
            hint="start it by `horovodrun --gloo`, or set MASTER_ADDR to the host of rank 0",
        )
    key = parse_number(variables, "HOROVOD_GLOO_RENDEZVOUS_PORT")
    port = parse_number(variables, "MASTER_PORT", MEETING_PORTS[key % len(MEETING_PORTS)])
    environment = RankEnvironment(
        launcher=Launcher.HOROVODRUN,
        rank=parse_number(variables, "HOROVOD_RANK"),
        world_size=parse_number(variables, "HOROVOD_SIZE"),
        local_rank=parse_number(variables, "HOROVOD_LOCAL_RANK"),
        local_world_size=parse_number(variables, "HOROVOD_LOCAL_SIZE"),
        init_method=_tcp_url(address, port),
        run_key=f"horovodrun|{address}|{key}",
        master_port=port,
        read=("HOROVOD_RANK", "HOROVOD_SIZE"),
    )
    return _checked(environment, "HOROVOD_RANK", "HOROVOD_SIZE")


def _checked(environment: RankEnvironment, rank_name: str, size_name: str) -> RankEnvironment:
    rank, world_size = environment.rank, environment.world_size
    if not 0 <= rank < world_size:
        raise UsageError(
            f"{rank_name} {rank} contradicts {size_name} {world_size}",
            hint=f"ranks are counted from 0 to {size_name} - 1",
        )
    local_rank, local_world_size = environment.local_rank, environment.local_world_size
    if not 0 <= local_rank < local_world_size <= world_size:
        raise UsageError(
            f"LOCAL_RANK {local_rank} and LOCAL_WORLD_SIZE {local_world_size}"
            f" contradict {size_name} {world_size}",
            hint="LOCAL_RANK is below LOCAL_WORLD_SIZE, which is at most the world size",
        )
    return environment


def _meets_on_this_machine(init_method: str) -> bool:
    """Whether ranks that rendezvous there are assumed to be on one machine: a loopback address, or a file."""
    url = urlsplit(init_method)
    if url.scheme == "file":
        return True
    return _is_loopback(url.hostname or "")


def _tcp_url(address: str, port: int) -> str:
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
