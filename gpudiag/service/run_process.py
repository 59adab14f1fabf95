"""One run's process: a gpudiag command in its own process group, read without blocking."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from time import monotonic

from gpudiag.errors import ExitStatus, GpudiagError
from gpudiag.linux.child import Program
from gpudiag.linux.loop_child import LoopReader
from gpudiag.model.documents import loads
from gpudiag.model.run import EventKind, RunEvent
from gpudiag.model.untrusted_text import mask_text, shorten_text

MAX_LOG_BYTES = 64 * 1024  # the end of what it printed
MAX_EVENTS = 2000
_MAX_EVENT_BYTES = 1 << 20
_OUTCOME_OF_STATUS = {ExitStatus.PASS: "pass", ExitStatus.FAIL: "fail"}
_MAX_REASON_CHARACTERS = 400
_VERDICT = re.compile(r"(?:ERROR|FAIL|WARN|PASS)\b")
_GRACE_SECONDS = 10.0  # between asking it to end and ending it


class RunProcess:
    """A running run; `received` is called when it has emitted or printed something, or ended."""

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        received: Callable[["RunProcess", RunEvent | None, str], None],
    ) -> None:
        """Start `gpudiag ARGV` from the thread of the event loop, with which it dies.

        Raises:
            OSError: no process can be started.
        """
        self.log = bytearray()
        self.log_bytes = 0
        self.events: deque[tuple[int, RunEvent]] = deque(maxlen=MAX_EVENTS)
        self.event_count = 0
        self.started_at = monotonic()
        self._received = received
        self._kill_at: float | None = None
        self._buffer = bytearray()
        self._events, events_write = os.pipe()
        options = ["--events", f"/dev/fd/{events_write}"]
        try:
            self._program = Program(
                [sys.executable, "-m", "gpudiag.service.supervised", str(os.getpid()), *argv, *options],
                environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                keep=(events_write,),
            )
        except OSError:
            os.close(self._events)
            raise
        finally:
            os.close(events_write)
        self._readers = (
            LoopReader(self._program.output, self._take_output),
            LoopReader(self._events, self._take_events),
        )

    @property
    def pid(self) -> int:
        """The process id; its group has the same number."""
        return self._program.pid

    def exit_status(self) -> int | None:
        """Its exit status, or minus a signal's number; None while it is running."""
        status = self._program.exit_status()
        if status is None and self._kill_at is not None and monotonic() > self._kill_at:
            self.kill()
        return status

    def outcome(self, status: int) -> str | None:
        """The verdict of a run that ended by itself with that status; None if it gave none."""
        if status not in _OUTCOME_OF_STATUS:
            return None
        outcomes = [event.outcome for _, event in self.events if event.outcome]
        return outcomes[-1] if outcomes else _OUTCOME_OF_STATUS[ExitStatus(status)]

    def why_failed(self, status: int) -> str:
        """The message of a run without a verdict, or how it died."""
        lines = [line for line in self.log.decode(errors="replace").splitlines() if line.strip()]
        found = [event.finding.message for _, event in self.events if event.finding is not None]
        message = found[0] if found else sentence_of(lines)
        words = shorten_text(mask_text(message), _MAX_REASON_CHARACTERS) if message else "it printed nothing"
        how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        return f"{how}: {words}"

    def ask_to_end(self) -> None:
        """Send SIGTERM; SIGKILL follows after 10 s."""
        if self._kill_at is None:
            self._kill_at = monotonic() + _GRACE_SECONDS
            self._program.signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the whole process group at once; the ranks die with it."""
        self._program.kill()

    def close(self) -> None:
        """Read the rest, close the pipes, and kill what is left in its process group."""
        for reader in self._readers:
            reader.read_rest()
        self._program.kill()
        self._program.close_pipes()
        if self._events >= 0:
            os.close(self._events)
            self._events = -1

    def _take_output(self, data: bytes) -> None:
        if not data:
            return
        self.log_bytes += len(data)
        self.log += data
        del self.log[:-MAX_LOG_BYTES]
        self._received(self, None, data.decode(errors="replace"))

    def _take_events(self, data: bytes) -> None:
        self._buffer += data
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = bytearray(rest[:_MAX_EVENT_BYTES])
        for line in lines:
            with contextlib.suppress(GpudiagError, UnicodeDecodeError):
                event = loads(line.decode())
                if isinstance(event, RunEvent):
                    self.event_count += 1
                    self._keep(event)
                    self._received(self, event, "")

    def _keep(self, event: RunEvent) -> None:
        """Keep the event; of where ranks were, only the newest is of use."""
        if event.kind is EventKind.RANKS:
            for older in [one for one in self.events if one[1].kind is EventKind.RANKS]:
                self.events.remove(older)
        self.events.append((self.event_count, event))


def sentence_of(lines: Sequence[str]) -> str:
    """The message in a command's output: its sentence with the hint, else its verdict, else its last line."""
    for number in range(len(lines) - 1, -1, -1):
        if lines[number].startswith("gpudiag: "):
            rest = (line.strip() for line in lines[number + 1 :])
            return "; ".join((lines[number].removeprefix("gpudiag: ").strip(), *rest))
    verdicts = [number for number, line in enumerate(lines) if _VERDICT.match(line)]
    if verdicts:  # what follows it, indented, belongs to it; hints come after that
        after = lines[verdicts[0] + 1 :]
        whole = [lines[verdicts[0]], *takewhile(lambda line: line.startswith("  "), after)]
        return " ".join(line.strip() for line in whole)
    return lines[-1].strip() if lines else ""
