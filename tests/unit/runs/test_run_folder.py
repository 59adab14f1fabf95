"""The folder beside a verdict: whose it is to remove, and what a killed run left."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from gpudiag.runs.job_run.folder import default_name, make_folder, remove_if_empty, remove_left_folders


def ended_pid() -> int:
    """Of a process that is gone."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def left_folder(place: Path, time: str, pid: int, host: str = "") -> Path:
    host = host or socket.gethostname().partition(".")[0]
    folder = place / f"gpudiag-run-{host}-20261125-{time}-{pid}.files"
    folder.mkdir()
    return folder


def test_an_empty_folder_is_ours_and_one_with_a_dump_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "verdict.files"
    assert make_folder(folder)
    assert make_folder(folder)  # a killed run of the same verdict left it
    (folder / "flight_recorder_rank_0").touch()
    assert not make_folder(folder)
    remove_if_empty(folder)
    assert folder.exists()


def test_only_what_no_run_and_no_job_uses_is_removed(tmp_path: Path) -> None:
    gone = ended_pid()
    left = left_folder(tmp_path, "010101", gone)
    of_job = left_folder(tmp_path, "020202", gone)
    of_run = left_folder(tmp_path, "030303", os.getpid())
    of_other_host = left_folder(tmp_path, "040404", gone, "another")
    written = left_folder(tmp_path, "050505", gone)
    (written / "error.json").touch()
    own = tmp_path / "results.files"
    own.mkdir()
    environment = {**os.environ, "TORCHELASTIC_ERROR_FILE": f"{of_job}/error.json"}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as job:
        assert job.stdin is not None
        assert job.stdout is not None
        job.stdin.write(b"here\n")
        job.stdin.flush()
        assert job.stdout.readline() == b"here\n"  # by now it has its environment
        remove_left_folders(tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted((of_job, of_run, of_other_host, written, own))
        job.communicate()
    remove_left_folders(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted((of_run, of_other_host, written, own))
    assert not left.exists()


def test_the_default_name_is_one_that_is_found_again(tmp_path: Path) -> None:
    name = default_name().rpartition("-")[0]
    folder = tmp_path / f"{name}-{ended_pid()}.files"
    folder.mkdir()
    remove_left_folders(tmp_path)
    assert not folder.exists()
