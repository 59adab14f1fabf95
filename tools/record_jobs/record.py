"""Records what torchrun prints when a job goes wrong: runs of train.py, two agents as two nodes.

    python -m tools.record_jobs.record FOLDER [CASE...]

Each case becomes a folder with the output of each node (node0.log, node1.log) and torchrun's own log folder
where the case asks for it. Names of this machine, its paths and its addresses are replaced by names of a
made-up cluster.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SCRIPT = Path(__file__).with_name("train.py")
LIMIT_SECONDS = 150


@dataclass(frozen=True)
class Case:
    """One job: how it goes wrong, on which rank, with which options of torchrun."""

    name: str
    mode: str
    bad: int = 1
    nodes: int = 2
    ranks_per_node: int = 2
    options: str = ""
    log_dir: bool = False
    environment: str = ""  # NAME=VALUE, by spaces
    started: int | None = None  # nodes that are started, where it is not all
    launcher: str = "torchrun"


CASES = (
    Case("exception", "exception", 3),
    Case("exception_one_node", "exception", 2, nodes=1, ranks_per_node=4),
    Case("exception_recorded", "exception", 2, log_dir=True, environment="RECORD=1", options="--redirects 3"),
    Case("exception_tee", "exception", 1, nodes=1, ranks_per_node=4, log_dir=True, options="--tee 3"),
    Case("exception_restarted", "exception", 3, log_dir=True, options="--max-restarts 1 --redirects 3"),
    Case("before_init", "before_init", 2),
    Case("all_raise", "all_raise", environment="RECORD=1"),
    Case("out_of_memory", "out_of_memory", 3),
    Case("kill", "kill", 2),
    Case("kill_one_node", "kill", 1, nodes=1, ranks_per_node=3),
    Case("segfault", "segfault", 1),
    Case("hang", "hang", 2, environment="EVERYONE=1"),
    Case(
        "hang_tee",
        "hang",
        1,
        nodes=1,
        ranks_per_node=4,
        log_dir=True,
        options="--tee 3",
        environment="EVERYONE=1",
    ),
    Case("swallowed", "swallowed", 3, log_dir=True, options="--redirects 3", environment="EVERYONE=1"),
    Case("other_collective", "other_collective", 1),
    Case("other_size", "other_size", 3),
    Case("other_size_detail", "other_size", 2, environment="TORCH_DISTRIBUTED_DEBUG=DETAIL"),
    Case("other_collective_detail", "other_collective", 1, environment="TORCH_DISTRIBUTED_DEBUG=DETAIL"),
    Case("monitored", "monitored", 1, nodes=1, ranks_per_node=3),
    Case("leave", "leave", 3),
    Case("agent_killed", "agent_killed", 0),
    Case("agent_killed_victim", "agent_killed", 2),
    Case("agent_stopped", "agent_stopped", 2),
    Case("agent_interrupted", "agent_interrupted", 1, nodes=1, ranks_per_node=3),
    Case("worker_killed", "worker_killed", 2),
    Case("bad_row", "bad_row", 3, log_dir=True, environment="RECORD=1", options="--redirects 3"),
    Case("disk_full", "disk_full", 0),
    Case("node_missing", "healthy", nodes=2, started=1, options="--rdzv-conf join_timeout=15,timeout=15"),
    Case("rank_missing", "healthy", nodes=1, ranks_per_node=3, started=2, launcher="env"),
    Case("healthy", "healthy"),
    Case("healthy_warnings", "warnings", log_dir=True, options="--tee 3", environment="EVERYONE=1 STEPS=12"),
)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def commands(case: Case, folder: Path, port: int) -> list[tuple[list[str], dict[str, str]]]:
    """The command and environment of each program of a job."""
    shared = {
        **os.environ,
        "MODE": case.mode,
        "BAD": str(case.bad),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        **dict(one.split("=", 1) for one in case.environment.split()),
    }
    if case.launcher == "env":
        each = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(case.ranks_per_node)}
        return [
            ([sys.executable, str(SCRIPT)], {**shared, **each, "RANK": str(rank)})
            for rank in range(case.started or 0)
        ]
    made = []
    for node in range(case.nodes if case.started is None else case.started):
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            str(case.ranks_per_node),
            "--nnodes",
            str(case.nodes),
        ]
        command += [
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            f"127.0.0.1:{port}",
            "--rdzv-id",
            "job42",
            "--local-addr",
            "127.0.0.1",
            *case.options.split(),
        ]
        command += ["--log-dir", str(folder / f"node{node}_logs")] if case.log_dir else []
        made.append(([*command, str(SCRIPT)], shared))
    return made


def record(case: Case, folder: Path) -> None:
    """Run a job and keep what it printed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as home:
        logs = Path(home)
        running = []
        for place, (command, environment) in enumerate(commands(case, logs, free_port())):
            out = (logs / f"node{place}.log").open("wb")
            running.append(
                subprocess.Popen(
                    command,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    cwd=SCRIPT.parent,
                    start_new_session=True,
                )
            )
        ended: list[int | None] = []
        for program in running:
            try:
                ended.append(program.wait(LIMIT_SECONDS))
            except subprocess.TimeoutExpired:
                ended.append(None)
        for program in running:
            end_group(program.pid)
        for path in sorted(logs.rglob("*")):
            if path.is_file() and path.stat().st_size:
                target = folder / path.relative_to(logs)
                target.parent.mkdir(parents=True, exist_ok=True)
                node = re.match(r"node(\d+)", path.relative_to(logs).parts[0])
                target.write_text(
                    cleaned(path.read_text(errors="replace"), int(node[1]) if node else 0, home)
                )
        print(case.name, "exit", ended, flush=True)


def end_group(pid: int) -> None:
    """End a launcher and what it started, where that still runs."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def cleaned(text: str, node: int, home: str) -> str:
    """The text with names of a made-up cluster."""
    text = text.replace(str(SCRIPT), "/home/ann/job/train.py").replace(home, "/scratch/job42")
    text = re.sub(
        r"/[\w./-]+/lib/python3\.(\d+)/site-packages", r"/opt/env/lib/python3.\1/site-packages", text
    )
    text = re.sub(r"/[\w./-]+/lib/python3\.(\d+)/(?!site-packages)", r"/usr/lib/python3.\1/", text)
    text = text.replace(sys.executable, "/opt/env/bin/python").replace(
        socket.gethostname(), f"gpu-{node + 1:02d}"
    )
    text = re.sub(re.escape(sys.prefix) + r"[\w./-]*", "/opt/env/bin/python", text)
    text = text.replace("localhost", f"gpu-{node + 1:02d}")
    return re.sub(r"(?<![\d.])127\.0\.0\.1(?!\d)", "10.1.0.1", text)


def main() -> None:
    """Record the cases that are named, or all."""
    wanted = sys.argv[2:]
    for case in CASES:
        if not wanted or case.name in wanted:
            record(case, Path(sys.argv[1]) / case.name)


if __name__ == "__main__":
    main()
