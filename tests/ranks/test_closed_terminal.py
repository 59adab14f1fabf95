"""A terminal that is closed while ranks run: the exit status says SIGHUP, and nothing is left."""

import os
import pty
import signal
import time
from pathlib import Path

from tests.ranks.nccl_test_command import GPUDIAG, LIMIT_SECONDS

_SIGHUP_STATUS = 129


def test_a_closed_terminal_is_no_failed_test(tmp_path: Path) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    flags = ("--nproc", "2", "--max-bytes", "1K", "--iterations", "100000")
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"XDG_RUNTIME_DIR": str(runtime), "PYTHONPATH": str(Path(__file__).parents[2])}
        os.execv(GPUDIAG[0], [*GPUDIAG, *flags])
    shown = b""
    while b"measure" not in shown:
        shown += os.read(terminal, 4096)
    os.close(terminal)
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    assert os.waitstatus_to_exitcode(status) == _SIGHUP_STATUS
    assert list((runtime / "gpudiag").iterdir()) == []
