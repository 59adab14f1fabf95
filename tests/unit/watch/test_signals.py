"""A signal reaches the process that was shown, and no other."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from gpudiag.compat import UTC
from gpudiag.model.device import GpuProcess
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.probe.host.processes import read_process
from gpudiag.watch.signals import SIGNALS, send_signal

NONE = Missing(MissingReason.NOT_SUPPORTED)


@pytest.fixture
def sleeper():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"]) as process:
        yield process
        process.kill()


def shown(pid: int) -> GpuProcess:
    """The process as the view shows it."""
    started_at = datetime.fromtimestamp(read_process(pid)["started_at"], UTC)
    return GpuProcess(pid, "compute", NONE, True, "ann", "sleep", NONE, started_at)


def test_the_process_that_was_shown_gets_the_signal(sleeper):
    assert (
        send_signal(sleeper.pid, signal.SIGTERM, shown(sleeper.pid))
        == f"SIGTERM was sent to pid {sleeper.pid}"
    )
    assert sleeper.wait(60) == -signal.SIGTERM


def test_another_process_of_that_number_gets_none(sleeper):
    other = shown(sleeper.pid)
    earlier = replace(other, started_at=other.started_at - timedelta(hours=1))
    for process in (earlier, replace(other, started_at=NONE)):
        assert "nothing was sent" in send_signal(sleeper.pid, signal.SIGKILL, process)
    hidden = replace(other, visible=False)
    assert "outside this container" in send_signal(sleeper.pid, signal.SIGKILL, hidden)
    assert sleeper.poll() is None


def test_a_process_that_has_ended_is_reported(sleeper):
    process = shown(sleeper.pid)
    sleeper.kill()
    sleeper.wait(60)
    assert "has ended" in send_signal(sleeper.pid, signal.SIGTERM, process)


def test_a_launcher_gets_it_only_while_it_is_the_parent_of_what_was_shown():
    code = "import subprocess, sys; child = subprocess.Popen(['sleep', '300']); print(child.pid, flush=True); child.wait()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as launcher:
        child = int(launcher.stdout.readline())
        assert "another process" in send_signal(launcher.pid, signal.SIGSTOP, None, child=1)
        assert "another process" in send_signal(launcher.pid, signal.SIGSTOP, None, child=None)
        assert "was sent" in send_signal(launcher.pid, signal.SIGKILL, None, child=child)
        assert launcher.wait(60) == -signal.SIGKILL
        process = shown(child)
        assert "was sent" in send_signal(child, signal.SIGKILL, process)
        until = time.monotonic() + 60
        while "has ended" not in send_signal(child, signal.SIGTERM, process) and time.monotonic() < until:
            time.sleep(0.01)


def test_what_is_offered_begins_with_the_one_that_lets_a_job_save():
    assert next(iter(SIGNALS)) is signal.SIGTERM
    assert signal.SIGKILL in SIGNALS
