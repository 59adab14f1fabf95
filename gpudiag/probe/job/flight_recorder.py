"""Dumps of torch's flight recorder: pickle or JSON, of torch 2.2 to 2.13, to a `FlightRecord`.

`parse_dump` takes bytes and `read_dump` a path; both refuse what is no dump, or one that would run code, in a
sentence. Keys changed between versions of the format: `seq_id` became `collective_seq_id` and `p2p_seq_id`
(2.0), `process_group` was a name before it was a pair of name and description (2.1), `pg_status` came with
2.3, `nccl_version` became `comm_lib_version` (2.8). JSON writes 0 for a time that has not come. gloo's dumps
have `scheduled` for good, and let go of a call (`retired`) when it has ended; they do not name the members of
a group.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpudiag.model.job_state import (
    CallState,
    FlightRecord,
    GroupProgress,
    RecordedCall,
    RecordedFrame,
    RecordedGroup,
)
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.probe.job.plain_pickle import MAX_BYTES, PickleRefused, load_plain_pickle

MAX_CALLS = 100_000  # the newest are kept; torch's ring has 2,000 unless TORCH_FR_BUFFER_SIZE sets more
_MAX_TENSORS = 64  # of one call
_MAX_DIMENSIONS = 32
_MAX_FRAMES = 64
_MAX_GROUPS = 10_000
_MAX_RANKS = 1_000_000
_MAX_WORD = 400
_HEAD_BYTES = 4096
_NANOSECONDS = 1e9

_RANK_IN_NAME = re.compile(r"(\d{1,7})(?:\.(?:json|pkl|pickle|bin))?$")
_PEERS = re.compile(r"(send|recv)\s+(\d{1,7})(->|<-)(\d{1,7})")
# Before 2.0 of the format: `{entries: ..., version: 1.5}`.
_KEYS = ("entries", "pg_config", "pg_status", "version")
_NO_TIME = Missing(MissingReason.NOT_SUPPORTED, "the dump has no such time")
_NO_RANK = Missing(MissingReason.NOT_SUPPORTED, "neither the dump nor its name has the rank that wrote it")


class DumpRefused(Exception):
    """Why a file is not read as a flight recorder's dump, in one sentence."""


def looks_like_dump(head: bytes) -> bool:
    """Whether a file that begins so may be a dump: torch's pickle of a dict, or JSON with its keys."""
    if head.startswith((b"\x80\x02}", b"\x80\x03}", b"\x80\x04\x95", b"\x80\x05\x95")):
        return b"entries" in head or b"pg_config" in head or b"profiling_name" in head
    if not head.lstrip().startswith(b"{"):
        return False
    return any(key in head for key in (b'"pg_config"', b'"profiling_name"', b'"collective_seq_id"'))


def read_dump(path: Path | str, *, rank: int | None = None, host: str = "") -> FlightRecord:
    """The record in one file; `rank` where the caller knows it, else the number that the name ends in.

    Raises:
        DumpRefused: it cannot be read, or is no dump.
    """
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise DumpRefused(f"{path} could not be read: {error.strerror or error}.") from None
    return parse_dump(data, source=str(path), rank=rank_in_name(path) if rank is None else rank, host=host)


def rank_in_name(path: Path | str) -> int | None:
    """The rank in the name that torch gives a dump, `nccl_trace_rank_12`; None where there is none."""
    found = _RANK_IN_NAME.search(Path(path).name)
    return int(found.group(1)) if found else None


def parse_dump(data: bytes, *, source: str, rank: int | None = None, host: str = "") -> FlightRecord:
    """The record that these bytes hold, pickle or JSON.

    Raises:
        DumpRefused: they are cut off, damaged, too large, no dump of a flight recorder, or would run code.
    """
    document = _load(data, source)
    if not isinstance(document, dict) or not any(key in document for key in _KEYS):
        raise DumpRefused(f"{source} is no dump of a flight recorder: it has none of {', '.join(_KEYS)}.")
    entries = document.get("entries", [])
    if not isinstance(entries, list | tuple):
        raise DumpRefused(f"{source} is a damaged dump: its entries are no list.")
    kept = entries[-MAX_CALLS:]
    calls = tuple(call for entry in kept if (call := _call(entry)) is not None)
    library = document.get("comm_lib_version", document.get("nccl_version"))
    return FlightRecord(
        rank=_NO_RANK if rank is None else rank,
        version=_word(document.get("version")),
        library_version=_word(library),
        groups=_groups(document.get("pg_config")),
        progress=_progress(document.get("pg_status")),
        calls=calls,
        source=source,
        host=host,
        left_out=len(entries) - len(calls),
    )


def shorten(record: FlightRecord, kept_calls: int) -> FlightRecord:
    """The record without calls that lie far back.

    So many are kept of each group, and those that have not ended.
    """
    kept: dict[int, RecordedCall] = {}
    for place, call in _last_of_each_group(record, kept_calls):
        kept[place] = call
    kept |= {place: call for place, call in enumerate(record.calls) if call.is_pending}
    return replace(record, calls=tuple(kept[place] for place in sorted(kept)))


def _last_of_each_group(record: FlightRecord, kept_calls: int) -> Iterator[tuple[int, RecordedCall]]:
    counted: dict[tuple[str, bool], int] = defaultdict(int)
    for place in range(len(record.calls) - 1, -1, -1):
        call = record.calls[place]
        key = (call.group, call.is_point_to_point)
        counted[key] += 1
        if counted[key] <= kept_calls:
            yield place, call


def _load(data: bytes, source: str) -> Any:
    if not data:
        raise DumpRefused(f"{source} is empty: its rank was killed before it wrote the dump.")
    if len(data) > MAX_BYTES:
        raise DumpRefused(
            f"{source} is larger than {MAX_BYTES >> 20} MiB, more than gpudiag reads of one dump."
        )
    if data[:1] == b"\x80":
        try:
            return load_plain_pickle(data)
        except PickleRefused as error:
            raise DumpRefused(f"{source} is not read: {error}.") from None
        except RecursionError:
            raise DumpRefused(f"{source} is not read: its values are nested too deep.") from None
    try:
        return json.loads(data)
    except RecursionError:
        raise DumpRefused(f"{source} is not read: its values are nested too deep.") from None
    except ValueError as error:
        if data[:_HEAD_BYTES].lstrip()[:1] != b"{":
            raise DumpRefused(f"{source} is neither a pickle nor JSON.") from None
        raise DumpRefused(f"{source} is damaged or cut off: {_reason(error)}.") from None


def _reason(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at byte {error.pos}"
    return "it holds an invalid word or number"


def _call(entry: Any) -> RecordedCall | None:
    if not isinstance(entry, dict):
        return None
    profiling_name = _word(entry.get("profiling_name"))
    backend, separator, operation = profiling_name.partition(":")
    if not separator:
        backend, operation = "", profiling_name
    peers = _PEERS.match(operation)
    is_point_to_point = entry.get("is_p2p") is True or peers is not None
    source, destination = _ends(peers)
    name, description = _group_name(entry)
    return RecordedCall(
        record_id=_number(entry.get("record_id"), -1),
        group=name,
        group_description=description,
        backend=backend,
        operation=operation.partition(" ")[0],
        sequence=_sequence(entry, is_point_to_point),
        is_point_to_point=is_point_to_point,
        state=_state(entry),
        retired=entry.get("retired") is True,
        input_sizes=_sizes(entry.get("input_sizes")),
        input_dtypes=_words(entry.get("input_dtypes")),
        output_sizes=_sizes(entry.get("output_sizes")),
        output_dtypes=_words(entry.get("output_dtypes")),
        created_at=_time(entry.get("time_created_ns")),
        started_at=_time(entry.get("time_discovered_started_ns")),
        completed_at=_time(entry.get("time_discovered_completed_ns")),
        timeout_seconds=_milliseconds(entry.get("timeout_ms")),
        source=source,
        destination=destination,
        frames=tuple(_frames(entry.get("frames"))),
    )


def _ends(peers: re.Match[str] | None) -> tuple[int | None, int | None]:
    """The sender and the receiver of `send 1->2` or `recv 3<-0`."""
    if peers is None:
        return None, None
    left, right = int(peers.group(2)), int(peers.group(4))
    return (left, right) if peers.group(3) == "->" else (right, left)


def _group_name(entry: dict[Any, Any]) -> tuple[str, str]:
    named = entry.get("process_group", entry.get("pg_name"))
    if isinstance(named, list | tuple) and named:
        description = _word(named[1]) if len(named) > 1 else ""
        return _word(named[0]), "" if description == "undefined" else description
    if isinstance(named, str):
        return _word(named), ""
    return str(_number(entry.get("pg_id"), 0)), ""


def _sequence(entry: dict[Any, Any], is_point_to_point: bool) -> int:
    key = "p2p_seq_id" if is_point_to_point else "collective_seq_id"
    return _number(entry.get(key, entry.get("seq_id")), -1)


def _state(entry: dict[Any, Any]) -> CallState:
    word = entry.get("state")
    if isinstance(word, str) and word in set(CallState):
        return CallState(word)
    if not isinstance(_time(entry.get("time_discovered_completed_ns")), Missing):
        return CallState.COMPLETED
    return CallState.SCHEDULED


def _groups(config: Any) -> tuple[RecordedGroup, ...]:
    if not isinstance(config, dict):
        return ()
    groups = []
    for name, about in list(config.items())[:_MAX_GROUPS]:
        if not isinstance(about, dict) or not (_word(name) or _word(about.get("ranks")).strip("[] ")):
            continue  # gloo's: no name, no ranks
        description = _word(about.get("desc"))
        groups.append(
            RecordedGroup(
                name=_word(about.get("name")) or _word(name),
                description="" if description == "undefined" else description,
                ranks=_ranks(about.get("ranks")),
            )
        )
    return tuple(groups)


def _ranks(value: Any) -> tuple[int, ...]:
    if isinstance(value, str):
        return tuple(int(one) for one in re.findall(r"\d{1,7}", value)[:_MAX_RANKS])
    if isinstance(value, list | tuple):
        return tuple(one for one in value[:_MAX_RANKS] if type(one) is int)
    return ()


def _progress(status: Any) -> tuple[GroupProgress, ...]:
    if not isinstance(status, dict):
        return ()
    return tuple(
        GroupProgress(
            group_number=_word(str(number)),
            last_enqueued=_number(about.get("last_enqueued_collective"), -1),
            last_started=_number(about.get("last_started_collective"), -1),
            last_completed=_number(about.get("last_completed_collective"), -1),
        )
        for number, about in list(status.items())[:_MAX_GROUPS]
        if isinstance(about, dict)
    )


def _frames(value: Any) -> Iterator[RecordedFrame]:
    if not isinstance(value, list | tuple):
        return
    for frame in value[:_MAX_FRAMES]:
        if isinstance(frame, dict):
            yield RecordedFrame(
                file=_word(frame.get("filename")),
                function=_word(frame.get("name")),
                line=_number(frame.get("line"), 0),
            )


def _sizes(value: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list | tuple):
        return ()
    return tuple(
        tuple(size for size in one[:_MAX_DIMENSIONS] if type(size) is int)
        for one in value[:_MAX_TENSORS]
        if isinstance(one, list | tuple)
    )


def _words(value: Any) -> tuple[str, ...]:
    return tuple(_word(one) for one in value[:_MAX_TENSORS]) if isinstance(value, list | tuple) else ()


def _word(value: Any) -> str:
    return value[:_MAX_WORD] if isinstance(value, str) else ""


def _number(value: Any, fallback: int) -> int:
    """A whole number, which JSON of `pg_status` writes as a word."""
    if type(value) is int and -(1 << 63) <= value < 1 << 64:
        return value
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value, re.ASCII):
        return int(value)
    return fallback


def _time(value: Any) -> Reading[float]:
    nanoseconds = _number(value, 0)
    return nanoseconds / _NANOSECONDS if nanoseconds > 0 else _NO_TIME


def _milliseconds(value: Any) -> Reading[float]:
    milliseconds = _number(value, -1)
    return milliseconds / 1000 if milliseconds >= 0 else _NO_TIME
