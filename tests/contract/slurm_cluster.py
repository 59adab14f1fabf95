"""A real Slurm of one node on this machine, everything under one directory, gone when the test is."""

import os
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "scontrol", "sinfo")
_SBIN = "/usr/sbin:/usr/local/sbin"


def missing_programs():
    """The programs that such a cluster needs and that are not installed."""
    path = f"{os.environ['PATH']}:{_SBIN}"
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


class Cluster:
    """One controller and one node, `n01`."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = {
            **os.environ,
            "PATH": f"{os.environ['PATH']}:{_SBIN}",
            "SLURM_CONF": str(folder / "slurm.conf"),
        }
        self._daemons = []

    def run(self, *argv, timeout=60):
        return subprocess.run(argv, env=self.environment, capture_output=True, text=True, timeout=timeout)

    def start(self, *argv):
        with (self.folder / f"{argv[0]}.log").open("a") as log:
            self._daemons.append(
                subprocess.Popen(argv, env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            )

    def stop(self):
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(20)

    def state(self):
        """The node's state and the reason for it."""
        shown = self.run("scontrol", "--oneliner", "show", "node", "n01").stdout
        fields = dict(part.split("=", 1) for part in shown.split(" ") if "=" in part)
        reason = shown.partition(" Reason=")[2].partition(" [")[0]
        return fields.get("State", ""), reason

    def wait_for(self, condition, seconds=30):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if condition(self.state()[0]):
                return
            time.sleep(0.1)
        logs = "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.log"))
        raise AssertionError(f"the node is {self.state()}\n{logs}")


@contextmanager
def slurm_cluster(folder, prolog):
    """A running cluster whose node starts `prolog` before each job."""
    host = socket.gethostname().partition(".")[0]
    munge = folder / "munge.key"
    munge.write_bytes(os.urandom(1024))
    munge.chmod(0o600)
    ports = [_free_port() for _ in range(2)]
    (folder / "slurm.conf").write_text(
        "\n".join(
            (
                "ClusterName=gpudiag",
                f"SlurmctldHost={host}(127.0.0.1)",
                f"SlurmctldPort={ports[0]}",
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
                f"Prolog={prolog}",
                "PrologFlags=Alloc",
                f"StateSaveLocation={folder}/state",
                f"SlurmdSpoolDir={folder}/spool",
                f"SlurmctldPidFile={folder}/slurmctld.pid",
                f"SlurmdPidFile={folder}/slurmd.pid",
                f"SlurmctldLogFile={folder}/slurmctld.log",
                f"SlurmdLogFile={folder}/slurmd.log",
                "SlurmdParameters=config_overrides",
                f"NodeName=n01 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4",
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
        cluster.start("slurmd", "-D", "-N", "n01")
        cluster.wait_for(lambda state: state == "IDLE")
        yield cluster
    finally:
        cluster.stop()


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
