"""Record a service while a story happens on its machine: what it sends, and what it answers to the page.

A recording has a line for each event of the stream and for each answer that has changed: the document, or
what is another in it since the line before of that name. `api/dashboard/src/recorded/recording.ts` reads it.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import quote

import httpx

from gpudiag.errors import UsageError
from gpudiag.simulate.loader import load_story

Json = Any
# What the page asks beside the stream, and how often at most it is asked again while nothing is found anew.
ANSWERS = ("processes", "findings", "topology", "sources", "events", "baselines", "runs", "session")
AGAIN_SECONDS = 10.0
# Another with each look, as it has the time that each check took: asked for when findings come.
_JUDGED = ("checks",)
_EVENTS = ("live", "findings", "event")
_LIMIT_SECONDS = 60.0  # for an answer: the machine that records may be busy
_ADDRESS = re.compile(r"gpudiag serve: (http://\S+/)")


@dataclass
class Recording:
    """What was recorded: documents by name, as they changed, by seconds since `began_at`."""

    began_at: float = 0.0
    seconds: float = 0.0
    chapters: list[dict[str, Json]] = field(default_factory=list)
    lines: list[dict[str, Json]] = field(default_factory=list)
    newest: dict[str, Json] = field(default_factory=dict)

    def add(self, name: str, value: Json, at: float) -> None:
        """Add a document; an answer that is as before adds nothing."""
        line: dict[str, Json] = {"at": round(at - self.began_at, 2), "name": name}
        if name in self.newest:
            changes = find_changes(self.newest[name], value)
            if not changes and name not in _EVENTS:
                return
            whole = any(not path for path, _ in changes)
            line |= {"value": value} if whole else {"set": changes}
        else:
            line["value"] = value
        self.newest[name] = value
        self.lines.append(line)

    def document(self) -> dict[str, Json]:
        """The recording as the page reads it."""
        names = ("began_at", "seconds", "chapters", "lines")
        return {name: getattr(self, name) for name in names}


def find_changes(before: Json, after: Json) -> list[tuple[list[str | int], Json]]:
    """Each place where `after` is another than `before`, with its new value; an empty path is the whole."""
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        pairs = [(name, before[name], after[name]) for name in after]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = [(place, one, other) for place, (one, other) in enumerate(zip(before, after, strict=True))]
    else:
        return [] if before == after and type(before) is type(after) else [([], after)]
    return [
        ([place, *path], value) for place, one, other in pairs for path, value in find_changes(one, other)
    ]


def record_story(spec: str, *, is_whole: Callable[[Recording], bool] | None = None) -> Recording:
    """What the service of `gpudiag demo SPEC` sends until the story has happened, or it `is_whole`.

    Raises:
        UsageError: there is no such story.
        RuntimeError: the demo did not start, or its service ended.
    """
    story = load_story(spec)
    if story is None:
        raise UsageError(f"nothing happens on {spec}", hint="a file with [[story]]: docs/simulate.md")
    duration = story.seconds
    with _demo(spec, {chapter.title for chapter in story.chapters}) as (address, begun):
        recording = record_service(address, is_whole or (lambda known: known.seconds >= duration))
    recording.chapters = [
        {"at": round(max(0.0, at - recording.began_at), 1), "title": title} for title, at in begun
    ]
    return recording


def record_service(address: str, is_whole: Callable[[Recording], bool]) -> Recording:
    """What the service sends and answers until the recording is whole, of which it is asked after each event.

    Raises:
        RuntimeError: the service ended before.
    """
    recording = Recording()
    with httpx.Client(base_url=f"{address}api/v1/", timeout=_LIMIT_SECONDS) as client:
        recorder = _Recorder(client, recording)
        for event, document in _stream(client):
            recorder.take(event, document)
            if recording.began_at and is_whole(recording):
                recorder.finish()
                return recording
    raise RuntimeError("the service ended before the recording was whole")


@contextmanager
def _demo(spec: str, titles: set[str]) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """The address of the demo's service, and the chapters as they begin, with their times."""
    command = [sys.executable, "-m", "gpudiag", "demo", spec]
    begun: list[tuple[str, float]] = []
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None  # noqa: S101 - it is a pipe
        lines = iter(process.stderr)
        rest = Thread(target=_note_all, args=(lines, titles, begun))
        try:
            for line in lines:
                _note_all((line,), titles, begun)
                if found := _ADDRESS.search(line):
                    rest.start()
                    yield found[1], begun
                    return
            raise RuntimeError(f"gpudiag demo did not start: exit status {process.wait()}")
        finally:
            process.terminate()
            if rest.ident is not None:
                rest.join()  # until the demo has ended


def _note_all(lines: Iterable[str], titles: set[str], begun: list[tuple[str, float]]) -> None:
    """Note the chapters that begin, until the demo has ended."""
    for line in lines:
        title = line.strip().partition(" ")[2]
        if title in titles:
            begun.append((title, time.time()))


class _Recorder:
    """Takes the events of a service, and asks it what the page would ask."""

    def __init__(self, client: httpx.Client, recording: Recording) -> None:
        self._client, self._recording = client, recording
        self._asked_at = 0.0
        self._explained: set[str] = set()

    def take(self, event: str, document: Json) -> None:
        """Add an event, and the answers where they may have changed."""
        recording = self._recording
        now = time.time()
        if (
            event == "live"
            and not recording.began_at
            and document["devices"]
            and document["sampler"]["state"] == "ok"
        ):
            recording.began_at = now  # not before the GPUs are read: a service starts with none
        if not recording.began_at or event not in _EVENTS:
            return
        recording.add(event, document, now)
        recording.seconds = round(now - recording.began_at, 1)
        if event == "findings" or now - self._asked_at > AGAIN_SECONDS:
            is_judged = event == "findings" or not self._asked_at
            self._asked_at = now
            self._ask_all(_JUDGED if is_judged else ())

    def finish(self) -> None:
        """Ask for the last answers, and for the history of it all."""
        self._ask_all(_JUDGED)
        query = f"history?from={int(self._recording.began_at)}&step=1"
        self._add("answer/history", self._client.get(query).raise_for_status().json())
        self._add("answer/history.csv", self._client.get(f"{query}&format=csv").raise_for_status().text)

    def _ask_all(self, judged: tuple[str, ...]) -> None:
        live = self._recording.newest["live"]
        devices = [f"devices/{quote(row['uuid'])}" for row in live["devices"] if row["uuid"]]
        codes = {finding["code"] for finding in live["findings"]} - self._explained
        self._explained |= codes
        for path in (*ANSWERS, *judged, *devices, *(f"explain/{code}" for code in sorted(codes))):
            answer = self._client.get(path)
            if answer.is_success:  # else the page shows that it was not recorded
                self._add(f"answer/{path}", answer.json())

    def _add(self, name: str, value: Json) -> None:
        self._recording.add(name, value, time.time())


def _stream(client: httpx.Client) -> Iterator[tuple[str, Json]]:
    """The events of the service: their names and documents."""
    with client.stream("GET", "stream") as stream:
        name = ""
        for line in stream.iter_lines():
            key, _, value = line.partition(": ")
            if key == "event":
                name = value
            elif key == "data":
                yield name, json.loads(value)


def read_recording(path: Path) -> dict[str, Json]:
    """A recording that was kept."""
    document: dict[str, Json] = json.loads(path.read_text(encoding="utf-8"))
    return document
