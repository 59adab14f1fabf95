"""What the leading agent costs with many ranks: its processor time, and its longest round, for 8 to 2,000 ranks.

    python -m benchmarks.side_channel_scale [RANKS ...]

Every other rank is a connection from a second process that reports as an agent does. The leader is the product's own
code: it receives, makes the views, and passes its state to those that could lead after it. A round that takes longer than
`watchdog.SILENT_SECONDS` would make it look dead.
"""

import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpudiag.linux.namespaces import read_machine
from gpudiag.ranks.agents import messages
from gpudiag.ranks.agents.link import line_of, wait_readable
from gpudiag.ranks.agents.membership import report_seconds
from gpudiag.ranks.agents.remote import RemoteRanks
from gpudiag.ranks.diagnosis.view import Life, RankView

RANKS = (8, 64, 256, 1000, 2000)
SECONDS = 5.0
KEY = "side channel"


def report(path: str, ranks: int, period_seconds: float) -> None:
    """In the second process: be the agents of all ranks but the first."""
    machine = read_machine()
    links = []
    selector = selectors.DefaultSelector()
    for rank in range(1, ranks):
        link = socket.socket(socket.AF_UNIX)
        link.connect(path)
        location = messages.AgentLocation(os.getpid(), machine)
        link.sendall(line_of(messages.RunKey(KEY)))
        link.sendall(line_of(messages.Hello(rank, location, None, None, f"n{rank // 8}", ranks)))
        link.setblocking(False)
        selector.register(link, selectors.EVENT_READ)
        view = RankView(rank=rank, local_rank=rank % 8, host=f"n{rank // 8}", life=Life.ALIVE, pid=4711)
        links.append((link, line_of(messages.RankState(view, ()))))
    due = time.monotonic()
    while True:
        for link, state in links:
            try:
                link.send(state)
            except BlockingIOError:
                continue
        due += period_seconds
        while (left := due - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                try:
                    key.fileobj.recv(1 << 20)  # type: ignore[union-attr]
                except BlockingIOError:
                    continue


def lead(ranks: int) -> tuple[float, float, int]:
    """The leader's processor time a second, its longest round in seconds, and how many ranks reached it."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "agent.sock")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(4096)
        listener.setblocking(False)
        own = messages.AgentLocation(os.getpid(), read_machine())
        remote = RemoteRanks([listener], KEY, ranks, 0, own, "n0")
        command = [sys.executable, "-m", "benchmarks.side_channel_scale", "--report", path, str(ranks)]
        with subprocess.Popen(command) as others:
            try:
                return _measure(remote)
            finally:
                others.kill()
                remote.close()
                listener.close()


def _measure(remote: RemoteRanks) -> tuple[float, float, int]:
    until = time.monotonic() + 60
    while time.monotonic() < until and any(view.pid is None for view in remote.views()):
        wait_readable(remote.filenos(), 0.1)
        remote.poll()
    began, used, longest = time.monotonic(), time.process_time(), 0.0
    while time.monotonic() - began < SECONDS:
        wait_readable(remote.filenos(), 0.1)
        start = time.monotonic()
        remote.poll()
        remote.send_views(remote.views())
        longest = max(longest, time.monotonic() - start)
    share = (time.process_time() - used) / (time.monotonic() - began)
    return share, longest, sum(view.pid is not None for view in remote.views())


def main() -> None:
    """Print one row for each number of ranks."""
    if sys.argv[1:2] == ["--report"]:
        report(sys.argv[2], int(sys.argv[3]), report_seconds(int(sys.argv[3])))
        return
    print(f"{'ranks':>6}  {'reached':>8}  {'processor':>9}  {'longest round':>13}")
    for ranks in map(int, sys.argv[1:] or map(str, RANKS)):
        share, longest, reached = lead(ranks)
        print(f"{ranks:6}  {reached:8}  {share:8.0%}  {longest:11.3f} s", flush=True)


if __name__ == "__main__":
    main()
