"""A real Slurm whose node is a simulated machine, with the shipped prolog and epilog: what becomes of its
jobs.
"""

import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpudiag.simulate.nvml.library import build_library
from gpudiag.simulate.session import Session
from tests.slurm_cluster import Cluster, slurm_cluster

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "docs" / "ci" / "slurm"
HEALTHY = "h100x8"
GPUS = 8
# What is wrong with the node; after the machine, variables of check-node.sh.
FAULTS = {
    "one GPU hangs": "h100x8+hang:3",
    "one call on a GPU hangs": "h100x8+hang-call:3:nvmlDeviceGetUUID",
    "a GPU fell off the bus": "h100x8+lost:5",
    "a GPU is gone without a trace (Gres says 8)": "h100x8+gone:3",
    "the driver starts no GPU": "h100x8+zero-gpus",
    "the driver is not loaded": "h100x8+no-driver",
    "nouveau instead of the driver": "h100x8+nouveau",
    "the driver's library is not installed": "h100x8+no-library",
    "library and kernel driver differ": "h100x8+version-mismatch",
    "the driver does not answer at all": "h100x8+init-hang",
    "no permission to open the device nodes": "h100x8+no-permission",
    "CUDA does not start (fabric)": "h100x8+cuda-broken",
    "an uncorrectable memory error": "h100x8+ecc:3",
    "a row that could not be replaced": "h100x8+row-remap-failed:3",
    "all NVLinks of a GPU are down": "h100x8+nvlink-down:3",
    "half of the PCIe lanes": "h100x8+pcie-width:3",
    "too hot": "h100x8+hot:3",
    "a dead process holds GPU memory": "h100x8+zombie:3",
    "no program is let in": "h100x8+compute-prohibited:3",
    "Xid 95": "h100x8+xid:3:95",
}
NO_ANSWER = {
    "gpudiag is not installed": "absent",
    "gpudiag crashes (exit status 70)": "crash",
    "gpudiag is killed": "killed",
    "gpudiag hangs (`GPUDIAG_SECONDS=3`)": "stuck",
    "gpudiag reached no verdict (exit status 3)": "unsure",
}
NEAR_MISSES = {
    "in order": HEALTHY,
    "a job's own CUDA_VISIBLE_DEVICES is wrong": "h100x8+visible:9",
    "one power limit is lowered (WARN)": "h100x8+power-cap:3",
    "an Xid of a program (WARN)": "h100x8+xid:3:13",
    "a training process on a GPU": "h100x8+busy:3",
}
# `node` sets NODE, and what check-node.sh is to be told.
PROGRAM = """#!/bin/sh
export PYTHONPATH={root} GPUDIAG_STATE_DIR={folder}/state HOME={folder}
case $NODE in
crash) echo "gpudiag: internal error" >&2; exit 70 ;;
killed) kill -9 $$ ;;
stuck) trap '' TERM; exec sleep 60 ;;
unsure) echo "gpudiag ERROR source.nvml: nvml was not asked"; exit 3 ;;
started) . {folder}/session; exec {python} -m gpudiag "$@" ;;
esac
exec {python} -m gpudiag simulate "$NODE" -- gpudiag "$@"
"""
GATE = """#!/bin/sh
. {folder}/node
export NODE
[ "$NODE" = absent ] && GPUDIAG={folder}/nothing-here || GPUDIAG={folder}/gpudiag
export GPUDIAG GPUDIAG_SECONDS GPUDIAG_REPORTS={folder}/reports
before=$(date +%s.%N)
{shipped} || failed=1
after=$(date +%s.%N)
times > {folder}/{name}.used # not in a pipe: that would be the times of another shell
echo "$before $after $(tail -n 1 {folder}/{name}.used)" >> {folder}/{name}.times
exit ${{failed:-0}}
"""


@dataclass(frozen=True)
class Tried:
    """A node with that fault: whether its job ran, and its state and reason after that."""

    words: str
    ran: bool
    state: str
    reason: str

    @property
    def drained(self) -> bool:
        """Whether Slurm gives the node to nobody."""
        return "DRAIN" in self.state


class Gated:
    """A cluster of one node with the shipped prolog and epilog."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        """The cluster, and the folder that says which machine the node is."""
        self.folder, self.cluster = folder, cluster

    def try_node(self, words: str, machine: str, seconds: float = 20) -> Tried:
        """What becomes of a job on that node."""
        become(self.folder, machine, seconds)
        mark, times = self.folder / "ran", self.folder / "prolog.times"
        mark.unlink(missing_ok=True)
        times.unlink(missing_ok=True)
        job = self.cluster.run(
            "sbatch", "--parsable", "--output=/dev/null", "--gres=gpu:1", "--wrap", f"touch {mark}"
        )
        number = job.stdout.strip()
        until = time.monotonic() + 90
        while time.monotonic() < until:
            state = self.cluster.state()[0]
            waiting = self.cluster.job_state(number) == "PENDING"
            if mark.exists() or ("DRAIN" in state and waiting and times.exists()):
                break
            time.sleep(0.1)
        ran = mark.exists()
        self.cluster.run("scancel", number)
        if ran:
            self.cluster.wait_for(
                lambda state: "ALLOC" not in state and "MIX" not in state and "COMP" not in state
            )
        state, reason = self.cluster.state()
        return Tried(words, ran, state, reason)

    def start_machine(self, session: Session) -> None:
        """From now on the node is that machine, whose start costs a prolog nothing."""
        lines = [f"export {name}={shlex.quote(value)}" for name, value in session.environment.items()]
        (self.folder / "session").write_text(
            "\n".join(lines) + f"\nexport GPUDIAG_STATE_DIR={self.folder}/state\n"
        )
        become(self.folder, "started")

    def prolog_seconds(self) -> list[tuple[float, float]]:
        """How long each prolog took since the last fault was tried, and how much processor time with all it
        started.
        """
        rows = [line.split() for line in (self.folder / "prolog.times").read_text().splitlines()]
        return [(float(ended) - float(began), sum(map(_seconds, used))) for began, ended, *used in rows]

    def resume(self) -> None:
        """The node in order again."""
        become(self.folder, HEALTHY)
        self.cluster.resume()


def _seconds(text: str) -> float:
    """Of a time as a shell tells it: 0m1.5s."""
    minutes, _, seconds = text.removesuffix("s").partition("m")
    return 60 * int(minutes) + float(seconds)


def become(folder: Path, machine: str, seconds: float = 20) -> None:
    """From now on the node is that machine."""
    (folder / "node").write_text(f"NODE={machine}\nGPUDIAG_SECONDS={seconds}\n")


@contextmanager
def gated_cluster(*, gated: bool = True) -> Iterator[Gated]:
    """A real Slurm of one node, whose prolog and epilog are the shipped ones."""
    build_library()
    folder = Path(tempfile.mkdtemp(prefix="gd"))  # short: a UNIX socket's path may have 107 characters
    try:
        names = ("prolog", "epilog")
        (folder / "gpudiag").write_text(PROGRAM.format(root=ROOT, folder=folder, python=sys.executable))
        for name in names:
            text = GATE.format(folder=folder, shipped=SHIPPED / f"{name}.sh", name=name)
            (folder / name).write_text(text)
        for name in ("gpudiag", *names):
            (folder / name).chmod(0o755)
        (folder / "reports").mkdir()
        become(folder, HEALTHY)
        scripts = {name: folder / name for name in names} if gated else {}
        with slurm_cluster(folder, gpus=GPUS, **scripts) as cluster:
            yield Gated(folder, cluster)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
