"""One machine of a fleet, asked again and again, with its last answer; it costs the others nothing."""

import asyncio
import random
import ssl
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from time import monotonic
from urllib.parse import quote

from gpudiag import __version__
from gpudiag.compat import UTC
from gpudiag.fleet.addresses import VIEWERS_HEADER, Address
from gpudiag.fleet.client import (
    Answer,
    FleetError,
    MachineClient,
    NoAnswerError,
    RefusedError,
    UnreadableError,
)
from gpudiag.fleet.report import (
    clock_offset_seconds,
    name_list,
    read_poll,
    read_report,
    read_serials,
)
from gpudiag.model.hub import AnswerState, HubMachine, MachineReport
from gpudiag.model.reading import Missing
from gpudiag.time_limit import within

ANSWER_SECONDS = 4.0  # a service answers in milliseconds; one that takes longer is as good as silent
WATCHED_SECONDS = 2.0  # between two questions while somebody looks at the hub
UNWATCHED_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 30.0  # between two questions to a machine that gives no answer
OLD_SECONDS = 25.0  # no service reads its GPUs more rarely
CLOCK_SECONDS = 5.0  # a clock that is kept by NTP is off by milliseconds
_SERIAL_SECONDS = 600.0  # a GPU has one serial number for its life
_NOT_FOUND = 404
_STATES = {
    NoAnswerError: AnswerState.SILENT,
    RefusedError: AnswerState.REFUSED,
    UnreadableError: AnswerState.UNREADABLE,
}

Happened = Callable[[str, str, str, str], None]  # machine, kind, message, severity


class Machine:
    """One machine, its connection and its last report."""

    def __init__(
        self, address: Address, tls: ssl.SSLContext | None, viewers: Callable[[], int], happened: Happened
    ) -> None:
        """Ask nothing before `run`."""
        self.address = address
        self.state = AnswerState.ASKED
        self.since = datetime.now(UTC)
        self.reason: str | None = None
        self.report: MachineReport | None = None
        self.clock_offset: float | None = None
        self.answered_at: datetime | None = None
        self.verdict: str | None = None
        self.verdict_since: datetime | None = None
        self._last_verdict: str | None = None  # while it answered
        self.changed = True  # since somebody has described it
        self.is_news = True  # not only its readings have changed
        self._client = MachineClient(address, tls)
        self._viewers = viewers
        self._happened = happened
        self._last_id = ""
        self._can_poll = True
        self._serials: dict[str, str] = {}
        self._serials_asked = (float("-inf"), frozenset[str]())  # when, for which GPUs
        self._failures = 0
        self._report_at_changed = monotonic()
        self._age_seconds = 0.0  # of the report, by the machine's own clock, when it came
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Ask until cancelled."""
        try:
            await asyncio.sleep(random.uniform(0, 0.5))  # noqa: S311 - so that not all are asked at once
            while True:
                await self.ask()
                await self._pause()
        finally:
            self._client.close()

    async def ask(self) -> None:
        """Ask once, and keep what comes of it."""
        try:
            answer, live = await self._read_live()
            report = read_report(live, self._serials)
        except FleetError as error:
            self._failures += 1
            self._last_id = ""
            self._set_state(_STATES[type(error)], str(error))
            return
        self._failures = 0
        self._keep(report, answer)
        await self._read_serials()

    def hurry(self) -> None:
        """Ask soon: somebody has begun to look. A machine that gave no answer keeps its pause."""
        if self._failures == 0:
            self._wake.set()

    def describe(self, reference_seconds: float, twin: str | None) -> HubMachine:
        """The machine for the hub's document; clocks by `reference_seconds`, `twin`: with the same GPUs."""
        self.changed = self.is_news = False
        return HubMachine(
            name=self.address.name,
            page=self.address.url,
            state=self.state,
            since=self.since,
            reason=self.reason,
            verdict=self.verdict,
            verdict_since=self.verdict_since,
            answered_at=self.answered_at,
            clock_offset_seconds=self.clock_offset,
            notes=tuple(self._notes(reference_seconds, twin)),
            report=self.report,
        )

    def uuids(self) -> frozenset[str]:
        """The GPUs of the last report."""
        gpus = () if self.report is None else self.report.gpus
        return frozenset(gpu.uuid for gpu in gpus if not isinstance(gpu.uuid, Missing))

    async def _pause(self) -> None:
        watched = self._viewers() > 0
        seconds = WATCHED_SECONDS if watched else UNWATCHED_SECONDS
        if self._failures:
            seconds = min(max(seconds, LONGEST_PAUSE_SECONDS), seconds * 2 ** (self._failures - 1))
        self._wake.clear()
        try:
            # A time to wait is no secret.
            await within(seconds * random.uniform(0.9, 1.0), self._wake.wait())  # noqa: S311
        except asyncio.TimeoutError:
            return

    async def _read_live(self) -> tuple[Answer, dict[str, object]]:
        """The newest live document; what happened since the last question is passed on."""
        headers = {VIEWERS_HEADER: str(self._viewers())}
        if self._can_poll:
            since = f"?since={quote(self._last_id)}" if self._last_id else ""
            try:
                answer = await self._client.read(f"poll{since}", ANSWER_SECONDS, headers)
            except RefusedError as error:
                if error.status != _NOT_FOUND:
                    raise
                self._can_poll = (
                    False  # a version without it, or no gpudiag at all, which the next question shows
                )
            else:
                last_id, live, entries = read_poll(answer.document)
                self._pass_on(entries)
                self._last_id = last_id
                if live is not None:
                    return answer, live
                if self.report is not None:  # nothing new: the service is asked for what it shows
                    return await self._read_devices(headers)
                raise RefusedError(503, "it is starting, and has no data yet")
        try:
            return await self._read_devices(headers)
        except FleetError:
            self._can_poll = True
            raise

    async def _read_devices(self, headers: dict[str, str]) -> tuple[Answer, dict[str, object]]:
        answer = await self._client.read("devices", ANSWER_SECONDS, headers)
        return answer, answer.document

    def _pass_on(self, entries: list[tuple[str, str, str]]) -> None:
        for kind, message, severity in entries:
            self._happened(self.address.name, kind, message, severity)

    async def _read_serials(self) -> None:
        """Read the serial numbers, where a GPU is new; without them the machine is shown all the same."""
        uuids = self.uuids()
        asked_at, asked_for = self._serials_asked
        if not uuids or (uuids <= asked_for and monotonic() - asked_at < _SERIAL_SECONDS):
            return
        self._serials_asked = monotonic(), uuids
        try:
            answer = await self._client.read(
                "snapshot", ANSWER_SECONDS, {VIEWERS_HEADER: str(self._viewers())}
            )
            self._serials = read_serials(answer.document)
        except FleetError:
            return
        if self.report is not None:
            gpus = (
                replace(gpu, serial=self._serials.get(str(gpu.uuid), gpu.serial)) for gpu in self.report.gpus
            )
            self.report = replace(self.report, gpus=tuple(gpus))
            self.changed = True

    def _keep(self, report: MachineReport, answer: Answer) -> None:
        now = monotonic()
        if self.report is None or self.report.at != report.at:
            self._report_at_changed = now
        self.clock_offset = clock_offset_seconds(answer)
        there = answer.answered_at + (self.clock_offset or 0.0)
        self._age_seconds = 0.0 if self.clock_offset is None else there - report.at.timestamp()
        self.report = report
        self.answered_at = datetime.fromtimestamp(answer.answered_at, UTC)
        self._set_state(AnswerState.ANSWERS, None)

    def _set_state(self, state: AnswerState, reason: str | None) -> None:
        now = datetime.now(UTC)
        before, since = self.state, self.since
        self.changed = True
        self.reason = reason
        if state is not before:
            self.state, self.since = state, now
            self.is_news = True
            self._note_state(before, (now - since).total_seconds())
        self._set_verdict(now)

    def _note_state(self, before: AnswerState, seconds: float) -> None:
        if self.state is not AnswerState.ANSWERS:
            self._happened(self.address.name, "silent", f"no report: {self.reason}", "error")
        elif before is not AnswerState.ASKED:
            self._happened(self.address.name, "answers", f"answers again, after {seconds:.0f} s", "pass")

    def _set_verdict(self, now: datetime) -> None:
        """Set what the machine counts as: its own verdict while its report is current, else unknown."""
        before = self.verdict
        report = self.report
        is_current = self.state is AnswerState.ANSWERS and report is not None and not self._is_old()
        self.verdict = report.verdict if is_current and report is not None else "error"
        if self.verdict != before:
            self.verdict_since = now
            self.is_news = True
        if self.state is not AnswerState.ANSWERS:
            return
        before, self._last_verdict = self._last_verdict, self.verdict
        if before is not None and before != self.verdict and report is not None:
            words = report.headline if is_current else "its report is old"
            shown = (self.verdict or "nothing judged").upper()
            self._happened(
                self.address.name,
                "verdict",
                f"{shown}, was {before.upper()}: {words}",
                self.verdict or "error",
            )

    def _is_old(self) -> bool:
        return self._old_seconds() is not None

    def _old_seconds(self) -> float | None:
        """How old the report is; None where it is current. Two clocks of which one is wrong make none old."""
        unchanged = monotonic() - self._report_at_changed
        if unchanged > OLD_SECONDS:
            return unchanged
        return self._age_seconds if self._age_seconds > OLD_SECONDS else None

    def _notes(self, reference_seconds: float, twin: str | None) -> list[str]:
        report = self.report
        notes: list[str] = []
        if report is None:
            return notes
        old = self._old_seconds() if self.state is AnswerState.ANSWERS else None
        if old is not None:
            notes.append(
                f"its report is {describe_seconds(old)} old: its service answers, and reads nothing new"
            )
        if self._age_seconds < -OLD_SECONDS:
            notes.append(f"its report is dated {describe_seconds(-self._age_seconds)} after its own clock")
        if self.clock_offset is not None:
            off = self.clock_offset - reference_seconds
            if abs(off) > CLOCK_SECONDS:
                way = "ahead of" if off > 0 else "behind"
                notes.append(f"its clock is {describe_seconds(abs(off))} {way} the hub's: check NTP on it")
        lacks = f": no {name_list(report.lacks)}" if report.lacks else ""
        if is_older(report.version, __version__):
            notes.append(f"gpudiag {report.version} there is older than the hub's {__version__}{lacks}")
        elif lacks:
            notes.append(f"its report is not whole{lacks}")
        if twin is not None:
            notes.append(f"it reports the same GPUs as {twin}")
        return notes


def is_older(version: str, than: str) -> bool:
    """Whether a version's numbers are lower; what is no version is not."""
    return _numbers(version) < _numbers(than) if _numbers(version) else False


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split("+")[0].split(".")[:3]
    digits = ["".join(mark for mark in part if mark.isascii() and mark.isdigit())[:9] for part in parts]
    return tuple(int(part) for part in digits) if all(digits) else ()


def describe_seconds(seconds: float) -> str:
    """A span in the largest unit that fits twice."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
