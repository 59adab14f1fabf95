"""What a full disk refuses is written when there is room again."""

import errno
import math
from dataclasses import replace
from datetime import datetime

from gpudiag.compat import UTC
from gpudiag.model.run import Run, RunState
from gpudiag.model.service import TimelineEntry, TimelineKind
from gpudiag.sampler.spill import Spill
from gpudiag.service import run_list
from gpudiag.service.readings import Readings
from gpudiag.service.run_list import RunMemory
from tests.unit.model.nouns import make_device

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
PATIENT_SECONDS = 90.0
FULL = OSError(errno.ENOSPC, "No space left on device")


def refuse(*_):
    raise FULL


def write(readings):
    """Hand over what waits, as if its time had come, and wait for the disk."""
    readings._journal_at = -math.inf
    readings.keep_house()
    assert readings._disk.wait(PATIENT_SECONDS)


def test_readings_and_events_of_the_time_without_room_are_written_later(tmp_path, monkeypatch):
    readings = Readings(tmp_path)
    device = replace(make_device(), power_draw_watts=650.0)
    at = datetime.now(UTC).timestamp()
    with monkeypatch.context() as full:
        for method in ("append", "append_timeline"):
            full.setattr(Spill, method, refuse)
        readings.add(device, at - 20)
        readings.note(TimelineEntry(1, NOW, TimelineKind.RUN, "a run ended"))
        write(readings)
        assert "No space left" in readings.warning
    readings.add(device, at - 10)
    write(readings)
    assert readings.warning == ""
    later = Readings(tmp_path)
    assert [entry.message for entry in later.timeline().entries] == ["a run ended"]
    values = later.series(at - 30, at, 1.0, ("power_draw_watts",)).devices[0].series["power_draw_watts"]
    assert len([value for value in values if value is not None]) == 2


class Records:
    """A store that may be full."""

    def __init__(self) -> None:
        self.full = True
        self.saved = []

    def save_run(self, _machine, _service, run) -> None:
        if self.full:
            raise FULL
        self.saved.append(run.state)


def test_of_a_run_the_newest_state_is_stored_once_there_is_room(tmp_path, monkeypatch):
    monkeypatch.setattr(run_list, "_AGAIN_SECONDS", -1.0)
    records = Records()
    memory = RunMemory(tmp_path, records, lambda: None)
    for state in (RunState.RUNNING, RunState.SUCCEEDED):
        memory.save(Run("r1", "preflight", state, {}, (), ("host",), "gpudiag preflight", 60.0, NOW))
    assert memory._disk.wait(PATIENT_SECONDS)
    assert "No space left" in memory.warning
    records.full = False
    memory.keep_house()
    memory.finish()
    assert records.saved == [RunState.SUCCEEDED]
    assert memory.warning == ""
