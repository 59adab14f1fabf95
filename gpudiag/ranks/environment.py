"""Which launcher started this process, and so which rank it is, if any."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from gpudiag.errors import UsageError
from gpudiag.ranks.process import is_alive

_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
_MASTER_VARIABLES = ("MASTER_ADDR", "MASTER_PORT")
_MAX_PORT = 65535
# Below the kernel's ephemeral ports (32768 and up), above those of services.
_HOROVOD_PORTS = range(23000, 32000)


@dataclass(frozen=True, slots=True)
class BareLauncher:
    """A launcher that sets no RANK, and the variables by which its processes recognize it."""

    name: str
    size: str  # how many processes there are
    rank: str  # which of them this is
    needs: str = ""  # set only in a process that it really started


# Open MPI's prterun(1), Hydra and the PMI that MPICH and Intel MPI share, MVAPICH2's user guide, srun(1),
# jsrun(1), flux-environment(7). In a batch script Slurm sets the job's variables but not those of a step.
_LAUNCHERS = (
    BareLauncher("mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    BareLauncher("mpirun", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    BareLauncher("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", needs="SLURM_STEP_ID"),
    BareLauncher("mpirun", "PMI_SIZE", "PMI_RANK"),
    BareLauncher("jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),
    BareLauncher("flux run", "FLUX_JOB_SIZE", "FLUX_TASK_RANK"),
)


def find_bare_launcher(variables: Mapping[str, str]) -> tuple[BareLauncher, int] | None:
    """The launcher that started this process as one of several, and how many; None if none did."""
    for launcher in _LAUNCHERS:
        size = variables.get(launcher.size, "")
        known = launcher.rank in variables and (not launcher.needs or launcher.needs in variables)
        if known and size.isdecimal() and int(size) > 1:
            return launcher, int(size)
    return None


def refuse_bare_launcher(variables: Mapping[str, str]) -> None:
    """Raise if each of several processes would run alone and report as if it were the whole run.

    Raises:
        UsageError: mpirun, srun or the like started several processes, and RANK is not set.
    """
    found = find_bare_launcher(variables)
    if found is None or "RANK" in variables:
        return
    launcher, size = found
    raise UsageError(
        f"{launcher.name} started {size} processes, and RANK is not set: each would test by itself alone",
        hint=f"start it with torchrun, one per machine, or set RANK=${launcher.rank}, WORLD_SIZE, LOCAL_RANK, "
        "MASTER_ADDR and MASTER_PORT",
    )


class Launcher(StrEnum):
    """Who starts the ranks."""

    SPAWN = "spawn"  # gpudiag itself, on this machine
    TORCHRUN = "torchrun"
    HOROVODRUN = "horovodrun"
    VARIABLES = "variables"  # somebody who sets RANK, WORLD_SIZE, LOCAL_RANK and MASTER_*
    EXPLICIT = "explicit"  # --rank, --world-size and --init-method


@dataclass(frozen=True, slots=True)
class RankEnvironment:
    """This process's place among the processes that a launcher started.

    `init_method` is where the ranks rendezvous. `run_key` is the same for all processes of one run
    and for no others.
    """

    launcher: Launcher
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    init_method: str
    run_key: str
    master: str | None = None  # the name or address of rank 0's machine

    @property
    def on_one_machine(self) -> bool:
        """Whether all ranks of the run are on this machine."""
        return self.local_world_size == self.world_size


def read_environment(
    variables: Mapping[str, str],
    *,
    rank: int | None = None,
    world_size: int | None = None,
    init_method: str | None = None,
) -> RankEnvironment | None:
    """The rank that a launcher gave this process; None if none did, so that gpudiag spawns the ranks.

    `rank`, `world_size` and `init_method` are the flags of those names.

    Raises:
        UsageError: flags or variables are incomplete, contradict each other, or are not numbers; or
            mpirun or srun started several processes without telling each one its rank.
    """
    flags = {"--rank": rank, "--world-size": world_size, "--init-method": init_method}
    if any(value is not None for value in flags.values()):
        return _read_flags(variables, flags)
    if any(name in variables for name in ("TORCHELASTIC_RUN_ID", *_RANK_VARIABLES)):
        return _read_variables(variables)
    if "HOROVOD_RANK" in variables:
        return _read_horovodrun(variables)
    refuse_bare_launcher(variables)
    return None


def _read_flags(variables: Mapping[str, str], flags: Mapping[str, int | str | None]) -> RankEnvironment:
    absent = [flag for flag, value in flags.items() if value is None]
    if absent:
        raise UsageError(
            f"{_join(absent)} missing: --rank, --world-size and --init-method come together",
            hint="or leave all three out, and gpudiag starts the ranks itself",
        )
    _require_meeting_place(str(flags["--init-method"]))
    rank, world_size, init_method = (
        int(flags["--rank"] or 0),
        int(flags["--world-size"] or 0),
        str(flags["--init-method"]),
    )
    for flag, name, value in (("--rank", "RANK", rank), ("--world-size", "WORLD_SIZE", world_size)):
        if name in variables and _parse_number(variables, name) != value:
            raise UsageError(
                f"{flag} {value} contradicts {name}={variables[name]} in the environment",
                hint=f"leave out the flag, or unset {name}",
            )
    on_this_machine = _meets_on_this_machine(init_method)
    local_rank = _parse_number(variables, "LOCAL_RANK", rank if on_this_machine else 0)
    local_world_size = _parse_number(
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
    )
    return _checked(environment, "--rank", "--world-size")


def _require_meeting_place(init_method: str) -> None:
    """Raise for an address at which torch cannot rendezvous; a RuntimeError in every rank would say less."""
    url = urlsplit(init_method)
    try:
        reachable = url.hostname is not None and url.port is not None
    except ValueError:  # not a valid port
        reachable = False
    if not ((url.scheme == "tcp" and reachable) or (url.scheme == "file" and url.path)):
        raise UsageError(
            f"--init-method {init_method} is not an address at which ranks can meet",
            hint="such as tcp://HOST:PORT, on rank 0's machine, or file:///PATH, which all ranks see",
        )


def _read_variables(variables: Mapping[str, str]) -> RankEnvironment:
    needed = ("RANK", "WORLD_SIZE", *_needed_local_rank(variables), *_MASTER_VARIABLES)
    absent = [name for name in needed if not variables.get(name)]
    if absent:
        known = (*_RANK_VARIABLES, *_MASTER_VARIABLES, "TORCHELASTIC_RUN_ID")
        present = [name for name in known if variables.get(name)]
        if present == ["LOCAL_RANK"]:
            raise UsageError(
                f"LOCAL_RANK or --local-rank is set, and {_join(absent)} are not: no launcher started this",
                hint="leave --local-rank out, or unset LOCAL_RANK, and gpudiag starts the ranks itself",
            )
        raise UsageError(
            f"{_join(present)} set but {_join(absent)} not: a launcher sets all of them",
            hint=f"set {' '.join(absent)}, or unset {' '.join(present)} and gpudiag starts the ranks itself",
        )
    by_torchrun = "TORCHELASTIC_RUN_ID" in variables
    world_size = _parse_number(variables, "WORLD_SIZE")
    port = _parse_number(variables, "MASTER_PORT")
    _refuse_port_zero(port, world_size, by_torchrun=by_torchrun)
    if port > _MAX_PORT:
        raise UsageError(
            f"MASTER_PORT={port} is no port: they go up to {_MAX_PORT}",
            hint="set it to a port that is free on rank 0's machine",
        )
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
    rank = _parse_number(variables, "RANK")
    alone = not variables.get("LOCAL_RANK") and not here
    environment = RankEnvironment(
        launcher=Launcher.TORCHRUN if by_torchrun else Launcher.VARIABLES,
        rank=rank,
        world_size=world_size,
        local_rank=_parse_number(variables, "LOCAL_RANK", rank if here else 0),
        local_world_size=_parse_number(variables, "LOCAL_WORLD_SIZE", 1 if alone else world_size),
        init_method="env://",
        run_key=run_key,
        master=variables["MASTER_ADDR"],
    )
    return _checked(environment, "RANK", "WORLD_SIZE")


def _needed_local_rank(variables: Mapping[str, str]) -> tuple[str, ...]:
    """LOCAL_RANK, if it must be set: several processes on one host, or a launcher that always sets it."""
    several = variables.get("LOCAL_WORLD_SIZE", "1") != "1"
    return ("LOCAL_RANK",) if several or "TORCHELASTIC_RUN_ID" in variables else ()


def _refuse_port_zero(port: int, world_size: int, *, by_torchrun: bool) -> None:
    """Raise if MASTER_PORT is 0: rank 0 would get any free port, and the others never learn which.

    torchrun passes `--master-port 0` on as it is, and its own workers then wait forever.
    """
    if port == 0 and world_size > 1:
        raise UsageError(
            "MASTER_PORT is 0: the ranks have no port at which they can find each other",
            hint="start it with `torchrun --standalone`, or with a --master-port that is free"
            if by_torchrun
            else "set MASTER_PORT to a port that is free on rank 0's machine",
        )


def _read_horovodrun(variables: Mapping[str, str]) -> RankEnvironment:
    """The rank that horovodrun gave this process; every rank knows the address of its rendezvous.

    Ranks rendezvous at that address, where horovodrun runs rank 0 unless its hosts are listed otherwise:
    then MASTER_ADDR says where. The port is derived from horovodrun's own, which no two runs share.
    """
    address = variables.get("MASTER_ADDR") or variables.get("HOROVOD_GLOO_RENDEZVOUS_ADDR", "")
    if not address:
        raise UsageError(
            "HOROVOD_RANK is set, and HOROVOD_GLOO_RENDEZVOUS_ADDR is not: nobody says where ranks meet",
            hint="start it by `horovodrun --gloo`, or set MASTER_ADDR to the host of rank 0",
        )
    key = _parse_number(variables, "HOROVOD_GLOO_RENDEZVOUS_PORT")
    port = _parse_number(variables, "MASTER_PORT", _HOROVOD_PORTS[0] + key % len(_HOROVOD_PORTS))
    environment = RankEnvironment(
        launcher=Launcher.HOROVODRUN,
        rank=_parse_number(variables, "HOROVOD_RANK"),
        world_size=_parse_number(variables, "HOROVOD_SIZE"),
        local_rank=_parse_number(variables, "HOROVOD_LOCAL_RANK"),
        local_world_size=_parse_number(variables, "HOROVOD_LOCAL_SIZE"),
        init_method=f"tcp://{address}:{port}",
        run_key=f"horovodrun|{address}|{key}",
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
            f"LOCAL_RANK {local_rank} and LOCAL_WORLD_SIZE {local_world_size} contradict {size_name} {world_size}",
            hint="LOCAL_RANK is below LOCAL_WORLD_SIZE, which is at most the world size",
        )
    return environment


def _parse_number(variables: Mapping[str, str], name: str, fallback: int | None = None) -> int:
    text = variables.get(name, "")
    if not text and fallback is not None:
        return fallback
    if not text.strip().isdecimal():
        raise UsageError(
            f"{name}={text} is not a number from 0 up", hint=f"set {name} as your launcher would"
        )
    return int(text)


def _meets_on_this_machine(init_method: str) -> bool:
    """Whether ranks that rendezvous there are assumed to be on one machine: a loopback address, or a file."""
    url = urlsplit(init_method)
    if url.scheme == "file":
        return True
    return _is_loopback(url.hostname or "")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _join(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


class Siblings:
    """The launcher's children on this machine, by rank."""

    def __init__(self, launcher_pid: int, ranks: range) -> None:
        """`ranks` are those that the launcher starts on this machine, including this process's own."""
        self._launcher_pid = launcher_pid
        self._ranks = ranks

    def gone(self) -> frozenset[int]:
        """The ranks of this machine that have no live process; none if the kernel does not list children."""
        alive = {_rank_of(pid) for pid in self._children() if is_alive(pid)}
        return frozenset(self._ranks) - alive if alive else frozenset()

    def _children(self) -> list[int]:
        """The launcher's children (proc_pid_task_tid_children(5))."""
        found: list[int] = []
        for path in Path(f"/proc/{self._launcher_pid}/task").glob("*/children"):
            try:
                found += [int(word) for word in path.read_text().split()]
            except OSError:  # that thread has ended
                continue
        return found


def _rank_of(pid: int) -> int | None:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    text = next((each[5:] for each in variables if each.startswith(b"RANK=")), b"")
    return int(text) if text.isdigit() else None
