import os
import stat
from pathlib import Path

import pytest

from gpudiag.errors import LaunchError
from gpudiag.ranks.agents.run_directory import RunDirectory, remove_stale_directories, runtime_directory


def test_a_directory_goes_with_its_context(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as directory:
        directory.events_path(0).write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_use_stays(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as first, RunDirectory(tmp_path) as second:
        assert {first.path, second.path} == set(tmp_path.iterdir())


def test_a_directory_without_an_owner_is_removed_by_the_next_start(tmp_path: Path) -> None:
    abandoned = RunDirectory(tmp_path)
    os.close(abandoned._lock)  # as the kernel does when a process is killed
    abandoned._lock = -1
    with RunDirectory(tmp_path) as directory:
        assert list(tmp_path.iterdir()) == [directory.path]


def test_a_directory_that_is_being_made_stays(tmp_path: Path) -> None:
    (tmp_path / ".new-abc").mkdir()
    remove_stale_directories(tmp_path)
    assert (tmp_path / ".new-abc").exists()


def test_a_directory_that_was_never_finished_is_removed(tmp_path: Path) -> None:
    unfinished = tmp_path / ".new-abc"
    unfinished.mkdir()
    os.utime(unfinished, (0, 0))
    remove_stale_directories(tmp_path)
    assert not unfinished.exists()


def test_other_files_are_nobodys_business(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    remove_stale_directories(tmp_path)
    assert (tmp_path / "notes.txt").exists()


def test_the_folder_is_open_to_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    base = runtime_directory()
    assert base.parent == tmp_path
    assert stat.S_IMODE(base.stat().st_mode) == 0o700


def test_a_folder_that_others_can_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    runtime_directory().chmod(0o777)
    with pytest.raises(LaunchError, match="writable for other users"):
        runtime_directory()


def test_a_link_in_its_place_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "gpudiag").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LaunchError):
        runtime_directory()


def test_a_runtime_directory_that_does_not_exist_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert runtime_directory() == tmp_path / f"gpudiag-{os.getuid()}"


def test_a_full_disk_is_told_before_a_rank_finds_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = os.statvfs(tmp_path)
    full = os.statvfs_result((*space[:4], 0, *space[5:]))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    with pytest.raises(LaunchError, match="0 KiB left") as raised:
        RunDirectory(tmp_path)
    assert "TMPDIR" in raised.value.hint
    assert list(tmp_path.iterdir()) == []
