import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from tests.cli.simulated import TIME_LIMIT_SECONDS, processes_of, simulated_machine

HOME = b"\x1b[H"


def read_until(fd: int, wanted: bytes, times: int) -> bytes:
    """What came from a terminal until `wanted` was seen so often."""
    seen = b""
    deadline = time.monotonic() + TIME_LIMIT_SECONDS
    while seen.count(wanted) < times and time.monotonic() < deadline:
        seen += os.read(fd, 1 << 16)
    return seen


def test_on_a_terminal_the_view_is_drawn_in_place_until_ctrl_c() -> None:
    with simulated_machine("h100x8") as session:
        terminal, line = pty.openpty()
        command = [sys.executable, "-m", "gpudiag", "list", "--watch", "1"]
        with subprocess.Popen(
            command, env=dict(session.environment), stdout=line, stderr=line, start_new_session=True
        ) as watch:
            os.close(line)
            seen = read_until(terminal, b"GPU NAME", 2)
            watch.send_signal(signal.SIGINT)
            assert watch.wait(TIME_LIMIT_SECONDS) == 130
        os.close(terminal)
    assert seen.count(HOME) >= 2
    assert b"SIMULATED h100x8" in seen


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_listing_that_is_ended_while_a_gpu_hangs(number: int) -> None:
    with simulated_machine("h100x8+hang:6") as session:
        command = [sys.executable, "-m", "gpudiag", "list", "--deadline", "60"]
        with subprocess.Popen(
            command,
            env=dict(session.environment),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as listing:
            wait_for_children(listing.pid)
            listing.send_signal(number)
            listing.wait(TIME_LIMIT_SECONDS)
        assert wait_for_none(listing.pid) == ()


def wait_for_children(session_id: int) -> None:
    """Wait until the guard's child, which will hang, is there beside the listing."""
    deadline = time.monotonic() + TIME_LIMIT_SECONDS
    while len(processes_of(session_id)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(processes_of(session_id)) >= 2


def wait_for_none(session_id: int) -> tuple[int, ...]:
    """What is left of a process session after a second at most."""
    deadline = time.monotonic() + 1
    while processes_of(session_id) and time.monotonic() < deadline:
        time.sleep(0.01)
    return processes_of(session_id)
