"""What a doctor looks at, with things taken away: programs, packages, folders, sockets, device files."""

import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from gpudiag.model.codec import join_sheets, read_sheet
from gpudiag.model.doctor import Surroundings
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason
from gpudiag.probe import surroundings
from gpudiag.probe.job import permission
from gpudiag.probe.packages import read_packages, read_torch
from gpudiag.simulate.nvml import library


def see(root: Path, folder: Path, python: str | None = None, **environment: str) -> Surroundings:
    sheets: list[dict[str, Any]] = []
    surroundings.stream_surroundings(
        lambda message: sheets.append(message[1]), str(root), str(folder), python, environment
    )
    return read_sheet(Surroundings, join_sheets(*sheets))


def test_an_empty_machine_is_read_without_a_gap(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    seen = see(tmp_path, tmp_path / "state", PATH="")
    assert isinstance(seen.programs, dict)
    assert "cc" not in seen.programs
    assert seen.closed_nodes == ()
    assert seen.kubelet == Missing(MissingReason.SOURCE_ABSENT)
    assert not isinstance(seen.state_folder, Missing)
    assert seen.state_folder.problem == ""
    assert not (tmp_path / "state").exists()
    assert NOT_ASKED not in [getattr(seen, name) for name in Surroundings.__annotations__]


def test_programs_are_found_beside_the_interpreter_on_path_and_by_cc(tmp_path: Path) -> None:
    for name in ("srun", "my-cc"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    found = surroundings.find_programs({"PATH": str(tmp_path), "CC": "my-cc -m64"})
    assert found["srun"] == str(tmp_path / "srun")
    assert found["CC"] == str(tmp_path / "my-cc")
    assert "gcc" not in found or found["gcc"].startswith(os.path.dirname(sys.executable))


def test_the_compilers_are_those_that_simulated_machines_try(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(library.shutil, "which", tried.append)
    library._compilers()
    assert set(tried) <= set(surroundings.PROGRAMS)


@pytest.mark.parametrize(
    ("place", "words"), [("file/state", "Not a directory"), ("/proc/state", "No such file")]
)
def test_a_folder_that_cannot_be_written_is_told_with_the_reason(
    tmp_path: Path, place: str, words: str
) -> None:
    (tmp_path / "file").write_text("")
    folder = surroundings.read_state_folder(str(tmp_path / place))
    assert words in folder["problem"]


def test_a_port_that_is_taken_is_not_free(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert surroundings._is_free(taken.getsockname()[1]) is False
    assert surroundings._is_free(0) is True


def test_device_files_that_are_closed_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-modeset", "null"):
        (tmp_path / "dev" / name).write_text("")
    closed = {"nvidia1", "nvidia-modeset"}
    monkeypatch.setattr(surroundings.os, "access", lambda path, mode: os.path.basename(path) not in closed)
    assert surroundings.find_closed_nodes(str(tmp_path)) == ["/dev/nvidia1"]


def test_the_kubelets_socket_is_asked_for_its_permissions(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    place = tmp_path / surroundings.KUBELET_SOCKET
    place.parent.mkdir(parents=True)
    place.write_text("")
    assert see(tmp_path, tmp_path).kubelet is True


def test_packages_are_read_without_importing_them() -> None:
    loaded = set(sys.modules)
    assert set(read_packages(["pytest", "no-such-distribution"])) == {"pytest"}
    torch = read_torch()
    assert set(sys.modules) - loaded == set()
    if torch:
        assert torch["version"][0].isdecimal()


def test_another_interpreter_is_asked_and_one_that_is_none_costs_only_its_packages(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    seen = see(tmp_path, tmp_path, sys.executable)
    assert isinstance(seen.job_packages, dict)
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no json\n")
    broken.chmod(0o755)
    seen = see(tmp_path, tmp_path, str(broken))
    assert isinstance(seen.job_packages, Missing)
    assert "is no working Python" in seen.job_packages.detail
    assert isinstance(seen.packages, dict)
    assert isinstance(seen.programs, dict)


def test_the_rights_are_those_that_a_refusal_is_explained_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permission, "read_text", lambda _path: "2\n")
    monkeypatch.setattr(permission, "read_status", lambda _process: {"CapEff": "0000000000000000"})
    document = permission.read_trace_rights()
    assert document["ptrace_scope"] == 2
    assert document["has_capability"] is False
    monkeypatch.setattr(permission.os, "geteuid", lambda: 1000)
    assert "only root may" in permission.explain_refusal(os.getpid(), "refused").detail or os.getuid() == 0
