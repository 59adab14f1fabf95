"""One line of a log: who printed it, when, its text; and each rank's traceback among the others."""

import json
import re
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import IntEnum
from functools import lru_cache
from typing import Any

from gpudiag.compat import UTC

_COLOUR = re.compile(r"(?:\x1b|\\x1b|\\033|\\u001b|#033|\^\[)\[[0-9;?]*[A-Za-z]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")

# What launchers, runtimes and loggers put before a line. Each takes at most one space after itself, so that
# the indents of a traceback stay.
_TIME = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|\ ?[+-]\d\d:?\d\d)?"
_RANK_PREFIX = re.compile(
    r"""(?:
      \[default(?P<local>\d+)\]:?                                         # torchrun --tee: [default3]:
    | \[(?:global_)?[Rr](?:ank|ANK)[\ :=_-]{0,2}(?P<rank>\d+)\]:?         # [rank3]:  [Rank 3]  [rank: 3]
    | \(?(?:rank|Rank|RANK)[\ :=_]?(?P<named>\d+)\)?(?:\ ?[|:\]]|\ -)(?=\ ) # rank 3:  RANK 3 |  (rank 3):
      # mpirun: [1,3]<stderr>:  [prterun-n1-881@1,3]<stderr>:  SageMaker: [1,mpirank:9,algo-2]<stderr>:
    | \[(?:[\w.-]+@)?(?:\d+,)?(?:mpirank:)?(?P<task>\d+)(?:,(?P<algo>algo-\d+))?\](?:<std(?:err|out)>)?:
    | \ {0,4}(?P<label>\d{1,5}):                                         # srun --label
    | \[pod/(?P<pod>[^\]]+)\]                                            # kubectl logs --prefix
    | (?P<service>[\w.-]+-\d+)\ +\|                                      # docker compose
      # SkyPilot: (worker1, rank=1, pid=77, ip=10.0.0.4)
    | \([\w.-]+,\ rank=(?P<node>\d+),\ pid=\d+(?:,\ ip=(?P<address>[^)]*))?\)
      # stern: POD CONTAINER
    | (?P<stern>[a-z0-9-]+-(?:worker|master|launcher|trainer|node)-\d+(?:-[\w-]+)?)
      \ [a-z][\w-]*\ (?=\S|\ )
      # Ray, vLLM
    | \((?P<actor>\w[\w.:-]*(?:\([\w.:-]*\))?\ )?(?:actor\ |rank=(?P<worker>\d+)\ )?
      pid=(?P<pid>\d+)(?:,\ ip=(?P<ip>[^)]*))?\)
      # pdsh; slurmstepd's own name has that of its node
    | (?:slurmstepd-)?(?P<host>(?!python|slurmstepd-)[a-z][a-z-]*\d[\w-]*|\d+\.\d+\.\d+\.\d+):(?=\ )
    )\ ?""",
    re.VERBOSE,
)
_OTHER_PREFIX = re.compile(
    rf"""(?:
      \[?{_TIME}\]?(?=[\ |:\]]|$)
      # dmesg -T; Horovod, without brackets: Tue Nov  4 10:11:02 2025[5]<stderr>:
    | \[?(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\ \w{{3}}\ +\d+\ \d\d:\d\d:\d\d\ \d{{4}}(?:\]|(?=\[))
    | \w{{3}}\ +\d{{1,2}}\ \d\d:\d\d:\d\d\ [\w.-]+\ [\w./@-]+(?:\[\d+\])?:              # syslog
    | \[\ *\d+\.\d{{6}}\]                                                              # dmesg
    | (?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\ \d\d-\d\d\ \d\d:\d\d:\d\d\ \[[\w./]+:\d+\]  # vLLM
    | (?:DEBUG|INFO|WARNING|ERROR|CRITICAL):[\w.]+:(?=\S)                               # logging.basicConfig
    | \[?(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\s*\]?(?=[\ :|-])
    | \[[\w./-]+\.(?:py|cc|cpp):\d+(?::\w+)?\]
    | \[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?(?=[\ |:])                                        # 10:00:01
    | \[?std(?:err|out)[\]:](?=\ )                                                      # accelerate
    | std(?:err|out)\ [FP](?=\ )                                                        # containerd
    | E(?=\ {{2,}}\w)                                                                  # pytest
    | \|
    )[:|\ -]?\ ?""",
    re.VERBOSE,
)
# The last word is the year for times without one: a leap year; and 1903 for a time of the day alone.
_TIMES = (
    (re.compile(r"(\d{4}[-/]\d\d[-/]\d\d)[T_ ](\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?"), "%Y-%m-%d %H:%M:%S", ""),
    (re.compile(r"\[(\d\d/\d\d/\d{4})-(\d\d:\d\d:\d\d)()\] \[TRT-LLM\]"), "%m/%d/%Y %H:%M:%S", ""),
    (re.compile(r"\b[IWEF](\d{3,4}) (\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?"), "%Y %m%d %H:%M:%S", "1904 "),
    (
        re.compile(r"\b[A-Z][a-z]{2} ([A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d) ((?:19|20)\d\d)()"),
        "%b %d %H:%M:%S %Y",
        "",
    ),
    (re.compile(r"\b([A-Z][a-z]{2} +\d{1,2}) (\d\d:\d\d:\d\d)()"), "%Y %b %d %H:%M:%S", "1904 "),
    # vLLM
    (
        re.compile(r"(?:^|[\s)\]])(\d\d-\d\d) (\d\d:\d\d:\d\d)()(?=[\s\]|,]|$)"),
        "%Y %m-%d %H:%M:%S",
        "1904 ",
    ),
    (
        re.compile(r"(?:^|[\s\[])()(\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?(?=[\s\]|,]|$)"),
        "%Y %m%d %H:%M:%S",
        "1903 0101",
    ),
)
_TIME_WITHIN = 120  # characters from the beginning
# NCCL, and UCX in brackets.
_NCCL_SPEAKER = re.compile(
    r"(?:^|[\s\]:])\[?(?P<host>[A-Za-z][\w.-]*):(?P<pid>\d+):(?:\d+ \[\d+\] |\d+(?::\d+)?\] )"
)
_TORCH_SPEAKER = re.compile(r"\[(?:PG [^\]]{0,40})?[Rr]ank[ :=]?(\d+)\]|\b[Rr]ank[=: ](\d+)[\])]")
# SGLang, whose tensor-parallel rank is the rank where it names no other; Megatron's rerun state machine and
# its NaN test; TensorRT-LLM.
_NAMED_SPEAKER = re.compile(
    rf"^\[{_TIME} TP(\d+)(?: EP\d+)?\] |\w+Error: Rank (\d+)(?:: found |, node \S+, device )|"
    r"\[TRT-LLM\] (?:\[E\] \[\w+\])?\[RANK (\d+)\]"
)
_POD_SPEAKER = re.compile(r"(?:^|\s)pod/([a-z0-9][\w.-]+)\s")  # kubectl get events
_SYSLOG_SPEAKER = re.compile(
    rf"(?:\w{{3}} +\d{{1,2}} \d\d:\d\d:\d\d|{_TIME}) (?P<host>(?!std(?:err|out)\b)[\w.-]+) (?:kernel|"
    rf"[\w./@-]+\[\d+\]):"
)
_NCCL_LEVEL = re.compile(r"\bNCCL (INFO|TRACE|WARN|ERROR|ABORT)\b")
_GLOG_LEVEL = re.compile(
    r"(?:^|[\s\[])([DIWEF])(?:\d{4} \d\d:\d\d:|\d{4} \d|(?= \w+\.(?:cpp|cc):\d+\])"
    r"|(?= \d+ \d+\]))"  # Ray: E 24507 24507]
)
_TENSORFLOW_LEVEL = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: ([IWEF]) \w+/")
_WORD_LEVEL = re.compile(
    r"(?:^|[\s\[|<(:-])(DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|ERR|CRITICAL|FATAL)(?:$|[\s\]|>):-])"
)
_FIELD_LEVEL = re.compile(r"\b\"?(?:level|levelname|severity|lvl)\"?\s*[:=]\s*\"?(\w+)", re.IGNORECASE)
_LEVEL_WITHIN = 160

HEADER = "Traceback (most recent call last)"
# torch.distributed.checkpoint: whose traceback another rank prints.
_OF_RANK = re.compile(r"\): \(RANK (\d+)\)")
# Ray Train and torch.multiprocessing: whose traceback comes next.
_ANNOUNCED = re.compile(
    r"\[Rank (?P<rank>\d+) Error Snippet\]|-- Process (?P<spawned>\d+) terminated with the"
)
# Ray, before the frames of an actor or a task within those of who called it.
_OF_ACTOR = re.compile(r"\bray::\S+ \(pid=(?P<pid>\d+), ip=(?P<ip>[^,)]+)")
_MAX_LINES = 400  # of one traceback
_GROUP_EDGE = re.compile(r"^\s*[|+] ?(?!-)")
_FRAME = re.compile(r'^\s*File "(?P<path>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>\S+))?')
_BOXED_FRAME = re.compile(r"^│ (?P<path>\S[^│]*):(?P<line>\d+) in (?P<function>\S+)")  # rich's tracebacks
_BOXED_CODE = re.compile(r"^│ ❱ *\d+ (.*?) *│?$")
_BOX = "│╭╰"
_DIGITS = re.compile(r"\d")
_CHAINED = re.compile(
    r"^(?:The above exception was the direct cause|(During handling of the above exception))"
)
_RAISED = re.compile(
    r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Timeout|Expired|Group|Refused|"
    r"Invalid|Warning)(?::|$| \()"
)
_ANY_RAISED = re.compile(r"^[A-Za-z_][\w.]*(?::\s|:?$)")
LIBRARY = re.compile(
    r"site-packages|dist-packages|/lib/python3|/lib64/python3|^<frozen|/torch/|/torchrun$|/bin/|^<__array|"
    r"^[^/]*/.*\.pyx\b"  # of a package in Cython, by its place in the source tree
)


class Level(IntEnum):
    """How severe a line is, by the program that wrote it."""

    DEBUG = 10
    INFO = 20
    NONE = 25  # the line has no level
    WARNING = 30
    ERROR = 40


_LEVELS = (
    {"DEBUG": Level.DEBUG, "TRACE": Level.DEBUG, "D": Level.DEBUG, "INFO": Level.INFO, "I": Level.INFO}
    | {"NOTICE": Level.INFO, "WARNING": Level.WARNING, "WARN": Level.WARNING, "W": Level.WARNING}
    | {"ERROR": Level.ERROR, "ERR": Level.ERROR, "E": Level.ERROR, "CRITICAL": Level.ERROR}
    | {"FATAL": Level.ERROR, "F": Level.ERROR, "ABORT": Level.ERROR, "PANIC": Level.ERROR}
)


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who printed a line, as far as the line itself shows."""

    rank: int | None = None
    local_rank: int | None = None
    spawned: int | None = None  # number of a process that torch.multiprocessing started on its host
    task: int | None = None  # of srun --label or SkyPilot: a rank, or a node where each task is a torchrun
    pod: str = ""
    host: str = ""
    pid: int | None = None


NOBODY = Speaker()
MAX_EXCERPT_CHARACTERS = 300


def join_speakers(of_traceback: Speaker, of_line: Speaker) -> Speaker:
    """Who raised an exception: who began its traceback, with the rank that its own words name."""
    if of_traceback is NOBODY:
        return of_line
    return replace(of_traceback, rank=of_line.rank) if of_traceback.rank is None else of_traceback


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line, taken apart."""

    number: int
    stream: str  # the rank, pod or host that its prefix names; empty where it has none
    body: str  # without colours and prefixes
    whole: str  # without colours
    speaker: Speaker = NOBODY

    @property
    def level(self) -> Level:
        """The level that the line gives itself."""
        return read_level(self.whole)

    @property
    def at(self) -> datetime | None:
        """The time that the line gives itself, without a zone; of the year 1904 where it names no year."""
        return read_time(self.whole)


def parse_lines(number: int, raw: bytes) -> list[LogLine]:
    """The lines that one line of a file holds: progress bars and JSON put several into one."""
    text = raw.decode(errors="replace").removesuffix("\r")
    text = _COLOUR.sub("", text)
    if text.startswith('{"') and text.endswith("}"):
        text = _of_json(text)
    if "\\n" in text and "Traceback (most recent call last)" in text:
        text = text.replace("\\n", "\n").replace('\\"', '"')
    segments = re.split(r"[\r\n]", text) if "\r" in text or "\n" in text else [text]
    return [_parse_line(number, segment) for segment in segments if segment]


def read_level(text: str) -> Level:
    """The level that a line gives itself."""
    start = text[:_LEVEL_WITHIN]
    for pattern in (_NCCL_LEVEL, _TENSORFLOW_LEVEL, _GLOG_LEVEL, _WORD_LEVEL, _FIELD_LEVEL):
        match = pattern.search(start)
        if match and match[1].upper() in _LEVELS:
            return _LEVELS[match[1].upper()]
    return Level.NONE


def read_time(text: str) -> datetime | None:
    """The time that a line gives itself; None where it gives none."""
    start = text[:_TIME_WITHIN]
    for pattern, form, year in _TIMES:
        match = pattern.search(start)
        if match is None:
            continue
        day, clock, fraction = match[1], match[2], match[3] or "0"
        if year.startswith("1904") and day.isdecimal():
            day = day.zfill(4)  # torch writes the month without a zero: E321
        try:
            moment = _read_second(f"{year}{day.replace('/', '-')} {clock}", form)
        except ValueError:
            continue
        return moment.replace(microsecond=int(fraction[:6].ljust(6, "0"))) if fraction != "0" else moment
    return None


@lru_cache(maxsize=4096)
def _read_second(text: str, form: str) -> datetime:
    """One second; it is remembered, for the ranks of a job write at the same times.

    Raises:
        ValueError: there is no such day, or no such time of a day.
    """
    return datetime.strptime(text, form)


def _parse_line(number: int, text: str) -> LogLine:
    text = _CONTROLS.sub(" ", text)
    body, streams, prefixes = text, [], dict[str, str]()
    for _ in range(8):
        match = _RANK_PREFIX.match(body)
        if match:
            named = {name: value for name, value in match.groupdict().items() if value}
            streams.append(next(iter(named.values())))
            prefixes = {**named, **prefixes}
        else:
            match = _OTHER_PREFIX.match(body)
        if match is None or not match.end():
            break
        body = body[match.end() :]
    return LogLine(number, "/".join(streams), body, text, _speaker(text, prefixes))


def _speaker(text: str, prefixes: dict[str, str]) -> Speaker:
    """Who printed a line: by its prefixes, or the words of torch, NCCL, syslog or a container's name."""
    start = text[: _TIME_WITHIN + 80]
    rank = prefixes.get("rank") or prefixes.get("named") or prefixes.get("task") or prefixes.get("worker")
    host, pid = prefixes.get("host", ""), prefixes.get("pid")
    if (nccl := _NCCL_SPEAKER.search(start)) is not None:
        host, pid = nccl["host"], nccl["pid"]
    elif rank is None and (torch := _TORCH_SPEAKER.search(start)) is not None:
        rank = torch[1] or torch[2]
    elif rank is None and (named := _NAMED_SPEAKER.search(start)) is not None:
        rank = named[1] or named[2] or named[3]
    if not (prefixes or rank or host) and (of_pod := _POD_SPEAKER.search(text)) is not None:
        prefixes = {"pod": of_pod[1]}
    if not host and (syslog := _SYSLOG_SPEAKER.match(text)) is not None:
        host = syslog["host"]
    if not (rank or prefixes or host):
        return NOBODY
    return Speaker(
        rank=int(rank) if rank else None,
        local_rank=int(prefixes["local"]) if "local" in prefixes else None,
        task=next((int(prefixes[name]) for name in ("label", "node") if name in prefixes), None),
        pod=prefixes.get("pod") or prefixes.get("stern") or prefixes.get("service") or "",
        host=host or next((prefixes[name] for name in ("ip", "address", "algo") if name in prefixes), ""),
        pid=int(pid) if pid else None,
    )


def _of_json(text: str) -> str:
    """The text in a line of JSON: docker's `log`, a logger's level, message, exception; else the line."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(fields, dict):
        return text
    if isinstance(fields.get("message"), dict):
        return _of_error_file(fields["message"]) or text
    if isinstance(fields.get("log"), str):
        return _named(fields, str(fields["log"]).rstrip("\n"))
    message = next(
        (fields[key] for key in ("message", "msg", "event") if isinstance(fields.get(key), str)), None
    )
    if message is None:
        return text
    level = next(
        (fields[key] for key in ("level", "levelname", "severity") if isinstance(fields.get(key), str)), ""
    )
    raised = next(
        (
            fields[key]
            for key in ("exc_info", "exception", "stack_trace", "traceback")
            if isinstance(fields.get(key), str)
        ),
        "",
    )
    first = f"{level.upper()} {message}".strip()
    return "\n".join([_named(fields, first), *(_named(fields, line) for line in raised.splitlines())])


def _of_error_file(message: dict[str, Any]) -> str:
    """The text in torchrun's error file of a rank: its time, in whole seconds since 1970, and traceback."""
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    stack, words, seconds = (
        extra.get("py_callstack"),
        str(message.get("message", "")),
        str(extra.get("timestamp", "")),
    )
    at = (
        f"{datetime.fromtimestamp(int(seconds), UTC):%Y-%m-%d %H:%M:%S} "
        if seconds.isdecimal() and len(seconds) < 12
        else ""
    )
    body = str(stack).strip() if isinstance(stack, str) and stack.strip() else words
    if not body:
        return ""
    head, _, rest = body.partition("\n")
    return f"{at}{head}\n{rest}" if rest else f"{at}{head}"


def _named(fields: dict[str, Any], text: str) -> str:
    """The text of a record with the time, rank and pod of its other fields in front."""
    kubernetes = fields.get("kubernetes")
    named = {**kubernetes, **fields} if isinstance(kubernetes, dict) else fields
    at = next(
        (str(named[key]) for key in ("time", "timestamp", "asctime", "ts", "@timestamp") if key in named), ""
    )
    rank = next((named[key] for key in ("rank", "global_rank") if str(named.get(key, "")).isdecimal()), None)
    pod = named.get("pod_name") or named.get("pod") or named.get("host") or named.get("hostname")
    prefix = f"{at} " if read_time(at) else ""
    if isinstance(pod, str) and "\n" not in pod:
        prefix += f"[pod/{pod}] "
    return f"{prefix}[rank{rank}]: {text}" if rank is not None else f"{prefix}{text}"


@dataclass(slots=True)
class Traceback:
    """One Python exception: its text, and the frames that it passed through."""

    stream: str
    number: int  # of its first line
    speaker: Speaker = NOBODY
    at: datetime | None = None
    frames: list[str] = field(default_factory=list)
    own_line: str = ""  # the last frame that is no library's
    last_line: str = ""
    last_words: str = ""  # of its last line in the log
    last_number: int = 0  # of that line
    is_done: bool = False
    text: str = ""  # of the exception
    raised_at: int = 0  # number of the line of the exception
    lines: int = 0
    is_group: bool = False  # its lines stand after `|`
    is_ignored: bool = False  # Python ignored it, while a process ended
    stem: str = ""  # what stands before the header on its line: a prefix of an unknown form
    is_of_table: bool = False  # in torchrun's table of failures
    before_at: datetime | None = None  # the last time that stood before it, where it has none
    is_cause: bool = False  # the one that follows was raised from it, and not only while it was handled
    is_first: bool = False  # the one that was raised while it was handled is no cause
    inner: "Traceback | None" = None  # the exception from which, or while handling which, this one was raised

    def add(self, line: LogLine) -> bool:
        """Whether the next line belongs to the traceback, to which it is then added."""
        self.lines += 1
        is_frame = True
        body = self._without_stem(line.body)
        if body.strip():
            self.last_words, self.last_number = body.strip(), line.number
        if self.is_group:
            body = _GROUP_EDGE.sub("", body)
        frame = _FRAME.match(body) or _BOXED_FRAME.match(body)
        if frame:
            place = f"{frame['path']}:{frame['line']}"
            where = f"{place} in {frame['function']}" if frame["function"] else place
            self.frames.append(where)
            self.last_line = where
            if not LIBRARY.search(frame["path"]):
                self.own_line = where
        elif body[:1] in tuple(_BOX):
            if boxed := _BOXED_CODE.match(body):
                self._add_code(boxed[1].strip(" │"))
        elif body.startswith((" ", "\t", "|", "+")) or not body.strip():
            self._add_code(body.strip(" \t|^~+-"))
        elif _ANY_RAISED.match(body) and (self.frames or _RAISED.match(body)):
            self.text, self.raised_at, self.is_done = body.strip(), line.number, True
        else:
            is_frame = False  # another process wrote it in between these
            if actor := _OF_ACTOR.search(body):
                self.speaker = Speaker(host=actor["ip"], pid=int(actor["pid"]))
        if self.lines > _MAX_LINES:
            self.is_done = True
        return is_frame

    def _add_code(self, code: str) -> None:
        if not code or not self.frames:
            return
        self.frames[-1] += f": {code}" if ": " not in self.frames[-1] else ""
        if self.own_line and self.frames[-1].startswith(self.own_line):
            self.own_line = self.frames[-1]
        self.last_line = self.frames[-1]

    def _without_stem(self, body: str) -> str:
        """The line without the header's prefix, whose digits may differ."""
        length = len(self.stem)
        same = _DIGITS.sub("0", body[:length]) == _DIGITS.sub("0", self.stem)
        return body[length:] if length and same else body

    @property
    def where(self) -> str:
        """The last frame in the user's own code; else the last frame."""
        return self.own_line or self.last_line


@dataclass(slots=True)
class TracebackReader:
    """Follows the tracebacks of all streams of one log."""

    open: dict[str, Traceback] = field(default_factory=dict)
    done: list[Traceback] = field(default_factory=list)
    _ignored: dict[str, int] = field(default_factory=dict)  # number of that line
    _inner: dict[str, Traceback] = field(default_factory=dict)  # an exception that another follows
    # The line that names whose traceback comes next, and whose.
    _announced: dict[str, tuple[int, Speaker]] = field(default_factory=dict)

    def add(self, line: LogLine) -> tuple[Traceback | None, bool]:
        """The traceback that this line ends, if any; and whether the line is part of one that goes on."""
        if line.body.startswith("Exception ignored in"):
            self._ignored[line.stream] = line.number
            return None, True
        if whose := _ANNOUNCED.search(line.body):
            rank, spawned = (int(whose[name]) if whose[name] else None for name in ("rank", "spawned"))
            speaker = replace(line.speaker, rank=rank, spawned=spawned)
            self._announced[line.stream] = line.number, speaker
            return None, False
        if HEADER in line.body:
            number, announced = self._announced.pop(line.stream, (0, line.speaker))
            if line.number - number <= 2:
                line = replace(line, speaker=announced)
            known = self.open.get(line.stream)
            if known is None or known.frames:
                is_group = "Exception Group" in line.body
                stem = line.body[: line.body.index(HEADER)].removesuffix("Original ")
                stem = "" if is_group or stem[:1] in tuple(_BOX) else stem
                of_rank = _OF_RANK.search(line.body)
                is_ignored = line.number - self._ignored.pop(line.stream, -_MAX_LINES) <= 2
                self.open[line.stream] = Traceback(
                    line.stream,
                    line.number,
                    replace(line.speaker, rank=int(of_rank[1])) if of_rank else line.speaker,
                    line.at,
                    is_group=is_group,
                    is_ignored=is_ignored,
                    stem=stem,
                )
            return None, True
        current = self.open.get(line.stream)
        if current is None:
            if chained := _CHAINED.match(line.body):
                self._forget_last(line.stream, while_handled=chained[1] is not None)
                return None, True
            return None, False
        is_frame = current.add(line)
        if not current.is_done:
            return None, is_frame
        del self.open[line.stream]
        if current.is_ignored:
            return None, True
        current.inner = self._inner.pop(line.stream, None)
        if current.inner is not None and current.speaker is NOBODY:
            current.speaker = current.inner.speaker  # only the first of a chain stands behind a prefix
        if current.inner is not None and current.inner.is_first:
            self.done.append(current.inner)
            return current, False
        if current.text:
            self.done.append(current)
            return current, False
        return None, False

    def _forget_last(self, stream: str, *, while_handled: bool) -> None:
        """Drop the last exception where another followed from it: the later one stands for both.

        Not so where the user's own code raised it, and a library handled it: what the handler met is no
        cause.
        """
        for place in range(len(self.done) - 1, -1, -1):
            if self.done[place].stream == stream:
                inner = self._inner[stream] = self.done.pop(place)
                inner.is_cause = not while_handled
                is_own = bool(inner.own_line) and inner.own_line == inner.last_line
                inner.is_first = is_own and LIBRARY.search(inner.frames[0]) is not None
                return


def is_raised(body: str) -> bool:
    """Whether a line looks like the last line of a traceback."""
    return _RAISED.match(body) is not None


def cut_around(line: str, words: str) -> str:
    """A part of a long line, as it stands there, that has these words; its beginning where that has them."""
    end = line.find(words) + len(words) if words else 0
    start = max(0, min(end, len(line)) - MAX_EXCERPT_CHARACTERS) if end > MAX_EXCERPT_CHARACTERS else 0
    start = min(start, max(0, end - len(words)))
    if start and (space := line.find(" ", start, start + 60)) > 0 and space < end - len(words):
        start = space + 1
    return line[start : start + MAX_EXCERPT_CHARACTERS]
