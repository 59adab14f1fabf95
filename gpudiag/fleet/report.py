"""A machine's documents as the hub's nouns, field by field: they may be of another version, or a lie.

A field that an older version lacks is named in `lacks`; one of the wrong type makes the document unreadable.
Text is cut, and terminal controls are written out.
"""

import math
from collections.abc import Iterable
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from gpudiag.compat import UTC, parse_iso_time
from gpudiag.fleet.client import Answer, UnreadableError
from gpudiag.model.hub import MachineFinding, MachineGpu, MachineReport
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.model.untrusted_text import escape_controls, shorten_text

LIVE, SNAPSHOT, POLL, TIMELINE = "gpudiag.live/", "gpudiag.snapshot/", "gpudiag.poll/", "gpudiag.timeline/"
_READ_VERSION = 1
_MOST_GPUS = 512
_MOST_LISTED = 4096
_MOST_SHOWN = 24  # users, or jobs, of a machine
_FIRST_FINDINGS = 3
_WORD_CHARACTERS, _TEXT_CHARACTERS = 120, 600
_VERDICTS = ("pass", "warn", "fail", "error")
_HEALTHS = ("ok", "warn", "fail", "error")
_REASONS = {reason.value: reason for reason in MissingReason}
_LACKING = Missing(MissingReason.NOT_ASKED, "this version does not report it")


def need_schema(document: dict[str, Any], prefix: str) -> None:
    """Refuse a document of another kind or a later form. Raises UnreadableError: it is one."""
    name = _cut(str(document["schema"]), _WORD_CHARACTERS)
    if not name.startswith(prefix):
        raise UnreadableError(f"it answers with {name}, not with {prefix}{_READ_VERSION}")
    version = name.removeprefix(prefix)
    if not version.isascii() or not version.isdigit():
        raise UnreadableError(f"it answers with {name}, which is no version")
    if int(version) > _READ_VERSION:
        raise UnreadableError(
            f"it answers with {name}, and this gpudiag reads {prefix}{_READ_VERSION}: update the hub"
        )


def read_report(live: dict[str, Any], serials: dict[str, str]) -> MachineReport:
    """The report in a `gpudiag.live` document; `serials` by UUID. Raises UnreadableError: a wrong type."""
    need_schema(live, LIVE)
    fields = _Fields(live, "")
    gpus, users, jobs = _read_gpus(fields, serials)
    findings = [
        _read_finding(_Fields(item, f"findings[{place}]"))
        for place, item in enumerate(fields.items("findings")[:_FIRST_FINDINGS])
    ]
    verdict = fields.word("verdict")
    if verdict is not None and verdict not in _VERDICTS:
        raise UnreadableError(f"its verdict is {verdict!r}, which is none")
    return MachineReport(
        at=fields.time("at"),
        host=fields.word("host") or "?",
        simulated=fields.word("simulated"),
        version=fields.word("version") or "?",
        driver_version=fields.reading("driver_version", str),
        verdict=verdict,
        headline=fields.text("headline"),
        gpus=gpus,
        users=tuple(sorted(users)[:_MOST_SHOWN]),
        jobs=tuple(sorted(jobs)[:_MOST_SHOWN]),
        finding_count=fields.count("finding_count", len(findings)),
        findings=tuple(findings),
        lacks=tuple(dict.fromkeys(fields.lacks)),
    )


def _read_gpus(
    fields: "_Fields", serials: dict[str, str]
) -> tuple[tuple[MachineGpu, ...], set[str], set[str]]:
    """The GPUs, and the users and jobs on them."""
    rows = fields.items("devices")
    if len(rows) > _MOST_GPUS:
        raise UnreadableError(f"it lists {len(rows)} GPUs")
    gpus: list[MachineGpu] = []
    users: set[str] = set()
    jobs: set[str] = set()
    for place, item in enumerate(rows):
        row = _Fields(item, f"devices[{place}]", fields.lacks)
        gpus.append(_read_gpu(row, serials))
        for process in row.items("processes"):
            users.add(_Fields(process, "processes").word("user") or "")
        for pod in row.items("pods"):
            of = _Fields(pod, "pods")
            jobs.add(f"{of.word('namespace')}/{of.word('pod')}")
        for job in row.items("slurm_jobs"):
            of = _Fields(job, "slurm_jobs")
            jobs.add(f"slurm {of.count('slurm_job_id', 0)}")
            users.add(of.word("user") or "")
    return tuple(gpus), users - {""}, jobs


def _read_gpu(row: "_Fields", serials: dict[str, str]) -> MachineGpu:
    uuid = row.reading("uuid", str)
    health = row.word("health") or "error"
    if health not in _HEALTHS:
        raise UnreadableError(f"{row.place}.health is {health!r}, which is none")
    return MachineGpu(
        uuid=uuid,
        nvml_index=row.reading("nvml_index", int),
        name=row.reading("name", str),
        health=health,
        utilization_percent=row.reading("utilization_percent", int),
        memory_used_bytes=row.reading("memory_used_bytes", int),
        memory_total_bytes=row.reading("memory_total_bytes", int),
        temperature_celsius=row.reading("temperature_celsius", int),
        power_draw_watts=row.reading("power_draw_watts", float),
        serial=_LACKING if isinstance(uuid, Missing) else serials.get(uuid, _LACKING),
    )


def _read_finding(fields: "_Fields") -> MachineFinding:
    return MachineFinding(
        code=fields.word("code") or "?",
        outcome=fields.word("outcome") or "error",
        message=fields.text("message"),
        remedy=fields.text("remedy"),
        blocks_jobs=fields.value.get("blocks_jobs") is True,
    )


def read_serials(snapshot: dict[str, Any]) -> dict[str, str]:
    """The GPUs' serial numbers by UUID, of a `gpudiag.snapshot`. Raises UnreadableError: wrong type."""
    need_schema(snapshot, SNAPSHOT)
    found = {}
    for place, item in enumerate(_Fields(snapshot, "").items("devices")[:_MOST_GPUS]):
        row = _Fields(item, f"devices[{place}]")
        uuid, serial = row.word("uuid"), row.word("serial")
        if uuid and serial:
            found[uuid] = serial
    return found


def read_poll(poll: dict[str, Any]) -> tuple[str, dict[str, Any] | None, list[tuple[str, str, str]]]:
    """The id to go on from, the newest live document, and the timeline since: kind, message, severity.

    Raises:
        UnreadableError: it is no poll's answer.
    """
    need_schema(poll, POLL)
    fields = _Fields(poll, "")
    live, entries = None, []
    for item in fields.items("events"):
        name, data = item.get("event"), item.get("data")
        if not isinstance(data, dict):
            continue
        if name == "live":
            if not isinstance(data.get("schema"), str):
                raise UnreadableError("its live document has no schema")
            live = data
        elif name == "event":
            entries.append(_read_entry(_Fields(data, "event")))
    return fields.word("last_id") or "", live, entries


def _read_entry(fields: "_Fields") -> tuple[str, str, str]:
    severity = fields.word("severity") or "pass"
    # A word that only a newer version knows is no PASS.
    known = severity if severity in _VERDICTS else "error"
    return fields.word("kind") or "?", fields.text("message"), known


def clock_offset_seconds(answer: Answer) -> float | None:
    """How far the machine's clock is ahead of ours, by the Date header, to a second; None without."""
    if not answer.date_text:
        return None
    try:
        date = parsedate_to_datetime(answer.date_text)
        there = (
            date if date.tzinfo else date.replace(tzinfo=UTC)
        ).timestamp() + 0.5  # it is cut to the second
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    earliest, latest = there - 0.5 - answer.answered_at, there + 0.5 - answer.asked_at
    return 0.0 if earliest <= 0 <= latest else round((earliest + latest) / 2, 1)


class _Fields:
    """One JSON object and where it stands, asked for values of a type."""

    def __init__(self, value: Any, place: str, lacks: list[str] | None = None) -> None:
        if not isinstance(value, dict):
            raise UnreadableError(f"{place or 'its answer'} is no object")
        self.value: dict[str, Any] = value
        self.place = place
        self.lacks: list[str] = [] if lacks is None else lacks
        missing = value.get("missing")
        self._missing: dict[str, Any] = missing if isinstance(missing, dict) else {}

    def word(self, name: str) -> str | None:
        """A short text, or None where there is none."""
        found = self._take(name, str)
        return None if found is None else _cut(found, _WORD_CHARACTERS)

    def text(self, name: str) -> str:
        """A sentence; empty where there is none."""
        found = self._take(name, str)
        return "" if found is None else _cut(found, _TEXT_CHARACTERS)

    def count(self, name: str, otherwise: int) -> int:
        found = self._take(name, int)
        return otherwise if found is None else int(found)

    def time(self, name: str) -> datetime:
        found = self._take(name, str)
        try:
            at = parse_iso_time(found or "")
        except (ValueError, OverflowError) as error:
            raise UnreadableError(f"{self._named(name)} is no time") from error
        return at if at.tzinfo else at.replace(tzinfo=UTC)

    def items(self, name: str) -> list[dict[str, Any]]:
        """The objects of a list; empty where it is missing."""
        found = self._take(name, list)
        if found is None:
            return []
        if len(found) > _MOST_LISTED:
            raise UnreadableError(f"{self._named(name)} has {len(found)} entries")
        if not all(isinstance(item, dict) for item in found):
            raise UnreadableError(f"{self._named(name)} holds what is no object")
        return list(found)

    def reading(self, name: str, kind: type) -> Any:
        """The value, or why it is missing, in the machine's own reason."""
        found = self._take(name, kind)
        if found is not None:
            return _cut(found, _WORD_CHARACTERS) if kind is str else found
        if name not in self.value:
            return _LACKING
        reason = self._missing.get(name)
        return Missing(
            _REASONS.get(reason, MissingReason.ERROR) if isinstance(reason, str) else MissingReason.ERROR
        )

    def _take(self, name: str, kind: Any) -> Any:
        if name not in self.value:
            self.lacks.append(name)
            return None
        found: Any = self.value[name]
        if found is None:
            return None
        if kind is float and isinstance(found, int) and not isinstance(found, bool):
            found = float(found)
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
            raise UnreadableError(f"{self._named(name)} is {_shown(found)}")
        if (kind is float and not math.isfinite(found)) or (kind is int and abs(found) >= 1 << 63):
            raise UnreadableError(f"{self._named(name)} is {_shown(found)}")
        return found

    def _named(self, name: str) -> str:
        return f"{self.place}.{name}" if self.place else f"its {name}"


def _shown(value: Any) -> str:
    return _cut(repr(value), 40)


def _cut(text: str, characters: int) -> str:
    return escape_controls(shorten_text(" ".join(text[: 4 * characters].split()), characters))


def name_list(words: Iterable[str], most: int = 4) -> str:
    """The words with commas, and how many more there are."""
    listed = list(words)
    rest = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {rest} more" if rest > 0 else "")
