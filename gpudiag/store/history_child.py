"""The child that reads the history and writes a run, started first, as loading the database is slow.

It is guarded: the store may hang. `history.py` talks to it.
"""

from __future__ import annotations

import os
from typing import Any

from gpudiag.probe.guard import start_guarded


class StartedHistory:
    """A child that reads one store, and waits for a run to write; `close` ends it."""

    def __init__(self, store: str, machine: str) -> None:
        """Start reading what is stored about that machine."""
        self._run = os.memfd_create("gpudiag-run")
        self._go_read, self._go = os.pipe()
        me = f"/proc/{os.getpid()}/fd"
        # By their paths: a guarded child keeps no descriptor of ours.
        places = (f"{me}/{self._go_read}", f"{me}/{self._run}")
        self.child = start_guarded("gpudiag.store.history_child:keep_history", store, machine, *places)

    def hand_over(self, run: bytes) -> None:
        """Have the child write the run, a JSON document."""
        os.pwrite(self._run, run, 0)
        os.write(self._go, b"!")

    def close(self) -> None:
        """Kill the child, whatever it is doing."""
        self.child.give_up()
        for descriptor in (self._run, self._go_read, self._go):
            os.close(descriptor)


def keep_history(emit: Any, store: str, machine: str, go_path: str, run_path: str) -> None:
    """In a guarded child: emit the history of that machine, then wait for a run to store, and store it."""
    # The child pays for the database library, not the caller.
    import json
    from pathlib import Path

    from gpudiag.errors import GpudiagError
    from gpudiag.model.codec import dumps
    from gpudiag.store.database import Store, parse_store_url

    with Path(go_path).open("rb", buffering=0) as go, Path(run_path).open("rb") as run:
        try:
            opened = Store(parse_store_url(store), read_only=True)
            history, snapshots = opened.read_history(machine), opened.read_snapshots(machine)
        except GpudiagError as error:
            emit(("refused", error.message))
            return
        emit(("history", dumps(history), snapshots.last, snapshots.good))
        if go.read(1):
            write_run(emit, store, json.loads(run.read()))


def keep_job(emit: Any, store: str, machine: str, simulated: str | None, job_path: str) -> None:
    """In a guarded child: store an ended `gpudiag run`, in the history and among the runs of the service."""
    import json
    from pathlib import Path

    from gpudiag.errors import GpudiagError
    from gpudiag.model.codec import decode
    from gpudiag.model.run import Run
    from gpudiag.store.database import NewRun, Store, parse_store_url
    from gpudiag.store.service_runs import RunRecords

    job = json.loads(Path(job_path).read_bytes())
    run = decode(Run, job["run"])
    outcome = run.outcome or "error"  # without a verdict
    try:
        Store(parse_store_url(store)).add_run(NewRun(machine, run.kind, run.requested_at, outcome, simulated))
        RunRecords(store).save(machine, "gpudiag run", run, job["report"])
    except GpudiagError as error:
        emit(("refused", error.message))
        return
    emit(("stored",))


def write_run(emit: Any, store: str, facts: dict[str, Any]) -> None:
    """In a guarded child: add one run to the store."""
    from datetime import datetime

    from gpudiag.compat import UTC
    from gpudiag.errors import GpudiagError
    from gpudiag.model.codec import decode
    from gpudiag.model.history import KnownGpus, Sample
    from gpudiag.model.kernel_log import KernelEvent
    from gpudiag.store.database import NewRun, Store, parse_store_url

    known = decode(KnownGpus, facts["known"])
    run = NewRun(
        machine=facts["machine"],
        kind=facts["kind"],
        at=datetime.fromtimestamp(facts["at"], UTC),
        outcome=facts["outcome"],
        simulated=facts["simulated"],
        snapshot=facts["snapshot"],
        good=facts["good"],
        samples=tuple(decode(Sample, sample) for sample in facts["samples"]),
        gpus=known.gpus,
        kernel_events=tuple(decode(KernelEvent, event) for event in facts["kernel_events"]),
    )
    try:
        Store(parse_store_url(store)).add_run(run)
    except GpudiagError as error:
        emit(("refused", error.message))
        return
    emit(("stored",))
