import os
import stat
from pathlib import Path

import pytest

from gpudiag.errors import ExitStatus, GpudiagError, UsageError
from gpudiag.runs.output import require_writable, write_document

AS_ROOT = pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere: rights cannot be tested")


def test_asking_whether_a_file_can_be_written_leaves_no_trace(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text("as it was")
    require_writable(old)
    require_writable(tmp_path / "new.json")
    assert old.read_text() == "as it was"
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]


@pytest.mark.parametrize("name", [".", "no/such/directory.json", "file.txt/below.json"])
def test_what_cannot_be_written_is_the_user_s_mistake(tmp_path: Path, name: str) -> None:
    (tmp_path / "file.txt").write_text("")
    with pytest.raises(UsageError) as raised:
        require_writable(tmp_path / name)
    assert raised.value.exit_status is ExitStatus.USAGE
    assert str(tmp_path / name) in raised.value.message


@AS_ROOT
def test_a_directory_without_the_right_to_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old.json").touch()
    tmp_path.chmod(0o500)
    for name in ("new.json", "old.json"):
        with pytest.raises(UsageError):
            require_writable(tmp_path / name)


def test_a_document_replaces_the_older_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("an older and much longer document")
    write_document(path, "new\n")
    assert path.read_text() == "new\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    link.symlink_to(target)
    write_document(link, "text")
    assert link.is_symlink()
    assert target.read_text() == "text"


def test_a_device_is_written_to_and_not_replaced() -> None:
    require_writable(Path("/dev/null"))
    write_document(Path("/dev/null"), "text")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_failure_to_write_after_all_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(GpudiagError) as raised:
        write_document(tmp_path / "gone" / "report.json", "text")
    assert raised.value.exit_status is ExitStatus.ERROR
    assert list(tmp_path.iterdir()) == []
