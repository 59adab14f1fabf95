"""All machines of a hub: who is asked, their order, what happened; one document, made when one changes."""

import asyncio
import re
import socket
import ssl
from collections import deque
from collections.abc import Callable
from datetime import datetime
from statistics import median
from time import monotonic

from gpudiag import __version__
from gpudiag.compat import UTC
from gpudiag.fleet.discovery import Discovery, Sources
from gpudiag.fleet.machine import CLOCK_SECONDS, Machine, describe_seconds
from gpudiag.model.codec import dump_document, encode, to_document
from gpudiag.model.hub import AnswerState, HubCounts, HubDocument, HubEvent, HubMachine
from gpudiag.model.untrusted_text import shorten_text

TICK_SECONDS = 0.5
_WATCHED_TICKS, _UNWATCHED_TICKS = 4, 10  # between two documents of which only readings have changed
LOOK_SECONDS = 20.0  # for so long somebody who asked once counts as looking
_KEPT_EVENTS = 500
_MESSAGE_CHARACTERS = 300
_CLOCKS_FOR_A_MEDIAN = 3
_NUMBERS = re.compile(r"([0-9]{1,9})")
_RANKS = {"fail": 0, "error": 1, "warn": 2, None: 3, "pass": 4}

Publish = Callable[[HubDocument, str], None]  # the document, and its JSON
PublishEvent = Callable[[HubEvent], None]


class HubWatch:
    """The machines under watch; `document` is the newest picture of all."""

    def __init__(
        self, sources: Sources, tls: ssl.SSLContext | None, publish: Publish, publish_event: PublishEvent
    ) -> None:
        """Ask nobody before `run`."""
        self.document: HubDocument | None = None
        self.text = ""  # the document's JSON
        self.events: deque[HubEvent] = deque(maxlen=_KEPT_EVENTS)
        self.viewers = 0  # listeners of the stream
        self.machines: dict[tuple[str, int, str], Machine] = {}
        self._discovery = Discovery(sources)
        self._tls = tls
        self._publish = publish
        self._publish_event = publish_event
        self._tasks: dict[tuple[str, int, str], asyncio.Task[None]] = {}
        self._described: dict[tuple[str, int, str], tuple[HubMachine, str]] = {}
        self._looked_at = float("-inf")
        self._event_number = 0
        self._sequence = 0
        self._reference_seconds = 0.0
        self._twins_before: dict[tuple[str, int, str], str] = {}
        self._host = socket.gethostname()

    def note_look(self) -> None:
        """Somebody looks: the machines are asked more often for a while."""
        was_watched = self._count_viewers() > 0
        self._looked_at = monotonic()
        if not was_watched:
            for machine in self.machines.values():
                machine.hurry()

    async def run(self) -> None:
        """Ask all machines until cancelled. Raises Exception: a bug of ours ended one of the tasks."""
        discovering = asyncio.create_task(self._discovery.run())
        ticks = 0
        try:
            while True:
                listed_anew = self._discovery.changed.is_set()
                if listed_anew:
                    self._discovery.changed.clear()
                    self._follow_list()
                for task in (discovering, *self._tasks.values()):
                    if task.done() and not task.cancelled() and task.exception() is not None:
                        task.result()
                ticks += 1
                is_due = ticks >= (_WATCHED_TICKS if self._count_viewers() > 0 else _UNWATCHED_TICKS)
                machines = self.machines.values()
                if listed_anew or any(one.is_news or (is_due and one.changed) for one in machines):
                    self._describe()
                    ticks = 0
                await asyncio.sleep(TICK_SECONDS)
        finally:
            tasks = [discovering, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _count_viewers(self) -> int:
        return max(self.viewers, 1 if monotonic() - self._looked_at < LOOK_SECONDS else 0)

    def _follow_list(self) -> None:
        """Ask the machines that are listed now, and no others."""
        listed = {address.key: address for address in self._discovery.machines()}
        is_first = not self.machines
        for key, machine in list(self.machines.items()):
            if listed.get(key) != machine.address:  # gone, or with another token, name or page
                self._tasks.pop(key).cancel()
                del self.machines[key]
                self._described.pop(key, None)
                if key not in listed:
                    self._note(machine.address.name, "unlisted", "is no longer listed", "pass")
        for key, address in listed.items():
            if key not in self.machines:
                tls = self._tls if address.is_tls else None
                machine = self.machines[key] = Machine(address, tls, self._count_viewers, self._note)
                self._tasks[key] = asyncio.create_task(machine.run())
                if not is_first:
                    self._note(address.name, "listed", "is listed now", "pass")

    def _note(self, machine: str, kind: str, message: str, severity: str) -> None:
        self._event_number += 1
        words = shorten_text(message, _MESSAGE_CHARACTERS)
        event = HubEvent(self._event_number, datetime.now(UTC), machine, kind, words, severity)
        self.events.append(event)
        self._publish_event(event)

    def _describe(self) -> None:
        """Make the document, of machines that have changed and the others as they were."""
        reference = self._clock_reference()
        twins = self._find_twins()
        for key, machine in self.machines.items():
            is_as_before = reference == self._reference_seconds and twins.get(key) == self._twins_before.get(
                key
            )
            if machine.changed or not is_as_before or key not in self._described:
                described = machine.describe(reference, twins.get(key))
                self._described[key] = described, dump_document(encode(described))
        self._reference_seconds, self._twins_before = reference, twins
        ordered = sorted(self._described.values(), key=lambda pair: _rank(pair[0]))
        self._sequence += 1
        head = HubDocument(
            sequence=self._sequence,
            at=datetime.now(UTC),
            host=self._host,
            version=__version__,
            counts=count_machines([machine for machine, _ in ordered]),
            notes=(*self._clock_notes(reference), *self._discovery.notes()),
            machines=(),
        )
        # The machines' texts are kept, and put into that of a document without any.
        text = dump_document(to_document(head)).removesuffix("[]}")
        self.text = f"{text}[{', '.join(text for _, text in ordered)}]}}"
        self.document = HubDocument(
            **{name: getattr(head, name) for name in head.__slots__ if name != "machines"},
            machines=tuple(machine for machine, _ in ordered),
        )
        self._publish(self.document, self.text)

    def _clock_reference(self) -> float:
        """What clocks are compared with, ahead of the hub's: 0, unless the hub's is the odd one."""
        offsets = [one.clock_offset for one in self.machines.values() if one.clock_offset is not None]
        if len(offsets) < _CLOCKS_FOR_A_MEDIAN:
            return 0.0
        middle = median(offsets)
        alike = sum(abs(offset - middle) <= CLOCK_SECONDS for offset in offsets)
        return round(middle, 1) if abs(middle) > CLOCK_SECONDS and 2 * alike > len(offsets) else 0.0

    def _clock_notes(self, reference: float) -> tuple[str, ...]:
        if not reference:
            return ()
        way = "behind" if reference > 0 else "ahead of"
        return (
            (
                f"this hub's own clock is {describe_seconds(abs(reference))} {way} most"
                f" machines': check NTP on {self._host}"
            ),
        )

    def _find_twins(self) -> dict[tuple[str, int, str], str]:
        """The name of another machine that reports one of the same GPUs: two names, or a lie."""
        owners: dict[str, tuple[str, int, str]] = {}
        twins: dict[tuple[str, int, str], str] = {}
        for key, machine in self.machines.items():
            if machine.state is not AnswerState.ANSWERS:
                continue
            for uuid in machine.uuids():
                other = owners.setdefault(uuid, key)
                if other != key:
                    twins[key], twins[other] = self.machines[other].address.name, machine.address.name
        return twins


def _rank(machine: HubMachine) -> tuple[int, bool, list[tuple[int, str]]]:
    """Worst first; of the unknown ones the silent first; then by name, gpu2 before gpu10."""
    is_numeric = machine.name[:1] in "[0123456789"
    shown = machine.report.host if is_numeric and machine.report is not None else machine.name
    parts = [
        (int(part or 0), "") if part.isdecimal() else (-1, part) for part in _NUMBERS.split(shown.lower())
    ]
    return _RANKS.get(machine.verdict, 1), machine.state is AnswerState.ANSWERS, parts


def count_machines(machines: list[HubMachine]) -> HubCounts:
    """How many machines have which verdict, and their GPUs as last reported."""
    verdicts = [machine.verdict for machine in machines]
    gpus = [gpu for machine in machines if machine.report is not None for gpu in machine.report.gpus]
    known = [
        gpu
        for machine in machines
        if machine.report is not None and machine.verdict != "error"
        for gpu in machine.report.gpus
    ]
    return HubCounts(
        machines=len(machines),
        passed=verdicts.count("pass"),
        warned=verdicts.count("warn"),
        failed=verdicts.count("fail"),
        unknown=verdicts.count("error"),
        silent=sum(machine.state not in (AnswerState.ANSWERS, AnswerState.ASKED) for machine in machines),
        gpus=len(gpus),
        healthy_gpus=sum(gpu.health == "ok" for gpu in known),
    )
