"""Where no folder can be written, or nobody has a home: a sentence, and no bug of gpudiag."""

import tempfile
from pathlib import Path

import pytest

from gpudiag.cli.main import main
from gpudiag.errors import ExitStatus, GpudiagError, UsageError
from gpudiag.folders import cache_folder, temporary_folder
from gpudiag.ranks.agents.run_directory import runtime_directory
from gpudiag.simulate import session


def have_none() -> str:
    raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")


def test_a_full_folder_for_temporary_files_is_said(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", have_none)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    for needs in (temporary_folder, runtime_directory):
        with pytest.raises(GpudiagError, match="temporary files") as refused:
            needs()
        assert "TMPDIR" in refused.value.hint
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert session._parent_folder() == tmp_path / "gpudiag" / "simulate"
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    with pytest.raises(UsageError, match="no folder for a simulated machine"):
        session._parent_folder()
    assert main(["simulate", "h100x8", "--", "true"]) == ExitStatus.USAGE
    assert "internal error" not in capsys.readouterr().err


def test_a_user_without_a_home_has_no_cache(monkeypatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/ann")
    assert cache_folder() == Path("/home/ann/.cache/gpudiag")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert cache_folder() is None
