"""How this machine was in its last good run, read from the store for a service that judges all the time."""

from time import monotonic

from gpudiag.errors import GpudiagError
from gpudiag.model.codec import loads
from gpudiag.model.device import Snapshot
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.runs.disk import DiskThread

_AGAIN_SECONDS = 60.0  # a preflight of the command line may have been good meanwhile


class GoodState:
    """The newest good state in the store; read by a thread that nothing waits for."""

    def __init__(self, store: str | None) -> None:
        """Read from that store, if there is one, as `look` asks."""
        self.warning = ""
        self.baseline: Reading[Snapshot] = NOT_ASKED
        self._store = store
        self._asked_at: float | None = None
        self._read_text: str | None = None
        self._disk = DiskThread("the machine's good state is not read", self._warn)

    def look(self, machine: str) -> None:
        """Have that machine's state read if it is due; to be called every second or so."""
        store = self._store
        due = self._asked_at is None or monotonic() - self._asked_at > _AGAIN_SECONDS
        if store is not None and due:
            self._asked_at = monotonic()
            self._disk.do(lambda: self._read(store, machine))

    def ask_soon(self) -> None:
        """A run ended: it may have been a good one."""
        self._asked_at = None

    def _read(self, store: str, machine: str) -> None:
        from gpudiag.runs.store import Store, parse_store_url  # SQLAlchemy, only where there is a store

        opened = Store(parse_store_url(store), read_only=True)
        try:
            text = opened.read_snapshots(machine).good
        finally:
            opened.close()
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
