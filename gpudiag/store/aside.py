"""The store as a service asks it: a process of its own, which ends once it has not been asked for a while.

The database library takes 13 MiB, and a store may hang. `python -m gpudiag.store.aside PARENT_PID` answers
lines of JSON.
"""

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

from gpudiag.errors import GpudiagError, StoreError
from gpudiag.linux.child import Program, die_with_parent, with_import_path
from gpudiag.model.codec import decode, encode
from gpudiag.model.history import History
from gpudiag.model.run import Run

_ANSWER_SECONDS = 30.0  # a store that has not answered by then hangs; the library's own limits are shorter
_IDLE_SECONDS = 30.0
_MAX_ANSWER_BYTES = 64 << 20

Stamp = tuple[tuple[int, int] | None, ...]  # of each file: its time of change in ns, and its size


class StoreAside:
    """One store; every call but `reap` blocks on it, from any thread that lives as long as the service.

    Raises:
        StoreError: it cannot be opened, read or written, or gives no answer.
    """

    def __init__(self, store: str) -> None:
        """Use the store at that URL or path; the first question starts the process."""
        self._store = store
        self._program: Program | None = None
        self._lock = Lock()

    def stamp(self) -> Stamp | None:
        """What changes whenever the store is written; None where it is no file, and nothing shows that."""
        path = self._store.removeprefix("sqlite:///")
        if "://" in path or not path:
            return None
        return tuple(_stamp_of(Path(path + ending)) for ending in ("", "-wal"))

    def read_good(self, machine: str) -> str | None:
        """The snapshot of that machine's last good run, as JSON; None where there is none."""
        text = self._ask("read_good", machine=machine)
        return None if text is None else str(text)

    def read_history(self, machine: str) -> History:
        """What is stored about that machine, without snapshots."""
        return decode(History, self._ask("read_history", machine=machine))

    def load_runs(self, machine: str) -> list[tuple[Run, str]]:
        """Every run of that machine's services with the process that it belonged to, oldest first."""
        stamp = self.stamp()
        if stamp is not None and stamp[0] is None:  # nothing was ever stored
            return []
        return [(decode(Run, run), service) for run, service in self._ask("load_runs", machine=machine)]

    def save_run(self, machine: str, service: str, run: Run) -> None:
        """Insert or update one run."""
        self._ask("save_run", machine=machine, service=service, run=encode(run))

    def read_report(self, identity: str) -> str | None:
        """The document that was stored with that run; None where there is none."""
        text = self._ask("read_report", identity=identity)
        return None if text is None else str(text)

    def reap(self) -> None:
        """Let the process go that has ended by itself; call it now and then."""
        program = self._program
        if program is not None and program.is_reaped() and self._lock.acquire(blocking=False):
            if self._program is program:
                self._program = None
                program.close_pipes()
            self._lock.release()

    def close(self) -> None:
        """End the process; what it was asked to write is written, or was answered as refused."""
        program, self._program = self._program, None
        if program is not None:
            program.kill()
            program.wait(_REAPED_SECONDS)
            program.close_pipes()

    def _ask(self, question: str, **facts: Any) -> Any:
        line = json.dumps({"store": self._store, "ask": question, **facts}).encode() + b"\n"
        with self._lock:
            # One that ends in this moment, as it was idle, is asked again.
            text = self._exchange(line) or self._exchange(line)
        if text is None:
            raise StoreError("the history gives no answer")
        answer = json.loads(text)
        if "refused" in answer:
            raise StoreError(answer["refused"])
        return answer["answer"]

    def _exchange(self, line: bytes) -> bytes | None:
        """The line that answers; None where the process has ended. Raises StoreError: it is late."""
        if self._program is not None and self._program.is_reaped():
            self.close()
        if self._program is None:
            self._program = self._start()
        program, answer = self._program, bytearray()
        ready = select.poll()  # not select: a service has more than 1,024 descriptors
        ready.register(program.output, select.POLLIN)
        with suppress(OSError):
            _write_all(program.input, line)
            while not answer.endswith(b"\n") and len(answer) < _MAX_ANSWER_BYTES:
                if not ready.poll(_ANSWER_SECONDS * 1000):
                    self.close()
                    raise StoreError("the history gives no answer")
                data = os.read(program.output, 1 << 16)
                if not data:
                    break
                answer += data
        if answer.endswith(b"\n"):
            return bytes(answer)
        self.close()
        return None

    def _start(self) -> Program:
        argv = [sys.executable, "-m", "gpudiag.store.aside", str(os.getpid())]
        environment = with_import_path(os.environ)
        try:
            return Program(argv, environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            raise StoreError(f"the history: no process can be started: {error.strerror or error}") from error


_REAPED_SECONDS = 1.0


def _stamp_of(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


# --- the process


def main() -> None:
    """Answer until the service ends, or asks nothing for a while."""
    die_with_parent(int(sys.argv[1]))
    waiting = b""
    while True:
        while b"\n" not in waiting:
            if not select.select([0], [], [], _IDLE_SECONDS)[0]:
                return
            data = os.read(0, 1 << 16)
            if not data:
                return
            waiting += data
        line, _, waiting = waiting.partition(b"\n")
        _write_all(1, json.dumps(_answer(json.loads(line))).encode() + b"\n")


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"answer": _ASKED[asked["ask"]](asked)}
    except GpudiagError as error:
        return {"refused": error.message}


def _read_good(asked: dict[str, Any]) -> str | None:
    good: str | None = _opened(asked).read_snapshots(asked["machine"]).good
    return good


def _read_history(asked: dict[str, Any]) -> Any:
    return encode(_opened(asked).read_history(asked["machine"]))


def _opened(asked: dict[str, Any]) -> Any:
    from gpudiag.store.database import Store, parse_store_url  # here: the service imports this file

    return Store(parse_store_url(asked["store"]), read_only=True)


def _load_runs(asked: dict[str, Any]) -> Iterable[Any]:
    from gpudiag.store.service_runs import RunRecords

    return [(encode(run), service) for run, service in RunRecords(asked["store"]).load(asked["machine"])]


def _save_run(asked: dict[str, Any]) -> None:
    from gpudiag.store.service_runs import RunRecords

    RunRecords(asked["store"]).save(asked["machine"], asked["service"], decode(Run, asked["run"]))


def _read_report(asked: dict[str, Any]) -> str | None:
    from gpudiag.store.service_runs import RunRecords

    return RunRecords(asked["store"]).read_report(asked["identity"])


_ASKED = {
    "read_good": _read_good,
    "read_history": _read_history,
    "load_runs": _load_runs,
    "save_run": _save_run,
    "read_report": _read_report,
}

if __name__ == "__main__":
    main()
