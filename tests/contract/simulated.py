"""Snapshots of simulated machines, each taken by a program started on the machine."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpudiag.errors import UsageError
from gpudiag.model.device import Snapshot
from gpudiag.model.documents import loads
from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.nvml.library import build_library
from gpudiag.simulate.session import open_session
from tests.warm_start import run_python

REPOSITORY = Path(__file__).parents[2]
ALL_SOURCES = ("nvml", "gputil", "torch")
_PROGRAM = """
import sys
from gpudiag.model.codec import dumps
from gpudiag.probe.inventory import take_snapshot
print(dumps(take_snapshot(sys.argv[1].split(","), float(sys.argv[2]), patient=sys.argv[3] == "patient")))
"""


@dataclass(frozen=True)
class Taken:
    """A snapshot, how long its program ran, and the processes that were left when it had ended."""

    snapshot: Snapshot
    seconds: float
    left: tuple[str, ...]
    calls: dict[str, int]


def take(spec, sources=ALL_SOURCES, deadline=5.0, change=None, *, patient=True):
    """The snapshot that a program on that machine takes; `change` turns the scenario into another first."""
    with _machine(spec, change) as session:
        before = time.monotonic()
        done = run_python(_words(sources, deadline, patient), _environment(session), 60)
        seconds = time.monotonic() - before
        assert (done.status, done.err) == (0, "")
        left = _left_behind(str(session.folder))
        _end_those_with(str(session.folder))
        return Taken(loads(done.out), seconds, left, session.call_counts())


def kill_while_asking(spec, sources=ALL_SOURCES):
    """The processes that are left of a program that is killed (-9) while it waits for a GPU."""
    with _machine(spec) as session:
        mark = str(session.folder)
        with subprocess.Popen(
            [sys.executable, *_words(sources, 60.0)], env=_environment(session), stdout=subprocess.DEVNULL
        ) as asking:
            wanted = 1 + len(sources)  # the program itself, and at least one child for each source but torch
            until = time.monotonic() + 20
            while len(_processes_with(mark)) < wanted and time.monotonic() < until:
                time.sleep(0.02)
            assert len(_processes_with(mark)) >= min(wanted, 2)
            asking.kill()
        return _left_behind(mark)


@contextmanager
def _machine(spec, change=None):
    """A session of that scenario; skips the test, loudly, where there is no compiler for its library."""
    try:
        build_library()
    except UsageError as error:
        pytest.skip(f"simulated machines need a C compiler: {error.message}")
    scenario = load_scenario(spec)
    with open_session(change(scenario) if change else scenario) as session:
        yield session


def _words(sources, deadline, patient=True):
    return ["-c", _PROGRAM, ",".join(sources), str(deadline), "patient" if patient else "not"]


def _environment(session):
    return {**session.environment, "PYTHONPATH": str(REPOSITORY)}


def _left_behind(mark, patience_seconds=5.0):
    """The command lines of the processes whose environment names the session, once killed ones are gone."""
    until = time.monotonic() + patience_seconds
    while (found := _processes_with(mark)) and time.monotonic() < until:
        time.sleep(0.02)
    return found


def _end_those_with(mark):
    """End what is left of the session on purpose, and would end by itself later."""
    for pid in _pids_with(mark):
        os.kill(pid, signal.SIGKILL)


def _processes_with(mark):
    found = []
    for pid in _pids_with(mark):
        with suppress(OSError):  # it has ended since
            found.append(Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " "))
    return tuple(found)


def _pids_with(mark):
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            try:
                if mark.encode() in Path(f"/proc/{name}/environ").read_bytes():
                    found.append(int(name))
            except OSError:
                continue
    return tuple(found)
