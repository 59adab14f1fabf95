import os
from pathlib import Path

import pytest

from gpudiag.ranks.event_log import EventReader, EventWriter
from gpudiag.ranks.rank_run import EventKind


def test_events_are_read_once_and_in_order(tmp_path: Path) -> None:
    writer, reader = EventWriter(tmp_path / "events"), EventReader(tmp_path / "events", 3)
    writer.write(EventKind.EMITTED, {"size": 8})
    writer.write(EventKind.RESULT, {"sum": 6.0})
    assert [(event.rank, event.kind, event.data) for event in reader.read_new()] == [
        (3, EventKind.EMITTED, {"size": 8}),
        (3, EventKind.RESULT, {"sum": 6.0}),
    ]
    assert reader.read_new() == []
    reader.close()


def test_a_file_that_is_not_there_yet_has_no_events(tmp_path: Path) -> None:
    assert EventReader(tmp_path / "events", 0).read_new() == []


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_bytes(b'{"kind": "emitted", "at": 1.0,')
    reader = EventReader(path, 0)
    assert reader.read_new() == []
    with path.open("ab") as file:
        file.write(b' "data": {}}\n')
    assert [event.kind for event in reader.read_new()] == [EventKind.EMITTED]
    reader.close()


def test_what_json_does_not_have_is_refused_where_it_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        EventWriter(tmp_path / "events").write(EventKind.EMITTED, {"speed": float("nan")})


def test_closing_gives_the_descriptor_back(tmp_path: Path) -> None:
    EventWriter(tmp_path / "events").write(EventKind.EMITTED, {})
    before = set(os.listdir("/proc/self/fd"))
    reader = EventReader(tmp_path / "events", 0)
    reader.read_new()
    reader.close()
    reader.close()
    assert set(os.listdir("/proc/self/fd")) == before
