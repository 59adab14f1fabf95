"""The stored history, read in a thread and for no longer than it takes a store that works."""

import asyncio
from time import monotonic

from gpudiag.errors import GpudiagError
from gpudiag.model.history import History
from gpudiag.model.masking import mask_text

_DEADLINE_SECONDS = 2.0
_FRESH_SECONDS = 15.0
_kept: dict[tuple[str | None, str], tuple[float, History]] = {}


async def read_stored_history(store: str | None, machine: str) -> History:
    """What the store holds about that machine; empty where there is no store, or it does not answer."""
    at, known = _kept.get((store, machine), (0.0, History(machine, mask_text(store or "none"))))
    if store is None or (at and monotonic() - at < _FRESH_SECONDS):
        return known
    try:
        found = await asyncio.wait_for(asyncio.to_thread(_read, store, machine), _DEADLINE_SECONDS)
    except (GpudiagError, TimeoutError):
        return known
    _kept[store, machine] = (monotonic(), found)
    return found


def _read(store: str, machine: str) -> History:
    from gpudiag.runs.store import Store, parse_store_url  # SQLAlchemy, only where somebody asks

    opened = Store(parse_store_url(store), read_only=True)
    try:
        return opened.read_history(machine)
    finally:
        opened.close()
