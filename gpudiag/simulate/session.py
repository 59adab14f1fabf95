"""A simulated machine for programs: library, nvidia-smi, host tree, environment, and its end.

A program in a hung NVML call ignores every signal but SIGKILL, and nvidia-smi outlives a GPUtil that
was killed. So programs must end with the machine: a guardian process waits for the end of the session's
process, however it ends, and kills what is left.
"""

import contextlib
import fcntl
import json
import os
import secrets
import shlex
import shutil
import signal
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from gpudiag.errors import GpudiagError, UsageError
from gpudiag.folders import cache_folder, temporary_folder
from gpudiag.linux.child import Child, drop_standard_files, kill, name_process
from gpudiag.linux.proc import is_alive, list_environments
from gpudiag.reference.nvml import exported_functions
from gpudiag.simulate.nvml.answers import SUPERSEDED_OFFSET
from gpudiag.simulate.nvml.library import LIBRARY_NAME, copy_library
from gpudiag.simulate.nvml.state import render_state
from gpudiag.simulate.scenario import HostTree, Scenario

# --- what a program is given

# Variables that allocate the real machine's GPUs; the scenario sets its own.
_ALLOCATION_NAMES = frozenset(
    {
        "CUDA_DEVICE_ORDER",
        "CUDA_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "HIP_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
        "NVIDIA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
    }
)
_ALLOCATION_PREFIXES = ("SLURM_", "NVIDIA_REQUIRE_", "GPUDIAG_SIMULATED", "KUBERNETES_")
_NVIDIA_SMI = "nvidia-smi"


def build_environment(
    outside: Mapping[str, str], folder: Path, scenario_name: str, scenario_environment: Mapping[str, str]
) -> dict[str, str]:
    """The whole environment for a program on the machine whose files are in `folder`."""
    environment = {name: value for name, value in outside.items() if not is_allocation_variable(name)}
    paths = [str(folder / "bin"), *_paths_without_nvidia_smi(outside.get("PATH", os.defpath), folder)]
    libraries = [str(folder / "lib"), *filter(None, [outside.get("LD_LIBRARY_PATH")])]
    return environment | {
        "PATH": ":".join(paths),
        "LD_LIBRARY_PATH": ":".join(libraries),
        "GPUDIAG_SIMULATED": scenario_name,
        "GPUDIAG_HOST_ROOT": str(folder / "root"),
        "GPUDIAG_SIMULATED_TORCH": str(folder / "torch.json"),
        "GPUDIAG_SIMULATED_JOBS": str(folder / "jobs.json"),
        **scenario_environment,
    }


def is_allocation_variable(name: str) -> bool:
    """Whether the variable allocates GPUs, or belongs to a simulated machine around this one."""
    if name == "GPUDIAG_SIMULATED_CALL_LOG":
        return False  # set by the caller who starts the session
    return name in _ALLOCATION_NAMES or name == "GPUDIAG_HOST_ROOT" or name.startswith(_ALLOCATION_PREFIXES)


def _paths_without_nvidia_smi(path: str, folder: Path) -> list[str]:
    """The real machine's PATH; a folder with an nvidia-smi is replaced by links to its other programs.

    Otherwise a machine without nvidia-smi, simulated on one that has it, would find that one.
    """
    result = []
    for number, place in enumerate(filter(None, path.split(":"))):
        if not os.path.lexists(os.path.join(place, _NVIDIA_SMI)):
            result.append(place)
            continue
        shadow = folder / "path" / str(number)
        shadow.mkdir(parents=True, exist_ok=True)
        for entry in os.scandir(place):
            if not entry.name.startswith(_NVIDIA_SMI) and not os.path.lexists(shadow / entry.name):
                os.symlink(os.path.join(os.path.abspath(place), entry.name), shadow / entry.name)
        result.append(str(shadow))
    return result


def is_library_outside() -> bool:
    """Whether the dynamic linker would find a real NVML library on this machine."""
    try:
        with open("/etc/ld.so.cache", "rb") as cache:
            if LIBRARY_NAME.encode() in cache.read():
                return True
    except OSError:
        pass
    multiarch = f"{os.uname().machine}-linux-gnu"
    folders = ["/lib", "/usr/lib", "/lib64", "/usr/lib64", f"/lib/{multiarch}", f"/usr/lib/{multiarch}"]
    folders += os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return any(os.path.lexists(os.path.join(place, LIBRARY_NAME)) for place in folders if place)


# --- programs on it

# A killed program may have started another one just before: look again until nothing is found.
_ROUNDS = 20
_ROUND_SECONDS = 0.05
_GUARDIAN_SECONDS = 10.0  # in which the guardian of a machine that was removed ends; it takes a millisecond


def kill_programs(folder: Path) -> None:
    """Kill every program of this user that was started on the machine whose files are in `folder`."""
    for _ in range(_ROUNDS):
        found = find_programs(folder)
        for pid in found:
            kill(pid)
        if not found:
            return
        time.sleep(_ROUND_SECONDS)


def find_programs(folder: Path) -> list[int]:
    """The pids of the programs that run on the machine, other than this process."""
    mark = f"\0GPUDIAG_HOST_ROOT={folder}/root\0".encode()
    found = (pid for pid, environment in list_environments() if mark in b"\0" + environment)
    return [pid for pid in found if pid != os.getpid() and is_alive(pid)]


@contextlib.contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """Within the context, a guardian process cleans up the machine if this process dies."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        _stand_guard(reader, folder)
    guardian = Child(pid)
    os.close(reader)
    try:
        yield
    finally:
        kill_programs(folder)
        with contextlib.suppress(BrokenPipeError):  # the guardian was killed
            os.write(writer, b"\n")
        os.close(writer)
        guardian.wait(_GUARDIAN_SECONDS)


def _stand_guard(reader: int, folder: Path) -> None:
    """The guardian: wait until the session writes a byte or dies; if it dies, clean up. Never returns."""
    try:
        os.setsid()  # away from the terminal and its signals
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        drop_standard_files()
        name_process("gpudiag-guard")
        if os.read(reader, 1) == b"":
            kill_programs(folder)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(0)


# --- the machine

_LOCK_NAME = "lock"
_PREFIX = "machine-"
_UNFINISHED_PREFIX = ".new-"
# A folder is complete within milliseconds; one that is not after this long was abandoned.
_UNFINISHED_SECONDS = 600.0


@contextlib.contextmanager
def hold_folder() -> Iterator[Path]:
    """A fresh folder for one session, removed at the end. Folders of dead sessions are removed first.

    Raises:
        UsageError: there is no folder that programs can be started from.
    """
    parent = _parent_folder()
    remove_dead_folders(parent)
    name = f"{os.getpid()}-{secrets.token_hex(4)}"
    unfinished = parent / f"{_UNFINISHED_PREFIX}{name}"
    folder = parent / f"{_PREFIX}{name}"
    unfinished.mkdir(mode=0o700)
    lock = os.open(unfinished / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Other sessions look at a folder only under its final name, and by then the lock is held.
        unfinished.rename(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_dead_folders(parent: Path) -> None:
    """Remove the folders whose session is dead, and kill what still runs there, as far as possible."""
    for folder in parent.iterdir():
        if folder.name.startswith(_PREFIX) and _is_dead(folder):
            kill_programs(folder)
            shutil.rmtree(folder, ignore_errors=True)
        elif folder.name.startswith(_UNFINISHED_PREFIX):
            with contextlib.suppress(OSError):
                if time.time() - folder.stat().st_mtime > _UNFINISHED_SECONDS:
                    shutil.rmtree(folder, ignore_errors=True)


def _is_dead(folder: Path) -> bool:
    """Whether no process holds the folder's lock."""
    try:
        lock = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def _parent_folder() -> Path:
    """The folder of this user's sessions: one that libraries may be loaded from.

    Raises:
        UsageError: each place is not this user's own, not writable, or mounted noexec.
    """
    places: list[Path] = []
    with contextlib.suppress(GpudiagError):
        places.append(temporary_folder() / f"gpudiag-simulate-{os.getuid()}")
    if cache := cache_folder():
        places.append(cache / "simulate")
    for place in places:
        with contextlib.suppress(OSError):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = place.lstat()
            # Another user could put a library into a folder that they can write to.
            own = status.st_uid == os.getuid() and not status.st_mode & 0o022 and not place.is_symlink()
            may_execute = not os.statvfs(place).f_flag & os.ST_NOEXEC
            if own and may_execute and os.access(place, os.W_OK) and ":" not in str(place):
                return place
    raise UsageError(
        (
            "no folder for a simulated machine can be used: tried "
            f"{' and '.join(map(str, places)) or 'TMPDIR, /tmp'}"
        ),
        hint="set TMPDIR to a folder of your own that has room and is not mounted noexec",
    )


_PACKAGE_PARENT = Path(__file__).resolve().parents[2]


class Session:
    """One simulated machine while it lives; see `open_session`.

    `environment` is complete: start programs with it and nothing else. Programs that clear
    LD_LIBRARY_PATH, or name a library or nvidia-smi by its path, reach the real machine.
    """

    def __init__(self, folder: Path, scenario: Scenario, outside: Mapping[str, str]) -> None:
        """Lay the machine's files out in `folder`, which is empty."""
        self.folder = folder
        self.scenario = scenario
        self._xid_events = [(_uuid(gpu.readings), code) for gpu in scenario.gpus for code in gpu.xid_codes]
        for name in ("lib", "bin", "root"):
            (folder / name).mkdir()
        self._write_library()
        self._write_tools()
        self._write_host_tree(HostTree())
        self._write_answers()
        self.environment: Mapping[str, str] = build_environment(
            outside, folder, scenario.name, scenario.environment
        )

    @property
    def root(self) -> Path:
        """The root of the machine's host tree."""
        return self.folder / "root"

    @property
    def library(self) -> Path:
        """The path where the NVML library is, or would be."""
        return self.folder / "lib" / LIBRARY_NAME

    def update(self, scenario: Scenario) -> None:
        """Change the machine while programs run on it: readings, faults, Xids, host tree, torch.

        Running programs keep their environment and the symbols that they have loaded.

        Raises:
            UsageError: the scenario has a value that NVML cannot express.
        """
        before, self.scenario = self.scenario, scenario
        self._xid_events += _new_xids(before, scenario)
        if scenario.nvml.present and before.nvml.present:
            if scenario.nvml.omitted_symbols != before.nvml.omitted_symbols:
                self._copy_library()
            self._replace_state()
        elif scenario.nvml.present != before.nvml.present:
            self.library.unlink(missing_ok=True)
            self._write_library()
        if scenario.nvidia_smi_present != before.nvidia_smi_present:
            self._write_tools()
        if scenario.host != before.host:
            self._write_host_tree(before.host)
        self._write_answers()

    def call_counts(self) -> dict[str, int]:
        """How often each NVML function was called on this machine, by any program."""
        counts_file = self.folder / "lib" / "nvml.counts"
        if not counts_file.exists():
            return {}
        counts = struct.iter_unpack("<Q", counts_file.read_bytes())
        return {name: count for name, (count,) in zip(exported_functions(), counts, strict=True) if count}

    def _write_library(self) -> None:
        if not self.scenario.nvml.present:
            if is_library_outside():
                # An empty file ends the linker's search: it is not a library, and the rest is not tried.
                self.library.touch()
            return
        counts_file = self.folder / "lib" / "nvml.counts"
        if not counts_file.exists():
            counts_file.write_bytes(bytes(8 * len(exported_functions())))
        self._replace_state()
        self._copy_library()

    def _copy_library(self) -> None:
        # Programs have the old file mapped: a new one takes its name, and the old one stays as it is.
        newer = self.library.with_suffix(".new")
        copy_library(newer, self.scenario.nvml.omitted_symbols)
        newer.replace(self.library)

    def _state_file(self) -> Path:
        return self.folder / "lib" / "nvml.state"

    def _replace_state(self) -> None:
        """Put a new state file in place; a flag in the old one makes programs open it."""
        newer = self._state_file().with_suffix(".new")
        newer.write_bytes(render_state(self.scenario, self._xid_events))
        try:
            old = self._state_file().open("r+b")
        except FileNotFoundError:
            newer.replace(self._state_file())
            return
        with old:
            newer.replace(self._state_file())
            old.seek(SUPERSEDED_OFFSET)
            old.write(struct.pack("<I", 1))

    def _write_tools(self) -> None:
        """Write nvidia-smi, and a gpudiag that is this one."""
        python, parent = shlex.quote(sys.executable), shlex.quote(str(_PACKAGE_PARENT))
        nvidia_smi = self.folder / "bin" / "nvidia-smi"
        nvidia_smi.unlink(missing_ok=True)
        if self.scenario.nvidia_smi_present:
            start = (
                "import sys; sys.path.insert(0, sys.argv.pop(1)); from gpudiag.simulate.nvidia_smi import "
                "program as nvidia_smi"
            )
            start += "; sys.exit(nvidia_smi.main(sys.argv[1:]))"
            # -I -S: without the environment and site-packages it starts in milliseconds.
            _write_program(nvidia_smi, f"{python} -I -S -c '{start}' {parent}")
        _write_program(self.folder / "bin" / "gpudiag", f"{python} -m gpudiag")

    def _write_host_tree(self, before: HostTree) -> None:
        host = self.scenario.host
        for gone in {*before.files, *before.links} - {*host.files, *host.links}:
            _place(self.root, gone).unlink(missing_ok=True)
        for gone in {*before.nodes} - {*host.nodes}:
            _place(self.root, f"dev/{gone}").unlink(missing_ok=True)
        files = {**host.files, **{f"dev/{node}": "" for node in host.nodes}}
        if before == HostTree():
            _write_first(self.root, files)
        else:
            for path, text in files.items():
                if before.files.get(path) != text:
                    _replace(_place(self.root, path), text)
        for path, target in host.links.items():
            link = _place(self.root, path)
            link.unlink(missing_ok=True)
            link.symlink_to(target)

    def _write_answers(self) -> None:
        """Write what torch answers, and what a look at the jobs gives where they are simulated."""
        _replace(self.folder / "torch.json", json.dumps(dict(self.scenario.torch)))
        if self.scenario.jobs is not None:
            _replace(self.folder / "jobs.json", json.dumps(self.scenario.jobs))


@contextlib.contextmanager
def open_session(scenario: Scenario, outside: Mapping[str, str] | None = None) -> Iterator[Session]:
    """A simulated machine to start programs on; its folder is removed at the end.

    `outside` is the environment that the machine's own is made from (default: this process's). After
    a kill -9 the folder stays; the next session removes it.

    Raises:
        UsageError: the library cannot be built, its files cannot be written, or the scenario has a value that
            NVML cannot express.
    """
    with hold_folder() as folder:
        try:
            session = Session(folder, scenario, os.environ if outside is None else outside)
        except OSError as error:
            raise UsageError(
                f"the simulated machine cannot be created in {folder.parent}: {error.strerror}",
                hint="set TMPDIR to a folder with room for a few megabytes",
            ) from error
        yield session


def _uuid(readings: Mapping[str, object]) -> str:
    return str(readings.get("uuid"))


def _new_xids(before: Scenario, after: Scenario) -> list[tuple[str, int]]:
    """(UUID, Xid) of each Xid that is new: those appended to a GPU's list, or all where the list changed."""
    known = {_uuid(gpu.readings): gpu.xid_codes for gpu in before.gpus}
    events = []
    for gpu in after.gpus:
        old = known.get(_uuid(gpu.readings), ())
        added = gpu.xid_codes[len(old) :] if gpu.xid_codes[: len(old)] == old else gpu.xid_codes
        events += [(_uuid(gpu.readings), code) for code in added]
    return events


def _write_first(root: Path, files: Mapping[str, str]) -> None:
    """Write the host tree of a machine that nothing reads yet: some 500 new files."""
    made: set[str] = set()
    for path, text in files.items():
        _refuse_outside(path)
        folder, _, name = f"{root}/{path}".rpartition("/")
        if folder not in made:
            os.makedirs(folder, exist_ok=True)
            made.add(folder)
        with open(f"{folder}/{name}", "wb") as file:
            file.write(text.encode())


def _place(root: Path, path: str) -> Path:
    """The file for a path of the host tree, in a folder that exists.

    Raises:
        UsageError: the path leads out of the tree.
    """
    _refuse_outside(path)
    place = root.joinpath(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _refuse_outside(path: str) -> None:
    parts = PurePosixPath(path).parts
    if path.startswith("/") or ".." in parts or not parts:
        raise UsageError(f"{path!r} is not a path under the root of the simulated machine")


def _replace(path: Path, text: str) -> None:
    """Replace the file atomically: a reader sees the old text or the new one."""
    newer = path.with_name(path.name + ".new")
    newer.write_text(text, encoding="utf-8")
    newer.replace(path)


def _write_program(path: Path, command: str) -> None:
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o755)
