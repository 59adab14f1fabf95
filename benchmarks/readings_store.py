"""The readings of a day in the ring, its journal and its copies, against the same rows in sqlite.

    python benchmarks/readings_store.py [--gpus 8] [--ticks 600] [--rounds 5] [--unwatched]

Each store in a process of its own, with the same numbers: a day at 10 s and an hour at 1 s, then ticks of 1 s; where nobody
looks at the page (`--unwatched`) the hour and the ticks are at 5 s, as the sampler does then. Prints
medians, and each figure of sqlite as a ratio to the ring's. `file` is one sqlite file (write-ahead log, a transaction every
10 s) that answers too; `memory` is a table in memory that answers, and a file that the rows are also written to, so that a disk
that hangs delays no answer. As rows grow old both thin them to 10 s, and forget them after a day. Times are of a processor,
but for `others wait`: the longest that a thread which wants to run every millisecond is late while a day is read.
"""

import argparse
import json
import os
import platform
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import Event, Thread
from typing import Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpudiag.sampler.ring import NAMES, SERIES, Kind, Ring, Window, plan_window, read_window
from gpudiag.sampler.spill import Sampled, Spill

_DAY, _HOUR, _COARSE = 86_400, 3600, 10
_WRITE_TICKS, _COPY_TICKS = 10, 300  # as gpudiag/service/readings.py
_HOUR_STEP = 5.0  # that the service answers an hour with
_POINT_SECONDS = 0.001

Points = dict[str, dict[str, tuple[float | None, ...]]]  # of each series, by UUID


class Store(Protocol):
    """What is measured."""

    def add(self, at: int, samples: dict[str, dict[str, float]]) -> None:
        """Remember one tick."""

    def write(self, tick: int) -> None:
        """Write what is due, as the thread of the disk does."""

    def read(self, window: Window) -> Points:
        """Every series of every GPU."""


class RingStore:
    """As the service remembers today."""

    def __init__(self, folder: Path) -> None:
        """Start empty."""
        self._ring, self._spill = Ring(), Spill(folder)
        self._fresh: list[Sampled] = []

    def add(self, at: int, samples: dict[str, dict[str, float]]) -> None:
        """Remember one tick."""
        for uuid, sample in samples.items():
            values = self._ring.add(uuid, at, sample)
            if values is not None:
                self._fresh.append(Sampled(uuid, at, values))

    def write(self, tick: int) -> None:
        """Write a copy, or the journal."""
        if tick % _COPY_TICKS == 0:
            self._fresh = []
            self._spill.save(self._ring)
        elif tick % _WRITE_TICKS == 0:
            self._spill.append(self._fresh)
            self._fresh = []

    def read(self, window: Window) -> Points:
        """Every series of every GPU."""
        return {
            uuid: {name: read_window(device, name, window) for name in NAMES}
            for uuid, device in self._ring.devices.items()
        }


class Table:
    """Rows of one GPU and second; those older than an hour stand for ten seconds."""

    def __init__(self, place: str) -> None:
        """Make the table in that file, or in memory."""
        self.sql = sqlite3.connect(place, check_same_thread=False, isolation_level=None)
        self.sql.create_aggregate("bits", 1, _Bits)  # type: ignore[arg-type]
        if place != ":memory:":
            self.sql.execute("PRAGMA journal_mode=WAL")
            self.sql.execute("PRAGMA synchronous=NORMAL")
            self.sql.execute("PRAGMA cache_size=-256")
            self.sql.execute("PRAGMA wal_autocheckpoint=256")
        columns = ", ".join(f"{name} REAL" for name in NAMES)
        self.sql.execute(
            f"CREATE TABLE readings (at INTEGER, device INTEGER, {columns}, PRIMARY KEY (at, device)) WITHOUT ROWID"
        )

    def insert(self, rows: Iterable[Sequence[float | None]]) -> None:
        """Add rows in one transaction."""
        marks = ", ".join("?" * (2 + len(NAMES)))
        self.sql.execute("BEGIN")
        self.sql.executemany(f"INSERT OR REPLACE INTO readings VALUES ({marks})", rows)  # noqa: S608 - marks
        self.sql.execute("COMMIT")

    def age(self, now: int) -> None:
        """Thin what has become older than an hour since ten ticks ago, and forget what is older than a day."""
        end = (now - _HOUR) // _COARSE * _COARSE
        self.sql.execute("BEGIN")
        self.sql.execute(
            f"INSERT OR REPLACE INTO readings SELECT at / {_COARSE} * {_COARSE}, device, {_MERGED} FROM readings "  # noqa: S608 - our own words
            f"WHERE at >= ? AND at < ? GROUP BY at / {_COARSE}, device HAVING max(at)",
            (end - _WRITE_TICKS, end),
        )
        thinned = "DELETE FROM readings WHERE at >= ? AND at < ? AND at % ?"
        self.sql.execute(thinned, (end - _WRITE_TICKS, end, _COARSE))
        self.sql.execute("DELETE FROM readings WHERE at < ?", (now - _DAY,))
        self.sql.execute("COMMIT")

    def read(self, window: Window, uuids: Sequence[str]) -> Points:
        """Every series of every GPU; None where there is no reading."""
        step = window.width * window.tier.step_seconds
        begin = window.first_slot * window.tier.step_seconds
        points: dict[int, list[list[float | None]]] = {
            device: [[None] * window.count for _ in NAMES] for device in range(len(uuids))
        }
        found: dict[int, list[Sequence[float | None]]] = {device: [] for device in range(len(uuids))}
        for device, *row in self.sql.execute(
            f"SELECT device, (at - ?) / ? AS point, {_ROUNDED} FROM readings WHERE at >= ? AND at < ? GROUP BY point, device HAVING max(at)",  # noqa: S608 - our own words
            (begin, step, begin, begin + window.count * step),
        ):
            found[device].append(row)
        for device, rows in found.items():
            places, *columns = zip(*rows, strict=True)
            if len(places) == window.count:
                points[device] = [list(column) for column in columns]
                continue
            for values, column in zip(points[device], columns, strict=True):
                for place, value in zip(places, column, strict=True):
                    values[int(place or 0)] = value
        return {
            uuid: {name: tuple(values) for name, values in zip(NAMES, points[device], strict=True)}
            for device, uuid in enumerate(uuids)
        }


class _Bits:
    """Every bit that was set."""

    def __init__(self) -> None:
        self.bits: int | None = None

    def step(self, value: float | None) -> None:
        if value is not None:
            self.bits = (self.bits or 0) | int(value)

    def finalize(self) -> float | None:
        return None if self.bits is None else float(self.bits)


def _column(name: str, mean: str) -> str:
    """The SQL for one series; a column by itself is of the row with the one maximum, the last of its group."""
    return {Kind.MEAN: mean.format(name), Kind.LAST: name, Kind.BITS: f"bits({name})"}[SERIES[name]]


_MERGED = ", ".join(_column(name, "avg({})") for name in NAMES)
_ROUNDED = ", ".join(_column(name, "round(avg({}), 3)") for name in NAMES)


class FileStore:
    """One sqlite file."""

    def __init__(self, folder: Path) -> None:
        """Start empty."""
        self._answers = self._kept = Table(str(folder / "readings.db"))
        self._uuids: dict[str, int] = {}
        self._fresh: list[Sequence[float | None]] = []
        self._now = 0

    def add(self, at: int, samples: dict[str, dict[str, float]]) -> None:
        """Remember one tick."""
        self._now = at
        for uuid, sample in samples.items():
            device = self._uuids.setdefault(uuid, len(self._uuids))
            self._fresh.append((at, device, *map(sample.get, NAMES)))

    def write(self, tick: int) -> None:
        """Write the rows of ten seconds."""
        if tick % _WRITE_TICKS == 0:
            for table in {id(table): table for table in (self._answers, self._kept)}.values():
                table.insert(self._fresh)
                table.age(self._now)
            self._fresh = []

    def read(self, window: Window) -> Points:
        """Every series of every GPU."""
        return self._answers.read(window, list(self._uuids))


class MemoryStore(FileStore):
    """A table in memory, and a file."""

    def __init__(self, folder: Path) -> None:
        """Start empty."""
        super().__init__(folder)
        self._answers = Table(":memory:")


_STORES: dict[str, Callable[[Path], Store]] = {"ring": RingStore, "file": FileStore, "memory": MemoryStore}


def make_samples(count: int, at: int) -> dict[str, dict[str, float]]:
    """What GPUs under load might read, by UUID: most are whole numbers."""
    noise = random.Random(at)  # noqa: S311 - no secret
    return {
        f"GPU-{number:08d}-0000-0000-0000-000000000000": {
            name: 400.0 + number
            if SERIES[name] is not Kind.MEAN
            else noise.randrange(200_000, 700_000) / 1000
            if name == "power_draw_watts"
            else float(noise.randrange(80 * 1024) << 20)
            if name == "memory_used_bytes"
            else float(noise.randrange(30, 2000))
            for name in NAMES
        }
        for number in range(count)
    }


def measure(name: str, gpus: int, ticks: int, rounds: int, pace: int) -> dict[str, float]:
    """The figures of one store."""
    now = int(time.time()) // _COARSE * _COARSE
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        before = _resident_bytes()
        store = _STORES[name](folder)
        times = (*range(now - _DAY + 60, now - _HOUR, _COARSE), *range(now - _HOUR, now, pace))
        for number, at in enumerate(times):
            store.add(at, make_samples(gpus, at))
            if number % 100 == 0:
                store.write(_WRITE_TICKS)
        store.write(_WRITE_TICKS)
        resident = _resident_bytes() - before
        adding, writing, wrote = _measure_ticks(store, now, gpus, ticks, pace)
        end = now + ticks
        hour = plan_window(end - _HOUR + 1, end, _HOUR_STEP, end)
        day = plan_window(end - _DAY + 1, end, 1.0, end)
        return {
            "a tick, in the event loop (ms)": adding,
            "a tick, in the disk's thread (ms)": writing,
            "written to disk, a minute (KiB)": wrote,
            "an hour of all series (ms)": _median_milliseconds(lambda: store.read(hour), rounds),
            "a day of all series (ms)": _median_milliseconds(lambda: store.read(day), rounds),
            "others wait meanwhile, at most (ms)": _lateness_milliseconds(lambda: store.read(day), rounds),
            "memory (MiB)": resident / (1 << 20),
            "on disk (MiB)": sum(path.stat().st_size for path in folder.iterdir()) / (1 << 20),
        }


def _measure_ticks(store: Store, now: int, gpus: int, ticks: int, pace: int) -> tuple[float, float, float]:
    """Milliseconds a tick of adding and of writing, and KiB written a minute."""
    adding = writing = 0.0
    before = _written_bytes()
    for tick in range(0, ticks, pace):
        samples = make_samples(gpus, now + tick)
        began = time.process_time()
        store.add(now + tick, samples)
        between = time.process_time()
        store.write(tick)
        adding, writing = adding + between - began, writing + time.process_time() - between
    wrote = (_written_bytes() - before) / 1024
    return 1000 * adding / ticks * pace, 1000 * writing / ticks * pace, wrote / ticks * 60


def _median_milliseconds(read: Callable[[], Points], rounds: int) -> float:
    spent = []
    for _ in range(rounds):
        began = time.process_time()
        read()
        spent.append(1000 * (time.process_time() - began))
    return statistics.median(spent)


def _lateness_milliseconds(read: Callable[[], Points], rounds: int) -> float:
    """How late a thread that sleeps a millisecond at a time is at worst, median of the rounds."""
    worst = []
    for _ in range(rounds):
        done = Event()
        thread = Thread(target=lambda done=done: (read(), done.set()))
        thread.start()
        late = 0.0
        while not done.is_set():
            began = time.monotonic()
            time.sleep(_POINT_SECONDS)
            late = max(late, time.monotonic() - began - _POINT_SECONDS)
        thread.join()
        worst.append(1000 * late)
    return statistics.median(worst)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _written_bytes() -> int:
    numbers = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(numbers["wchar"])


def main() -> None:
    """Measure each store, and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--ticks", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--unwatched", action="store_true", help="samples every 5 s")
    parser.add_argument("--store", choices=_STORES, help="this one alone, as JSON")
    options = parser.parse_args()
    if options.store:
        pace = 5 if options.unwatched else 1
        print(json.dumps(measure(options.store, options.gpus, options.ticks, options.rounds, pace)))
        return
    print(
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}; {options.gpus} GPUs, {len(NAMES)} series"
    )
    command = [sys.executable, *sys.argv]
    found = {name: json.loads(subprocess.check_output([*command, "--store", name])) for name in _STORES}
    print(f"{'':36}" + "".join(f"{name:>20}" for name in found))
    for what, ring in found["ring"].items():
        cells = (
            f"{one[what]:.2f} ({one[what] / ring:.2f})" if ring else f"{one[what]:.2f}"
            for one in found.values()
        )
        print(f"{what:36}" + "".join(f"{cell:>20}" for cell in cells))


if __name__ == "__main__":
    main()
