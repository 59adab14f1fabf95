"""A history that is partly there, or not at all: rates after runs of some checks, and what is told of a store
that fails.
"""

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.session import open_session
from tests.scenarios.kinds.trial import Kind, Trial, TrialRow
from tests.warm_start import run_python
from tools.write_detection import Row, names_of

_LIMIT_SECONDS = 120
_TRIES = 4
_STORE = "history.db"
# The checks of level instant that cannot be run without what earlier runs left, on every machine below.
_NEEDING = ("clocks.throttle_time", "machine.settings")


def _preflight(machine: Path, state: Path, *flags: str) -> dict[str, Any]:
    """The report of one preflight at level instant.

    Its exit status under `status`, what it prints under `text`. Level instant waits 1.5 s for the history: on
    a machine whose processors are busy elsewhere it is asked again.
    """
    for _ in range(_TRIES):
        with open_session(load_scenario(os.fspath(machine))) as session:
            words = (
                "-m",
                "gpudiag",
                "preflight",
                "--level",
                "instant",
                "--report",
                f"json={state}.json",
                *flags,
            )
            environment = {**session.environment, "GPUDIAG_STATE_DIR": os.fspath(state)}
            done = run_python(words, environment, _LIMIT_SECONDS)
        if "in time" not in done.err:
            break
    document: dict[str, Any] = json.loads(Path(f"{state}.json").read_text())
    return {**document, "status": done.status, "text": done.out}


@dataclass(frozen=True, slots=True)
class AfterAnotherRun(Trial):
    """Two runs with the trial's flags: the machine is well in the first, and differs in the second."""

    def run(self) -> TrialRow:
        """What the second run finds."""
        with tempfile.TemporaryDirectory() as folder:
            machine, state = Path(folder, f"{self.machine}.toml"), Path(folder, "state")
            machine.write_text(f'base = "{self.machine}"\n')
            _preflight(machine, state, *self.flags)
            machine.write_text(
                f'base = "{self.machine}"\n'
                f"faults = {json.dumps(self.faults.split('+') if self.faults else [])}\n"
            )
            report = _preflight(machine, state, *self.flags)
            return TrialRow(
                self,
                Row(
                    f"{self.machine}+{self.faults}",
                    self.finds,
                    report["verdict"],
                    _names(report),
                    _blocks(report),
                ),
            )


@dataclass(frozen=True, slots=True)
class WithoutHistory(Trial):
    """A run whose store `spoil` has made unreadable.

    "history unread" is found where the report says which checks missed it.
    """

    spoil: Callable[[Path], object] = Path.touch

    def run(self) -> TrialRow:
        """What is found, and whether the report names the checks and `--strict` counts them."""
        with tempfile.TemporaryDirectory() as folder:
            machine, state = Path(folder, f"{self.machine}.toml"), Path(folder, "state")
            machine.write_text(f'base = "{self.machine}"\n')
            state.mkdir()
            self.spoil(state / _STORE)
            report = _preflight(machine, state, "--strict", "--verbose", *self.flags)
            told = "not run without the history" in " ".join(report["text"].split())
            named = all(check in report["text"] for check in _NEEDING)
            found = ("history unread",) if told and named and report["status"] == 3 else ()
            return TrialRow(
                self,
                Row(self.machine, self.finds, report["verdict"], (*_names(report), *found), _blocks(report)),
            )


def _names(report: dict[str, Any]) -> tuple[str, ...]:
    return names_of(finding for result in report["results"] for finding in result["findings"])


def _blocks(report: dict[str, Any]) -> bool:
    return any(finding["blocks_jobs"] for result in report["results"] for finding in result["findings"])


def _garbage(store: Path) -> None:
    store.write_bytes(b"no database" * 1000)


def _fifo(store: Path) -> None:
    os.mkfifo(store)


ONLY = ("--only", "ecc,pcie")
SKIP = ("--skip", "host")
UNREAD = ("history unread",)

KINDS = (
    Kind(
        "a rate after runs of some checks",
        (
            *(
                AfterAnotherRun("corrected errors, --only", machine, ("ecc.corrected_rate 0",),
                    "ecc-corrected:0", flags=ONLY)
                for machine in ("h100x8", "gb200x4", "v100x8", "l40sx8")
            ),
            *(
                AfterAnotherRun("corrected errors, --skip", machine, ("ecc.corrected_rate 1",),
                    "ecc-corrected:1", flags=SKIP)
                for machine in ("a100x16", "b200x8")
            ),
            *(AfterAnotherRun("nothing rose", machine, flags=ONLY) for machine in ("h100x8", "gb300x4",
                "t4x1")),
            AfterAnotherRun("busy now", "a100x8", (), "busy:1", flags=SKIP),
        ),
    ),
    Kind(
        "a history that cannot be read",
        (
            *(WithoutHistory("a store that is no database", machine, UNREAD, spoil=_garbage)
              for machine in ("h100x8", "gb200x4")),
            *(WithoutHistory("a store that is a folder", machine, UNREAD, spoil=Path.mkdir)
              for machine in ("v100x8", "rtx4090x2")),
            *(WithoutHistory("a store that never answers", machine, UNREAD, spoil=_fifo)
              for machine in ("a100x8", "l40sx8")),
            *(WithoutHistory("a new store", machine, spoil=lambda store: None) for machine in ("h100x8",
                "gb200x4", "a6000x4")),
        ),
    ),
)  # fmt: skip
