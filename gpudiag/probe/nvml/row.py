"""One GPU while it is asked, by a child that asks once or by one that asks again and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpudiag.probe.attaching import HANDLE_CALL
from gpudiag.probe.nvml.ask import Ask, DeviceSheet
from gpudiag.probe.nvml.details import read_peer


class Row:
    """One GPU: its handle, the call in progress, and what is known of it.

    One thread at a time reads; the thread that waits for it may use the rest.
    """

    asked_by: type[Ask] = Ask

    def __init__(self, pynvml: Any, index: int) -> None:
        """Keep the GPU's NVML index; `attach` looks its handle up."""
        self.index = index
        self.sheet = DeviceSheet()  # of the reading in progress, else of the last
        self.lost = False
        self.peer = index  # the other GPU of the call in progress
        self._pynvml = pynvml
        self._ask: Ask | None = None

    @property
    def call(self) -> str:
        """The call in progress, or the last one."""
        return self._ask.asking if self._ask is not None else HANDLE_CALL

    @property
    def place(self) -> tuple[str, Any] | None:
        """The GPU's bus id and handle; None for one that gave no bus id, or that is lost."""
        ask, bus_id = self._ask, self.sheet.values.get("bus_id")
        return None if ask is None or bus_id is None or self.lost else (str(bus_id), ask.handle)

    def attach(self) -> Ask | None:
        """What asks the GPU from now on; None where its handle is refused, for the reason in the sheet."""
        self._ask = None
        self.sheet.read("handle", self._pynvml.nvmlDeviceGetHandleByIndex, self.index)
        handle = self.sheet.values.pop("handle", None)
        self.lost = self.sheet.lost is not None
        if handle is not None:
            self._ask = self.asked_by(self._pynvml, handle)
        return self._ask

    def document(self) -> dict[str, Any]:
        """The sheet with its failed calls; a loss noticed in part of a reading counts for the whole GPU."""
        noted = None if self._ask is None else self._ask.noted
        if noted is not None and noted.lost is not None and self.sheet.lost is None:
            self.sheet.lost = noted.lost
            self.sheet.mark("handle", *noted.lost)
        self.lost = self.sheet.lost is not None
        document = self.sheet.document()
        return document if noted is None else {**document, "failed_calls": dict(noted.failed)}

    def read_peers(self, rows: Sequence[Row]) -> list[dict[str, Any]] | None:
        """What lies between this GPU and each other; empty if it or they are silent, None if it was lost."""
        others = [(row.index, place) for row in rows if row is not self and (place := row.place) is not None]
        if self._ask is None or self.lost or not others:
            return []
        peers, noted = [], self._ask.noted
        noted.inforom_corrupted = False  # what its readings found is in the sheet
        for index, (bus_id, handle) in others:
            self.peer = index
            peers.append(read_peer(self._ask, bus_id, handle))
        if noted.inforom_corrupted:
            noted.failed.setdefault(noted.asking, "its InfoROM is corrupted (NVML 14)")
        return None if noted.lost is not None and self._answers_no_more(self._ask) else peers

    def _answers_no_more(self, ask: Ask) -> bool:
        """Whether it is this GPU that was lost, and not the peer in the call."""
        noted, self.peer = ask.noted, self.index
        (_, words), call, noted.lost = noted.lost or ("", ""), noted.lost_in, None
        DeviceSheet().read("alone", ask, "nvmlDeviceGetUtilizationRates")
        if noted.lost is None:
            noted.failed.setdefault(call, words)
        return noted.lost is not None
