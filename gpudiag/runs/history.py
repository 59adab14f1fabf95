"""The history of this machine, read and written beside the work: it never fails or delays a verdict.

The store may lie on a disk that is full or hung, or on a server that is down, so a guarded child with
a deadline touches it. What goes wrong is one line for the user.
"""

from dataclasses import replace
from datetime import datetime
from time import monotonic
from typing import Any

from gpudiag.errors import GpudiagError, StoreError
from gpudiag.model.codec import decode, dumps, encode, loads
from gpudiag.model.device import Snapshot
from gpudiag.model.history import History, KnownGpu, Sample
from gpudiag.model.kernel_log import KernelEvent
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.probe.guard import GuardedChild, collect, run_guarded, start_guarded
from gpudiag.runs.state import state_directory

READ_SECONDS = 1.5
WRITE_SECONDS = 2.0
_FILE = "history.db"
_NONE = Missing(MissingReason.SOURCE_ABSENT, "no earlier run of this machine is stored")


def default_store() -> str:
    """The store where none is named: an SQLite file in the state directory."""
    return str(state_directory() / _FILE)


def machine_key(snapshot: Snapshot) -> str:
    """The name under which a machine's history is kept; a simulated one has its own."""
    return snapshot.host if snapshot.simulated is None else f"simulated {snapshot.simulated}"


class HistoryReader:
    """A store that is being read while the machine is being looked at."""

    def __init__(self, store: str, machine: str, deadline_seconds: float = READ_SECONDS) -> None:
        """Start reading what is stored about that machine."""
        self._machine = machine
        self._store = store
        self._child: GuardedChild = start_guarded("gpudiag.runs.history:stream_history", store, machine)
        self._deadline = monotonic() + deadline_seconds

    def finish(self) -> tuple[Reading[History], str]:
        """The history, or why there is none; and a warning for the user, empty where all is well."""
        collect([(self._child, self._deadline)])
        answers = [message for message in self._child.messages if message[0] == "history"]
        if answers:
            _, text, last, good = answers[0]
            return _complete(loads(text), last, good), ""
        words = _failure(self._child, "read")
        return Missing(MissingReason.ERROR, words), words


def record_run(
    store: str,
    snapshot: Snapshot,
    kind: str,
    outcome: str,
    samples: tuple[Sample, ...] = (),
    *,
    keep_snapshot: bool = True,
    deadline_seconds: float = WRITE_SECONDS,
) -> str:
    """Store one run; what went wrong in one line, empty where it was stored."""
    document = dumps(snapshot) if keep_snapshot else None
    facts = {
        "machine": machine_key(snapshot),
        "kind": kind,
        "at": snapshot.taken_at.timestamp(),
        "outcome": outcome,
        "simulated": snapshot.simulated,
        "snapshot": document,
        "samples": [encode(sample) for sample in samples],
        "gpus": [encode(gpu) for gpu in _working(snapshot)],
        "kernel_events": [encode(event) for event in _xids(snapshot)],
    }
    child = run_guarded("gpudiag.runs.history:write_run", deadline_seconds, store, facts)
    stored = any(message[0] == "stored" for message in child.messages)
    return "" if stored else _failure(child, "written")


def read_history(store: str, machine: str, deadline_seconds: float = READ_SECONDS) -> History:
    """What is stored about that machine.

    Raises:
        StoreError: the store cannot be read, or not in time.
    """
    history, warning = HistoryReader(store, machine, deadline_seconds).finish()
    if isinstance(history, Missing):
        raise StoreError(warning, hint="name another store with --store")
    return history


def stream_history(emit: Any, store: str, machine: str) -> None:
    """In a guarded child: the history of that machine, and its two snapshots, as JSON texts."""
    from gpudiag.runs.store import Store, parse_store_url  # the child pays for SQLAlchemy, not the caller

    try:
        opened = Store(parse_store_url(store), read_only=True)
        history, snapshots = opened.read_history(machine), opened.read_snapshots(machine)
    except GpudiagError as error:
        emit(("refused", error.message))
        return
    emit(("history", dumps(history), snapshots.last, snapshots.good))


def write_run(emit: Any, store: str, facts: dict[str, Any]) -> None:
    """In a guarded child: add one run to the store."""
    from gpudiag.runs.store import NewRun, Store, parse_store_url

    run = NewRun(
        machine=facts["machine"],
        kind=facts["kind"],
        at=datetime.fromtimestamp(facts["at"]).astimezone(),
        outcome=facts["outcome"],
        simulated=facts["simulated"],
        snapshot=facts["snapshot"],
        samples=tuple(decode(Sample, sample) for sample in facts["samples"]),
        gpus=tuple(decode(KnownGpu, gpu) for gpu in facts["gpus"]),
        kernel_events=tuple(decode(KernelEvent, event) for event in facts["kernel_events"]),
    )
    try:
        Store(parse_store_url(store)).add_run(run)
    except GpudiagError as error:
        emit(("refused", error.message))
        return
    emit(("stored",))


def _working(snapshot: Snapshot) -> list[KnownGpu]:
    """The GPUs that answered: what a later run may expect to find here."""
    return [
        KnownGpu(device.id.uuid, _text(device.id.bus_id), _text(device.name), snapshot.taken_at)
        for device in snapshot.devices
        if not isinstance(device.responding, Missing) and not isinstance(device.id.uuid, Missing)
    ]


def _xids(snapshot: Snapshot) -> list[KernelEvent]:
    """The GPU faults in the kernel log, which forgets them with the next boot."""
    log = snapshot.kernel_log
    return [] if isinstance(log, Missing) else [event for event in log if event.xid_code is not None]


def _text(reading: Reading[str]) -> str:
    return "" if isinstance(reading, Missing) else reading


def _complete(history: History, last: str | None, good: str | None) -> History:
    return replace(history, last=_snapshot(last), good=_snapshot(good))


def _snapshot(text: str | None) -> Reading[Snapshot]:
    """A stored snapshot; one that this version cannot read is a reason, and no more than that."""
    if text is None:
        return _NONE
    try:
        snapshot = loads(text)
    except GpudiagError as error:
        return Missing(MissingReason.NOT_SUPPORTED, f"the stored snapshot cannot be read: {error.message}")
    assert isinstance(snapshot, Snapshot)  # noqa: S101 - only snapshots are stored there
    return snapshot


def _failure(child: GuardedChild, what: str) -> str:
    """Why the store was not read or written, in one line."""
    refused = [message[1] for message in child.messages if message[0] == "refused"]
    if refused:
        return str(refused[0])
    if child.ending == "timed_out":
        return f"the history was not {what} in time"
    return f"the history was not {what}: {child.detail or child.ending}"
