"""Where a run's files are when the disk does not take them, and what is said of a disk that hangs."""

import asyncio
import threading
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from gpudiag.compat import UTC
from gpudiag.errors import StoreError
from gpudiag.model.run import Run, RunState
from gpudiag.service import run_list
from gpudiag.service.run_list import RunMemory
from gpudiag.store.aside import StoreAside
from gpudiag.store.history import write_job
from gpudiag.store.state_folder import await_disk

RUN = Run(
    id="20261120-210405-0a1b2c",
    kind="preflight",
    state=RunState.QUEUED,
    plan={},
    gpus=(),
    lock=("host",),
    command="gpudiag preflight",
    deadline_seconds=60.0,
    requested_at=datetime(2026, 11, 20, tzinfo=UTC),
)


def full(_folder: Path) -> None:
    raise OSError(28, "No space left on device")


@pytest.fixture
def hung(monkeypatch):
    """A disk on which no call returns before the test is over."""
    over = threading.Event()

    def hang(*_) -> None:
        over.wait(60)

    monkeypatch.setattr(run_list, "_FOLDER_SECONDS", 0.05)
    monkeypatch.setattr(run_list, "_SECONDS", 0.05)
    yield hang
    over.set()


def test_a_folder_has_room_and_is_empty(tmp_path):
    memory = RunMemory(tmp_path, None, lambda: None)
    folder = memory.make_folder(RUN)
    assert (folder, list(folder.iterdir())) == (tmp_path / RUN.id, [])
    assert memory.folder_of(RUN) == folder
    assert memory.warning == ""
    memory.finish()
    assert folder.is_dir()


@pytest.mark.parametrize("disk", ["full", "hung", "no folder"])
def test_a_disk_that_takes_nothing_costs_the_memory_and_not_the_run(tmp_path, monkeypatch, hung, disk):
    place = tmp_path / "runs"
    if disk == "no folder":
        place.write_text("a file")
    else:
        monkeypatch.setattr(run_list, "make_roomy", full if disk == "full" else hung)
    memory = RunMemory(place, None, lambda: None)
    folder = memory.make_folder(RUN)
    assert tmp_path not in folder.parents
    assert memory.warning.startswith("runs are not remembered: ")
    (folder / "report.json").write_text("{}")
    assert memory.has_report(RUN)
    assert asyncio.run(memory.read(RUN, "report.json")) == b"{}"
    memory.finish()
    assert not folder.parent.exists()


def test_a_disk_that_has_room_again_is_used_again(tmp_path, monkeypatch):
    memory = RunMemory(tmp_path, None, lambda: None)
    with monkeypatch.context() as patched:
        patched.setattr(run_list, "make_roomy", full)
        memory.make_folder(RUN)
    assert memory.make_folder(replace(RUN, id="next")) == tmp_path / "next"
    assert memory.warning == ""
    memory.finish()


def test_a_report_on_a_disk_that_hangs_is_no_bug_of_ours(tmp_path, monkeypatch, hung):
    memory = RunMemory(tmp_path, None, lambda: None)
    monkeypatch.setattr(run_list, "read_file", lambda _path: hung() or b"")

    async def ask() -> None:
        # The loop waits for its threads when it ends: not here.
        monkeypatch.setattr(asyncio, "to_thread", lambda _work, _path: asyncio.sleep(60))
        await memory.read(RUN, "report.json")

    with pytest.raises(StoreError, match="the disk does not answer") as told:
        asyncio.run(ask())
    assert told.value.http_status == 503


def test_what_a_thread_does_in_time_is_given_and_its_failure_raised(hung):
    assert await_disk(30, lambda: 7) == 7
    with pytest.raises(OSError, match="No space"):
        await_disk(30, lambda: full(Path()))
    with pytest.raises(TimeoutError, match="the disk does not answer"):
        await_disk(0.05, hung)


def test_what_others_have_stored_is_read_where_the_store_has_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(run_list, "_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(run_list, "_SECONDS", 0.1)  # there is no picture of the machine to wait for
    store = StoreAside(str(tmp_path / "history.db"))
    memory = RunMemory(tmp_path, store, lambda: None)
    job = replace(RUN, kind="run", state=RunState.SUCCEEDED, outcome="pass", has_report=True)

    def read_again() -> object:
        memory.loaded = None
        memory.keep_house()
        assert memory._disk.wait(60)
        return memory.loaded

    try:
        assert read_again() == []
        assert write_job(str(tmp_path / "history.db"), job, "{}", 90.0) == ""
        assert read_again() == [(job, "gpudiag run")]
        assert read_again() is None  # nothing has changed
        assert asyncio.run(memory.read_report(job)) == b"{}"
        assert asyncio.run(memory.read_report(replace(job, id="of-another"))) is None
    finally:
        memory.finish()
        store.close()
