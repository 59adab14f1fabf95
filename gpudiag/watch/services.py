"""Other machines, by the API of their `gpudiag serve`.

Each is asked every few seconds by a task of its own, so that one that hangs costs its own row.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from time import time
from typing import Any, TypeVar

from gpudiag.errors import GpudiagError
from gpudiag.fleet.addresses import Address
from gpudiag.fleet.client import FleetError, MachineClient, RefusedError, UnreadableError
from gpudiag.model.documents import from_document
from gpudiag.model.finding import Finding
from gpudiag.model.service import Findings, Live
from gpudiag.model.service import Series as SeriesDocument
from gpudiag.watch.frame import POINTS, SERIES, Frame, History
from gpudiag.watch.recording import Recorder

_T = TypeVar("_T")
_ANSWER_SECONDS = 4.0
_SILENT_TICKS = 3  # without an answer for so many intervals a machine is shown as silent


class ServicesFeed:
    """Several machines, each by its service."""

    def __init__(
        self,
        addresses: Sequence[Address],
        interval_seconds: float,
        token: str | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """Ask nobody before `run`."""
        self._machines = [_Machine(address, interval_seconds, token) for address in addresses]
        self._recorder = recorder

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Each machine as it was received last."""
        now = time()
        return tuple(machine.frame(now) for machine in self._machines)

    @property
    def note(self) -> str:
        """How the recording goes on."""
        return "" if self._recorder is None else self._recorder.note

    async def run(self, changed: Callable[[], None]) -> None:
        """Ask all of them until cancelled."""

        def take(machine: _Machine) -> None:
            if self._recorder is not None:
                for event, document, at in machine.pop_news():
                    self._recorder.write(machine.address.name, event, document, at)
            changed()

        keeps_news = self._recorder is not None
        tasks = [asyncio.create_task(one.run(take, keeps_news=keeps_news)) for one in self._machines]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def seek(self, seconds: float) -> None:
        """Nothing: what happens now cannot be wound back."""

    def hold(self, *, is_held: bool) -> None:
        """Nothing: the machines go on; only the picture stands still."""


class _Machine:
    """One machine: asked again and again, and its last answer."""

    def __init__(self, address: Address, interval_seconds: float, token: str | None) -> None:
        self.address = replace(address, token=token or "")
        self._interval = interval_seconds
        self._client = MachineClient(self.address)
        self._live: Live | None = None
        self._findings: tuple[Finding, ...] = ()
        self._version = -1
        self._history = History()
        self._has_history = False
        self._problem: str | None = None
        self._received_at: float | None = None
        self._news: list[tuple[str, object, float]] = []

    async def run(self, changed: Callable[["_Machine"], None], *, keeps_news: bool) -> None:
        """Ask until cancelled."""
        try:
            while True:
                try:
                    await self._ask()
                except FleetError as error:
                    self._problem = _describe(error)
                else:
                    if keeps_news and self._live is not None and self._received_at is not None:
                        self._news.append(("live", self._live, self._received_at))
                changed(self)
                await asyncio.sleep(self._interval)
        finally:
            self._client.close()

    def frame(self, now: float) -> Frame:
        problem = self._problem
        limit = max(_SILENT_TICKS * self._interval, _ANSWER_SECONDS) + self._interval
        if problem is None and self._received_at is not None and now - self._received_at > limit:
            problem = "it does not answer"
        history = self._history.copied()
        name = self.address.name
        return Frame(name, self._live, self._findings, history, problem, self._received_at, is_here=False)

    def pop_news(self) -> list[tuple[str, object, float]]:
        news, self._news = self._news, []
        return news

    async def _ask(self) -> None:
        live = await self._read("devices", Live)
        findings = live.findings
        if live.finding_count > len(findings):
            is_new = live.findings_version != self._version
            findings = (await self._read("findings", Findings)).findings if is_new else self._findings
        if not self._has_history:
            for uuid, series in (await self._read_history()).items():
                self._history.put_before(uuid, series)
            self._has_history = True
        self._live, self._findings, self._version = live, findings, live.findings_version
        self._history.add(live)
        self._problem, self._received_at = None, time()

    async def _read_history(self) -> Mapping[str, Mapping[str, tuple[float | None, ...]]]:
        """What the service remembers of the last minutes.

        An older service may not have some of the series.
        """
        step = max(1, math.ceil(self._interval))
        now = time()
        names = ",".join(SERIES)
        path = f"history?from={now - step * POINTS:.0f}&to={now:.0f}&step={step}&series={names}"
        try:
            document = await self._read(path, SeriesDocument)
        except RefusedError:
            return {}
        return {gpu.uuid: gpu.series for gpu in document.devices}

    async def _read(self, path: str, kind: type[_T]) -> _T:
        answer = await self._client.read(path, _ANSWER_SECONDS)
        try:
            document: Any = from_document(answer.document)
        except (GpudiagError, ValueError) as error:
            raise UnreadableError(f"its answer cannot be read: {error}") from error
        if isinstance(document, kind):
            return document
        raise UnreadableError(f"it answers with {answer.document['schema']}, not with a {kind.__name__}")


def _describe(error: FleetError) -> str:
    """Why a machine gives nothing, and what the user of this command can do."""
    wants_token = isinstance(error, RefusedError) and error.status == HTTPStatus.UNAUTHORIZED
    return f"{error}: name a file with --token-file" if wants_token else str(error)
