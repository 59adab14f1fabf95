"""A real Slurm on this machine, everything under one directory, gone when the test is.

Its nodes, of which there may be several, are all this machine. Each has as many GPUs as its Gres says, by
files that stand for device nodes: Slurm only counts them.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "scontrol", "sinfo")
_SBIN = "/usr/sbin:/usr/local/sbin"


def missing_programs() -> list[str]:
    """The programs that such a cluster needs and that are not installed."""
    path = f"{os.environ['PATH']}:{_SBIN}"
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


class Cluster:
    """One controller, and the nodes `n01`, `n02` and so on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "PATH": f"{os.environ['PATH']}:{_SBIN}",
            "SLURM_CONF": str(folder / "slurm.conf"),
        }
        self._daemons: list[subprocess.Popen[bytes]] = []

    def run(self, *argv: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(argv, env=self.environment, capture_output=True, text=True, timeout=timeout)

    def start(self, *argv: str) -> None:
        with (self.folder / f"{argv[0]}.log").open("a") as log:
            self._daemons.append(
                subprocess.Popen(argv, env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            )

    def stop(self) -> None:
        self._await_steps()
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(20)

    def _await_steps(self) -> None:
        """Let the processes that watch job steps end: each has a socket, and would outlive a slurmd that is
        gone.
        """
        until = time.monotonic() + 20
        while any(self.folder.glob("spool/n*/n*_*")) and time.monotonic() < until:
            time.sleep(0.05)

    def state(self, node: str = "n01") -> tuple[str, str]:
        """The node's state and the reason for it."""
        shown = self.run("scontrol", "--oneliner", "show", "node", node).stdout
        fields = dict(part.split("=", 1) for part in shown.split(" ") if "=" in part)
        reason = shown.partition(" Reason=")[2].partition(" [")[0]
        return fields.get("State", ""), reason

    def job_state(self, job: str) -> str:
        """PENDING, RUNNING, ...; empty once Slurm has forgotten it."""
        return self.run("squeue", "--noheader", "--format=%T", "--jobs", job).stdout.strip()

    def resume(self) -> None:
        """Give the node back to jobs, as an administrator does who mended it."""
        self.run("scontrol", "update", "NodeName=n01", "State=RESUME")
        self.wait_for(lambda state: state == "IDLE")

    def wait_for(self, condition: Callable[[str], bool], seconds: float = 30, node: str = "n01") -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if condition(self.state(node)[0]):
                return
            time.sleep(0.1)
        logs = "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.log"))
        raise AssertionError(f"{node} is {self.state(node)}\n{logs}")


@contextmanager
def slurm_cluster(
    folder: Path, prolog: Path | None = None, epilog: Path | None = None, gpus: int = 0, nodes: int = 1
) -> Iterator[Cluster]:
    """A running cluster whose nodes start `prolog` before each job and `epilog` after it, and have that many
    GPUs.
    """
    host = socket.gethostname().partition(".")[0]
    munge = folder / "munge.key"
    munge.write_bytes(os.urandom(1024))
    munge.chmod(0o600)
    controller_port, *ports = [_free_port() for _ in range(1 + nodes)]
    names = [f"n{number:02d}" for number in range(1, nodes + 1)]
    (folder / "slurm.conf").write_text(
        "\n".join(
            (
                f"ClusterName=gpudiag{controller_port}",  # jobs of two clusters may have the same number
                f"SlurmctldHost={host}(127.0.0.1)",
                f"SlurmctldPort={controller_port}",
                "AuthType=auth/munge",
                f"AuthInfo=socket={folder}/munge.socket",
                "CredType=cred/munge",
                "SlurmUser=root",
                "SlurmdUser=root",
                "ProctrackType=proctrack/linuxproc",
                "TaskPlugin=task/none",
                "JobAcctGatherType=jobacct_gather/none",
                "SwitchType=switch/none",
                "MpiDefault=none",
                "ReturnToService=2",
                *([f"Prolog={prolog}", "PrologFlags=Alloc"] if prolog else []),
                *([f"Epilog={epilog}"] if epilog else []),
                *_gpu_lines(folder, gpus),
                f"StateSaveLocation={folder}/state",
                f"SlurmdSpoolDir={folder}/spool/%n",
                f"SlurmctldPidFile={folder}/slurmctld.pid",
                f"SlurmdPidFile={folder}/slurmd.%n.pid",
                f"SlurmctldLogFile={folder}/slurmctld.log",
                f"SlurmdLogFile={folder}/slurmd.%n.log",
                "SlurmdParameters=config_overrides",
                *(
                    f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8"
                    + (f" Gres=gpu:{gpus}" if gpus else "")
                    for name, port in zip(names, ports, strict=True)
                ),
                "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
                "",
            )
        )
    )
    for name in ("state", "spool"):
        (folder / name).mkdir()
    cluster = Cluster(folder)
    try:
        files = {
            name: f"--{name}={folder}/munge.{name.partition('-')[0]}"
            for name in ("socket", "key-file", "pid-file", "log-file", "seed-file")
        }
        cluster.start("munged", "--foreground", "--force", *files.values())
        cluster.start("slurmctld", "-D")
        for name in names:
            cluster.start("slurmd", "-D", "-N", name)
        cluster.wait_for(lambda state: state == "IDLE", node=names[-1])
        yield cluster
    finally:
        cluster.stop()


def _gpu_lines(folder: Path, gpus: int) -> list[str]:
    """What slurm.conf needs for them; gres.conf and the files that it names are made."""
    if not gpus:
        return []
    for number in range(gpus):
        (folder / f"nvidia{number}").touch()
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/nvidia[0-{gpus - 1}]\n")
    return ["GresTypes=gpu", "SelectType=select/cons_tres", "SelectTypeParameters=CR_Core"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
