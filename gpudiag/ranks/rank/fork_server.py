"""The process that imports torch once for a command, and forks what runs on it: templates, questions.

It never touches CUDA. The command asks over a socket of messages (JSON, with descriptors): fork, pid, end,
reap. When that closes, or its owner dies, the server ends, and all that it forked. If torch cannot be
imported, or has started CUDA by that, each fork is a fresh interpreter, which reports what is wrong.
"""

import contextlib
import fcntl
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpudiag.linux.child import die_with_parent, kill_group, name_process, peek_exit
from gpudiag.loaded_cuda import driver_has_started, refuses_cuda
from gpudiag.ranks.rank import template
from gpudiag.ranks.rank.job import MESSAGE_BYTES

_DESCRIPTORS_AT_MOST = 4
_BOOT = Path(__file__).with_name("boot.py")
_TORCH = ("torch", "torch.distributed")
_REAP_SECONDS = 0.2  # a killed process is gone by then, unless it is in uninterruptible sleep


def main(arguments: list[str]) -> None:
    """Serve until the socket closes; arguments: its descriptor, and the owner's pid."""
    descriptor, owner_pid = arguments
    die_with_parent(int(owner_pid))
    name_process("gpudiag-torch")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the command's business
    with socket.socket(fileno=int(descriptor)) as owner:
        _ForkServer(owner).serve()
    os._exit(0)  # torch needs no orderly shutdown, which would take a tenth of a second


class _ForkServer:
    def __init__(self, owner: socket.socket) -> None:
        self._owner = owner
        self._pid = os.getpid()
        self._has_torch = False
        # whether forks use this interpreter: no fork could use a driver of CUDA that was started here
        self._shares = False
        self._wakeup, self._on_signal = socket.socketpair()
        self._forks: dict[int, int] = {}  # number -> pid, of those not yet reaped
        self._ended: set[int] = set()  # numbers whose end was reported
        self._released: set[int] = set()  # numbers to reap as soon as that is possible

    def serve(self) -> None:
        """Import torch, then fork what is asked for, until the owner is gone."""
        self._send("hello")
        self._import_torch()
        for end in (self._wakeup, self._on_signal):
            end.setblocking(False)
        signal.set_wakeup_fd(self._on_signal.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            readable, _, _ = select.select([self._wakeup, self._owner], [], [])
            if self._wakeup in readable:
                with contextlib.suppress(BlockingIOError):
                    self._wakeup.recv(4096)
            self._report_ends()
            if self._owner in readable and not self._answer():
                break
        for pid in self._forks.values():
            kill_group(pid)

    def _import_torch(self) -> None:
        """Import torch for all forks; no garbage is collected, nor in the shared pages."""
        gc.disable()
        with contextlib.suppress(Exception):  # a broken torch raises anything; a fresh interpreter reports it
            for name in _TORCH:
                importlib.import_module(name)
            self._has_torch = True

    def _answer(self) -> bool:
        """Do what the next message asks for; False once the owner is gone."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._owner, MESSAGE_BYTES, _DESCRIPTORS_AT_MOST)
        except ConnectionResetError:
            return False
        if not data:
            return False
        message = json.loads(data)
        if message["kind"] == "release":
            self._release(message["number"])
        else:
            self._fork(message, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        if message["kind"] == "question":
            self._import_more(message["preload"])  # while it is answered; its pipes are closed here
        return True

    def _fork(self, message: dict[str, Any], descriptors: list[int]) -> None:
        is_template = message["kind"] == "template"
        if is_template:
            self._import_more(message["preload"])
        become = self._become_template if is_template else self._become_question
        self._shares = self._has_torch and not driver_has_started()
        gc.freeze()
        try:
            pid = os.fork()
        except OSError as error:
            self._send("not_forked", number=message["number"], reason=error.strerror)
            return
        if pid == 0:
            self._become(become, message, descriptors)
        self._forks[message["number"]] = pid
        self._send("forked", number=message["number"], pid=pid)

    def _import_more(self, names: Sequence[str]) -> None:
        """Import further parts of torch that templates need; they meet any error themselves."""
        for name in names if self._has_torch else ():
            if name.partition(".")[0] == "torch":
                with contextlib.suppress(Exception):
                    importlib.import_module(name)

    def _become(
        self,
        become: Callable[[dict[str, Any], list[int]], None],
        message: dict[str, Any],
        descriptors: list[int],
    ) -> None:
        """Run that in this forked process, which never returns to the server's code."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for ours in (self._owner, self._wakeup, self._on_signal):
                ours.close()
            os.setsid()  # a group of its own, by which it is killed with all that it started
            die_with_parent(self._pid)
            os.environ.update(message["variables"])
            become(message, descriptors)
        except BaseException:  # noqa: BLE001 - whatever ends it is printed where its output goes
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def _become_template(self, message: dict[str, Any], descriptors: list[int]) -> None:
        output, agent, board = descriptors
        _write_to(output)
        arguments = [message["job"], str(agent), str(board)]
        for descriptor in (agent, board):
            os.set_inheritable(descriptor, True)
        if not self._shares:
            # No shell is the point.
            os.execv(sys.executable, [sys.executable, str(_BOOT), *arguments])  # noqa: S606
        template.main(arguments)

    def _become_question(self, message: dict[str, Any], descriptors: list[int]) -> None:
        """Run `module:function`, which writes its answer to descriptor 3."""
        answer, output = (fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in descriptors)
        os.dup2(answer, 3)
        _write_to(output)
        module, _, function = message["entry"].partition(":")
        sys.argv = [module]
        if not self._shares or refuses_cuda(sys.modules.get("torch")):
            spec = importlib.util.find_spec(module)
            program = str(spec.origin if spec else module)
            os.execv(sys.executable, [sys.executable, program])  # noqa: S606
        getattr(importlib.import_module(module), function)()

    def _report_ends(self) -> None:
        """Report each fork that has ended, without reaping it, so that its pid stays."""
        for number, pid in tuple(self._forks.items()):
            if number not in self._ended and (status := peek_exit(pid)) is not None:
                self._ended.add(number)
                self._send("ended", number=number, exit=status)
            if number in self._released:
                self._reap(number)

    def _release(self, number: int) -> None:
        """Kill what is left of a fork and reap it, as soon as that is possible."""
        pid = self._forks.get(number)
        if pid is None:
            return
        kill_group(pid)
        self._released.add(number)
        until = time.monotonic() + _REAP_SECONDS
        while not self._reap(number) and time.monotonic() < until:
            time.sleep(0.001)

    def _reap(self, number: int) -> bool:
        reaped, _ = os.waitpid(self._forks[number], os.WNOHANG)
        if reaped:
            del self._forks[number]
            self._send("released", number=number)
        return bool(reaped)

    def _send(self, kind: str, **fields: Any) -> None:
        with contextlib.suppress(
            BrokenPipeError, ConnectionResetError
        ):  # then the owner is gone, and so are we
            self._owner.send(json.dumps({"kind": kind, **fields}).encode())


def _write_to(descriptor: int) -> None:
    """Have what this process prints go there."""
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
