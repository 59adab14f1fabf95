"""The history of this machine, read and written by a guarded child: it never fails or delays a verdict.

The store may hang or be full; what goes wrong is one line for the user.
"""

import json
import os
import select
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from gpudiag.checks.gpu.gone import known_gpus_of
from gpudiag.checks.gpu.xid_faults import outcome_of
from gpudiag.errors import GpudiagError, StoreError
from gpudiag.model.codec import decode, dumps, encode
from gpudiag.model.device import Snapshot
from gpudiag.model.finding import WORST_FIRST
from gpudiag.model.history import History, Sample
from gpudiag.model.kernel_log import KernelEvent
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.model.run import Run
from gpudiag.probe.given_time import deadline_for
from gpudiag.probe.guard import GuardedChild, collect, start_guarded
from gpudiag.probe.start import SIMULATED
from gpudiag.store.history_child import StartedHistory
from gpudiag.store.state_folder import own_machine_key

READ_SECONDS = 1.5
WRITE_SECONDS = 2.0
STORED_XIDS = 200  # of one run; a millisecond each


def machine_key(snapshot: Snapshot) -> str:
    """The key of a machine's history: its host name, or its own name if it is simulated."""
    return snapshot.host if snapshot.simulated is None else f"simulated {snapshot.simulated}"


class HistoryKeeper:
    """One store, read while the machine is probed, and written once there is a verdict."""

    def __init__(self, store: str, machine: str, started: StartedHistory | None = None) -> None:
        """Start reading what is stored about that machine, unless it is `started`."""
        self._started = StartedHistory(store, machine) if started is None else started
        self._child = self._started.child
        self._warned = False

    def read(self, deadline_seconds: float = READ_SECONDS) -> tuple[Reading[History], str]:
        """The history, or why there is none, and a warning for the user, empty if all is well."""
        wait_for_message(self._child, deadline_for(self._child, deadline_seconds))
        for kind, *rest in self._child.messages:
            if kind == "history":
                text, last, good = rest
                history = decode(History, json.loads(text))
                return replace(history, last=_snapshot(last, "earlier"), good=_snapshot(good, "good")), ""
        words = self._give_up("read")
        late = self._child.ending == "timed_out"
        return Missing(MissingReason.TIMED_OUT if late else MissingReason.ERROR, words), words

    def write(self, run: "RunFacts", deadline_seconds: float = WRITE_SECONDS) -> str:
        """Store the run; a warning in one line, empty if it was stored or an earlier call has warned."""
        if self._warned:
            return ""
        if self._child.ending is None:
            self._child.messages.clear()
            self._started.hand_over(json.dumps(run.encoded()).encode())
            until = monotonic() + deadline_seconds
            wait_for_message(self._child, deadline_for(self._child, deadline_seconds, lambda: until))
        if any(kind == "stored" for kind, *_ in self._child.messages):
            return ""
        return self._give_up("written")

    def close(self) -> None:
        """Kill the child, whatever it is doing."""
        self._started.close()

    def _give_up(self, what: str) -> str:
        self._child.give_up()
        words = _failure(self._child, what)
        self._warned = True
        return words


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run to be stored; with `good`, later runs are compared with its snapshot."""

    snapshot: Snapshot
    kind: str  # preflight or nccl-test
    outcome: str
    samples: tuple[Sample, ...] = ()
    keep_snapshot: bool = True
    good: bool = False

    def encoded(self) -> dict[str, Any]:
        """The run as plain data, for the child that writes it."""
        snapshot = self.snapshot
        return {
            "machine": machine_key(snapshot),
            "kind": self.kind,
            "at": snapshot.taken_at.timestamp(),
            "outcome": self.outcome,
            "simulated": snapshot.simulated,
            "snapshot": dumps(snapshot) if self.keep_snapshot else None,
            "samples": [encode(sample) for sample in self.samples],
            "known": encode(known_gpus_of(snapshot)),
            "good": self.good,
            "kernel_events": [encode(event) for event in _xids(snapshot)],
        }


def write_job(store: str, run: Run, report: str | None, deadline_seconds: float = WRITE_SECONDS) -> str:
    """Store an ended `gpudiag run` with its document; a warning in one line, empty if it was stored."""
    job = os.memfd_create("gpudiag-job")
    try:
        with open(job, "wb", closefd=False) as file:
            file.write(json.dumps({"run": encode(run), "report": report}).encode())
        # By its path: a guarded child keeps no descriptor of ours.
        place = f"/proc/{os.getpid()}/fd/{job}"
        simulated = os.environ.get(SIMULATED)
        child = start_guarded(
            "gpudiag.store.history_child:keep_job", store, own_machine_key(), simulated, place
        )
        collect([(child, deadline_for(child, deadline_seconds))])
    except (OSError, GpudiagError) as error:
        return f"the history was not written: {error.message if isinstance(error, GpudiagError) else error}"
    finally:
        os.close(job)
    stored = any(kind == "stored" for kind, *_ in child.messages)
    return "" if stored else _failure(child, "written")


def read_history(store: str, machine: str, deadline_seconds: float = READ_SECONDS) -> History:
    """The stored history of that machine. Raises StoreError: the store cannot be read by the deadline."""
    keeper = HistoryKeeper(store, machine)
    try:
        history, warning = keeper.read(deadline_seconds)
    finally:
        keeper.close()
    if isinstance(history, Missing):
        raise StoreError(warning, hint="name another store with --store")
    return history


def wait_for_message(
    child: GuardedChild, deadline: float | Callable[[], float], besides: Collection[str] = ()
) -> None:
    """Return when the child has sent a message or ended, or at `deadline` (`time.monotonic`); never kills it.

    Kinds in `besides` do not count. A deadline that is a function is asked again once it has passed.
    """
    while child.ending is None and all(kind in besides for kind, *_ in child.messages):
        # Also past the deadline, read what has come: the caller may have been busy elsewhere.
        until = deadline() if callable(deadline) else deadline
        ready, _, _ = select.select(child.descriptors(), [], [], max(0.0, until - monotonic()))
        if not ready and (not callable(deadline) or monotonic() >= deadline()):
            return
        for descriptor in ready:
            if descriptor in child.descriptors():
                child.receive(descriptor)


def _xids(snapshot: Snapshot) -> list[KernelEvent]:
    """The Xids in the kernel log, which loses them at the next boot, each with its GPU's UUID.

    Of a flood, only as many as can be written in time: the most severe, and of these the newest.
    """
    log = snapshot.kernel_log
    faults = [] if isinstance(log, Missing) else [event for event in log if event.xid_code is not None]
    gravest_first = sorted(
        range(len(faults)), key=lambda place: (WORST_FIRST.index(outcome_of(faults[place])), -place)
    )
    faults = [faults[place] for place in sorted(gravest_first[:STORED_XIDS])]
    boards = {
        device.id.bus_id: device.id.uuid
        for device in snapshot.devices
        if not isinstance(device.id.uuid, Missing)
    }
    return [replace(event, gpu_uuid=event.gpu_uuid or boards.get(event.bus_id or "")) for event in faults]


def _snapshot(text: str | None, which: str) -> Reading[Snapshot]:
    """A stored snapshot, or the reason why there is none that this version can read."""
    if text is None:
        return Missing(MissingReason.SOURCE_ABSENT, f"no {which} run of this machine is stored")
    unread = "the stored snapshot cannot be read"
    try:
        document = json.loads(text)
        if document["schema"] != Snapshot.SCHEMA:
            return Missing(MissingReason.NOT_SUPPORTED, f"{unread}: it is a {document['schema']}")
        return decode(Snapshot, document)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        return Missing(MissingReason.NOT_SUPPORTED, f"{unread}: {error}")
    except GpudiagError as error:
        return Missing(MissingReason.NOT_SUPPORTED, f"{unread}: {error.message}")


def _failure(child: GuardedChild, what: str) -> str:
    """Why the store was not read or written, in one line."""
    refused = [message[1] for message in child.messages if message[0] == "refused"]
    if refused:
        return str(refused[0])
    if child.ending == "timed_out":
        return f"the history was not {what} in time"
    return f"the history was not {what}: {child.detail or child.ending}"
