"""A session: its environment is whole, its folder goes with it, and nothing of this machine shows."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gpudiag.errors import UsageError
from gpudiag.simulate import session
from gpudiag.simulate.scenario import HostTree, Scenario, SimulatedNvml
from gpudiag.simulate.session import (
    Session,
    build_environment,
    find_programs,
    hold_folder,
    kill_programs,
    open_session,
)
from tests.unit.simulate_library.machines import TIME_LIMIT_SECONDS, ask, make_machine, run, start

_SwitchOn = Callable[[Scenario], Session]


def test_the_environment_leads_to_the_machine_and_hides_the_outside_one(compiled: None) -> None:
    outside = {
        "PATH": os.environ["PATH"],
        "HOME": "/home/ann",
        "LD_LIBRARY_PATH": "/opt/lib",
        "CUDA_VISIBLE_DEVICES": "0",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_GPUS": "0,1",
        "GPUDIAG_SIMULATED_CALL_LOG": "/nowhere/calls.log",
    }
    machine = make_machine(environment={"SLURM_JOB_GPUS": "4,5"})
    with open_session(machine, outside) as session:
        folder = session.folder
        assert session.environment == {
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "HOME": "/home/ann",
            "LD_LIBRARY_PATH": f"{folder}/lib:/opt/lib",
            "GPUDIAG_SIMULATED": "test-machine",
            "GPUDIAG_HOST_ROOT": f"{folder}/root",
            "GPUDIAG_SIMULATED_TORCH": f"{folder}/torch.json",
            "GPUDIAG_SIMULATED_JOBS": f"{folder}/jobs.json",
            "GPUDIAG_SIMULATED_CALL_LOG": "/nowhere/calls.log",
            "SLURM_JOB_GPUS": "4,5",
        }
        assert json.loads((folder / "torch.json").read_text()) == {"absent": True}
        assert not (folder / "jobs.json").exists()  # its jobs are the real machine's
        assert folder.stat().st_mode & 0o077 == 0
    assert not folder.exists()


def test_a_session_within_a_session_is_the_inner_machine(compiled: None) -> None:
    with open_session(make_machine()) as outer, open_session(make_machine(), outer.environment) as inner:
        paths = inner.environment["LD_LIBRARY_PATH"].split(":")
        assert paths[:2] == [f"{inner.folder}/lib", f"{outer.folder}/lib"]
        assert inner.environment["GPUDIAG_HOST_ROOT"] == f"{inner.folder}/root"


def test_the_host_tree_follows_the_scenario(compiled: None) -> None:
    first = HostTree(
        files={"proc/meminfo": "MemTotal: 1 kB\n", "etc/hostname": "a1\n"},
        links={"sys/bus/pci/devices/0000:19:00.0": "../../../devices/pci0000:19/0000:19:00.0"},
        nodes=("nvidia0", "nvidia-caps/nvidia-cap1"),
    )
    second = HostTree(files={"proc/meminfo": "MemTotal: 2 kB\n"}, nodes=("nvidia1",))
    with open_session(make_machine(host=first)) as session:
        assert (session.root / "etc/hostname").read_text() == "a1\n"
        assert (session.root / "sys/bus/pci/devices/0000:19:00.0").is_symlink()
        assert (session.root / "dev/nvidia-caps/nvidia-cap1").exists()
        session.update(make_machine(host=second))
        left = {str(path.relative_to(session.root)) for path in session.root.rglob("*") if not path.is_dir()}
        assert left == {"proc/meminfo", "dev/nvidia1"}
        assert (session.root / "proc/meminfo").read_text() == "MemTotal: 2 kB\n"


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside", "proc/../../outside", ""])
def test_a_host_tree_stays_under_its_root(compiled: None, path: str) -> None:
    with pytest.raises(UsageError), open_session(make_machine(host=HostTree(files={path: ""}))):
        pass


def absent_library() -> Scenario:
    """A machine without libnvidia-ml and nvidia-smi."""
    return make_machine(nvml=SimulatedNvml(present=False), nvidia_smi_present=False)


@pytest.mark.parametrize("installed_outside", [False, True], ids=["not outside", "outside"])
def test_a_machine_without_the_library_has_none(
    monkeypatch: pytest.MonkeyPatch, compiled: None, installed_outside: bool
) -> None:
    """Also where the machine outside has a real one: the linker's search is ended before that."""
    monkeypatch.setattr("gpudiag.simulate.session.is_library_outside", lambda: installed_outside)
    program = "import pynvml\ntry:\n    pynvml.nvmlInit()\nexcept pynvml.NVMLError as error:\n    print(error.value)"
    with open_session(make_machine()) as outside, open_session(absent_library()) as session:
        environment = dict(session.environment)
        if installed_outside:  # a library further down the search path stands in for the real one
            environment["LD_LIBRARY_PATH"] += f":{outside.folder}/lib"
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_SECONDS,
            check=True,
        )
        assert done.stdout == "12\n"
        assert session.call_counts() == {}


def test_nvidia_smi_of_the_machine_outside_does_not_show(tmp_path: Path) -> None:
    outside = tmp_path / "usr-bin"
    outside.mkdir()
    for name in ("nvidia-smi", "nvidia-smi-extra", "train", "bin"):
        (outside / name).touch(mode=0o755)
    environment = build_environment({"PATH": f"/nowhere:{outside}"}, tmp_path / "machine", "none", {})
    _own, nowhere, shadow = environment["PATH"].split(":")
    assert nowhere == "/nowhere"
    assert sorted(os.listdir(shadow)) == ["bin", "train"]
    assert os.path.realpath(f"{shadow}/train") == str(outside / "train")


def test_a_machine_gets_its_library_back(compiled: None) -> None:
    with open_session(absent_library()) as session:
        for _ in range(2):
            assert not (session.folder / "bin" / "nvidia-smi").exists()
            session.update(make_machine())
            assert ask(session, "N.nvmlDeviceGetCount()") == 1
            assert run(session, "nvidia-smi", "-L").returncode == 0
            session.update(absent_library())
            assert not session.library.exists() or session.library.stat().st_size == 0


# Holds a session until its input ends, or it is killed.
_HOLD = """
import sys
from gpudiag.simulate.session import hold_folder
with hold_folder() as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


def hold_in_another_process(environment: Mapping[str, str]) -> tuple[subprocess.Popen[str], Path]:
    """A process that holds a session's folder, and the folder."""
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    return holder, Path(holder.stdout.readline().strip())


def test_the_next_session_removes_the_folder_of_a_killed_one_and_no_other() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    alive, alive_folder = hold_in_another_process(environment)
    dead, dead_folder = hold_in_another_process(environment)
    with alive, dead:
        dead.send_signal(signal.SIGKILL)
        dead.wait(timeout=TIME_LIMIT_SECONDS)
        assert dead_folder.exists()
        with hold_folder() as own_folder:
            assert not dead_folder.exists()
            assert alive_folder.exists()
            assert own_folder.exists()
        alive.communicate("", timeout=TIME_LIMIT_SECONDS)
    assert not alive_folder.exists()
    assert not own_folder.exists()


def test_a_folder_in_the_making_is_left_alone_until_it_is_old() -> None:
    with hold_folder() as own:
        young, old = own.parent / ".new-young", own.parent / ".new-old"
        for folder in (young, old):
            folder.mkdir()
        os.utime(old, (time.time() - 3600,) * 2)
        with hold_folder():
            assert young.exists()
            assert not old.exists()
        young.rmdir()


def test_nobody_else_can_put_a_library_where_sessions_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    taken, cache = tmp_path / "tmp", tmp_path / "cache"
    (taken / f"gpudiag-simulate-{os.getuid()}").mkdir(parents=True)
    (taken / f"gpudiag-simulate-{os.getuid()}").chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", str(taken))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    with hold_folder() as folder:
        assert folder.is_relative_to(cache)
    (cache / "gpudiag" / "simulate").chmod(0o777)
    with pytest.raises(UsageError), hold_folder():
        pass


def test_the_programs_of_a_machine_are_found_and_killed(switch_on: _SwitchOn) -> None:
    session, other = switch_on(make_machine()), switch_on(make_machine())
    ours = [start(session, "sleep", "1000"), start(session, "sh", "-c", "sleep 1000 & wait")]
    theirs = start(other, "sleep", "1000")
    with ours[0], ours[1], theirs:
        while len(find_programs(session.folder)) < 3:
            time.sleep(0.01)
        kill_programs(session.folder)
        assert [program.wait(timeout=TIME_LIMIT_SECONDS) for program in ours] == [-signal.SIGKILL] * 2
        assert find_programs(session.folder) == []
        assert theirs.poll() is None
        theirs.kill()


def test_old_symbols_come_back_for_programs_that_start_later(switch_on: _SwitchOn) -> None:
    machine = make_machine()
    old = replace(machine, nvml=replace(machine.nvml, omitted_symbols=("nvmlDeviceGetTemperatureV",)))
    session = switch_on(old)
    program = "import ctypes; print(hasattr(ctypes.CDLL('libnvidia-ml.so.1'), 'nvmlDeviceGetTemperatureV'))"
    assert run(session, sys.executable, "-c", program).stdout == "False\n"
    session.update(machine)
    assert run(session, sys.executable, "-c", program).stdout == "True\n"


def test_a_full_disk_is_named_as_the_cause(compiled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(session, "_replace", refuse)
    monkeypatch.setattr(session, "copy_library", refuse)
    with (
        pytest.raises(UsageError, match=r"cannot be created in .*No space left"),
        open_session(make_machine()),
    ):
        pass
