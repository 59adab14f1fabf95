"""The process that imports torch once, never touches CUDA, and forks the ranks.

It writes JSON lines (imported, forked, exited, failed) to its agent's socket; when that closes, the ranks are
killed. The kernel kills the template with its agent, the ranks with their template. If an import starts CUDA,
each rank is an interpreter of its own: `boot.py JOB -1 BOARD RANK TEMPLATE`.
"""

import contextlib
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
from pathlib import Path
from typing import Any, NoReturn

from gpudiag.linux.child import die_with_parent, kill, name_process
from gpudiag.loaded_cuda import driver_has_started, refuses_cuda
from gpudiag.model import codec
from gpudiag.ranks.rank.board import PositionBoard
from gpudiag.ranks.rank.job import Job, LocalRank, read_settings
from gpudiag.ranks.rank.worker import EXIT_RAISED, describe_exception, run_rank

_BOOT = Path(__file__).with_name("boot.py")


def main(arguments: list[str]) -> None:
    """Run the job, or one rank of it; arguments: its file, the descriptors of socket and board, the rank."""
    job_path, socket_descriptor, board_descriptor, *own = arguments
    job: Job = codec.decode(Job, json.loads(Path(job_path).read_text()))
    if own:
        rank, template_pid = map(int, own)
        local = next(local for local in job.ranks if local.rank == rank)
        run_rank(job, local, PositionBoard(int(board_descriptor), len(job.ranks)), template_pid)
    die_with_parent(job.agent_pid)
    name_process("gpudiag-template")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the agent's business
    board = PositionBoard(int(board_descriptor), len(job.ranks))
    with socket.socket(fileno=int(socket_descriptor)) as agent:
        template = _Template(job, Path(job_path), board, agent)
        try:
            if template.preload():
                template.fork_ranks()
                template.watch_ranks()
        finally:
            template.kill_ranks()
    os._exit(0)  # torch needs no orderly shutdown, which would take a tenth of a second


class _Template:
    def __init__(self, job: Job, job_path: Path, board: PositionBoard, agent: socket.socket) -> None:
        self._job = job
        self._job_path = job_path
        self._board = board
        self._agent = agent
        self._cuda_has_started = False
        self._ranks: dict[int, int] = {}  # pid -> rank, of those not yet reaped

    def preload(self) -> bool:
        """Import the modules that all ranks need, and report it; False if that failed."""
        gc.disable()
        started = time.monotonic()
        for name in self._job.preload:
            try:
                if "." not in name and importlib.util.find_spec(name) is None:
                    self._send("absent", module=name, python=sys.executable)
                    return False
                importlib.import_module(name)
            except ModuleNotFoundError as error:  # of a package that torch needs, most likely
                self._send("absent", module=error.name or name, python=sys.executable)
                return False
            # A broken torch raises anything: OSError, ImportError, AttributeError.
            except Exception as error:  # noqa: BLE001
                self._send("failed", module=name, error=describe_exception(error))
                return False
        self._try_preload()
        self._send("imported", seconds=time.monotonic() - started, settings=read_settings())
        return True

    def _try_preload(self) -> None:
        """Import the entry's module and optional ones once for all ranks, which meet any error themselves."""
        for name in (*self._job.try_preload, self._job.entry.partition(":")[0]):
            with contextlib.suppress(Exception):
                importlib.import_module(name)

    def fork_ranks(self) -> None:
        """Fork every rank; report one that cannot be forked, and still fork the others."""
        gc.freeze()  # garbage collection in a rank would otherwise copy the pages it shares with the others
        gc.enable()
        template_pid = os.getpid()
        self._cuda_has_started = driver_has_started()
        for local in self._job.ranks:
            try:
                pid = os.fork()
            except OSError as error:
                self._send("not_forked", rank=local.rank, reason=error.strerror)
                continue
            if pid == 0:
                self._become(local, template_pid)
            self._ranks[pid] = local.rank
            self._send("forked", rank=local.rank, pid=pid)

    def _become(self, local: LocalRank, template_pid: int) -> NoReturn:
        """Run that rank in this forked process, which never returns to the template's code."""
        try:
            self._agent.close()
            if self._cuda_has_started or refuses_cuda(sys.modules.get("torch")):
                self._start_afresh(local, template_pid)
            run_rank(self._job, local, self._board, template_pid)
        finally:
            os._exit(EXIT_RAISED)

    def _start_afresh(self, local: LocalRank, template_pid: int) -> NoReturn:
        """Become an interpreter that runs that rank alone; its process is still this one."""
        die_with_parent(template_pid)
        os.set_inheritable(self._board.descriptor, True)
        descriptors = ("-1", str(self._board.descriptor))
        own = (str(local.rank), str(template_pid))
        command = [sys.executable, str(_BOOT), str(self._job_path), *descriptors, *own]
        os.execv(sys.executable, command)  # noqa: S606 - itself

    def watch_ranks(self) -> None:
        """Report each rank's end at once; return when all have ended or the agent is gone."""
        wakeup, on_signal = socket.socketpair()
        on_signal.setblocking(False)
        wakeup.setblocking(False)
        signal.set_wakeup_fd(on_signal.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._reap()  # those that ended before the handler was installed
        while self._ranks:
            readable, _, _ = select.select([wakeup, self._agent], [], [])
            if self._agent in readable:
                return  # the agent never writes: it closed its end, or it is dead
            with contextlib.suppress(BlockingIOError):
                wakeup.recv(4096)
            self._reap()

    def kill_ranks(self) -> None:
        """Kill and reap the ranks that are left."""
        for pid in tuple(self._ranks):
            kill(pid)
        deadline = time.monotonic() + 1.0  # a rank in uninterruptible sleep dies when the kernel lets it
        while self._ranks and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.002)

    def _reap(self) -> None:
        while self._ranks:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            at = time.monotonic()
            rank = self._ranks.pop(pid, None)
            if rank is not None:
                self._send("exited", rank=rank, exit=os.waitstatus_to_exitcode(status), at=at)

    def _send(self, kind: str, **fields: Any) -> None:
        with contextlib.suppress(
            BrokenPipeError, ConnectionResetError
        ):  # then the agent is gone, and watch_ranks ends
            self._agent.sendall(json.dumps({"kind": kind, **fields}).encode() + b"\n")
