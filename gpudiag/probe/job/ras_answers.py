"""What NCCL's RAS subsystem prints, text (from 2.24) or JSON (from 2.28.7), to a `RasLook`.

The text sums up: it names the ranks that stand out, and of communicators without a finding it gives no count.
2.24 and 2.25 count all collectives as one, later versions each kind. JSON lists every rank; 2.28.7 and 2.28.9
leave out the comma before the status of a missing rank, which is inserted here.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpudiag.model.job_state import (
    RasAbsent,
    RasCommunicator,
    RasCount,
    RasLook,
    RasProcess,
    RasRank,
    RasStatus,
)
from gpudiag.model.reading import NOT_ASKED, Reading

MAX_ANSWER_BYTES = 64 << 20  # JSON takes about 600 bytes a rank and communicator
ALL_KINDS = "collective"
_MAX_WORD = 200
_MAX_RANKS = 1_000_000
_MAX_COMMUNICATORS = 100_000

# Within an answer no string has a line's end, so a line that ends in a value before one that begins with a
# key lacks its comma.
_COMMA_LEFT_OUT = re.compile(r'(?<=[0-9}\]"el])(\s*\n\s*)(?=")')

# ncclResult_t, in the words that RAS prints.
_ERRORS = {
    1: "Unhandled CUDA error",
    2: "System error",
    3: "Internal error",
    4: "Invalid argument",
    5: "Invalid usage",
    6: "Remote process error",
}
_IN_PROGRESS = 7


class RasRefused(Exception):
    """Why an answer of RAS is not read, in a few words."""


def parse_ras_answer(answer: bytes, *, at_seconds: float = 0.0) -> RasLook:
    """The look that this answer gives, text or JSON.

    Raises:
        RasRefused: it is cut off, damaged, or none of RAS.
    """
    text = answer.decode("utf-8", "replace")
    if text.lstrip().startswith("{"):
        return _from_json(text, at_seconds)
    return _TextReader(at_seconds).read(text)


# --- JSON


def _from_json(text: str, at_seconds: float) -> RasLook:
    document = _load(text)
    communicators = document.get("communicators")
    if not isinstance(communicators, list):
        raise RasRefused("it is JSON without communicators")
    ras = _table(document.get("ras"))
    read = tuple(_communicator(one) for one in communicators[:_MAX_COMMUNICATORS] if isinstance(one, dict))
    return RasLook(
        at_seconds=at_seconds,
        nccl_version=_word(document.get("nccl_version")),
        is_complete=True,
        communicators=read,
        communicator_count=_number(document.get("communicators_count"), len(read)),
        processes=_silent_processes(read),
        timeouts=_number(ras.get("timeouts_count"), 0),
    )


def _load(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except RecursionError:
        raise RasRefused("its values are nested too deep") from None
    except ValueError:
        try:
            document = json.loads(_COMMA_LEFT_OUT.sub(r",\1", text))
        except (ValueError, RecursionError) as error:
            where = f": {error.msg} at byte {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
            raise RasRefused(f"it is JSON that is cut off or damaged{where}") from None
    if not isinstance(document, dict):
        raise RasRefused("it is JSON, and no object")
    return document


def _communicator(about: dict[str, Any]) -> RasCommunicator:
    ranks = [one for one in _list(about.get("ranks"))[:_MAX_RANKS] if isinstance(one, dict)]
    missing = [one for one in _list(about.get("missing_ranks"))[:_MAX_RANKS] if isinstance(one, dict)]
    absent = tuple(_absent(one) for one in missing)
    return RasCommunicator(
        identity=_identity(_word(about.get("hash"))),
        size=_number(about.get("size"), len(ranks) + len(absent)),
        ranks=tuple(_rank(one) for one in ranks),
        counts=_counts(ranks),
        statuses=_statuses([(_status(_table(one.get("status"))), _rank(one).rank) for one in ranks]),
        errors=_statuses([(error, _rank(one).rank) for one in ranks for error in _errors(one)]),
        absent=absent,
        absent_count=max(_number(about.get("missing_ranks_count"), 0), len(absent)),
    )


def _rank(about: dict[str, Any]) -> RasRank:
    pid = _number(about.get("pid"), -1)
    return RasRank(
        rank=_number(about.get("rank"), -1),
        host=_word(about.get("host")),
        pid=pid if pid > 0 else None,
        cuda_device=_optional(about.get("cuda_dev")),
        nvml_device=_optional(about.get("nvml_dev")),
    )


def _counts(ranks: list[dict[str, Any]]) -> tuple[RasCount, ...]:
    """Ranks by operation and number; operations that nobody has launched are left out."""
    by_number: dict[tuple[str, int], list[int]] = defaultdict(list)
    for about in ranks:
        rank = _rank(about).rank
        for operation, launched in list(_table(about.get("collective_counts")).items())[:64]:
            by_number[_word(operation), _number(launched, 0)].append(rank)
    used = {operation for operation, launched in by_number if launched}
    return tuple(
        RasCount(operation=operation, launched=launched, size=len(members), ranks=tuple(sorted(members)))
        for (operation, launched), members in sorted(by_number.items())
        if operation in used
    )


def _status(status: dict[str, Any]) -> str:
    if status.get("abort_flag") is True:
        return "ABORT"
    if status.get("finalize_called") is True or status.get("destroy_flag") is True:
        return "FINALIZE"
    return "RUNNING" if _number(status.get("init_state"), 0) == 0 else "INIT"


def _errors(about: dict[str, Any]) -> Iterator[str]:
    status = _table(about.get("status"))
    for key in ("init_state", "async_error"):
        code = _number(status.get(key), 0)
        if code not in (0, _IN_PROGRESS):
            yield _ERRORS.get(code, f"Unexpected error {code}")


def _statuses(pairs: list[tuple[str, int]]) -> tuple[RasStatus, ...]:
    by_word: dict[str, list[int]] = defaultdict(list)
    for word, rank in pairs:
        by_word[word].append(rank)
    return tuple(RasStatus(word, len(ranks), tuple(sorted(ranks))) for word, ranks in sorted(by_word.items()))


def _absent(about: dict[str, Any]) -> RasAbsent:
    status = _table(about.get("status"))
    unresponsive, dead = status.get("unresponsive"), status.get("considered_dead")
    return RasAbsent(
        rank=_number(about.get("rank"), -1),
        unresponsive=unresponsive if isinstance(unresponsive, bool) else NOT_ASKED,
        dead=dead if isinstance(dead, bool) else NOT_ASKED,
        place=_rank(about),
    )


def _silent_processes(communicators: tuple[RasCommunicator, ...]) -> tuple[RasProcess, ...]:
    silent: dict[tuple[str, int], RasProcess] = {}
    for communicator in communicators:
        for absent in communicator.absent:
            place = absent.place
            if (
                place is None
                or place.pid is None
                or (absent.unresponsive is not True and absent.dead is not True)
            ):
                continue
            gpus = "" if place.cuda_device is None else str(place.cuda_device)
            silent[place.host, place.pid] = RasProcess(place.pid, place.host, gpus, absent.dead is True)
    return tuple(silent.values())


def _identity(word: str) -> str:
    """The hash as the text prints it: 16 hexadecimal digits."""
    return word.lower().removeprefix("0x").rjust(16, "0")


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _word(value: Any) -> str:
    return value[:_MAX_WORD] if isinstance(value, str) else ""


def _number(value: Any, fallback: int) -> int:
    return value if type(value) is int and abs(value) < 1 << 64 else fallback


def _optional(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 32 else None


# --- text

_VERSION = re.compile(r"NCCL version (\S{1,60}) ")
_TABLE_ROW = re.compile(
    r"\s*(\d{1,9})\s+(\d{1,9})\s+\d+\s+[\d-]+\s+(\d{1,9})\s+\d+\s+([A-Z]+)\s+([A-Z,]+)\s*$"
)
_NAMED = re.compile(r"#(\d{1,9})-(\d{1,9}) \(([0-9a-f]{1,16})\) ([A-Z]+)\s*$")
_PLACE = r"GPU (\d+)(?: \(NVML (\d+)\))? managed by process (\d+) on node (\S{1,100})"
_RANK_LINE = re.compile(
    rf"\s+Rank (\d{{1,7}}) (?:(.*?) )?-- (?:{_PLACE}|\[process information not found\])\s*$"
)
_PROCESS_LINE = re.compile(r"\s+Process (\d+) on node (\S{1,100}) managing GPUs? (.{1,200}?)\s*$")
_OPERATION = re.compile(r"\s+Communicator ranks have different (\w{1,40}) operation counts\s*$")
_MANY_LAUNCHED = re.compile(r"\s+(\d{1,7}) ranks have launched up to operation (\d{1,19})\s*$")
_MANY_NOT = re.compile(r"\s+(\d{1,7}) ranks have not launched any operations\s*$")
_MANY_STATUS = re.compile(r"\s+(\d{1,7}) ranks have status ([A-Z]+)\s*$")
_MANY_ERRORS = re.compile(r"\s+(\d{1,7}) ranks reported (.{1,60}?)\s*$")
_MISSING_RANKS = re.compile(r"\s+The (missing|unknown) ranks?: ([\d,]{1,2000})\s*$")
_ONE_STATUS = re.compile(r"\s+Rank (\d{1,7}) has status ([A-Z]+)\s*$")
_MISSING_COUNT = re.compile(r"\s+Missing communicator data from (\d{1,7}) (rank|job process)")
_DEAD_COUNT = re.compile(r"\s+(\d{1,7}) job process(?:es are| is) considered dead")
_TIMEOUTS = re.compile(r"\s+Encountered (\d{1,9}) communication timeout")


@dataclass(slots=True)
class _Set:
    """Ranks that the text reports one thing of; those that it names are added as their lines come."""

    word: str
    launched: int
    size: int
    ranks: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Draft:
    """What was read of one communicator so far."""

    identity: str
    size: int
    places: dict[int, RasRank] = field(default_factory=dict)
    counts: list[_Set] = field(default_factory=list)
    statuses: list[_Set] = field(default_factory=list)
    errors: list[_Set] = field(default_factory=list)
    absent: dict[int, bool] = field(default_factory=dict)  # whether its process did not answer
    absent_count: int = 0

    def finish(self, dead: Reading[bool]) -> RasCommunicator:
        places = self.places
        return RasCommunicator(
            identity=self.identity,
            size=self.size,
            ranks=tuple(places[rank] for rank in sorted(places)),
            counts=tuple(
                RasCount(one.word, one.launched, one.size, tuple(sorted(one.ranks)))
                for one in self._named_counts()
            ),
            statuses=tuple(RasStatus(one.word, one.size, tuple(sorted(one.ranks))) for one in self.statuses),
            errors=tuple(RasStatus(one.word, one.size, tuple(sorted(one.ranks))) for one in self.errors),
            absent=tuple(
                RasAbsent(rank, unresponsive, dead if unresponsive else False, places.get(rank))
                for rank, unresponsive in sorted(self.absent.items())
            ),
            absent_count=max(self.absent_count, len(self.absent)),
        )

    def _named_counts(self) -> list[_Set]:
        """The counts, where the one set whose ranks are not named is all the others."""
        for operation in {one.word for one in self.counts}:
            sets = [one for one in self.counts if one.word == operation]
            unnamed = [one for one in sets if not one.ranks]
            named = {rank for one in sets for rank in one.ranks} | set(self.absent)
            if len(unnamed) == 1 and len(named) + unnamed[0].size == self.size <= _MAX_RANKS:
                unnamed[0].ranks = [rank for rank in range(self.size) if rank not in named]
        return self.counts


class _TextReader:
    """Reads the lines of one answer; each names the part it belongs to, or belongs to the part named last."""

    def __init__(self, at_seconds: float) -> None:
        self.at_seconds = at_seconds
        self.version = ""
        self.sizes: dict[int, int] = {}  # of the communicators in a group of the table
        self.communicators = 0
        self.drafts: dict[str, _Draft] = {}
        self.draft: _Draft | None = None
        self.section = ""  # DEAD, INCOMPLETE, MISMATCH, ERROR
        self.operation = ALL_KINDS
        self.current: _Set | None = None
        self.processes: list[RasProcess] = []
        self.unasked = 0
        self.dead = 0
        self.timeouts = 0
        self.saw_table = False

    def read(self, text: str) -> RasLook:
        for line in text.splitlines():
            self._read_line(line[:4000])
        if not self.version and not self.saw_table:
            raise RasRefused("it is neither RAS's text nor JSON")
        if not self.saw_table:
            raise RasRefused("it is cut off before the communicators")
        # Which of the processes that do not answer has which rank is unknown where there are both kinds.
        dead = NOT_ASKED if self.dead and self.unasked else self.dead > 0
        return RasLook(
            at_seconds=self.at_seconds,
            nccl_version=self.version,
            is_complete=False,
            communicators=tuple(draft.finish(dead) for draft in self.drafts.values()),
            communicator_count=self.communicators,
            processes=tuple(self.processes),
            timeouts=self.timeouts,
            unasked_process_count=self.unasked + self.dead,
        )

    def _read_line(self, line: str) -> None:
        if not line.strip():
            return
        if found := _VERSION.match(line):
            self.version = found.group(1)
        elif found := _TABLE_ROW.match(line):
            self.saw_table = True
            self.sizes[int(found.group(1))] = int(found.group(3))
            self.communicators += int(found.group(2))
        elif line.startswith("No communicator data collected"):
            self.saw_table = True
        elif line.rstrip() in ("INCOMPLETE", "DEAD", "TIMEOUT"):
            self.section, self.draft, self.current = line.rstrip(), None, None
        elif found := _NAMED.match(line):
            self._open(found)
        elif self.draft is None:
            self._read_processes(line)
        else:
            self._read_communicator(self.draft, line)

    def _open(self, found: re.Match[str]) -> None:
        identity = _identity(found.group(3))
        size = self.sizes.get(int(found.group(1)), 0)
        self.draft = self.drafts.setdefault(identity, _Draft(identity, size))
        self.section, self.operation, self.current = found.group(4), ALL_KINDS, None

    def _read_processes(self, line: str) -> None:
        if found := _PROCESS_LINE.match(line):
            pid, host, gpus = found.groups()
            self.processes.append(RasProcess(int(pid[:9]), host, gpus, self.section == "DEAD"))
        elif found := _MISSING_COUNT.match(line):
            self.unasked = int(found.group(1))
        elif found := _DEAD_COUNT.match(line):
            self.dead = int(found.group(1))
        elif found := _TIMEOUTS.match(line):
            self.timeouts = int(found.group(1))

    def _read_communicator(self, draft: _Draft, line: str) -> None:
        if found := _OPERATION.match(line):
            self.operation, self.current = found.group(1), None
            if self.operation == "collective":
                self.operation = ALL_KINDS
        elif found := _MANY_LAUNCHED.match(line):
            self._set(draft.counts, self.operation, int(found.group(2)), int(found.group(1)))
        elif found := _MANY_NOT.match(line):
            self._set(draft.counts, self.operation, 0, int(found.group(1)))
        elif found := _MANY_STATUS.match(line):
            self._set(draft.statuses, found.group(2), 0, int(found.group(1)))
        elif found := _MANY_ERRORS.match(line):
            self._set(draft.errors, found.group(2), 0, int(found.group(1)))
        elif found := _MISSING_COUNT.match(line):
            draft.absent_count = max(draft.absent_count, int(found.group(1)))
        elif found := _MISSING_RANKS.match(line):
            numbers = [int(one) for one in found.group(2).split(",") if 0 < len(one) < 8]
            draft.absent |= dict.fromkeys(numbers, found.group(1) == "missing")
        elif found := _ONE_STATUS.match(line):
            draft.statuses.append(_Set(found.group(2), 0, 1, [int(found.group(1))]))
        elif found := _RANK_LINE.match(line):
            self._read_rank(draft, found)

    def _set(self, kept: list[_Set], word: str, launched: int, size: int) -> None:
        self.current = _Set(word, launched, size)
        kept.append(self.current)

    def _read_rank(self, draft: _Draft, found: re.Match[str]) -> None:
        rank, report = int(found.group(1)), found.group(2) or ""
        if found.group(5):
            cuda_device = int(found.group(3)[:9])
            draft.places[rank] = RasRank(
                rank=rank,
                host=found.group(6),
                pid=int(found.group(5)[:9]),
                cuda_device=cuda_device,
                nvml_device=int(found.group(4)[:9]) if found.group(4) else cuda_device,
            )
        if launched := re.match(r"has launched up to operation (\d{1,19})$", report):
            draft.counts.append(_Set(self.operation, int(launched.group(1)), 1, [rank]))
        elif report == "has not launched any operations":
            draft.counts.append(_Set(self.operation, 0, 1, [rank]))
        elif status := re.match(r"has status ([A-Z]+)$", report):
            draft.statuses.append(_Set(status.group(1), 0, 1, [rank]))
        elif reported := re.match(r"reported (.{1,60})$", report):
            draft.errors.append(_Set(reported.group(1), 0, 1, [rank]))
        elif self.section == "INCOMPLETE":
            draft.absent[rank] = True
        elif self.current is not None:
            self.current.ranks.append(rank)
