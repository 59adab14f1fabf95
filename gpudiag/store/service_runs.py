"""The service's runs in the store, besides their samples: who ran what, and how it ended."""

import json
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

    def save(self, machine: str, service: str, run: Run) -> None:
        """Insert or update one run."""
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
            connection.execute(sql.delete(_runs).where(ours & (_runs.c.requested_at < oldest_kept)))
