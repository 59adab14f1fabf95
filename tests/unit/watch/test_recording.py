"""What was watched comes back as it was, from a whole file and from one that was cut off."""

import asyncio
import gzip
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from gpudiag.errors import UsageError
from gpudiag.watch.recording import Recorder, ReplayFeed, read_recording
from tests.unit.watch.frames import STORY, live_of


def record(path: Path, ticks: int = 30) -> list[float]:
    """A recording of so many ticks, two seconds apart, whose headline is their number; the times."""
    live, findings = live_of(STORY)
    recorder = Recorder(path)
    times = []
    recorder.write("h100-1", "findings", findings, live.at.timestamp())
    for tick in range(ticks):
        at = live.at + timedelta(seconds=2 * tick)
        times.append(at.timestamp())
        recorder.write("h100-1", "live", replace(live, at=at, headline=f"tick {tick}"), at.timestamp())
    recorder.close()
    return times


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_recording_shows_what_was_seen(tmp_path: Path, name: str):
    record(tmp_path / name)
    feed = ReplayFeed(read_recording(tmp_path / name))
    frame = feed.frames[0]
    assert frame.problem is None, frame.problem
    live, findings = live_of(STORY)
    assert (frame.name, frame.live.headline, frame.is_here) == ("h100-1", "tick 0", False)
    assert frame.findings == findings.findings
    assert frame.live.devices == live.devices
    assert feed.note == "REPLAY 0:00 of 0:58"
    feed.seek(10)
    assert feed.frames[0].live.headline == "tick 5"
    key = next(iter(feed.frames[0].history))
    assert len(feed.frames[0].history[key]["utilization_percent"]) == 6
    feed.seek(-6)
    assert feed.frames[0].live.headline == "tick 2"
    assert len(feed.frames[0].history[key]["utilization_percent"]) == 3
    feed.seek(1e9)
    assert feed.frames[0].live.headline == "tick 29"
    feed.change_speed(faster=True)
    assert feed.note.endswith("x2")


def test_a_file_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path: Path):
    for name in ("a.jsonl", "a.jsonl.gz"):
        record(tmp_path / name, ticks=40)
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) * 2 // 3])
        assert 1 <= len(read_recording(tmp_path / name)) < 41


def test_what_is_no_recording_is_refused_in_a_sentence(tmp_path: Path):
    (tmp_path / "text").write_text("hello\n")
    (tmp_path / "empty").write_text("")
    (tmp_path / "no.gz").write_text("hello\n")
    for name, words in {
        "text": "no recording",
        "empty": "is empty",
        "absent": "No such file",
        "no.gz": "--replay",
    }.items():
        with pytest.raises(UsageError, match=words):
            read_recording(tmp_path / name)


def test_a_recording_is_not_written_over(tmp_path: Path):
    (tmp_path / "a").write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        Recorder(tmp_path / "a")
    with pytest.raises(UsageError, match="cannot be written"):
        Recorder(tmp_path / "absent" / "a")
    assert (tmp_path / "a").read_text() == "mine"


def test_a_full_disk_ends_the_recording_and_not_the_view(tmp_path: Path):
    recorder = Recorder(tmp_path / "a")
    recorder._file.close()
    recorder._file = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115 - the recorder closes it
    live, _ = live_of(STORY)
    recorder.write("a", "live", live, 1.0)
    assert recorder.note == "recording ended: No space left on device"
    recorder.write("a", "live", live, 2.0)
    recorder.close()


def test_a_line_of_another_version_is_named_and_the_rest_is_shown(tmp_path: Path):
    record(tmp_path / "a", ticks=2)
    lines = (tmp_path / "a").read_text().splitlines()
    (tmp_path / "a").write_text(
        "\n".join([lines[1].replace("gpudiag.live/1", "gpudiag.live/9"), lines[2]]) + "\n"
    )
    feed = ReplayFeed(read_recording(tmp_path / "a"))
    assert "cannot be read" in feed.frames[0].problem
    feed.seek(100)
    assert feed.frames[0].problem is None


def test_a_replay_goes_on_by_itself_and_stands_still_while_it_is_held(tmp_path: Path):
    record(tmp_path / "a")
    feed = ReplayFeed(read_recording(tmp_path / "a"), speed=30.0)
    moved: list[float] = []

    async def play() -> None:
        task = asyncio.create_task(feed.run(lambda: moved.append(feed.clock)))
        while not moved:
            await asyncio.sleep(0.01)
        feed.hold(is_held=True)
        before = len(moved)
        await asyncio.sleep(0.6)
        assert len(moved) == before
        feed.hold(is_held=False)
        while feed.frames[0].live.headline != "tick 29":
            await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(play())
    assert moved == sorted(moved)


def test_a_packed_recording_is_gzip(tmp_path: Path):
    record(tmp_path / "a.gz")
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()).startswith(b'{"at":')
