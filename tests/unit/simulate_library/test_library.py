"""The library is built once, by whatever compiler is there, into a place that is the user's own."""

import ctypes
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpudiag.errors import UsageError
from gpudiag.installed import install_command
from gpudiag.simulate.nvml import library
from gpudiag.simulate.nvml.library import build_library, copy_library
from tests.unit.simulate_library.machines import TIME_LIMIT_SECONDS


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gpudiag"


def test_a_second_build_compiles_nothing(
    compiled: None, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build_library()
    assert built.parent == cache
    monkeypatch.setattr(library, "_compilers", list)
    assert build_library() == built
    assert [path.name for path in cache.iterdir()] == [built.name]


def test_the_library_calls_itself_what_programs_ask_for(compiled: None, tmp_path: Path) -> None:
    copy_library(tmp_path / "copy.so", ())
    assert b"\0libnvidia-ml.so.1\0" in (tmp_path / "copy.so").read_bytes()


def test_two_builds_at_once_both_succeed(compiled: None, cache: Path) -> None:
    program = "from gpudiag.simulate.nvml.library import build_library; print(build_library())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    builders = [
        subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [builder.communicate(timeout=TIME_LIMIT_SECONDS)[0].strip() for builder in builders]
    assert [builder.returncode for builder in builders] == [0, 0]
    assert outputs[0] == outputs[1]
    ctypes.CDLL(outputs[0])
    assert [str(path) for path in cache.iterdir()] == [outputs[0]]


def test_a_compiler_that_fails_gives_way_to_the_next(
    compiled: None, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "false --pretend")
    assert build_library().exists()


def test_no_compiler_is_one_sentence_with_the_way_out(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_compilers", list)
    with pytest.raises(UsageError) as caught:
        build_library()
    assert install_command("compiler") in caught.value.hint


def test_the_output_of_the_compiler_is_passed_on(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    complaining = [["sh", "-c", "echo internal compiler error >&2; exit 1", "sh"]]
    monkeypatch.setattr(library, "_compilers", lambda: complaining)
    with pytest.raises(UsageError, match="internal compiler error"):
        build_library()
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("cache_is", ["a file", "on a full disk"])
def test_without_a_cache_of_ones_own_a_temporary_folder_serves(
    compiled: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache_is: str
) -> None:
    if cache_is == "a file":
        (tmp_path / "cache").touch()
    else:
        monkeypatch.setattr(os, "posix_fallocate", refuse_room)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert build_library().parent == tmp_path / f"gpudiag-cache-{os.getuid()}"


def refuse_room(*_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_cache_on_a_full_disk_still_gives_what_it_has(
    compiled: None, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build_library()
    monkeypatch.setattr(os, "posix_fallocate", refuse_room)
    assert build_library() == built


def test_a_temporary_folder_of_somebody_elses_is_not_trusted(
    compiled: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    shared = tmp_path / f"gpudiag-cache-{os.getuid()}"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    built = build_library()
    assert built.parent != shared
    assert built.parent.stat().st_mode & 0o077 == 0


def test_a_symbol_that_is_none_cannot_be_left_out(compiled: None, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        copy_library(tmp_path / "copy.so", ("nvmlDeviceGetNonsense",))
    assert not (tmp_path / "copy.so").exists()


def test_the_compiler_has_nothing_to_warn_of(compiled: None, tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no cc here; zig has warnings of its own")
    source = Path(library.__file__).parents[1] / "nvml_library.c"
    (tmp_path / "nvml_symbols.inc").write_text(library._render_symbols())
    command = [
        compiler,
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{tmp_path}",
        "-fsyntax-only",
        str(source),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_SECONDS, check=False)
    assert done.stderr == ""
