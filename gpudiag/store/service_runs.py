"""The runs that a service shows, besides their samples: its own, and ended jobs of `gpudiag run`."""

import json
import zlib
from collections.abc import Iterable

import sqlalchemy as sql

from gpudiag.errors import GpudiagError
from gpudiag.model.codec import decode, dumps
from gpudiag.model.run import Run
from gpudiag.store.database import open_engine, parse_store_url, place_of, store_errors

KEPT_RUNS = 500

_tables = sql.MetaData()
_runs = sql.Table(
    "service_runs",
    _tables,
    sql.Column("id", sql.String(64), primary_key=True),
    sql.Column("machine", sql.String(255), nullable=False, index=True),
    sql.Column("service", sql.String(128), nullable=False),  # the process that it belongs to
    sql.Column("requested_at", sql.Float, nullable=False),
    sql.Column("document", sql.Text, nullable=False),
)
_reports = sql.Table(
    "run_reports",  # of runs that no service has a folder for
    _tables,
    sql.Column("id", sql.String(64), primary_key=True),
    sql.Column("report", sql.LargeBinary, nullable=False),
)


class RunRecords:
    """The service's runs in one store; every call blocks on it.

    Raises:
        StoreError: it cannot be opened, read or written.
    """

    def __init__(self, store: str) -> None:
        """Use the store at that URL or path; the first call opens it."""
        self._url = parse_store_url(store)
        self._place = place_of(self._url)
        self._engine: sql.Engine | None = None

    def save(self, machine: str, service: str, run: Run, report: str | None = None) -> None:
        """Insert or update one run; `report` is its document, where no folder of a service has it."""
        values = {
            "machine": machine,
            "service": service,
            "requested_at": run.requested_at.timestamp(),
            "document": dumps(run),
        }
        with store_errors(self._place), self._open().begin() as connection:
            same = _runs.c.id == run.id
            if connection.execute(sql.update(_runs).where(same).values(values)).rowcount == 0:
                connection.execute(sql.insert(_runs).values(id=run.id, **values))
                self._prune(connection, machine)
            if report is not None:
                document = zlib.compress(report.encode())
                connection.execute(sql.insert(_reports).values(id=run.id, report=document))

    def read_report(self, identity: str) -> str | None:
        """The document that was stored with that run; None where there is none."""
        query = sql.select(_reports.c.report).where(_reports.c.id == identity)
        with store_errors(self._place), self._open().connect() as connection:
            found = connection.execute(query).scalar()
            return None if found is None else zlib.decompress(found).decode()

    def load(self, machine: str) -> Iterable[tuple[Run, str]]:
        """Every run of that machine with the process that it belonged to, oldest first."""
        query = sql.select(_runs).where(_runs.c.machine == machine).order_by(_runs.c.requested_at)
        with store_errors(self._place), self._open().connect() as connection:
            rows = list(connection.execute(query))
        found = []
        for row in rows:
            try:
                found.append((decode(Run, json.loads(row.document)), str(row.service)))
            except (
                GpudiagError,
                ValueError,
                RecursionError,
            ):  # written by another version: the others are still read
                continue
        return found

    def _open(self) -> sql.Engine:
        if self._engine is None:
            self._engine = open_engine(self._url, read_only=False)
            _tables.create_all(self._engine)
        return self._engine

    def _prune(self, connection: sql.Connection, machine: str) -> None:
        ours = _runs.c.machine == machine
        newest = sql.select(_runs.c.requested_at).where(ours).order_by(_runs.c.requested_at.desc())
        oldest_kept = connection.execute(newest.offset(KEPT_RUNS - 1).limit(1)).scalar()
        if oldest_kept is not None:
            old = ours & (_runs.c.requested_at < oldest_kept)
            connection.execute(
                sql.delete(_reports).where(_reports.c.id.in_(sql.select(_runs.c.id).where(old)))
            )
            connection.execute(sql.delete(_runs).where(old))
