"""The lock file for which a thread sleeps, and who has it."""

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from gpudiag.model.job import REMOVABLE
from gpudiag.probe.job.lock_files import find_lock_file
from gpudiag.probe.job.py_spy import RawFrame, Variable

FILELOCK = "/opt/venv/lib/python3.12/site-packages/filelock/_api.py"


def frames(path: Path | str, name: str = "lock_filename", file: str = FILELOCK) -> tuple[RawFrame, ...]:
    return (
        RawFrame(file, "acquire", 300, (Variable("delay", "0.05", 1), Variable(name, f'"{path}"', 2))),
        RawFrame("/home/ann/train.py", "fetch", 10, ()),
    )


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "model.lock"
    path.touch()
    return path


def test_a_file_that_nobody_has_open_has_lost_its_owner(lock: Path) -> None:
    found = find_lock_file(os.getpid(), frames(lock))
    assert found is not None
    assert (found.kind, found.name) == ("lock file", str(lock))
    assert REMOVABLE in found.detail
    assert "no process of this machine has it open" in found.detail


def test_a_file_that_names_a_process_which_has_ended_says_so(lock: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    lock.write_text(f"{ended.pid}\nnode7\n")
    found = find_lock_file(os.getpid(), frames(lock))
    assert found is not None
    assert f"pid {ended.pid}, which it names, has ended" in found.detail


def test_who_has_it_open_or_locked_is_named(lock: Path) -> None:
    with open(lock) as held:
        holder = subprocess.Popen(["sleep", "60"], stdin=held)
    try:
        found = find_lock_file(os.getpid(), frames(lock))
        assert found is not None
        assert REMOVABLE not in found.detail
        assert f"pid {holder.pid} (sleep 60) has it open" in found.detail
    finally:
        holder.kill()
        holder.wait()
    with open(lock) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        found = (
            find_lock_file(1 << 22, frames(lock))
            if os.path.exists(f"/proc/{1 << 22}")
            else find_lock_file(os.getppid(), frames(lock))
        )
    assert found is not None
    assert f"held by pid {os.getpid()}" in found.detail


def test_a_file_of_the_users_own_may_have_an_owner_that_closed_it(lock: Path) -> None:
    own = (RawFrame("/home/ann/train.py", "wait", 4, (Variable("path", f'"{lock}"', 1),)),)
    found = find_lock_file(os.getpid(), own)
    assert found is not None
    assert REMOVABLE not in found.detail


@pytest.mark.parametrize("name", ["out.txt", "missing.lock"])
def test_what_is_no_lock_file_is_not_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "out.txt").touch()
    own = (RawFrame("/home/ann/train.py", "wait", 4, (Variable("path", f'"{tmp_path / name}"', 1),)),)
    assert find_lock_file(os.getpid(), own) is None
