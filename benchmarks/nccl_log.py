"""Prints what `gpudiag explain` takes for 50 MB of NCCL's lines: processor seconds and memory.

    python benchmarks/nccl_log.py

Each log is that of a healthy job of 1,024 ranks on 128 hosts in one file, as NCCL 2.28 words it: their start,
then up to 50 MB collectives (NCCL_DEBUG_SUBSYS=COLL), or the channels of an all-to-all, every line about
another pair of ranks. The third figure is what the first log takes where its lines are not known as NCCL's.
"""

import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpudiag.explain.recipe import explain
from gpudiag.model.explanation import LogExplanation
from gpudiag.render.explain_text import render_log_explanation
from tests.corpus.nccl_jobs import NcclJob, mixed

LOG_BYTES = 50_000_000
JOB = NcclJob(version=(2, 28), hosts=128, nvls=True, nvls_channels=16, channels=32)


def main() -> None:
    """Write the logs and print the cost of each."""
    with tempfile.TemporaryDirectory() as folder:
        logs = {"collectives": Path(folder) / "collectives.log", "channels": Path(folder) / "channels.log"}
        write_log(logs["collectives"], collectives())
        write_log(logs["channels"], channels())
        logs["not NCCL's"] = Path(folder) / "other.log"
        logs["not NCCL's"].write_bytes(
            logs["collectives"].read_bytes().replace(b" NCCL INFO ", b" XCCL INFO ")
        )
        for name, path in logs.items():
            done = subprocess.run(
                [sys.executable, __file__, str(path)], check=True, stdout=subprocess.PIPE, text=True
            )
            cost = json.loads(done.stdout)
            size = f"{path.stat().st_size / 1e6:.0f} MB, {cost['lines']:,} lines"
            print(
                f"{name}: {size}: {cost['seconds']:.1f} s of processor, {cost['mib']:.0f}"
                f" MiB, {cost['findings']} findings"
            )


def write_log(path: Path, more: Iterator[str]) -> None:
    """The start of all ranks, then other lines up to 50 MB."""
    with path.open("w") as log:
        log.writelines(f"{line}\n" for line in mixed(JOB))
        while log.tell() < LOG_BYTES:
            log.writelines(next(more) for _ in range(1000))


def head(rank: int) -> str:
    """What stands before each line of a rank."""
    host, local = divmod(rank, JOB.gpus)
    return f"node-{host}:{4000 + local}:{5000 + local} [{local}] NCCL INFO "


def collectives() -> Iterator[str]:
    """Collectives, rank after rank."""
    for number in count():
        yield (
            f"{head(number % JOB.size)}AllReduce: opCount {number // JOB.size:x} sendbuff 0x7f2a4c000000"
            " recvbuff 0x7f2a4c000000 count 26214400 datatype 9 op 0 root 0 comm 0x55d00000"
            " [nranks=1024] stream 0x558f3b20\n"
        )


def channels() -> Iterator[str]:
    """Channels of an all-to-all, each line about another pair of ranks."""
    for distance in count(1):
        for rank in range(JOB.size):
            other = (rank + distance) % JOB.size
            yield (
                f"{head(rank)}Channel 00/1 : {rank}[{rank % 8}] -> {other}[{other % 8}] [send] via"
                f" NET/IB/{rank % 8}/GDRDMA/Shared\n"
            )


def explain_one(path: str) -> None:
    """Explain one log as the command does, text and all, and print what that took."""
    answer = explain((path,))
    if not isinstance(answer, LogExplanation):
        raise TypeError("a log was taken for a topic")
    render_log_explanation(answer)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    status = Path(
        "/proc/self/status"
    ).read_text()  # ru_maxrss would be that of the process that started this one
    peak_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    cost = {
        "lines": answer.logs[0].lines_read,
        "seconds": usage.ru_utime + usage.ru_stime,
        "mib": peak_kib / 1024,
        "findings": len(answer.nccl.findings) if answer.nccl else 0,
    }
    print(json.dumps(cost))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        explain_one(sys.argv[1])
    else:
        main()
