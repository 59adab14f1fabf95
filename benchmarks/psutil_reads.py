"""What reading processes and interfaces costs by our own files, against psutil.

    python benchmarks/psutil_reads.py [--processes 300]

psutil comes with the extra `benchmarks`. Processor time on this machine, beside as many processes that sleep, of which
eight are children of a launcher as ranks are; medians, in turns.
"""

import argparse
import importlib
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpudiag.probe.host.network import read_interfaces
from gpudiag.probe.host.processes import read_process as describe_process
from gpudiag.ranks.agents.discovery import Siblings
from gpudiag.ranks.agents.network import find_listener
from gpudiag.ranks.process import read_process

_ROUNDS, _IMPORTS, _RANKS = 40, 7, 8
_SLEEP = "import subprocess, sys, time\n" + (
    "for rank in range({}): subprocess.Popen(['sleep', '600'], env={{'RANK': str(rank), 'PATH': '/usr/bin:/bin'}})\n"
    "print('ready', flush=True); sys.stdin.read()\nimport os, signal; os.killpg(0, signal.SIGKILL)"
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=300)
    options = parser.parse_args()
    psutil = importlib.import_module("psutil")  # by name: it need not be installed where types are checked
    print(
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}, psutil {psutil.__version__}"
    )
    print(f"import: {_import_milliseconds():.1f} ms of a processor, {_import_kib():,} KiB resident")
    launchers = [_start_children(_RANKS), _start_children(max(0, options.processes - _RANKS))]
    listening = socket.create_server(("127.0.0.1", 0))
    try:
        for what, (ours, theirs) in make_ways(psutil, launchers[0].pid, listening.getsockname()[1]).items():
            mine, other = _measure(ours, theirs)
            print(
                f"{what}: ours {mine:.3f} ms, psutil {other:.3f} ms: {other / mine:.1f} of ours", flush=True
            )
    finally:
        listening.close()
        for launcher in launchers:
            launcher.communicate()


def make_ways(
    psutil: Any, launcher_pid: int, port: int
) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Each reading by our own code and by psutil."""
    me = os.getpid()

    def state() -> tuple[Any, ...]:
        process = psutil.Process(me)
        with process.oneshot():
            return process.status(), process.ppid(), process.cpu_times(), process.create_time()

    def description() -> tuple[Any, ...]:
        process = psutil.Process(me)
        with process.oneshot():
            return process.username(), process.cmdline(), process.status(), process.create_time()

    def gone() -> set[int]:
        children = psutil.Process(launcher_pid).children()
        return set(range(_RANKS)) - {int(child.environ().get("RANK", "-1")) for child in children}

    def listener() -> list[int]:
        found = psutil.net_connections("tcp")
        return [each.pid for each in found if each.status == psutil.CONN_LISTEN and each.laddr.port == port]

    return {
        "state of a rank": (lambda: read_process(me), state),
        "description of a process on a GPU": (lambda: describe_process(me), description),
        "ranks that a launcher has lost": (Siblings(launcher_pid, range(_RANKS)).gone, gone),
        "who listens at a port": (lambda: find_listener(port), listener),
        "interfaces": (read_interfaces, lambda: (psutil.net_if_addrs(), psutil.net_if_stats())),
    }


def _measure(*ways: Callable[[], Any]) -> list[float]:
    spent: list[list[float]] = [[] for _ in ways]
    for _ in range(_ROUNDS):
        for way, times in zip(ways, spent, strict=True):
            began = time.process_time()
            way()
            times.append(1000 * (time.process_time() - began))
    return [statistics.median(times) for times in spent]


def _start_children(count: int) -> subprocess.Popen[bytes]:
    launcher = subprocess.Popen(
        [sys.executable, "-c", _SLEEP.format(count)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert launcher.stdout is not None  # noqa: S101 - asked for above
    launcher.stdout.readline()
    return launcher


def _import_milliseconds() -> float:
    """Beyond what a probe's process has loaded by then."""
    program = "import time; began = time.process_time(); import {}; print(time.process_time() - began)"
    printed = [
        subprocess.check_output(
            [sys.executable, "-c", f"import os, re, socket, struct; {program.format('psutil')}"]
        )
        for _ in range(_IMPORTS)
    ]
    return 1000 * statistics.median(map(float, printed))


def _import_kib() -> int:
    program = (
        "import os, re, socket, struct\n"
        "def resident(): return int(open('/proc/self/statm').read().split()[1]) * os.sysconf('SC_PAGE_SIZE') // 1024\n"
        "before = resident(); import psutil; print(resident() - before)"
    )
    return int(subprocess.check_output([sys.executable, "-c", program]))


if __name__ == "__main__":
    main()
