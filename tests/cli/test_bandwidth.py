"""The command line of `gpudiag bandwidth`, without a measurement."""

import io
import sys

import pytest

from gpudiag.cli.main import main
from gpudiag.errors import ExitStatus
from gpudiag.model.run import EventKind, RunEvent
from tests.unit.render.reports import make_report, make_result


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class MeasuringNothing:
    """In the place of `BandwidthRun`: it tells a stage, and has a report."""

    def __init__(self, plan, surroundings) -> None:
        self._listener = surroundings.listener

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        pass

    def run(self):
        self._listener(RunEvent(EventKind.STAGE, 0.0, 0, 0, stage="judge"))
        return make_report(make_result("active.ranks"))

    def remember(self) -> str:
        return ""


def test_the_progress_is_gone_before_the_report_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("gpudiag.runs.bandwidth.BandwidthRun", MeasuringNothing)
    monkeypatch.setattr("gpudiag.runs.interpreters.absent_modules", lambda modules, python: ())
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["bandwidth"]) == ExitStatus.PASS
    before, report = terminal.getvalue().split("\r\x1b[KPASS ")
    assert "judging" in before
    assert "\x1b" not in report
