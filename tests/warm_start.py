"""Commands of gpudiag as processes of their own, forked from one that has loaded gpudiag's modules.

A start from nothing takes half a second of a processor or more, most of it for imports, and tests start
gpudiag thousands of times. A forked process has arguments, an environment (also in /proc), standard files, a
process session, signals and an exit status of its own, as one that `python -m gpudiag` starts. What an
interpreter reads at its own start is not its own: where a test sets one of those variables, the command is
started from nothing (`starts_alike`). What a start loads, and what it does while it loads, is not seen here:
tests/meta/test_import_weight.py, tests/cli/test_main.py and others start it from nothing. Nor is the
interpreter torn down, which would take a tenth of a second to free all modules, a fork's page by page.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

REPOSITORY = Path(__file__).resolve().parents[1]
IMPORT_PATH = os.pathsep.join((str(REPOSITORY), str(REPOSITORY / "api")))
_OF_CHILDREN = ("torch", "pynvml", "GPUtil", "grpc", "google")  # what no command loads into its own process
_ROOM_BYTES = 64 * 1024  # for a command's environment and arguments, each
_ROOM_VARIABLE = "GPUDIAG_TEST_ROOM"
_MESSAGE_BYTES = 1 << 20
_STARTED_SECONDS = 250.0  # proves that it starts at all
_READ_AT_START = (
    "LD_PRELOAD",
    "LC_ALL",
    "LC_CTYPE",
    "LANG",
    "TZ",
    "MALLOC_ARENA_MAX",
    "COVERAGE_PROCESS_START",
    # The simulated library opens it when it is loaded, here before the child that asks NVML closes what it
    # inherits.
    "GPUDIAG_SIMULATED_CALL_LOG",
)


def starts_alike(environment: Mapping[str, str]) -> bool:
    """Whether an interpreter that starts with this environment is like the one that is running already."""
    outside = os.environ.get("PYTHONPATH")
    if environment.get("PYTHONPATH", outside) not in (outside, IMPORT_PATH, str(REPOSITORY)):
        return False
    names = {name for name in (*environment, *os.environ) if name.startswith("PYTHON")} - {"PYTHONPATH"}
    return all(environment.get(name) == os.environ.get(name) for name in (*names, *_READ_AT_START))


class WarmProcess:
    """A started command, used as a `subprocess.Popen` is."""

    def __init__(
        self, words: Sequence[str], environment: Mapping[str, str], stdin: int, stdout: int, stderr: int
    ) -> None:
        """Start `python WORDS`, which are `-m gpudiag ...` or `-c PROGRAM ...`, as the leader of a process
        session.
        """
        self.args = [sys.executable, *words]
        self.returncode: int | None = None
        request = {"words": [*words], "environment": dict(environment), "cwd": os.getcwd()}
        self._replies, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                keeper = _keeper_of(os.getpid())
                files = [stdin, stdout, stderr, theirs.fileno()]
                socket.send_fds(keeper, [json.dumps(request).encode()], files)
            self.pid = self._reply(_STARTED_SECONDS)
        except BaseException:
            self._replies.close()
            _keeper_of.cache_clear()  # the next command has another one started
            raise

    def poll(self) -> int | None:
        """Its exit status, or minus the signal that ended it; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The same, once it has ended. Raises subprocess.TimeoutExpired: it has not in that many seconds."""
        if self.returncode is None:
            self.returncode = self._reply(timeout)
            self._replies.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it that signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended at this moment
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def _reply(self, seconds: float | None) -> int:
        """The next number that the process with the modules says: the pid, then how it ended."""
        if not select.select([self._replies], [], [], seconds)[0]:
            raise subprocess.TimeoutExpired(self.args, seconds or 0.0)
        data = self._replies.recv(64)
        assert data, "the process that commands are forked from has ended"
        return int(data)


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended: its process session was that of its pid."""

    pid: int
    status: int
    out: str
    err: str


def run_python(
    words: Sequence[str], environment: Mapping[str, str], timeout: float, given: str = ""
) -> Ended:
    """How `python WORDS`, as `WarmProcess` starts it, ended; `given` is what it reads on standard input.

    Raises:
        subprocess.TimeoutExpired: it had not ended in that many seconds, and was killed.
    """
    with contextlib.ExitStack() as files:
        stdin, out, err = (files.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        stdin.write(given.encode())
        stdin.seek(0)
        process = start_python(words, environment, stdin.fileno(), out.fileno(), err.fileno())
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        return Ended(process.pid, status, _text(out), _text(err))


def start_python(
    words: Sequence[str], environment: Mapping[str, str], stdin: int, stdout: int, stderr: int
) -> "WarmProcess | subprocess.Popen[bytes]":
    """`python WORDS` with those files, as the leader of a process session."""
    start = WarmProcess if starts_alike(environment) else start_cold
    return start(words, environment, stdin, stdout, stderr)


def start_cold(
    words: Sequence[str], environment: Mapping[str, str], stdin: int, stdout: int, stderr: int
) -> "subprocess.Popen[bytes]":
    """The same, started from nothing."""
    return subprocess.Popen(
        [sys.executable, *words],
        env=dict(environment),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


@functools.cache
def _keeper_of(_pid: int) -> socket.socket:
    """The connection to this process's own process with the modules, which ends with it.

    A fork needs another.
    """
    connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = os.pathsep.join(filter(None, (IMPORT_PATH, os.environ.get("PYTHONPATH"))))
    room = " " * _ROOM_BYTES  # overwritten by each command: /proc shows what lies there
    with theirs:
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno()), room],
            env={**os.environ, "PYTHONPATH": path, _ROOM_VARIABLE: room},
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close() -> None:
        connection.close()
        process.wait()

    atexit.register(close)
    return connection


# --- the process itself


def _load() -> None:
    """Load what commands load, but nothing that touches a device."""
    sys.modules.update(dict.fromkeys(_OF_CHILDREN))  # the modules that import these are not loaded either
    names = ["uvicorn.protocols.http.httptools_impl", "uvloop", "sqlalchemy.dialects.sqlite"]
    for package in ("gpudiag", "gpudiag_api"):
        found = pkgutil.walk_packages(
            importlib.import_module(package).__path__, f"{package}.", onerror=lambda _: None
        )
        names += [module.name for module in found if not module.name.endswith("__main__")]
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for name in _OF_CHILDREN:
        del sys.modules[name]


def _serve(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Fork a process for each request, and reply how it ended.

    Returns in the forked process: its request, its files.
    """
    running: dict[int, tuple[int, int]] = {}  # of each pidfd: the pid, and where to reply
    while True:
        for descriptor in select.select([connection, *running], [], [])[0]:
            if descriptor is not connection:
                pid, reply = running.pop(descriptor)
                _send(reply, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(reply)
                os.close(descriptor)
                continue
            data, files, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 4)
            if not data:
                for pid, _ in running.values():
                    os.kill(pid, signal.SIGKILL)
                return None
            *files, reply = files
            pid = os.fork()
            if not pid:
                connection.close()
                for left in (reply, *running, *(place for _, place in running.values())):
                    os.close(left)
                return json.loads(data), files
            for file in files:
                os.close(file)
            _send(reply, pid)
            running[os.pidfd_open(pid)] = (pid, reply)


def _send(reply: int, number: int) -> None:
    with contextlib.suppress(OSError):  # nobody asks any more
        os.write(reply, str(number).encode())


def _become(files: list[int], words: list[str], environment: dict[str, str], cwd: str) -> str | None:
    """Be the process that `python WORDS` would have started; the program after `-c`, where there is one."""
    os.setsid()
    os.chdir(cwd)
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    _show([sys.executable, *words], environment)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    sys.orig_argv = [sys.executable, *words]
    sys.argv = [words[0] if words[0] == "-c" else str(REPOSITORY / words[1] / "__main__.py"), *words[2:]]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        was, mode = getattr(sys, name), "r" if number == 0 else "w"
        # It stays open.
        fresh = open(number, mode, 1 if number == 2 else -1, was.encoding, was.errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, fresh)
        setattr(sys, f"__{name}__", fresh)
    for folder in filter(None, environment.get("LD_LIBRARY_PATH", "").split(":")):
        # The loader has read that variable long ago; a library that is loaded already is found by its name.
        for library in sorted(Path(folder).glob("lib*.so*")) if Path(folder).name == "lib" else ():
            with contextlib.suppress(OSError):
                ctypes.CDLL(str(library))
    return words[1] if words[0] == "-c" else None


def _show(words: list[str], environment: dict[str, str]) -> None:
    """Have /proc/PID/cmdline and environ show these: what lies where the kernel put the first ones."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    # proc_pid_stat(5): arg_start, arg_end, env_start, env_end are fields 48 to 51, the state is the third.
    places = [int(field) for field in fields[45:49]]
    shown = ("\0".join(words) + "\0", "".join(f"{name}={value}\0" for name, value in environment.items()))
    for text, start, end in zip(shown, places[::2], places[1::2], strict=True):
        data = os.fsencode(text)
        assert len(data) < end - start
        ctypes.memmove(start, data + bytes(end - start - len(data)), end - start)


def _leave(status: int) -> None:
    """End with that status as an interpreter does, but do not tear it down; return where a stream is broken.

    The interpreter then has its own words and status for that.
    """
    threading._shutdown()  # waits for threads
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return
    os._exit(status & 0xFF)


if __name__ == "__main__":
    sys.path.pop(0)  # this file's folder
    _load()
    gc.collect()
    gc.freeze()
    asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        program = _become(asked[1], **asked[0])
        try:
            if program is None:
                from gpudiag.cli.main import run

                run()
            exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})  # a test's own
        except SystemExit as end:
            if not isinstance(end.code, int | None):
                raise
            _leave(end.code or 0)
            raise
        _leave(0)
