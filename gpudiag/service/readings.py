"""The readings of the last day and the timeline: in memory, and on disk as far as the disk allows.

A thread of its own, which nothing waits for, writes the disk: a full, slow or hung disk is a warning,
and the numbers are still shown.
"""

from collections import deque
from pathlib import Path
from time import monotonic, time
from typing import Any

from gpudiag.errors import GpudiagError
from gpudiag.model.codec import decode, encode
from gpudiag.model.device import Device
from gpudiag.model.reading import Missing
from gpudiag.model.service import DeviceSeries, Series, Timeline, TimelineEntry, TimelineKind, XidTally
from gpudiag.sampler import pauses
from gpudiag.sampler.ring import (
    CLOCK_SECONDS,
    COARSE,
    FINE,
    NAMES,
    Ring,
    plan_window,
    read_window,
    sample_of,
    spacing_seconds,
)
from gpudiag.sampler.spill import Sampled, Spill
from gpudiag.sampler.tiers import SLOW_SECONDS
from gpudiag.store.state_folder import DiskThread

MAX_ENTRIES = 500
_COPY_SECONDS = 300.0
_CLOSE_SECONDS = 3.0


class Readings:
    """The readings and the timeline of one machine."""

    def __init__(self, folder: Path | None) -> None:
        """Load what the folder holds, and write there; None keeps all in memory."""
        self.entries: deque[TimelineEntry] = deque(maxlen=MAX_ENTRIES)
        self.warning = ""
        self.names: dict[str, tuple[int | None, str | None]] = {}
        self._xids: dict[tuple[str | int | None, int], XidTally] = {}
        self._ring = Ring()
        self._fresh: list[Sampled] = []
        self._fresh_entries: list[TimelineEntry] = []
        # Entries that a full disk has refused, for the next try; only the disk's thread uses them.
        self._waiting_entries: list[dict[str, Any]] = []
        self._journal_has_gap = False
        self._pauses = pauses.PAUSES
        self._journal_at = self._copy_at = monotonic()
        self._disk: DiskThread | None = None
        if folder is not None:
            self._disk = DiskThread("readings are not written", self._warn)
            self._open(folder)

    def add(self, device: Device, at: float) -> None:
        """Remember one GPU's readings."""
        uuid = device.id.uuid
        if isinstance(uuid, Missing):
            return
        index, name = device.id.nvml_index, device.name
        known_name = None if isinstance(name, Missing) else name
        self.names[uuid] = (None if isinstance(index, Missing) else index, known_name)
        values = self._ring.add(uuid, at, sample_of(device))
        if values is not None and self._disk is not None:
            self._fresh.append(Sampled(uuid, at, values))

    def note(self, entry: TimelineEntry) -> None:
        """Remember something that happened."""
        self.entries.append(entry)
        self._count_xid(entry)
        self._fresh_entries.append(entry)

    def xids(self) -> tuple[XidTally, ...]:
        """Every Xid of every GPU, with those of the timeline that an earlier service left.

        No count ever falls.
        """
        return tuple(self._xids.values())

    def _count_xid(self, entry: TimelineEntry) -> None:
        code = entry.xid_code
        if entry.kind is TimelineKind.XID and code is not None:
            key = (entry.uuid or entry.nvml_index, code)
            count = self._xids[key].count if key in self._xids else 0
            self._xids[key] = XidTally(entry.uuid, entry.nvml_index, code, count + 1, entry.at)

    def keep_house(self) -> None:
        """Hand the disk's thread what is due; call this about every second."""
        now = monotonic()
        if self._disk is None or self._spill is None:
            return
        spill = self._spill
        journal_due = now - self._journal_at >= self._pauses.journal
        if self._fresh_entries or (self._waiting_entries and journal_due):
            entries, self._fresh_entries = [encode(entry) for entry in self._fresh_entries], []
            self._disk.do(lambda: self._write_entries(spill, entries))
        if now - self._copy_at >= _COPY_SECONDS:
            self._copy_at = self._journal_at = now
            self._fresh = []
            self._disk.do(lambda: self._write_copy(spill))
        elif journal_due and self._fresh:
            self._journal_at = now
            samples, self._fresh = self._fresh, []
            self._disk.do(lambda: self._write_samples(spill, samples))

    def close(self) -> None:
        """Write everything, and wait no longer than a working disk takes."""
        if self._disk is not None and self._spill is not None:
            self._copy_at = -_COPY_SECONDS
            self.keep_house()
            self._disk.wait(_CLOSE_SECONDS)

    def _write_entries(self, spill: Spill, entries: list[dict[str, Any]]) -> None:
        self._waiting_entries = [*self._waiting_entries, *entries][-MAX_ENTRIES:]
        spill.append_timeline(self._waiting_entries)
        self._waiting_entries = []

    def _write_samples(self, spill: Spill, samples: list[Sampled]) -> None:
        """Append to the journal; after a refused write, only a full copy has all samples again."""
        if self._journal_has_gap:
            self._write_copy(spill)
            return
        self._journal_has_gap = True
        spill.append(samples)
        self._journal_has_gap = False

    def _write_copy(self, spill: Spill) -> None:
        self._journal_has_gap = True
        spill.save(self._ring)
        self._journal_has_gap = False

    def timeline(self) -> Timeline:
        """The newest entries, oldest first."""
        return Timeline(tuple(self.entries))

    def uuids(self) -> tuple[str, ...]:
        """The GPUs with readings, including those that are gone."""
        return tuple(self._ring.devices)

    def series(
        self,
        from_at: float | None = None,
        to_at: float | None = None,
        step_seconds: float | None = None,
        names: tuple[str, ...] = NAMES,
        uuids: tuple[str, ...] | None = None,
    ) -> Series:
        """Readings over a range of time; by default the last hour, as fine as the points allow."""
        now = time()
        to_at = now if to_at is None else min(to_at, now)
        from_at = to_at - FINE.slots if from_at is None else from_at
        oldest = now - COARSE.step_seconds * COARSE.slots
        from_at = min(max(from_at, oldest), to_at)
        # Where nobody looked there are samples every 5 s only; a finer step would show gaps between them.
        finest = SLOW_SECONDS if to_at - from_at > 600 else 1.0
        window = plan_window(from_at, to_at, max(step_seconds or finest, finest), now)
        wanted = [uuid for uuid in self._ring.devices if uuids is None or uuid in uuids]
        return Series(
            first_at=oldest,
            from_at=from_at,
            to_at=to_at,
            step_seconds=window.step_seconds,
            resolution_seconds=max(
                (spacing_seconds(self._ring.devices[uuid], window) for uuid in wanted),
                default=float(window.tier.step_seconds),
            ),
            times=window.times(),
            devices=tuple(
                DeviceSeries(
                    uuid,
                    *self.names.get(uuid, (None, None)),
                    {name: read_window(self._ring.devices[uuid], name, window) for name in names},
                )
                for uuid in wanted
            ),
            events=tuple(entry for entry in self.entries if from_at <= entry.at.timestamp() <= to_at),
        )

    _spill: Spill | None = None

    def _open(self, folder: Path) -> None:
        assert self._disk is not None  # noqa: S101 - made by the caller

        def load() -> None:
            spill = Spill(folder)
            ring = spill.load()
            now = time()
            ring.forget_after(now)
            entries = []
            for document in spill.load_timeline()[-MAX_ENTRIES:]:
                try:
                    entry = decode(TimelineEntry, document)
                except GpudiagError:  # written by another version: one line of the past is lost
                    continue
                if entry.at.timestamp() <= now + CLOCK_SECONDS:
                    entries.append(entry)
            self._ring = ring
            self.entries.extendleft(reversed(entries))
            for entry in entries:
                self._count_xid(entry)
            self._spill = spill

        self._disk.do(load)
        self._disk.wait(_CLOSE_SECONDS)

    def _warn(self, words: str) -> None:
        self.warning = words
