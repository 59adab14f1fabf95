"""Children of an event loop: read without blocking, given up without waiting.

asyncio's own subprocesses wait in a thread each, which never ends if the child is stuck in the driver.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from gpudiag.linux.child import KilledChildren, Program, with_import_path

_REAPED_SECONDS = 0.1  # how long a process that has closed its output may take to end
_FAULTS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
_READ_BYTES = 1 << 18
_MAX_LINE_BYTES = 8 << 20  # 8 GPUs whole are 60 kB


class LoopReader:
    """A pipe that the event loop reads: `take` gets what came, and nothing (b"") at its end."""

    def __init__(self, descriptor: int, take: Callable[[bytes], None]) -> None:
        """Read from now on; the descriptor stays its owner's to close."""
        self.is_open = True
        self._descriptor, self._take = descriptor, take
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    def read_rest(self) -> None:
        """Take what can be read without waiting, and stop."""
        while self.is_open and self._read():
            pass
        self.stop()

    def stop(self) -> None:
        """Read no more; a second call does nothing."""
        if self.is_open:
            self.is_open = False
            self._loop.remove_reader(self._descriptor)

    def _read(self) -> bool:
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.stop()
        self._take(data)
        return bool(data)


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
        self.started_at = self.last_message_at = monotonic()
        self.ended = False
        argv = [sys.executable, "-m", module, str(os.getpid()), *arguments]
        given = with_import_path(os.environ if environment is None else environment)
        self._program = Program(argv, given, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        os.set_blocking(self._program.input, False)
        self._reader = LoopReader(self._program.output, self._receive)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._program.pid

    def send(self, command: Mapping[str, Any]) -> None:
        """Write one command line; a child that no longer reads shows by its silence."""
        if not self.ended:
            with suppress(OSError):
                os.write(self._program.input, json.dumps(command).encode() + b"\n")

    def abandon(self) -> None:
        """Kill it and stop reading from it; `is_reaped` shows whether it has ended."""
        self._end()
        self._program.kill()

    def is_reaped(self) -> bool:
        """Whether the process has ended; one stuck in the driver stays until the driver's call returns."""
        return self._program.is_reaped()

    def crash(self) -> str:
        """The signal by which a fault of its own ended it, `killed by SIGSEGV`; empty where none did."""
        status = self._program.wait(_REAPED_SECONDS)
        return (
            f"killed by {signal.Signals(-status).name}" if status is not None and -status in _FAULTS else ""
        )

    def how_it_ended(self) -> str:
        """Its exit status or signal in words."""
        status = self._program.exit_status()
        if status is None:
            return "it closed its output"
        return f"signal {-status}" if status < 0 else f"exit status {status}"

    def _receive(self, data: bytes) -> None:
        if not data or len(self._buffer) > _MAX_LINE_BYTES:
            self._end()
            return
        self.last_message_at = monotonic()
        self._buffer += data
        if b"\n" not in data:
            return
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = bytearray(rest)
        for line in lines:
            if not self.ended:
                self._hand_on(self, json.loads(line))

    def _end(self) -> None:
        self.ended = True
        self._reader.stop()
        self._program.close_pipes()


class SingleChild:
    """What runs at most one child at a time; those that were killed are kept until they have ended."""

    def __init__(self) -> None:
        """Start nothing."""
        self._child: ChildProcess | None = None
        self._killed = KilledChildren()

    def close(self) -> None:
        """Kill the child, if there is one."""
        if self._child is not None:
            self._child.abandon()
            self._killed.add(self._child)
            self._child = None

    def count_stuck(self) -> int:
        """The number of killed children that have not ended yet; the others are reaped."""
        return self._killed.count()
