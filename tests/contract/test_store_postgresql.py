"""The store on a real PostgreSQL: many machines in one place, and a server that is gone costs one line."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from glob import glob
from pathlib import Path

import pytest

from gpudiag.model.history import Sample
from gpudiag.store.history import RunFacts, machine_key, read_history
from tests.stored_runs import record_run
from tests.unit.model.nouns import make_device, make_snapshot

PATIENT_SECONDS = 90.0
pytestmark = pytest.mark.timeout(120)


def lacking(words):
    if os.environ.get("CI") == "true":
        pytest.fail(words)
    pytest.skip(words)


@pytest.fixture(scope="module")
def server():
    """The URL of a database of this module's own."""
    pytest.importorskip("psycopg")
    folders = [*glob("/usr/lib/postgresql/*/bin"), "/usr/local/bin", "/usr/bin"]
    programs = next((Path(one) for one in folders if (Path(one) / "initdb").exists()), None)
    if programs is None:
        lacking("no PostgreSQL server is installed (Debian: postgresql)")
    become = _become_postgres()
    folder = Path(tempfile.mkdtemp(prefix="gdpg"))  # short: a UNIX socket's path may have 107 characters
    if become:
        shutil.chown(folder, "postgres", "postgres")
    data, port = folder / "data", _free_port()
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
    try:
        _run([*become, programs / "initdb", "-A", "trust", "-U", "gpudiag", "--no-sync", "-D", data])
        _run([*become, programs / "pg_ctl", "-w", "-D", data, "-l", folder / "log", "-o", options, "start"])
        yield f"postgresql://gpudiag@127.0.0.1:{port}/postgres"
        _run([*become, programs / "pg_ctl", "-w", "-D", data, "-m", "immediate", "stop"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_machines_share_one_store(server):
    samples = (Sample("memory_copy", 3e12, "B/s", "GPU-0"),)
    for host in ("a1", "b2"):
        snapshot = make_snapshot(make_device(0, name="H100"), host=host)
        for _ in range(2):
            assert (
                record_run(
                    server, RunFacts(snapshot, "preflight", "pass", samples, good=True), PATIENT_SECONDS
                )
                == ""
            )
    history = read_history(server, machine_key(make_snapshot(host="a1")), PATIENT_SECONDS)
    assert len(history.runs) == 2
    assert [gpu.name for gpu in history.gpus] == ["H100"]
    assert (history.baselines[0].median, history.baselines[0].count) == (3e12, 2)
    assert history.good == history.last
    assert "gpudiag@127.0.0.1" in history.store


def test_a_server_that_is_not_there_costs_one_line():
    url = f"postgresql://gpudiag:secret@127.0.0.1:{_free_port()}/postgres"
    warning = record_run(url, RunFacts(make_snapshot(), "preflight", "pass"), PATIENT_SECONDS)
    assert warning
    assert "\n" not in warning
    assert "secret" not in warning


def _become_postgres():
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return []
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        lacking("PostgreSQL does not run as root, and there is no user postgres")
    return ["runuser", "-u", "postgres", "--"]


def _free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _run(argv):
    done = subprocess.run(
        [str(word) for word in argv],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
