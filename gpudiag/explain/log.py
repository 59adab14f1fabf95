"""The reader of a log, line by line: known failures, Xids, exceptions, and whether the run went on."""

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from gpudiag.explain.classifier import Candidates, Classifier, LineKind, remember, shape_of
from gpudiag.explain.kernel_roles import explain_event
from gpudiag.explain.launcher_lines import LAUNCHER_MARK, read_launcher_line
from gpudiag.explain.lines import (
    HEADER,
    LIBRARY,
    MAX_EXCERPT_CHARACTERS,
    NOBODY,
    Level,
    LogLine,
    Speaker,
    Traceback,
    TracebackReader,
    is_raised,
    parse_lines,
    read_time,
)
from gpudiag.explain.log_facts import CUT, Found, LogFacts, Raised, Shown, prefer_own
from gpudiag.explain.progress import reports_end
from gpudiag.explain.topics import explain_failure, explain_xid
from gpudiag.model.explanation import Explanation, Role
from gpudiag.model.reading import NOT_ASKED
from gpudiag.probe.kernel_log.lines import parse_kernel_line
from gpudiag.reference.failures import Failure
from gpudiag.reference.xid import XidKind, xids

_NCCL_INFO = b" NCCL INFO "
_LIBFABRIC = b"NET/OFI"
_BLANK = b" \t\r\n\0"
_MAX_ERRORS = 24  # lines that may report one, of which the last are looked at
_MAX_LATELY = 64  # lines that may show progress, of which the last are looked at
_MESSAGE_LINES = 12  # that an exception's message may span
_WORDS = re.compile(r"\w")  # of a message: no rule of dashes
_HOLDS_ANOTHER = re.compile(r": .*:$")  # the message of an exception that is another's traceback
# The header of a traceback that the exception before it brings along, from a worker or another rank.
_BROUGHT_ALONG = re.compile(r"\b(?:Original|Remote|Worker) Traceback|\): \(RANK \d+\)")
_XID_MARK = re.compile(r"Xid \(")  # SXid too
_CRASH_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+),? in (\S+)')
_CRASH_LINES = 6
_PLUGIN_XID = re.compile(r"XidCriticalError: Xid=(\d+)\b")  # the NVIDIA device plugin of Kubernetes
_ORDER = (Role.HARDWARE, Role.CAUSE, Role.SYMPTOM)
# Lines that only mention errors: a shell's echo, tests that passed, git, pip, a setting, and what takes
# itself back.
_TALK = re.compile(
    r"^\s*(?:\+ |#|//|>>> )|(?:PASSED|SKIPPED|XFAIL|\.\.\. ok)\b|^[0-9a-f]{7,40} [A-Z]|\"(?:GET|POST|HEAD|"
    r"PUT|DELETE) /|pip's dependency resolver|Unable to register cu\w+ factory|"
    r"[Cc]omputation placer already registered|you can ignore this warning|nv_get_p2p_free_callback|"
    r"Metrics will not be exported|Thread is unstuck|^(?:Collecting|Downloading|Requirement already|"
    r"Successfully|Installing|Using cached|commit|Merge|Author:)\b"
)
# Of these lines, those with content: a launcher's command that a shell echoes, and what nccl-tests found.
_TALK_WITH_CONTENT = re.compile(r"^\s*\+ .*\bn(?:nodes|um[-_]machines)\b|^\s*# Out of bounds")
# A warning whose own text reports that it was handled.
_HANDLED = re.compile(
    r"\b(?:[Rr]etry(?:ing)?|will be retried|[Ff]all(?:ing)?[ -]?back|[Ii]gnor(?:ed|ing)|[Ss]kip(?:ped|ping)?|"
    r"[Rr]ecovered|caught|reduc(?:ed|ing) (?:the )?batch|[Rr]econnect(?:ed|ing)|trying again|succeeded|"
    r"resum(?:ed|ing))\b"
)
_RANK_MARK = re.compile(
    rb"\[?(?:default|[Rr]ank|RANK)[ :=_]?(\d+)|^ {0,4}(\d{1,5}): |^\[pod/([^\]]+)\]|"
    rb"^\[(?:[\w.-]+@)?\d+,(\d+)\]"
)
_RANK_MARK_WITHIN = 100
_MAX_BEFORE = 60  # lines that are searched backwards for a time
_MAX_SEARCHES = 3000
# Their report on a rank explains no exception of its own.
_LAUNCHERS = (
    "torchrun.",
    "launch.",
    "rank.",
    "slurm.",
)
_OF_NVIDIA = ("cuda.", "cublas.", "cudnn.", "nvlink.", "gpu.")
# Frames of what speaks to other processes, or waits for them.
_PEERS = re.compile(
    r"torch/distributed|torch/multiprocessing|torch/utils/data|/multiprocessing/|concurrent/futures|/ray/|"
    r"/vllm/|/sglang/|/horovod/|deepspeed/(?:comm|launcher)|accelerate/(?:launchers|commands)|"
    r"lightning/.*(?:strateg|launch|plugins)|mpi4py|/zmq/|torch/_C|/grpc/"
)
_MAX_RANKS = 20_000
_STEP_BYTES = 500  # of a line that may show progress
_ERROR_LINE = re.compile(
    r"^\s*(?:[\[(][^\])]{1,60}[\])] )?(?:[\w./:-]+: )*(?:fatal )?(?:error|Error|ERROR|FATAL|fatal|panic|"
    r"Panic|Fatal)\b ?[:!](?!\s*-?\d*\.\d)|\bwhat\(\): |Assertion [`'\"].*failed|"
    r"^[\w./<>\[\] -]{1,80}: error: |^[\w./]+: .*(?:No such file or directory|Permission denied|"
    r"command not found)|\b(?:CUDA|Cuda|CU\w+|cu\w+|HIP|hip\w*) (?:runtime |driver )?(?:[Ee]rror|"
    r"[Ff]ailure)\b(?!:? 0\b| check| handl)|\b[A-Z]\w*(?:Error|Exception): |^terminate called|^Aborted|"
    r"Segmentation fault|^curl: \(\d+\)"
)


def read_facts(lines: Iterable[tuple[int, bytes]], classifier: Classifier | None = None) -> LogFacts:
    """What a log shows, line by line; memory stays the same however long it is.

    `classifier` remembers the shapes of lines: the logs of a job's ranks have the same ones.
    """
    classifier = classifier or Classifier()
    before: deque[bytes] = deque(maxlen=_MAX_BEFORE)
    reader = _Reader(before)
    lately: deque[tuple[int, bytes]] = deque(maxlen=_MAX_LATELY)
    errors: deque[tuple[int, bytes]] = deque(maxlen=_MAX_ERRORS)
    shapes, of_nccl = classifier.shapes, classifier.of_nccl
    has_text = False
    last_steps: dict[bytes, tuple[int, bytes]] = {}
    first = last = (0, b"")
    for number, raw in lines:
        first, last = (first if first[0] else (number, raw)), (number, raw)
        before.append(raw)
        has_text = has_text or bool(raw.strip(_BLANK))
        if _NCCL_INFO in raw and not reader.wants(number):  # a flood where NCCL_DEBUG=INFO
            shape = shape_of(raw)
            info = of_nccl.get(shape)
            if info is None:
                info = _classify_info(shape, classifier)
                remember(of_nccl, shape, info)
            if info.is_of_ranks:
                if b"Init COMPLETE" in raw:
                    lately.append((number, raw))
                reader.read_of_ranks(number, raw)
            if info.candidates:
                for line in parse_lines(number, raw):
                    reader.add(line, info.candidates)
            continue
        shape = shape_of(raw)
        known = shapes.get(shape)
        if known is None:
            known = classifier.classify(shape)
            remember(shapes, shape, known)
        if known.is_of_ranks:
            reader.read_of_ranks(number, raw)
        if known.candidates or known.is_raised or reader.wants(number):
            for line in parse_lines(number, raw):
                reader.add(line, known.candidates)
        elif known.is_error:
            errors.append((number, raw))
            reader.facts.unknown.note(number, raw)
        elif known.is_doubtful:
            reader.facts.unknown.note(number, raw)
        if known.is_progress:
            lately.append((number, raw))
            mark = _RANK_MARK.search(raw, 0, _RANK_MARK_WITHIN)
            if len(last_steps) < _MAX_RANKS:
                last_steps[mark[0] if mark else b""] = (number, raw)
    for number, raw in reversed(errors):
        if reader.add_error(parse_lines(number, raw)):
            break
    facts = reader.finish(lately)
    facts.last_lines = [
        line for number, raw in last_steps.values() for line in parse_lines(number, raw[:500])[-1:]
    ]
    facts.lines = last[0]
    facts.has_text = has_text
    facts.last_words = last[1][:_STEP_BYTES]
    facts.first_at, facts.last_at = (_time_of(*edge) for edge in (first, last))
    return facts


def _classify_info(shape: bytes, classifier: Classifier) -> LineKind:
    """What an INFO line of NCCL may show: something about ranks, or something about Libfabric's plugin."""
    candidates = classifier.classify(shape).candidates if _LIBFABRIC in shape else ()
    return LineKind(candidates, False, LAUNCHER_MARK.search(shape) is not None, False, False, False)


def is_cut(last: bytes, shapes: Iterable[bytes]) -> bool:
    """Whether the last line is the beginning of one that the log has elsewhere, and no such line itself."""
    shape = shape_of(last).rstrip()
    return len(shape) > 3 and any(
        other.startswith(shape) and len(other.rstrip()) > len(shape) for other in shapes
    )


def _time_of(number: int, raw: bytes) -> datetime | None:
    return next((line.at for line in parse_lines(number, raw[:500]) if line.at), None)


class _Reader:
    """Collects what the lines of one log show."""

    def __init__(self, before: deque[bytes]) -> None:
        self.before = before  # the lines before the one that is read, for its time where it has none
        self.facts = LogFacts()
        self.tracebacks = TracebackReader()
        self._explained: set[int] = set()  # numbers of exceptions' lines that a failure explains
        self._wanted_until = 0
        self._crashed: Shown | None = None  # a crash whose frames come next, the innermost first
        self._searches = 0
        self._last: dict[str, Traceback] = {}  # the last exception of each stream: its message may go on

    def wants(self, number: int) -> bool:
        """Whether the next line belongs to a traceback or to the message of an exception."""
        return bool(self.tracebacks.open) or number <= self._wanted_until

    def read_of_ranks(self, number: int, raw: bytes) -> None:
        """Read one line of a launcher or a watchdog."""
        for line in parse_lines(number, raw):
            read_launcher_line(self.facts.of_ranks, line)

    def add(self, line: LogLine, candidates: Candidates) -> None:
        """Read one line that may show something."""
        if line.speaker is NOBODY and self.facts.of_ranks.pod:
            line = replace(line, speaker=Speaker(pod=self.facts.of_ranks.pod))
        if (
            HEADER in line.body
            and (before := self._last.get(line.stream))
            and (_HOLDS_ANOTHER.search(before.text) or _BROUGHT_ALONG.search(line.body))
        ):
            self._forget_wrapper(before, line)
        ended, is_frame = self.tracebacks.add(line)
        if is_frame and HEADER in line.body and line.body.lstrip().startswith("traceback :"):
            of_row = self.tracebacks.open[line.stream]  # in torchrun's table, where each row has its rank
            of_row.stem, of_row.speaker, of_row.is_of_table = (
                "  ",
                Speaker(rank=self.facts.of_ranks.row_rank),
                True,
            )
        if is_frame or (_TALK.search(line.body) and not _TALK_WITH_CONTENT.search(line.body)):
            return
        if self._crashed is not None and (frame := _CRASH_FRAME.match(line.body)) is not None:
            self._crashed.where = self._crashed.where or f"{frame[1]}:{frame[2]} in {frame[3]}"
            self._crashed = None
        if _XID_MARK.search(line.whole) and self._add_kernel_line(line):
            return
        if (named := _PLUGIN_XID.search(line.whole)) is not None:
            self._add_named_xid(line, int(named[1]))
        if ended is None and self._is_raised(line):
            ended = self._raised_in_message(line)
        if ended:
            self._last[line.stream] = ended
            if ended.at is None:
                ended.before_at = self._time_before()
            if ended.text.endswith(":"):
                self._wanted_until = line.number + 3
        before = self._last.get(line.stream)
        goes_on = before is not None and line.number - before.raised_at <= _MESSAGE_LINES
        matched = self._match(line, candidates, ended) if candidates else ()
        if matched:
            of_launcher = all(topic.startswith(_LAUNCHERS) for topic in matched)
            if before is not None and goes_on and (ended is before or (line.at is None and not of_launcher)):
                self._explained.add(before.raised_at)
            return
        if (
            before is not None
            and goes_on
            and before.text.endswith(":")
            and ended is None
            and line.stream not in self.tracebacks.open
            and _WORDS.search(line.body)
        ):
            before.text += f" {line.body.strip()}"
        elif ended is None:
            self.add_error([line])
            self.facts.unknown.note(line.number, line.whole.encode(errors="replace"))

    def add_error(self, lines: Sequence[LogLine]) -> bool:
        """Note the last line that reports an error; whether it is one of these."""
        for line in lines:
            before = self.facts.last_error
            is_error = line.level is Level.ERROR or _ERROR_LINE.search(line.body)
            if is_error and not _TALK.search(line.body) and (before is None or before.number <= line.number):
                self.facts.last_error = line
        return self.facts.last_error is not None and self.facts.last_error in lines

    def _forget_wrapper(self, wrapper: Traceback, line: LogLine) -> None:
        """Drop the exception whose message goes on with the traceback of another one at that line."""
        is_next = line.number <= self._wanted_until or (
            line.number - wrapper.raised_at <= 2 and _BROUGHT_ALONG.search(line.body)
        )
        if is_next and wrapper in self.tracebacks.done:
            self.tracebacks.done.remove(wrapper)

    def _raised_in_message(self, line: LogLine) -> Traceback:
        """The exception of a line without a traceback.

        It is that of the line before, where its message ends in this one.
        """
        text, before = line.body.strip(), self._last.get(line.stream)
        if before is not None and before.text.endswith(":") and line.number - before.raised_at == 1:
            before.text, before.raised_at = text, line.number
            return before
        ended = Traceback(line.stream, line.number, line.speaker, line.at, text=text, raised_at=line.number)
        self.tracebacks.done.append(ended)
        return ended

    def _is_raised(self, line: LogLine) -> bool:
        """Whether the line ends a traceback whose frames are missing."""
        return is_raised(line.body) and line.level is not Level.INFO and "Warning" not in line.body[:60]

    def finish(self, lately: Iterable[tuple[int, bytes]]) -> LogFacts:
        """What the whole log shows; `lately` are its last lines that may show progress."""
        self.facts.lately = tuple((number, raw[:_STEP_BYTES]) for number, raw in lately)
        for number, raw in self.facts.lately:
            if reports_end(raw):
                self.facts.done_at = number
        for traceback in self.tracebacks.open.values():  # cut off
            traceback.text, traceback.raised_at = CUT, traceback.last_number or traceback.number
            self.tracebacks.done.append(traceback)
        for traceback in self.tracebacks.done:
            inner = traceback.inner
            if traceback.raised_at not in self._explained:
                self.facts.raised.append(_raised(traceback))
                self.facts.raised[-1].inner_text = inner.text if inner is not None else ""
                known = inner is not None and inner.raised_at in self._explained
                self.facts.raised[-1].follows_known = known and inner is not None and inner.is_cause
            if inner is not None and inner.raised_at not in self._explained:
                self.facts.inner.append(_raised(inner))
        return self.facts

    def _match(self, line: LogLine, candidates: Candidates, ended: Traceback | None) -> tuple[str, ...]:
        """The failures that the line shows; each one is noted."""
        matching, naming = _find_shown(line, candidates, ended)
        for failure, words in matching.values():
            found = self.facts.found.get(failure.id)
            if found is None:
                found = self.facts.found[failure.id] = Found(explain_failure(failure), failure.role, failure)
            handled = failure.does_without(line.body) or (
                line.level <= Level.WARNING and ended is None and _HANDLED.search(line.body) is not None
            )
            found.add(
                line,
                failure.weak or handled,
                ended.where if ended else "",
                ended.speaker if ended else NOBODY,
                words,
                names=failure.id in naming,
            )
            if ended:
                found.where = prefer_own(found.where, ended.own_line)
            elif failure.id == "rank.crashed" and ("Segfault" in line.body or "Fatal Python" in line.body):
                self._crashed = found.speakers.get(line.speaker)
                self._wanted_until = line.number + _CRASH_LINES
        return tuple(matching)

    def _time_before(self) -> datetime | None:
        """The last time that stands in the lines before."""
        self._searches += 1
        if self._searches > _MAX_SEARCHES:
            return None
        times = (read_time(raw[:200].decode(errors="replace")) for raw in reversed(self.before))
        return next((at for at in times if at is not None), None)

    def _add_named_xid(self, line: LogLine, code: int) -> None:
        """Note an Xid that a line names as the cause, and that is no line of its own."""
        xid = xids().get(code)
        role = Role.HARDWARE if xid is not None and xid.kind is XidKind.HARDWARE else Role.CAUSE
        self._add_xid(line, explain_xid(code), role)

    def _add_kernel_line(self, line: LogLine) -> bool:
        event = parse_kernel_line(line.whole, NOT_ASKED)
        explained = None if event is None else explain_event(event)
        if explained is None:
            return False
        explanation, role = explained
        if event is not None and event.caused_by_xid is not None and role is Role.SYMPTOM:
            self._add_named_xid(line, event.caused_by_xid)
        self._add_xid(line, explanation, role)
        return True

    def _add_xid(self, line: LogLine, explanation: Explanation, role: Role) -> None:
        found = self.facts.found.setdefault(explanation.topic, Found(explanation, role))
        found.role = min(found.role, role, key=_ORDER.index)
        found.add(line, False)


def _find_shown(
    line: LogLine, candidates: Candidates, ended: Traceback | None
) -> tuple[dict[str, tuple[Failure, str]], set[str]]:
    """The failures that a line shows, with the words in it; and those whose host or reason it names."""
    is_relayed = ended is not None and bool(ended.frames)  # a traceback, at whatever level it was logged
    matching: dict[str, tuple[Failure, str]] = {}
    naming: set[str] = set()
    for failure, pattern in candidates:
        if line.level < Level.NONE and not (failure.at_info or is_relayed):
            continue
        if pattern.frames and (ended is None or not pattern.is_raised_by("\n".join(ended.frames))):
            continue
        if failure.id in matching and (failure.id in naming or "(?P<" not in pattern.expression):
            continue
        match = pattern.search(line.body if "^" in pattern.expression[:1] else line.whole)
        if match is not None:
            matching[failure.id] = failure, match[0][-MAX_EXCERPT_CHARACTERS // 2 :]
            naming |= {failure.id} if any(match.groupdict().values()) else set()
    if any(name.startswith("rocm.") for name in matching):  # NVIDIA's remedies do not fit an AMD GPU
        matching = {name: one for name, one in matching.items() if not name.startswith(_OF_NVIDIA)}
    if any(not failure.generic for failure, _ in matching.values()):
        matching = {name: one for name, one in matching.items() if not one[0].generic}
    return matching, naming


def _raised(traceback: Traceback) -> Raised:
    own = [place for place, frame in enumerate(traceback.frames) if not LIBRARY.search(frame)]
    below = traceback.frames[own[-1] if own else 0 :]
    return Raised(
        traceback.text, traceback.raised_at, traceback.stream, traceback.where, traceback.speaker,
        traceback.at, traceback.text == CUT, traceback.before_at,
        is_of_peers=not below or any(_PEERS.search(frame) for frame in below),
        quote=traceback.last_words if traceback.text == CUT else "",
    )  # fmt: skip
