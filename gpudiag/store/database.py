"""The store of runs: SQLAlchemy on SQLite, or on PostgreSQL by URL. Blocking; `history.py` guards it.

A run is written in one transaction with its samples, so that a crash in the middle of a write leaves
nothing of that run, and all earlier ones. Times are seconds since the epoch, documents are compressed.
"""

import contextlib
import json
import shlex
import sqlite3
import statistics
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from gpudiag.compat import UTC
from gpudiag.errors import StoreError, UsageError
from gpudiag.installed import install_command
from gpudiag.model.codec import decode, encode
from gpudiag.model.history import Baseline, History, KnownGpu, Sample, StoredRun
from gpudiag.model.kernel_log import KernelEvent, is_same_event
from gpudiag.model.reading import Missing
from gpudiag.model.untrusted_text import mask_text

SCHEMA_VERSION = 1
KEPT_RUNS = 500  # of one machine and kind; a preflight before each of 20 jobs a day is three weeks
KEPT_DOCUMENTS = 20  # snapshots are large: about 10 kB of 8 GPUs, compressed
LISTED_RUNS = 100
BASELINE_RUNS = 20  # the good runs whose median is the baseline
_BUSY_SECONDS = 1.0
_CONNECT_SECONDS = 2
_GOOD = ("pass", "warn")
_DAMAGED = ("file is not a database", "disk image is malformed")  # SQLITE_NOTADB, SQLITE_CORRUPT
KEPT_KERNEL_EVENTS = 1000

_tables = sql.MetaData()
_version = sql.Table("gpudiag_schema", _tables, sql.Column("version", sql.Integer, nullable=False))
_runs = sql.Table(
    "runs",
    _tables,
    sql.Column("id", sql.Integer, primary_key=True),
    sql.Column("machine", sql.String(255), nullable=False),
    sql.Column("kind", sql.String(32), nullable=False),
    sql.Column("at", sql.Float, nullable=False),
    sql.Column("outcome", sql.String(16), nullable=False),
    sql.Column("simulated", sql.String(255)),
    sql.Column("snapshot", sql.LargeBinary),
    sql.Index("runs_by_machine", "machine", "kind", "id"),
)
_samples = sql.Table(
    "samples",
    _tables,
    sql.Column("id", sql.Integer, primary_key=True),
    sql.Column("run", sql.Integer, sql.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False, index=True),
    sql.Column("metric", sql.String(128), nullable=False),
    sql.Column("device_uuid", sql.String(64)),
    sql.Column("value", sql.Float, nullable=False),
    sql.Column("unit", sql.String(16), nullable=False),
)
_gpus = sql.Table(
    "gpus",
    _tables,
    sql.Column("machine", sql.String(255), primary_key=True),
    sql.Column("uuid", sql.String(64), primary_key=True),
    sql.Column("bus_id", sql.String(32), nullable=False),
    sql.Column("name", sql.String(128), nullable=False),
    sql.Column("last_seen", sql.Float, nullable=False),
)

_good_states = sql.Table(
    "good_states",  # how each machine was in its last good run
    _tables,
    sql.Column("machine", sql.String(255), primary_key=True),
    sql.Column("at", sql.Float, nullable=False),
    sql.Column("snapshot", sql.LargeBinary, nullable=False),
)
_kernel_events = sql.Table(
    "kernel_events",
    _tables,
    sql.Column("id", sql.Integer, primary_key=True),
    sql.Column("machine", sql.String(255), nullable=False, index=True),
    sql.Column("at", sql.Float, nullable=False),
    sql.Column("text", sql.String(1024), nullable=False),
    sql.Column("document", sql.Text, nullable=False),
)


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to be stored: its outcome, its samples, and the GPUs that worked."""

    machine: str
    kind: str
    at: datetime
    outcome: str
    simulated: str | None = None
    snapshot: str | None = None  # its JSON document
    good: bool = False  # later runs are compared with its snapshot
    samples: tuple[Sample, ...] = ()
    gpus: tuple[KnownGpu, ...] = ()
    kernel_events: tuple[KernelEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredSnapshots:
    """The snapshots that a judgement compares with, as JSON: the newest, and the last good run's."""

    last: str | None
    good: str | None


def parse_store_url(text: str) -> URL:
    """The URL of a store; a plain path is an SQLite file. Raises UsageError: no URL, or no such database."""
    try:
        url = make_url(text) if "://" in text else URL.create("sqlite", database=text)
    except (ArgumentError, ValueError) as error:
        raise UsageError(
            "--store is not a database URL", hint="name a file, sqlite:///FILE or postgresql://HOST/NAME"
        ) from error
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise UsageError(
            f"--store {url.get_backend_name()}://... is no database that gpudiag supports",
            hint="name a file, sqlite:///FILE or postgresql://HOST/NAME",
        )
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise UsageError(
            "--store names no file to keep the history in", hint="name a file, as sqlite:///FILE"
        )
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    return url


def place_of(url: URL) -> str:
    """The store's place for messages: its file, or its address without the password."""
    is_file = url.get_backend_name() == "sqlite" and url.database
    return str(url.database) if is_file else mask_text(url.render_as_string(hide_password=True))


def require_driver(url: URL) -> None:
    """Raise UsageError unless the store's database driver is installed; the hint names the extra."""
    if url.get_backend_name() == "postgresql" and find_spec("psycopg") is None:
        raise UsageError(
            "psycopg is not installed, and PostgreSQL needs it", hint=install_command("postgres")
        )


class Store:
    """One store; each call opens it anew, and leaves nothing open.

    Raises:
        StoreError: it cannot be opened, read or written; it has the cause in the database's words.
    """

    def __init__(self, url: URL, *, read_only: bool = False) -> None:
        """Open the store at `url`, and create its tables where it is new; `read_only` creates nothing."""
        self.place = place_of(url)
        with store_errors(self.place):
            self._engine = open_engine(url, read_only=read_only)
            self._empty = False
            if read_only and not sql.inspect(self._engine).has_table(_version.name):
                self._empty = True
            else:
                self._prepare()

    def add_run(self, run: NewRun) -> None:
        """Write a run with all that belongs to it, in one transaction."""
        with store_errors(self.place), self._engine.begin() as connection:
            values = {
                "machine": run.machine,
                "kind": run.kind,
                "at": run.at.timestamp(),
                "outcome": run.outcome,
                "simulated": run.simulated,
                "snapshot": None if run.snapshot is None else zlib.compress(run.snapshot.encode()),
            }
            inserted = connection.execute(sql.insert(_runs).values(values)).inserted_primary_key
            number = int(inserted[0]) if inserted is not None else 0
            for sample in run.samples:
                connection.execute(
                    sql.insert(_samples).values(
                        run=number,
                        metric=sample.metric,
                        device_uuid=sample.device_uuid,
                        value=sample.value,
                        unit=sample.unit,
                    )
                )
            for gpu in run.gpus:
                _note_gpu(connection, run.machine, gpu)
            if run.good and values["snapshot"] is not None:
                _note_good_state(connection, run.machine, run.at.timestamp(), values["snapshot"])
            for event in run.kernel_events:
                _note_event(connection, run.machine, event)
            _prune(connection, run.machine, run.kind)

    def read_history(self, machine: str) -> History:
        """What the store holds about that machine, without snapshots."""
        if self._empty:
            return History(machine, self.place)
        with store_errors(self.place), self._engine.connect() as connection:
            return History(
                machine,
                self.place,
                tuple(_read_runs(connection, machine)),
                tuple(_read_gpus(connection, machine)),
                tuple(_read_baselines(connection, machine)),
                kernel_events=tuple(_read_events(connection, machine)),
            )

    def read_snapshots(self, machine: str) -> StoredSnapshots:
        """The newest stored snapshot of that machine, and that of its last good run."""
        if self._empty:
            return StoredSnapshots(None, None)
        with store_errors(self.place), self._engine.connect() as connection:
            return StoredSnapshots(
                _read_last_snapshot(connection, machine), _read_good_state(connection, machine)
            )

    def _prepare(self) -> None:
        with self._engine.begin() as connection:
            _tables.create_all(connection)
            version = connection.execute(sql.select(_version.c.version)).scalar()
            if version is None:
                connection.execute(sql.insert(_version).values(version=SCHEMA_VERSION))
            elif version > SCHEMA_VERSION:
                raise StoreError(
                    f"the history at {self.place} is of a newer gpudiag",
                    hint="update gpudiag here, or name another store with --store",
                )


@contextlib.contextmanager
def store_errors(place: str) -> Iterator[None]:
    """Turn what SQLAlchemy, its drivers and the file system raise into a one-line StoreError."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, OSError, zlib.error) as error:
        cause = getattr(error, "orig", None) or error
        words = (getattr(cause, "strerror", None) or str(cause)).strip().splitlines()
        reason = mask_text(words[0]) if words else type(cause).__name__
        raise StoreError(f"the history at {place}: {reason}{_way_out(reason, place)}") from error
    except ImportError as error:
        raise StoreError(
            f"the history at {place} needs the driver {error.name}: {install_command('postgres')}"
        ) from error


def _way_out(reason: str, place: str) -> str:
    """What to do about an SQLite file that is damaged; nothing for another cause."""
    if not any(words in reason for words in _DAMAGED):
        return ""
    path = shlex.quote(place)
    return f"; `mv {path} {path}.damaged` puts it aside, and a new one is begun"


def open_engine(url: URL, *, read_only: bool) -> sql.Engine:
    """An engine for the store at `url`, its folder made unless `read_only`. Raises StoreError: no driver.

    It keeps no connection: a process asks once or twice, and whoever forgot to close one would leave it open.
    """
    if url.get_backend_name() != "sqlite":
        try:
            return sql.create_engine(
                url, poolclass=NullPool, connect_args={"connect_timeout": _CONNECT_SECONDS}
            )
        except NoSuchModuleError as error:
            raise StoreError(f"the history cannot be kept with {url.drivername}") from error
    if url.database:
        if not read_only:
            Path(url.database).parent.mkdir(parents=True, exist_ok=True)
        elif not Path(url.database).exists():
            url = URL.create("sqlite", database=":memory:")  # nothing was stored yet
    engine = sql.create_engine(url, poolclass=NullPool, connect_args={"timeout": _BUSY_SECONDS})
    sql.event.listen(engine, "connect", _set_up_sqlite)
    return engine


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    """Use a write-ahead log: readers never wait for a writer, and a killed writer leaves no partial run."""
    cursor = connection.cursor()
    with contextlib.suppress(sqlite3.OperationalError):  # a read-only database keeps the mode that it has
        cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _note_gpu(connection: sql.Connection, machine: str, gpu: KnownGpu) -> None:
    values = {"bus_id": gpu.bus_id, "name": gpu.name, "last_seen": gpu.last_seen.timestamp()}
    same = (_gpus.c.machine == machine) & (_gpus.c.uuid == gpu.uuid)
    if connection.execute(sql.update(_gpus).where(same).values(values)).rowcount == 0:
        connection.execute(sql.insert(_gpus).values(machine=machine, uuid=gpu.uuid, **values))


def _note_good_state(connection: sql.Connection, machine: str, at: float, snapshot: Any) -> None:
    """Replace the machine's good state; it is kept however many bad runs follow."""
    values = {"at": at, "snapshot": snapshot}
    same = _good_states.c.machine == machine
    if connection.execute(sql.update(_good_states).where(same).values(values)).rowcount == 0:
        connection.execute(sql.insert(_good_states).values(machine=machine, **values))


def _note_event(connection: sql.Connection, machine: str, event: KernelEvent) -> None:
    """Store an event that is not stored yet; one without a time is skipped, as it could be a repeat."""
    if isinstance(event.at, Missing):
        return
    alike = (_kernel_events.c.machine == machine) & (_kernel_events.c.text == event.text)
    stored = connection.execute(sql.select(_kernel_events.c.document).where(alike)).scalars()
    if any(is_same_event(event, decode(KernelEvent, json.loads(document))) for document in stored):
        return
    values = {
        "machine": machine,
        "at": event.at.timestamp(),
        "text": event.text,
        "document": json.dumps(encode(event)),
    }
    connection.execute(sql.insert(_kernel_events).values(values))


def _prune(connection: sql.Connection, machine: str, kind: str) -> None:
    """Delete the oldest runs, kernel events and snapshots, those beyond the numbers kept."""
    same = (_runs.c.machine == machine) & (_runs.c.kind == kind)
    ids = sql.select(_runs.c.id).where(same).order_by(_runs.c.id.desc())
    oldest_kept = connection.execute(ids.offset(KEPT_RUNS).limit(1)).scalar()
    if oldest_kept is not None:
        old = sql.select(_runs.c.id).where(same & (_runs.c.id <= oldest_kept))
        connection.execute(sql.delete(_samples).where(_samples.c.run.in_(old)))
        connection.execute(sql.delete(_runs).where(same & (_runs.c.id <= oldest_kept)))
    events = sql.select(_kernel_events.c.id).where(_kernel_events.c.machine == machine)
    oldest = connection.execute(
        events.order_by(_kernel_events.c.id.desc()).offset(KEPT_KERNEL_EVENTS).limit(1)
    ).scalar()
    if oldest is not None:
        too_old = (_kernel_events.c.machine == machine) & (_kernel_events.c.id <= oldest)
        connection.execute(sql.delete(_kernel_events).where(too_old))
    newest_bare = connection.execute(ids.offset(KEPT_DOCUMENTS).limit(1)).scalar()
    if newest_bare is not None:
        connection.execute(sql.update(_runs).where(same & (_runs.c.id <= newest_bare)).values(snapshot=None))


def _read_runs(connection: sql.Connection, machine: str) -> Iterator[StoredRun]:
    columns = (_runs.c.id, _runs.c.kind, _runs.c.at, _runs.c.outcome, _runs.c.simulated)
    query = sql.select(*columns).where(_runs.c.machine == machine).order_by(_runs.c.id.desc())
    for row in connection.execute(query.limit(LISTED_RUNS)):
        yield StoredRun(row.id, row.kind, _moment(row.at), row.outcome, row.simulated)


def _read_gpus(connection: sql.Connection, machine: str) -> Iterator[KnownGpu]:
    query = sql.select(_gpus).where(_gpus.c.machine == machine).order_by(_gpus.c.bus_id)
    for row in connection.execute(query):
        yield KnownGpu(row.uuid, row.bus_id, row.name, _moment(row.last_seen))


def _read_baselines(connection: sql.Connection, machine: str) -> Iterator[Baseline]:
    columns = (_samples.c.metric, _samples.c.unit, _samples.c.device_uuid, _samples.c.value)
    query = sql.select(*columns, _runs.c.outcome, _runs.c.at).join(_runs, _samples.c.run == _runs.c.id)
    query = query.where(_runs.c.machine == machine).order_by(_runs.c.id.desc(), _samples.c.id)
    groups: dict[tuple[str, str, str | None], list[Any]] = defaultdict(list)
    for row in connection.execute(query):
        groups[row.metric, row.unit, row.device_uuid].append(row)
    for (metric, unit, uuid), rows in groups.items():
        good: Sequence[float] = [row.value for row in rows if row.outcome in _GOOD][:BASELINE_RUNS]
        if good:
            newest = rows[0]
            median = statistics.median(good)
            yield Baseline(metric, unit, uuid, median, len(good), newest.value, _moment(newest.at))


def _read_events(connection: sql.Connection, machine: str) -> Iterator[KernelEvent]:
    query = sql.select(_kernel_events.c.document).where(_kernel_events.c.machine == machine)
    for row in connection.execute(query.order_by(_kernel_events.c.at)):
        yield decode(KernelEvent, json.loads(row.document))


def _read_last_snapshot(connection: sql.Connection, machine: str) -> str | None:
    query = sql.select(_runs.c.snapshot).where(_runs.c.machine == machine, _runs.c.snapshot.is_not(None))
    return _document(connection.execute(query.order_by(_runs.c.id.desc()).limit(1)).scalar())


def _read_good_state(connection: sql.Connection, machine: str) -> str | None:
    query = sql.select(_good_states.c.snapshot).where(_good_states.c.machine == machine)
    return _document(connection.execute(query).scalar())


def _document(data: bytes | None) -> str | None:
    return None if data is None else zlib.decompress(data).decode()


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
