"""A run's samples, the baseline of later runs, and the machine's state in its last good run."""

from collections.abc import Iterator
from time import monotonic

from gpudiag.errors import GpudiagError
from gpudiag.model.active import metric_of
from gpudiag.model.device import Snapshot
from gpudiag.model.documents import loads
from gpudiag.model.history import Sample
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading, value_or
from gpudiag.model.report import Measures
from gpudiag.store.aside import StoreAside
from gpudiag.store.state_folder import DiskThread

_AGAIN_SECONDS = 60.0  # another process's preflight may have been good since
_SERVER_SECONDS = 600.0  # where nothing shows that: each time a process loads the database library


def samples_of(measures: Measures) -> tuple[Sample, ...]:
    """Every speed in the measures, under a name that describes how it was measured."""
    samples = (*_active_samples(measures), *_collective_samples(measures), *_disk_samples(measures))
    return tuple({(one.metric, one.device_uuid): one for one in reversed(samples)}.values())[::-1]


def _active_samples(measures: Measures) -> Iterator[Sample]:
    active = measures.active
    if isinstance(active, Missing):
        return
    on_gpu = active.device_kind == "cuda"
    # What was measured beside others is no speed of the GPU, and would be one that later runs are held
    # against.
    shared = {one.device_uuid for one in active.shared}
    for copy in active.bandwidth:
        if not copy.wrong_bytes and not shared & {copy.device_uuid, copy.peer_uuid}:
            yield Sample(
                _metric(metric_of(copy), on_gpu),
                copy.bytes_per_second,
                "B/s",
                value_or(copy.device_uuid, None),
                on_gpu,
            )
    for product in active.compute:
        if product.device_uuid not in shared:
            yield Sample(
                _metric(metric_of(product), on_gpu),
                product.flops_per_second,
                "FLOP/s",
                value_or(product.device_uuid, None),
                on_gpu,
            )


def _collective_samples(measures: Measures) -> Iterator[Sample]:
    """A sample of the largest size per operation and dtype: small ones measure latency, noise here."""
    for collective in (measures.collective, measures.operations):
        if isinstance(collective, Missing):
            continue
        # Imported here: code that only reads a good state does not need it.
        from gpudiag.checks.ranks.collective import metric_name

        largest = {(result.op, result.dtype): result for result in collective.results}
        for result in largest.values():
            if isinstance(result.busbw_bytes_per_second, Missing) or result.verified is not True:
                continue
            yield Sample(
                metric_name(result, collective),
                result.busbw_bytes_per_second,
                "B/s",
                judged=collective.device_kind == "cuda",
            )


def _disk_samples(measures: Measures) -> Iterator[Sample]:
    """Remembered and not judged: others use the same disks and file servers."""
    for disk in () if isinstance(measures.disks, Missing) else measures.disks:
        for what, speed in (("write", disk.write_bytes_per_second), ("read", disk.read_bytes_per_second)):
            if not isinstance(speed, Missing):
                yield Sample(f"disk.{what}.{disk.path}", speed, "B/s", judged=False)


def _metric(name: str, on_gpu: bool) -> str:
    return name if on_gpu else f"{name}.cpu"


class GoodState:
    """The newest good state in the store, read by a background thread."""

    def __init__(self, store: StoreAside | None) -> None:
        """Read from that store, if there is one, when `look` is called."""
        self.warning = ""
        self.baseline: Reading[Snapshot] = NOT_ASKED
        self._store = store
        self._asked_at: float | None = None
        self._again_seconds = _AGAIN_SECONDS
        self._read_text: str | None = None
        self._read_stamp: object = None
        self._disk = DiskThread("the machine's good state is not read", self._warn)

    def look(self, machine: str) -> None:
        """Have that machine's state read if it is due; call it about every second."""
        store = self._store
        if store is None:
            return
        store.reap()
        if self._asked_at is None or monotonic() - self._asked_at > self._again_seconds:
            self._asked_at = monotonic()
            self._disk.do(lambda: self._read(store, machine))

    def ask_soon(self) -> None:
        """Make the next `look` read: a run has ended, perhaps a good one."""
        self._asked_at = None

    def _read(self, store: StoreAside, machine: str) -> None:
        stamp = store.stamp()
        self._again_seconds = _SERVER_SECONDS if stamp is None else _AGAIN_SECONDS
        if stamp is not None and (machine, stamp) == self._read_stamp:
            return
        text = None if stamp is not None and stamp[0] is None else store.read_good(machine)
        self._read_stamp = (machine, stamp)
        if text is None or text != self._read_text:
            self._read_text = text
            self.baseline = _parsed(text)

    def _warn(self, words: str) -> None:
        self.warning = words


def _parsed(text: str | None) -> Reading[Snapshot]:
    if text is None:
        return Missing(MissingReason.SOURCE_ABSENT, "no good run of this machine is stored")
    try:
        snapshot = loads(text)
    except GpudiagError as error:
        return Missing(MissingReason.NOT_SUPPORTED, f"the stored snapshot cannot be read: {error.message}")
    assert isinstance(snapshot, Snapshot)  # noqa: S101 - only snapshots are stored there
    return snapshot
