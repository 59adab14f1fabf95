"""Prints whether `gpudiag explain FOLDER` names the first failure in jobs of 1,000 ranks, and its cost.

    python benchmarks/explain_jobs.py [--ranks 1000] [--megabytes 50] [KIND...]

Each job is written to a temporary folder: a log per host in which its eight ranks interleave, the words of
its torchrun, a kernel log where the kernel has logged something. The clocks of the hosts are wrong by up to 5
seconds. All ranks print echoes. A job is right where rank, host, kind and line are those of the fault.
"""

import argparse
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpudiag.explain.recipe import explain
from gpudiag.model.explanation import LogExplanation, Verdict, VerdictKind

LOCAL = 8
MAX_SKEW_SECONDS = 5.0
START = datetime(2025, 11, 21, 10, 0, 0)
SITE = "/opt/env/lib/python3.11/site-packages"
Fault = Callable[["Job", random.Random], None]


@dataclass
class Job:
    """The logs of a job while they are written, and what must be reported for them."""

    ranks: int
    skew: list[float]
    lines: list[list[str]] = field(default_factory=list)  # of each host
    kernel: dict[int, list[str]] = field(default_factory=dict)
    exits: dict[int, int] = field(default_factory=dict)
    ended_at: datetime = START
    rank: int | None = None
    kind: VerdictKind = VerdictKind.RANK_FAILED
    topic: str = ""
    word: str = ""  # that the line of the fault has

    def host(self, node: int) -> str:
        """The name of a host."""
        return f"gpu-{node:03d}"

    def clock(self, node: int, at: datetime) -> datetime:
        """What the clock of that host shows."""
        return at + timedelta(seconds=self.skew[node])

    def put(self, rank: int, text: str) -> None:
        """Lines of one rank, as torch writes them after the process group is there."""
        self.lines[rank // LOCAL] += [f"[rank{rank}]: {line}\n" for line in text.splitlines()]

    def raise_at(
        self, rank: int, error: str, where: str = "/home/ann/job/train.py", number: int = 71
    ) -> None:
        """The traceback of an exception in one rank."""
        frame = f'  File "{where}", line {number}, in step\n    out = model(batch)\n'
        self.put(
            rank,
            "Traceback (most recent call last):\n"
            '  File "/home/ann/job/train.py", line 120, in <module>\n'
            "    main()\n"
            f"{frame}{error}",
        )
        self.exits[rank] = 1

    def log_at(self, rank: int, at: datetime, text: str, file: str = "ProcessGroupNCCL.cpp:632") -> None:
        """A line of torch's C++ with the time of its host."""
        clock = self.clock(rank // LOCAL, at)
        self.put(rank, f"[E{clock.month}{clock:%d %H:%M:%S.%f}123 {file}] {text}")


def write_steps(job: Job, size_bytes: int, steps: int) -> None:
    """The steps of a healthy run, every rank's lines."""
    filler = "x" * max(0, size_bytes // (steps * job.ranks) - 110)
    at = START
    for step in range(steps):
        at += timedelta(seconds=2)
        for rank in range(job.ranks):
            clock = job.clock(rank // LOCAL, at)
            job.lines[rank // LOCAL].append(
                f"{clock:%Y-%m-%d %H:%M:%S},{clock.microsecond // 1000:03d} INFO [rank {rank}] step"
                f" {step}/{steps * 4} loss {2.5 - step / 1000:.4f} grad {1 + rank % 7 / 10:.3f} {filler}\n"
            )
    job.ended_at = at + timedelta(seconds=2)


def write_echoes(job: Job, but: set[int], kind: str) -> None:
    """What all other ranks print: they lost a connection, or waited for ten minutes."""
    at = job.ended_at + timedelta(seconds=600 if kind == "timeout" else 2)
    for rank in range(job.ranks):
        if rank in but:
            continue
        if kind == "timeout":
            work = 2847
            job.log_at(
                rank,
                at,
                f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={work},"
                " OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000) ran for"
                f" 600{rank % 90:03d} milliseconds before timing out.",
            )
            job.log_at(
                rank,
                at,
                f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at work sequence"
                f" id: {work} PG status: last enqueued work: {work + 3}, last completed work: {work - 1}",
                "ProcessGroupNCCL.cpp:2268",
            )
            job.exits.setdefault(rank, -6)
        elif kind == "nccl":
            job.raise_at(
                rank,
                "torch.distributed.DistBackendError: NCCL error in:"
                " /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3690, remote"
                " process exited or there was a network error, NCCL version 2.27.5\n"
                "ncclRemoteError: A call failed possibly due to a network error or a"
                " remote process exiting prematurely.",
                f"{SITE}/torch/distributed/distributed_c10d.py",
                2906,
            )
        else:
            job.raise_at(
                rank,
                "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553]"
                f" Connection closed by peer [10.0.{rank // LOCAL}.1]:{20000 + rank}."
                " This is typically caused by a remote worker crashing.",
                f"{SITE}/torch/autograd/graph.py",
                979,
            )
    job.ended_at = at


def write_launchers(job: Job, silent: set[int] | None = None) -> None:
    """Each host's torchrun: it ends the others and names a root cause of its own."""
    for node in range(job.ranks // LOCAL):
        if node in (silent or set()):
            continue
        clock, first = job.clock(node, job.ended_at), node * LOCAL
        codes = {rank: job.exits.get(rank, -15) for rank in range(first, first + LOCAL)}
        guilty = next(
            (rank for rank in codes if rank == job.rank and codes[rank] != -15),
            next((rank for rank in codes if codes[rank] != -15), first),
        )
        out = job.lines[node]
        out += [
            (
                f"W{clock:%m%d %H:%M:%S.%f} {9000 + node}"
                " torch/distributed/elastic/multiprocessing/api.py:1028] Sending process"
                f" {10000 + rank} closing signal SIGTERM\n"
            )
            for rank in codes
            if rank != guilty
        ]
        out.append(
            f"E{clock:%m%d %H:%M:%S.%f} {9000 + node} torch/distributed/elastic/multiprocessing/api.py:1002]"
            f" failed (exitcode: {codes[guilty]}) local_rank: {guilty % LOCAL} (pid: {10000 + guilty})"
            " of binary: /opt/env/bin/python\n"
        )
        out.append(
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
            + "=" * 60
            + "\ntrain.py FAILED\n"
            + "-" * 60
            + "\nFailures:\n"
        )
        for place, rank in enumerate(rank for rank in codes if rank != guilty):
            out.append(row(job, place + 1, rank, codes[rank], clock))
        out += [
            "-" * 60 + "\nRoot Cause (first observed failure):\n",
            row(job, 0, guilty, codes[guilty], clock),
            "=" * 60 + "\n",
        ]


def row(job: Job, place: int, rank: int, code: int, clock: datetime) -> str:
    """One row of torchrun's table."""
    signal = {-15: "SIGTERM", -9: "SIGKILL", -11: "SIGSEGV", -6: "SIGABRT"}.get(code, "")
    how = (
        f"Signal {-code} ({signal}) received by PID {10000 + rank}"
        if signal
        else "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    )
    return (
        f"[{place}]:\n"
        f"  time      : {clock:%Y-%m-%d_%H:%M:%S}\n"
        f"  host      : {job.host(rank // LOCAL)}\n"
        f"  rank      : {rank} (local_rank: {rank % LOCAL})\n"
        f"  exitcode  : {code} (pid: {10000 + rank}){f'  ({signal})' if signal else ' '}\n"
        "  error_file: <N/A>\n"
        f"  traceback : {how}\n"
    )


def user_exception(job: Job, chance: random.Random) -> None:
    """An exception of the user's own on one rank."""
    job.rank, job.word = chance.randrange(job.ranks), "token 51200"
    job.raise_at(job.rank, "ValueError: shard 17: token 51200 is not below 50304")
    write_echoes(job, {job.rank}, "gloo")
    write_launchers(job)


def cuda_out_of_memory(job: Job, chance: random.Random) -> None:
    """A GPU's memory ran out on one rank."""
    job.rank, job.topic, job.word = chance.randrange(job.ranks), "cuda.out_of_memory", "Tried to allocate"
    job.raise_at(
        job.rank,
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity"
        " of 79.11 GiB of which 1.02 GiB is free.",
    )
    write_echoes(job, {job.rank}, "nccl")
    write_launchers(job)


def lost_gpu(job: Job, chance: random.Random) -> None:
    """A GPU fell off the bus: the kernel of one host reports it."""
    job.rank, job.topic, job.kind, job.word = (
        chance.randrange(job.ranks),
        "Xid 79",
        VerdictKind.MACHINE_FAILED,
        "Xid (PCI",
    )
    node = job.rank // LOCAL
    clock = job.clock(node, job.ended_at)
    job.kernel[node] = [
        (
            f"{clock:%b %d %H:%M:%S} {job.host(node)} kernel: NVRM: Xid (PCI:0000:5d:00): 79,"
            " pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
        )
    ]
    job.raise_at(job.rank, "RuntimeError: CUDA error: unspecified launch failure")
    write_echoes(job, {job.rank}, "nccl")
    write_launchers(job)


def killed_by_host_memory(job: Job, chance: random.Random) -> None:
    """The kernel of one host killed a rank for its memory."""
    job.rank, job.topic, job.word = chance.randrange(job.ranks), "host.out_of_memory_kill", "Killed process"
    node = job.rank // LOCAL
    clock = job.clock(node, job.ended_at)
    job.kernel[node] = [
        (
            f"{clock:%b %d %H:%M:%S} {job.host(node)} kernel: Out of memory: Killed process"
            f" {10000 + job.rank} (python) total-vm:812345678kB, anon-rss:523456789kB\n"
        )
    ]
    job.exits[job.rank] = -9
    write_echoes(job, {job.rank}, "gloo")
    write_launchers(job)


def segmentation_fault(job: Job, chance: random.Random) -> None:
    """One rank crashed in native code."""
    job.rank, job.topic, job.word = chance.randrange(job.ranks), "rank.crashed", "SIGSEGV"
    job.exits[job.rank] = -11
    write_echoes(job, {job.rank}, "nccl")
    write_launchers(job)


def hung(job: Job, chance: random.Random) -> None:
    """One rank stands still: all others time out after ten minutes."""
    job.rank, job.kind = chance.randrange(job.ranks), VerdictKind.RANK_MISSING
    write_echoes(job, {job.rank}, "timeout")
    write_launchers(job)


def network_link(job: Job, chance: random.Random) -> None:
    """The network card of one host: completions with error 12, reported by its ranks."""
    job.rank, job.topic, job.kind, job.word = (
        chance.randrange(job.ranks),
        "network.rdma_error",
        VerdictKind.LINK_FAILED,
        "Got completion",
    )
    node = job.rank // LOCAL
    peer = (node + 1) % (job.ranks // LOCAL)
    clock = job.clock(node, job.ended_at)
    job.lines[node].append(
        f"{clock:%Y-%m-%dT%H:%M:%S} {job.host(node)}:{10000 + job.rank}:{20000 + job.rank}"
        f" [{job.rank % LOCAL}] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer"
        f" 10.0.{peer}.1<44206> with status=12 opcode=0 len=0 vendor err 129 (Send) localGid"
        f" ::ffff:10.0.{node}.1 remoteGids::ffff:10.0.{peer}.1 hca mlx5_3\n"
    )
    write_echoes(job, set(), "nccl")
    write_launchers(job)


def missing_node(job: Job, chance: random.Random) -> None:
    """One host never came: the store of rank 0 counts who joined, the others wait for a key."""
    node = chance.randrange(1, job.ranks // LOCAL)
    job.rank, job.kind = node * LOCAL, VerdictKind.RANK_MISSING
    for host in range(job.ranks // LOCAL):
        job.lines[host] = []
    for rank in range(job.ranks):
        if rank // LOCAL != node:
            words = (
                (
                    "Timed out after 601 seconds waiting for clients."
                    f" {job.ranks - LOCAL}/{job.ranks} clients joined."
                )
                if rank == 0
                else f"wait timeout after 600000ms, keys: /default_pg/0//cpu//0/{job.rank + rank % LOCAL}"
            )
            job.raise_at(
                rank,
                f"torch.distributed.DistStoreError: {words}",
                f"{SITE}/torch/distributed/rendezvous.py",
                187,
            )
    write_launchers(job, {node})


def disk_full(job: Job, chance: random.Random) -> None:
    """No room for the checkpoint that one rank writes."""
    job.rank, job.topic, job.word = chance.randrange(job.ranks), "disk.full", "No space left"
    job.raise_at(job.rank, "OSError: [Errno 28] No space left on device", "/home/ann/job/checkpoint.py", 44)
    write_echoes(job, {job.rank}, "timeout")
    write_launchers(job)


def loader_killed(job: Job, chance: random.Random) -> None:
    """A DataLoader worker died for want of shared memory."""
    job.rank, job.topic, job.word = chance.randrange(job.ranks), "host.shared_memory_small", "Bus error"
    job.raise_at(
        job.rank,
        "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that"
        " dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
    )
    write_echoes(job, {job.rank}, "gloo")
    write_launchers(job)


def time_limit(job: Job, chance: random.Random) -> None:
    """Slurm's time limit: every host's torchrun receives a signal to end."""
    job.kind, job.topic, job.word = VerdictKind.STOPPED, "slurm.time_limit", "TIME LIMIT"
    at = job.ended_at
    node = chance.randrange(job.ranks // LOCAL)
    job.lines[node].append(
        f"slurmstepd: error: *** STEP 4242.0 ON {job.host(node)} CANCELLED AT"
        f" {job.clock(node, at):%Y-%m-%dT%H:%M:%S} DUE TO TIME LIMIT ***\n"
    )
    for host in range(job.ranks // LOCAL):
        clock = job.clock(host, at + timedelta(seconds=1))
        job.lines[host].append(
            f"W{clock:%m%d %H:%M:%S.%f} {9000 + host} torch/distributed/elastic/agent/server/api.py:753]"
            " Received 15 death signal, shutting down workers\n"
        )
        job.lines[host].append(
            "torch.distributed.elastic.multiprocessing.api.SignalException: Process"
            f" {9000 + host} got signal: 15\n"
        )


def other_collective(job: Job, chance: random.Random) -> None:
    """One rank in another collective than all others."""
    job.rank, job.kind = chance.randrange(job.ranks), VerdictKind.RANKS_DIFFER
    write_echoes(job, {job.rank}, "timeout")
    job.log_at(
        job.rank,
        job.ended_at,
        f"[Rank {job.rank}] Watchdog caught collective operation timeout:"
        " WorkNCCL(SeqNum=2847, OpType=BROADCAST, NumelIn=4, NumelOut=4, Timeout(ms)=600000)"
        " ran for 600012 milliseconds before timing out.",
    )
    job.log_at(
        job.rank,
        job.ended_at,
        f"[PG ID 0 PG GUID 0(default_pg) Rank {job.rank}]  failure detected by watchdog at work sequence id:"
        " 2847 PG status: last enqueued work: 2850, last completed work: 2846",
        "ProcessGroupNCCL.cpp:2268",
    )
    job.exits[job.rank] = -6
    write_launchers(job)


KINDS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        user_exception,
        cuda_out_of_memory,
        lost_gpu,
        killed_by_host_memory,
        segmentation_fault,
        hung,
        network_link,
        missing_node,
        disk_full,
        loader_killed,
        time_limit,
        other_collective,
    )
}


def write_job(folder: Path, kind: str, ranks: int, size_bytes: int, seed: int = 0) -> Job:
    """Write the logs of one job; returns what must be reported for it."""
    chance = random.Random(f"{kind} {seed}")  # noqa: S311 - repeatable faults, no secrets
    nodes = ranks // LOCAL
    job = Job(
        nodes * LOCAL,
        [chance.uniform(-MAX_SKEW_SECONDS / 2, MAX_SKEW_SECONDS / 2) for _ in range(nodes)],
        [[] for _ in range(nodes)],
    )
    write_steps(job, size_bytes, max(4, min(200, size_bytes // (ranks * 200))))
    KINDS[kind](job, chance)
    for node in range(nodes):
        if job.lines[node]:
            (folder / f"node{node:03d}.log").write_text("".join(job.lines[node]))
        if node in job.kernel:
            (folder / f"dmesg-{job.host(node)}.log").write_text("".join(job.kernel[node]))
    return job


def is_right(job: Job, verdict: Verdict | None) -> bool:
    """Whether the verdict names the rank, the kind, the failure and the line."""
    if (
        verdict is None
        or verdict.kind is not job.kind
        or (job.topic and verdict.topic != job.topic)
        or job.word not in verdict.excerpt
    ):
        return False
    if job.rank is not None and job.rank not in verdict.ranks:
        return False
    return len(verdict.ranks) <= LOCAL


def main() -> None:
    """Print a line for each kind."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--megabytes", type=float, default=50)
    options = parser.parse_args()
    right = 0
    for kind in options.kinds or KINDS:
        with tempfile.TemporaryDirectory() as home:
            job = write_job(Path(home), kind, options.ranks, int(options.megabytes * 1e6))
            size = sum(path.stat().st_size for path in Path(home).iterdir())
            started, started_wall = time.process_time(), time.monotonic()
            answer = explain((home,))
            seconds, wall = time.process_time() - started, time.monotonic() - started_wall
        verdict = answer.verdict if isinstance(answer, LogExplanation) else None
        good = is_right(job, verdict)
        right += good
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{kind:24} {'right' if good else 'WRONG':6} {size / 1e6:5.1f} MB {seconds:5.1f} s of CPU"
            f" {wall:5.1f} s {peak:5.0f} MiB at most: {verdict.sentence[:90] if verdict else ''}",
            flush=True,
        )
    print(f"{right} of {len(options.kinds or KINDS)} right")


if __name__ == "__main__":
    main()
