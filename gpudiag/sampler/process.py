"""One child process of the sampler, which is never waited for without limit.

asyncio's own subprocesses wait for each child in a thread; one that is stuck in the driver cannot be
reaped, and that thread would never end. So these are plain child processes, read and reaped by hand.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

_READ_BYTES = 1 << 18
_MAX_LINE_BYTES = 8 << 20  # 8 GPUs whole are 60 kB


class ChildProcess:
    """`python -m MODULE PID ARGUMENTS...`: its lines go to `receive` as objects; `ended` at its end."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        receive: Callable[["ChildProcess", dict[str, Any]], None],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start it from the event loop's thread; it dies with that thread.

        Raises:
            OSError: no process can be started.
        """
        self._hand_on = receive
        self._buffer = bytearray()
        self.started_at = self.heard_at = monotonic()
        self.ended = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(os.getpid()), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(environment),
            start_new_session=True,  # Ctrl-C in the terminal is the service's
        )
        self._output = _descriptor(self._process.stdout)
        self._input = _descriptor(self._process.stdin)
        os.set_blocking(self._output, False)
        os.set_blocking(self._input, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._output, self._receive)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, command: Mapping[str, Any]) -> None:
        """Write one command line; a child that no longer reads shows by its silence."""
        with contextlib.suppress(OSError):
            os.write(self._input, json.dumps(command).encode() + b"\n")

    def abandon(self) -> None:
        """Kill it and stop reading from it; `is_reaped` says whether it has ended."""
        self._end()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def is_reaped(self) -> bool:
        """Whether the process has ended; one stuck in the driver stays until the driver's call returns."""
        return self._process.poll() is not None

    def how_it_ended(self) -> str:
        """Its exit status or signal in words."""
        status = self._process.poll()
        if status is None:
            return "it closed its output"
        return f"signal {-status}" if status < 0 else f"exit status {status}"

    def _receive(self) -> None:
        try:
            data = os.read(self._output, _READ_BYTES)
        except BlockingIOError:
            return
        if not data or len(self._buffer) > _MAX_LINE_BYTES:
            self._end()
            return
        self.heard_at = monotonic()
        self._buffer += data
        if b"\n" not in data:
            return
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = bytearray(rest)
        for line in lines:
            if not self.ended:
                self._hand_on(self, json.loads(line))

    def _end(self) -> None:
        if self.ended:
            return
        self.ended = True
        self._loop.remove_reader(self._output)
        for stream in (self._process.stdout, self._process.stdin):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def _descriptor(stream: Any) -> int:
    number: int = stream.fileno()
    return number


def _environment(environment: Mapping[str, str] | None) -> dict[str, str]:
    """The environment with this process's import path, however it was started."""
    given = dict(os.environ if environment is None else environment)
    return {**given, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
