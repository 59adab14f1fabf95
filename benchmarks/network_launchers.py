"""Real srun and mpirun over the four machines of `network_matrix`: one process on each, in its own network.

Slurm's four nodes are this machine, and each task enters a namespace; its variables are those of four nodes.
mpirun runs on machine1 and reaches the others by a program in the place of ssh. Faults must leave that way
open.
"""

import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.ranks.machines import Machine
from tests.slurm_cluster import slurm_cluster


@dataclass(frozen=True)
class Left:
    """What one rank's process left, and when it ended: seconds after the last one was started."""

    status: int | None
    output: str
    error: str
    seconds: float


def launch_all(
    launcher: str,
    machines: Sequence[Machine],
    commands: Sequence[tuple[Mapping[str, str], Sequence[str]]],
    folder: Path,
    limit_seconds: float,
) -> dict[int, Left]:
    """What each rank's command leaves, which has its variables and runs on its machine."""
    for rank, (variables, command) in enumerate(commands):
        words = machines[rank].command(*command) if launcher == "srun" else tuple(command)
        _script(folder, rank).write_text(_script_of(rank, variables, words, folder))
    with ExitStack() as stack:
        # No blanks in its name.
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="launch")))
        if launcher == "srun":
            cluster = stack.enter_context(slurm_cluster(place, nodes=4))
            spread = ("--nodes=4", "--ntasks-per-node=1", "--overcommit")
            start: tuple[str, ...] = ("srun", "--immediate=30", *spread)
            rank_variable, environment = "SLURM_PROCID", dict(cluster.environment)
        else:
            agent = place / "remote_shell"
            agent.write_text(_remote_shell(machines))
            agent.chmod(0o755)
            hosts = ("--host", ",".join(machine.name for machine in machines))
            only = ("--mca", "oob_tcp_if_include", "eth0", "--mca", "btl_tcp_if_include", "eth0")
            as_root = ("--allow-run-as-root", "--mca", "plm_rsh_agent", str(agent))
            run = ("mpirun.openmpi", *as_root, *only, *hosts, "-np", str(len(machines)))
            start, rank_variable = machines[0].command(*run), "OMPI_COMM_WORLD_RANK"
            environment = dict(os.environ)
        process = subprocess.Popen(
            (*start, "sh", "-c", f"exec sh {shlex.quote(str(folder))}/start${rank_variable}.sh"),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=(folder / "launcher.out").open("w"),
            stderr=subprocess.STDOUT,
        )
        try:
            process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait(30)
    return _collect(len(commands), folder)


def _script(folder: Path, rank: int) -> Path:
    return folder / f"start{rank}.sh"


def _script_of(rank: int, variables: Mapping[str, str], words: Sequence[str], folder: Path) -> str:
    """A program that sets what is otherwise than here, and keeps what the command prints and how it ends."""
    changed = [
        f"export {name}={shlex.quote(value)}"
        for name, value in variables.items()
        if os.environ.get(name) != value
    ]
    place = shlex.quote(str(folder))
    return "\n".join(
        (
            *changed,
            f"date +%s.%N > {place}/began{rank}",
            f"{shlex.join(words)} > {place}/rank{rank}.out 2> {place}/rank{rank}.stderr",
            "status=$?",
            f"echo $status $(date +%s.%N) > {place}/ended{rank}",
            "exit $status",
            "",
        )
    )


def _remote_shell(machines: Sequence[Machine]) -> str:
    """A program that runs `HOST COMMAND` on that machine, after flags that are meant for ssh."""
    cases = (f'{one.name}) exec {shlex.join(one.command("sh", "-c"))} "$*";;' for one in machines)
    return "\n".join(
        (
            "#!/bin/sh",
            'while [ "${1#-}" != "$1" ]; do shift; done',
            "host=$1; shift",
            "case $host in",
            *cases,
            "esac",
            "",
        )
    )


def _collect(ranks: int, folder: Path) -> dict[int, Left]:
    began = [_number(folder / f"began{rank}") for rank in range(ranks)]
    last = max((one for one in began if one is not None), default=time.time())
    found = {}
    for rank in range(ranks):
        words = _text(folder / f"ended{rank}").split()
        status, at = (int(words[0]), float(words[1])) if len(words) == 2 else (None, time.time())
        output, error = _text(folder / f"rank{rank}.out"), _text(folder / f"rank{rank}.stderr")
        found[rank] = Left(status, output, error, at - last)
    return found


def _number(path: Path) -> float | None:
    text = _text(path).strip()
    return float(text) if text else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
