import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from gpudiag.compat import UTC
from gpudiag.errors import StoreError, UsageError
from gpudiag.model.history import Sample
from gpudiag.model.kernel_log import KernelEvent, KernelEventKind
from gpudiag.model.reading import Missing
from gpudiag.store import database as store_module
from gpudiag.store.database import NewRun, Store, parse_store_url
from gpudiag.store.history import (
    HistoryKeeper,
    RunFacts,
    machine_key,
    read_history,
)
from gpudiag.store.state_folder import default_store, state_directory
from tests.stored_runs import record_run
from tests.unit.model.nouns import make_device, make_snapshot

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
PATIENT_SECONDS = 90.0  # for tests of what is written, on a machine that may be busy
COPY = Sample("memory_copy", 1.0, "B/s", "GPU-1")


def open_store(path):
    return Store(parse_store_url(str(path)))


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    """A state directory of this test's own."""
    monkeypatch.setenv("GPUDIAG_STATE_DIR", str(tmp_path / "state"))


def record(place, snapshot=None, outcome="pass", samples=(), deadline_seconds=PATIENT_SECONDS):
    facts = RunFacts(snapshot or make_snapshot(), "preflight", outcome, samples, good=outcome == "pass")
    return record_run(str(place), facts, deadline_seconds)


def read_keeper(place, deadline_seconds=PATIENT_SECONDS):
    with contextlib.closing(HistoryKeeper(str(place), "a1")) as keeper:
        return keeper.read(deadline_seconds)


def add(store, value, outcome="pass", at=NOW):
    sample = Sample(COPY.metric, value, COPY.unit, COPY.device_uuid)
    store.add_run(NewRun("a1", "preflight", at, outcome, samples=(sample,)))


def test_what_was_recorded_is_read_back(tmp_path):
    snapshot = make_snapshot(devices=(make_device(0), make_device(1)))
    place = str(tmp_path / "h.db")
    assert record(place, snapshot, samples=(COPY,)) == ""
    history = read_history(place, machine_key(snapshot), PATIENT_SECONDS)
    assert [run.outcome for run in history.runs] == ["pass"]
    assert [gpu.uuid for gpu in history.gpus] == [device.id.uuid for device in snapshot.devices]
    assert history.last == snapshot
    assert history.good == snapshot
    assert history.baselines[0].median == COPY.value


def test_the_good_snapshot_is_that_of_the_last_good_run(tmp_path):
    place = str(tmp_path / "h.db")
    good, bad = make_snapshot(), make_snapshot(driver_version="1.2.3")
    for snapshot, outcome in ((good, "pass"), (bad, "fail")):
        assert record(place, snapshot, outcome) == ""
    history = read_history(place, machine_key(good), PATIENT_SECONDS)
    assert (history.last, history.good) == (bad, good)


def test_a_baseline_is_the_median_of_good_runs_and_says_what_came_last(tmp_path):
    store = open_store(tmp_path / "h.db")
    for value in (10.0, 12.0, 11.0):
        add(store, value)
    add(store, 1.0, outcome="fail")
    (baseline,) = store.read_history("a1").baselines
    assert (baseline.median, baseline.count, baseline.latest) == (11.0, 3, 1.0)


def test_machines_do_not_mix(tmp_path):
    store = open_store(tmp_path / "h.db")
    add(store, 10.0)
    assert store.read_history("b2").runs == ()


def test_old_runs_are_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "KEPT_RUNS", 3)
    store = open_store(tmp_path / "h.db")
    for value in range(6):
        add(store, float(value))
    assert len(store.read_history("a1").runs) == 3
    assert store.read_history("a1").baselines[0].count == 3


def test_a_sick_machine_keeps_its_last_good_snapshot(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "KEPT_DOCUMENTS", 2)
    store = open_store(tmp_path / "h.db")
    store.add_run(NewRun("a1", "preflight", NOW, "pass", snapshot="good", good=True))
    for number in range(5):
        store.add_run(NewRun("a1", "preflight", NOW, "fail", snapshot=f"bad {number}"))
    assert store.read_snapshots("a1") == store_module.StoredSnapshots("bad 4", "good")


def test_a_kernel_event_is_kept_once(tmp_path):
    store = open_store(tmp_path / "h.db")
    event = KernelEvent(KernelEventKind.XID, NOW, "NVRM: Xid (PCI:0000:19:00): 79", xid_code=79)
    again = KernelEvent(KernelEventKind.XID, NOW + timedelta(milliseconds=40), event.text, xid_code=79)
    later = KernelEvent(KernelEventKind.XID, NOW + timedelta(hours=1), event.text, xid_code=79)
    for events in ((event,), (again, later)):
        store.add_run(NewRun("a1", "preflight", NOW, "fail", kernel_events=events))
    assert [event.at for event in store.read_history("a1").kernel_events] == [NOW, NOW + timedelta(hours=1)]


def test_nothing_stored_yet_is_an_empty_history_and_makes_no_file(tmp_path):
    history = read_history(str(tmp_path / "h.db"), "a1", PATIENT_SECONDS)
    assert history.runs == ()
    assert isinstance(history.good, Missing)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_is_a_warning_with_its_path(tmp_path):
    place = tmp_path / "h.db"
    place.write_text("no database " * 500)
    history, warning = read_keeper(place)
    assert isinstance(history, Missing)
    assert str(place) in warning
    assert str(place) in record(place)
    with pytest.raises(StoreError):
        read_history(str(place), "a1", PATIENT_SECONDS)


@pytest.mark.parametrize("damage", ["random", "cut", "overwritten"])
def test_a_damaged_file_says_how_to_put_it_aside_and_a_new_one_is_begun(tmp_path, damage):
    place = tmp_path / "my history.db"
    assert record(place) == ""
    whole = place.read_bytes()
    place.write_bytes(
        {
            "random": os.urandom(len(whole)),
            "cut": whole[: len(whole) // 2],
            "overwritten": whole[:4096] + b"\xff" * (len(whole) - 4096),
        }[damage]
    )
    warning = record(place)
    command = f"mv '{place}' '{place}'.damaged"
    assert f"`{command}`" in warning
    subprocess.run(command, shell=True, check=True)
    assert record(place) == ""
    assert len(read_history(str(place), "a1", 60.0).runs) == 1


def test_a_store_of_a_newer_gpudiag_is_left_alone(tmp_path):
    place = tmp_path / "h.db"
    open_store(place)
    with contextlib.closing(sqlite3.connect(place, isolation_level=None)) as connection:
        connection.execute("UPDATE gpudiag_schema SET version = 99")
    warning = record(place)
    assert "newer" in warning


def test_a_store_that_another_process_holds_is_not_waited_for(tmp_path):
    place = tmp_path / "h.db"
    open_store(place)
    holder = sqlite3.connect(place, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    started = time.monotonic()
    assert record(place, deadline_seconds=2.0) != ""
    assert time.monotonic() - started < PATIENT_SECONDS
    holder.close()


def test_a_store_that_hangs_is_given_up(tmp_path):
    pipe = tmp_path / "h.db"
    os.mkfifo(pipe)  # opening it waits for a writer that never comes
    started = time.monotonic()
    history, warning = read_keeper(pipe, 0.5)
    assert isinstance(history, Missing)
    assert warning
    assert time.monotonic() - started < PATIENT_SECONDS


def test_a_full_disk_is_a_warning(tmp_path):
    assert record("/dev/full") != ""


def test_a_directory_that_cannot_be_written_is_a_warning():
    assert record("/proc/gpudiag/h.db") != ""


KILLED_WRITER = """
import os, sys
sys.path[:0] = sys.argv[2:]
from datetime import datetime
from gpudiag.compat import UTC
from gpudiag.model.history import Sample
from gpudiag.store import database as store_module
real = store_module._prune
def die(*arguments):
    os.kill(os.getpid(), 9)
store_module._prune = die
store = store_module.Store(store_module.parse_store_url(sys.argv[1]))
store.add_run(store_module.NewRun("a1", "preflight", datetime.now(UTC), "pass",
                                  samples=(Sample("memory_copy", 5.0, "B/s", "GPU-1"),)))
"""


def test_a_writer_killed_in_the_middle_leaves_what_was_there_before(tmp_path):
    place = tmp_path / "h.db"
    store = open_store(place)
    add(store, 10.0)
    done = subprocess.run(
        [sys.executable, "-c", KILLED_WRITER, str(place), *sys.path], check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    assert len(open_store(place).read_history("a1").runs) == 1
    add(store, 11.0)
    assert len(open_store(place).read_history("a1").runs) == 2


def test_a_password_is_never_shown():
    warning = record("postgresql://me:secret@127.0.0.1:1/x")
    assert warning
    assert "secret" not in warning


@pytest.mark.parametrize("text", ["mysql://localhost/x", "://", "nonsense://", "sqlite://", ":memory:", ""])
def test_a_store_that_gpudiag_does_not_keep_is_refused(text):
    with pytest.raises(UsageError):
        parse_store_url(text)


def test_the_state_directory_follows_the_variable_then_root_then_xdg():
    assert state_directory({"GPUDIAG_STATE_DIR": "/s"}, 0) == Path("/s")
    assert state_directory({"XDG_STATE_HOME": "/x"}, 0) == Path("/var/lib/gpudiag")
    assert state_directory({"XDG_STATE_HOME": "/x", "HOME": "/h"}, 1000) == Path("/x/gpudiag")
    assert state_directory({"XDG_STATE_HOME": "relative", "HOME": "/h"}, 1000) == Path(
        "/h/.local/state/gpudiag"
    )
    assert state_directory({"HOME": "/h"}, 1000) == Path("/h/.local/state/gpudiag")


def test_the_default_store_is_a_file_in_the_state_directory(monkeypatch):
    monkeypatch.setenv("GPUDIAG_STATE_DIR", "/s")
    assert default_store() == "/s/history.db"


def test_one_keeper_reads_and_then_writes(tmp_path):
    place = str(tmp_path / "h.db")
    snapshot = make_snapshot()
    with contextlib.closing(HistoryKeeper(place, machine_key(snapshot))) as keeper:
        history, warning = keeper.read(PATIENT_SECONDS)
        assert (history.runs, warning) == ((), "")
        assert keeper.write(RunFacts(snapshot, "preflight", "pass"), PATIENT_SECONDS) == ""
    assert len(read_history(place, machine_key(snapshot), PATIENT_SECONDS).runs) == 1


def test_a_store_that_could_not_be_read_is_complained_about_once(tmp_path):
    place = tmp_path / "h.db"
    place.write_text("no database " * 500)
    with contextlib.closing(HistoryKeeper(str(place), "a1")) as keeper:
        assert keeper.read(PATIENT_SECONDS)[1]
        assert keeper.write(RunFacts(make_snapshot(), "preflight", "pass")) == ""


def test_a_keeper_leaves_no_descriptor_and_no_process(tmp_path):
    before = set(os.listdir("/proc/self/fd"))
    read_keeper(tmp_path / "h.db")
    assert set(os.listdir("/proc/self/fd")) <= before  # what earlier tests left may be collected meanwhile
