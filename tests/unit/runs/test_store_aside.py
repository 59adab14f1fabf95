"""The store, asked by a process of its own: what it answers, and that nothing is left of it."""

import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from gpudiag.compat import UTC
from gpudiag.errors import StoreError
from gpudiag.linux.proc import is_alive
from gpudiag.model.reading import Missing
from gpudiag.model.run import Run, RunState
from gpudiag.store import aside as store_aside
from gpudiag.store import baselines, service_runs
from gpudiag.store.aside import StoreAside
from gpudiag.store.baselines import GoodState
from gpudiag.store.history import RunFacts, read_history, write_job
from gpudiag.store.service_runs import RunRecords
from gpudiag.store.state_folder import own_machine_key
from tests.stored_runs import record_run
from tests.unit.model.nouns import make_snapshot

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
PATIENT_SECONDS = 90.0


def run(identity: str, state: RunState = RunState.SUCCEEDED) -> Run:
    return Run(identity, "preflight", state, {}, (), ("host",), "gpudiag preflight", 60.0, NOW)


def record(place, snapshot=None):
    facts = RunFacts(snapshot or make_snapshot(), "preflight", "pass", (), good=True)
    assert record_run(str(place), facts, PATIENT_SECONDS) == ""


def test_runs_are_kept_and_the_process_ends_with_the_question(tmp_path):
    with closing(StoreAside(str(tmp_path / "history.db"))) as store:
        assert store.load_runs("a1") == []
        assert store._program is None  # nothing was ever stored: no process is started to find that out
        store.save_run("a1", "a service", run("r1", RunState.RUNNING))
        pid = store._program.pid
        store.save_run("a1", "a service", run("r1"))
        assert [(one.id, one.state, of) for one, of in store.load_runs("a1")] == [
            ("r1", RunState.SUCCEEDED, "a service")
        ]
        assert store.load_runs("a2") == []
        assert store._program.pid == pid  # one process for questions that follow each other
    assert not is_alive(pid)


def test_one_that_has_ended_or_was_killed_is_replaced(tmp_path):
    with closing(StoreAside(str(tmp_path / "history.db"))) as store:
        store.save_run("a1", "a service", run("r1"))
        pid = store._program.pid
        os.kill(pid, signal.SIGKILL)
        assert len(store.load_runs("a1")) == 1
        assert store._program.pid != pid


def test_a_process_that_is_not_asked_ends_and_is_let_go(tmp_path, monkeypatch):
    program = "import gpudiag.store.aside as aside; aside._IDLE_SECONDS = 0.0; aside.main()"
    monkeypatch.setattr(
        store_aside,
        "Program",
        lambda _argv, *rest, **more: PROGRAM(
            [sys.executable, "-c", program, str(os.getpid())], *rest, **more
        ),
    )
    with closing(StoreAside(str(tmp_path / "history.db"))) as store:
        store._program = store._start()
        store._program.wait(PATIENT_SECONDS)
        store.reap()
        assert store._program is None


PROGRAM = store_aside.Program


def test_a_service_with_more_than_1024_descriptors_is_answered(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip(f"no more than {hard} descriptors are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with closing(StoreAside(str(tmp_path / "history.db"))) as store:
            assert store.read_good("a1") is None
            assert store._program.output > 1024
    finally:
        for one in held:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_store_that_gives_no_answer_is_asked_once(tmp_path, monkeypatch):
    monkeypatch.setattr(store_aside, "_ANSWER_SECONDS", 0.0)
    with closing(StoreAside(str(tmp_path / "history.db"))) as store:
        store._program = store._start()
        started = []
        monkeypatch.setattr(store, "_start", lambda: started.append(True))
        with pytest.raises(StoreError, match="gives no answer"):
            store.read_good("a1")
        assert (store._program, started) == (None, [])


def test_a_store_that_cannot_be_read_is_one_sentence(tmp_path):
    place = tmp_path / "history.db"
    place.write_text("no database at all, and long enough to be looked at as one " * 20)
    with closing(StoreAside(str(place))) as store:
        with pytest.raises(StoreError, match="file is not a database"):
            store.read_good("a1")
        with pytest.raises(StoreError, match="file is not a database"):
            store.load_runs("a1")


def test_the_service_loads_no_database_library(tmp_path):
    """It takes 13 MiB."""
    words = "import json, sys; import gpudiag_api.app; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert loaded & {"sqlalchemy", "psycopg", "numpy", "torch", "rich", "textual"} == set()


class Counting(StoreAside):
    """One whose questions for the good state are counted."""

    asked = 0

    def read_good(self, machine: str) -> str | None:
        self.asked += 1
        return super().read_good(machine)


def test_a_good_state_is_read_again_where_the_store_has_changed_and_only_there(tmp_path, monkeypatch):
    monkeypatch.setattr(baselines, "_AGAIN_SECONDS", -1.0)
    place = tmp_path / "history.db"
    with closing(Counting(str(place))) as store:
        good = GoodState(store)
        good._again_seconds = -1.0

        def look() -> None:
            good.look("a1")
            assert good._disk.wait(PATIENT_SECONDS)

        look()
        assert isinstance(good.baseline, Missing)
        assert store.asked == 0  # there is no file
        record(place)
        for _ in range(5):
            look()
        assert good.baseline == make_snapshot()
        asked = store.asked
        assert asked in (1, 2)  # to read a write-ahead log may empty it, which is a change
        for _ in range(5):
            look()
        assert store.asked == asked
        good.look("another")
        assert good._disk.wait(PATIENT_SECONDS)
        assert isinstance(good.baseline, Missing)


def test_a_store_that_is_no_file_shows_no_change(tmp_path):
    assert StoreAside("postgresql://a@127.0.0.1:1/b").stamp() is None
    place = tmp_path / "history.db"
    assert StoreAside(f"sqlite:///{place}").stamp() == StoreAside(str(place)).stamp() == (None, None)


def test_an_ended_job_is_in_the_history_and_among_the_runs_with_its_document(tmp_path):
    place, machine = tmp_path / "history.db", own_machine_key()
    job = replace(run("20261120-120000-abcdef"), kind="run", outcome="fail", deadline_seconds=None)
    assert write_job(str(place), job, '{"schema": "gpudiag.job_run/2"}', PATIENT_SECONDS) == ""
    unwatched = replace(job, id="20261120-120001-abcdef", state=RunState.FAILED, outcome=None)
    assert write_job(str(place), unwatched, None, PATIENT_SECONDS) == ""
    listed = read_history(str(place), machine, PATIENT_SECONDS).runs
    assert [(one.kind, one.outcome) for one in listed] == [("run", "error"), ("run", "fail")]
    with closing(StoreAside(str(place))) as store:
        assert [found for found, _ in store.load_runs(machine)] == [job, unwatched]
        assert store.read_report(job.id) == '{"schema": "gpudiag.job_run/2"}'
        assert store.read_report(unwatched.id) is None


def test_documents_go_with_their_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(service_runs, "KEPT_RUNS", 2)
    records = RunRecords(str(tmp_path / "history.db"))
    for number in range(4):
        records.save("a1", "", replace(run(f"r{number}"), requested_at=NOW + timedelta(hours=number)), "{}")
    assert [one.id for one, _ in records.load("a1")] == ["r2", "r3"]
    assert [records.read_report(f"r{number}") for number in range(4)] == [None, None, "{}", "{}"]


def test_a_store_that_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("no folder")
    words = write_job(str(tmp_path / "file" / "history.db"), run("r1"), None, PATIENT_SECONDS)
    assert words.startswith("the history at ")
