"""gpudiag's command lines without their start: a process that has loaded the modules forks for each.

For walks of hundreds of commands on simulated machines, where most of a short one is loading modules. What is run is
`gpudiag.cli.main.main` on the same arguments, in the same environment. One thing differs: the linker has read
LD_LIBRARY_PATH by then, so that the machine's library is loaded by its path, and found by its SONAME.
"""

import atexit
import base64
import ctypes
import importlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from gpudiag.simulate.environment import is_library_outside
from gpudiag.simulate.nvml.library import LIBRARY_NAME

_LIMIT_SECONDS = 120.0  # proves that it ends
_KILLED = 137
_LOADED = (
    "gpudiag.cli.preflight", "gpudiag.cli.preflight_output", "gpudiag.checks.builtin", "gpudiag.store.database",
    "gpudiag.store.history", "gpudiag.probe.nvml.child", "gpudiag.probe.kernel_log.read", "gpudiag.probe.kernel_log.keep",
    "gpudiag.probe.host.machine", "gpudiag.probe.host.state", "pynvml", "sqlalchemy.dialects.sqlite",
)  # fmt: skip


class WarmCommands:
    """The process with everything loaded, while it lives."""

    def __init__(self) -> None:
        """Start it."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.warm_commands"],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[int, bytes]:
        """The exit status of `gpudiag ARGUMENTS`, or of `python -c PROGRAM`, and its standard output; errors are nowhere."""
        assert self._process.stdin is not None  # noqa: S101 - both are pipes
        assert self._process.stdout is not None  # noqa: S101
        print(json.dumps([list(arguments), dict(environment)]), file=self._process.stdin, flush=True)
        status, output = json.loads(self._process.stdout.readline())
        return status, base64.b64decode(output)

    def close(self) -> None:
        """End it."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait(_LIMIT_SECONDS)


@cache
def warm_commands() -> WarmCommands | None:
    """This process's own; None on a machine with NVIDIA's library, which a machine without one must not find."""
    if is_library_outside():
        return None
    commands = WarmCommands()
    atexit.register(commands.close)
    return commands


def main() -> None:
    """Answer the lines of standard input, each a command and its environment, until it ends."""
    for name in _LOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        arguments, environment = json.loads(line)
        status, output = _run(arguments, environment)
        print(json.dumps([status, base64.b64encode(output).decode()]), flush=True)


def _run(arguments: list[str], environment: dict[str, str]) -> tuple[int, bytes]:
    output = os.memfd_create("output")
    pid = os.fork()
    if pid == 0:
        _become(arguments, environment, output)
    ended = os.pidfd_open(pid)
    try:
        if not select.select([ended], [], [], _LIMIT_SECONDS)[0]:
            os.kill(pid, 9)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with open(output, "rb") as file:
            file.seek(0)
            return status if status >= 0 else _KILLED, file.read()
    finally:
        os.close(ended)


def _become(arguments: list[str], environment: dict[str, str], output: int) -> NoReturn:
    """Be that command line, in this forked process."""
    status: Any = _KILLED
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor, place in ((nothing, 0), (output, 1), (nothing, 2)):
            os.dup2(descriptor, place)
        os.environ.clear()
        os.environ.update(environment)
        library = Path(environment["LD_LIBRARY_PATH"].partition(":")[0], LIBRARY_NAME)
        if library.exists():
            ctypes.CDLL(os.fspath(library))
        if arguments[0] == "-c":
            exec(arguments[1], {})  # noqa: S102 - the text of a test
            status = 0
        else:
            from gpudiag.cli.main import main as gpudiag

            status = gpudiag(arguments)
        sys.stdout.flush()
    finally:
        os._exit(int(status))


if __name__ == "__main__":
    main()
