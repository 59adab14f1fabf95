"""Commands on simulated machines: how a test starts gpudiag there, and what it may leave behind."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from gpudiag.errors import UsageError
from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.nvml.library import build_library
from gpudiag.simulate.scenario import Scenario
from gpudiag.simulate.session import Session, open_session
from tests.warm_start import run_python

TIME_LIMIT_SECONDS = 120  # proves that a command ends; no command needs a hundredth of it


@dataclass(frozen=True, slots=True)
class Done:
    """One finished command."""

    status: int
    out: str
    err: str
    seconds: float
    left: tuple[int, ...]  # processes of its session that outlived it

    @property
    def document(self) -> dict[str, Any]:
        """The JSON document on standard output."""
        document: dict[str, Any] = json.loads(self.out)
        return document


@contextmanager
def simulated_machine(scenario: str | Scenario) -> Iterator[Session]:
    """A session of that scenario; skips the test, loudly, where there is no compiler."""
    try:
        build_library()
    except UsageError as error:
        pytest.skip(f"simulated machines need a C compiler: {error.message}")
    with open_session(load_scenario(scenario) if isinstance(scenario, str) else scenario) as session:
        yield session


def run_on(session: Session, *argv: str, **environment: str) -> Done:
    """`gpudiag ARGV` on a simulated machine, in a process session of its own."""
    return run_in({**_without_colour(session.environment), **environment}, *argv)


def run_in(environment: Mapping[str, str], *argv: str) -> Done:
    """`gpudiag ARGV` with that environment, in a process session of its own."""
    started = monotonic()
    ended = run_python(("-m", "gpudiag", *argv), environment, TIME_LIMIT_SECONDS)
    seconds = monotonic() - started
    return Done(ended.status, ended.out, ended.err, seconds, processes_of(ended.pid))


def _without_colour(environment: Mapping[str, str]) -> dict[str, str]:
    """Whoever runs the tests may have set these."""
    return {name: value for name, value in environment.items() if name not in ("NO_COLOR", "FORCE_COLOR")}


def run_gpudiag(scenario: str, *argv: str, **environment: str) -> Done:
    """`gpudiag ARGV` on a fresh machine of that scenario."""
    with simulated_machine(scenario) as session:
        return run_on(session, *argv, **environment)


def processes_of(session_id: int) -> tuple[int, ...]:
    """The live processes of a process session: what a command left running."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if int(fields[3]) == session_id and fields[0] != "Z" and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return tuple(found)
