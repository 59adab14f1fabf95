"""The processes that start ranks: a template of the agent's own, or one forked by a fork server.

A `ForkServer` has imported torch once, for all sets of ranks of a command. What it forks is nobody's child
here: the server reports how that ended, and reaps it.
"""

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from gpudiag.linux.child import Program, kill_group, peek_exit
from gpudiag.ranks.agents.link import wait_readable
from gpudiag.ranks.rank.job import MESSAGE_BYTES

_BOOT = Path(__file__).parents[1] / "rank" / "boot.py"
# Starting the interpreter and gpudiag, not yet torch: 0.1 s; a cold network file system takes many times
# that.
_HELLO_SECONDS = 5.0
# How long a template that is asked to end has to reap its ranks before its group is killed.
_PATIENCE_SECONDS = 1.0
# How soon the server reports the end of a process whose pipe is closed.
_REPORT_SECONDS = 0.1
# How long a template that closed its socket may take to end.
_EXIT_SECONDS = 2.0


class TemplateProcess(Protocol):
    """The process from which ranks are forked."""

    def exit_status(self) -> int | None:
        """How it ended, or minus the signal, once its socket closed, not reaped; None if unknown."""

    def end(self, deadline: float) -> None:
        """Let it reap its ranks, then kill its process group, then have it reaped, until `time.monotonic`."""

    def error_text(self) -> str:
        """What the process that it comes from wrote, where that failed; empty if nothing."""


class OwnTemplate:
    """A template started as a program, which imports for itself."""

    def __init__(
        self,
        python: str | None,
        job: Path,
        output: Path,
        descriptors: Sequence[int],
        variables: Mapping[str, str],
    ) -> None:
        """Start it in `python` (default: this interpreter), adding `variables` to our environment.

        Raises:
            OSError: the interpreter cannot be executed.
        """
        with output.open("wb") as file:
            self._program = Program(
                [python or sys.executable, str(_BOOT), str(job), *map(str, descriptors)],
                {**os.environ, **variables},
                stdout=file,
                stderr=file,
                keep=descriptors,
            )

    def exit_status(self) -> int | None:
        """How it ended; None if it has not within two seconds."""
        deadline = time.monotonic() + _EXIT_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(ChildProcessError):
                if (status := peek_exit(self._program.pid)) is not None:
                    return status
            time.sleep(0.002)
        return None

    def end(self, deadline: float) -> None:
        """End it in this order: the kernel cannot reuse the group's id before the template is reaped."""
        patience = min(deadline, time.monotonic() + _PATIENCE_SECONDS)
        while not self._has_ended() and time.monotonic() < patience:
            time.sleep(0.002)
        self._program.kill()
        self._program.wait(max(0.1, deadline - time.monotonic()))

    def error_text(self) -> str:
        """Nothing: what it writes is in the run's directory."""
        return ""

    def _has_ended(self) -> bool:
        try:
            return peek_exit(self._program.pid) is not None
        except ChildProcessError:  # already reaped
            return True


class ForkServer:
    """A process that imports torch once and forks templates and questions; `close` ends all of them."""

    def __init__(self, python: str | None = None, variables: Mapping[str, str] | None = None) -> None:
        """Start it in `python` (default: this interpreter), and return at once; see `is_usable`.

        It imports torch meanwhile: what is asked for before that is done is forked afterwards.
        """
        self._replies: dict[int, dict[str, Any]] = {}  # what is known of each fork, by its number
        self._numbers = 0
        self._lost = False
        # The file is closed with the server.
        self._output = open(os.memfd_create("gpudiag-torch-output"), "w+b")  # noqa: SIM115
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        self._program: Program | None = None
        with theirs, contextlib.suppress(OSError):  # a template of its own reports why it cannot be executed
            name = str(theirs.fileno())
            self._program = Program(
                [python or sys.executable, str(_BOOT), "--fork-server", name, str(os.getpid())],
                # One OpenMP thread in each rank, as torchrun sets: the library reads it when torch is
                # imported.
                {"OMP_NUM_THREADS": "1", **os.environ, **(variables or {})},
                stdout=self._output,
                stderr=self._output,
                keep=(theirs.fileno(),),
            )
        self._greeted = False
        self._greeted_until = time.monotonic() + _HELLO_SECONDS

    def __enter__(self) -> "ForkServer":
        """The server."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it, and all that it forked."""
        self.close()

    @property
    def pid(self) -> int:
        """Its process, the parent of all that it forks."""
        return 0 if self._program is None else self._program.pid

    @property
    def is_usable(self) -> bool:
        """Whether it can still fork; this waits until a new one responds, or its time is over."""
        if not self._wait(lambda: self._greeted, self._greeted_until):
            self.close()
        return not self._lost

    def fork_template(
        self,
        job: Path,
        output: Path,
        descriptors: Sequence[int],
        variables: Mapping[str, str],
        preload: Sequence[str],
    ) -> "ForkedProcess":
        """A template for the job, which writes to `output`; its parent is the server."""
        with output.open("wb") as file:
            return self._fork(
                "template",
                (file.fileno(), *descriptors),
                job=str(job),
                variables=dict(variables),
                preload=list(preload),
            )

    def fork_question(
        self, entry: str, answer: int, output: int, preload: Sequence[str] = ()
    ) -> "ForkedProcess":
        """A process that runs `module:function`, with descriptor 3 for its answer (`answer` there).

        Meanwhile the server imports the parts of torch in `preload`.
        """
        return self._fork("question", (answer, output), entry=entry, variables={}, preload=list(preload))

    def close(self) -> None:
        """Kill the server, and with it all that it has forked; a second call does nothing."""
        self._lost = True
        self._socket.close()
        if self._program is not None:
            self._program.kill()  # the kernel kills what it has forked, and the ranks of that
            self._program.wait(_EXIT_SECONDS)
        self._output.close()

    def error_text(self) -> str:
        """What the server itself wrote, the end of it."""
        if self._output.closed:
            return ""
        self._output.seek(max(0, self._output.seek(0, os.SEEK_END) - MESSAGE_BYTES))
        return self._output.read().decode(errors="replace").strip()

    def exit_status(self) -> int | None:
        """How the server ended, or minus the signal; None while it runs."""
        return self._program.wait(_EXIT_SECONDS) if self._program is not None and self._lost else None

    def _fork(self, kind: str, descriptors: Sequence[int], **fields: Any) -> "ForkedProcess":
        self._numbers += 1
        number = self._numbers
        self._replies[number] = {}
        message = json.dumps({"kind": kind, "number": number, **fields}).encode()
        try:
            socket.send_fds(self._socket, [message], list(descriptors))
        except OSError:  # it is gone, or does not read: the other end of what it was to have closes with it
            self._lost = True
        return ForkedProcess(self, number)

    def reply(self, number: int) -> Mapping[str, Any]:
        """What the server reported of that fork: `pid`, `exit`, `released`, or a `reason`."""
        self._receive()
        return self._replies[number]

    def release(self, number: int) -> None:
        """Have the server kill what is left of that fork and reap it.

        A server that has not forked it yet is killed.
        """
        if not self.reply(number) and not self._lost:
            self.close()
            return
        try:
            self._socket.send(json.dumps({"kind": "release", "number": number}).encode())
        except OSError:
            self._lost = True

    def await_reply(self, number: int, field: str, deadline: float) -> bool:
        """Whether the server reports that of the fork in time; False at once where it cannot."""
        self._wait(lambda: not {field, "reason"}.isdisjoint(self._replies[number]), deadline)
        return field in self._replies[number]

    def _wait(self, condition: Callable[[], bool], deadline: float) -> bool:
        while True:
            self._receive()
            if condition() or self._lost:
                return bool(condition())
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            wait_readable((self._socket.fileno(),), left)

    def _receive(self) -> None:
        while not self._lost:
            try:
                data = self._socket.recv(MESSAGE_BYTES)
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            message: dict[str, Any] = json.loads(data) if data else {"kind": "gone"}
            if message["kind"] == "hello":
                self._greeted = True
            elif "number" in message:
                kind: str = message.pop("kind")
                self._replies[message["number"]].update({**message, kind: True})
            else:  # its end, or the refusal of an old interpreter, which ends too
                self._lost = True


class ForkedProcess:
    """A process that a fork server forked."""

    def __init__(self, server: ForkServer, number: int) -> None:
        """The fork with that number."""
        self._server = server
        self._number = number

    @property
    def pid(self) -> int | None:
        """Its pid; None until it is forked."""
        return self._server.reply(self._number).get("pid")

    def exit_status(self) -> int | None:
        """How it ended, or, where the server ended before it, how that did."""
        if self._server.await_reply(self._number, "exit", time.monotonic() + _EXIT_SECONDS):
            status: int = self._server.reply(self._number)["exit"]
            return status
        return self._server.exit_status()

    def release(self) -> int | None:
        """Have what is left of it killed and reaped, without waiting for that.

        It returns its exit status, if it has ended.
        """
        self._server.await_reply(self._number, "exit", time.monotonic() + _REPORT_SECONDS)
        self._server.release(self._number)
        status: int | None = self._server.reply(self._number).get("exit")
        return self._server.exit_status() if status is None else status

    def end(self, deadline: float) -> None:
        """Give it time to reap its ranks, then have its process group killed and reaped."""
        self._server.await_reply(self._number, "exit", min(deadline, time.monotonic() + _PATIENCE_SECONDS))
        if "reason" in self._server.reply(self._number):
            return
        self._server.release(self._number)
        if not self._server.await_reply(self._number, "released", deadline) and self._server.is_usable:
            # The server itself does not respond: kill by hand what it cannot have reaped, and then the
            # server.
            pid = self.pid
            if pid is not None:
                kill_group(pid)
            self._server.close()

    def error_text(self) -> str:
        """Why there was no fork; or what the server wrote, where it ended."""
        reason: str = self._server.reply(self._number).get("reason", "")
        if reason:
            return f"fork: {reason}"
        return "" if self._server.is_usable else self._server.error_text()
