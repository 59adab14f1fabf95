"""What one log shows, as values: failures with their lines and speakers, exceptions, ranks, progress."""

from dataclasses import dataclass, field
from datetime import datetime

from gpudiag.explain.lines import LIBRARY, NOBODY, LogLine, Speaker, cut_around, join_speakers
from gpudiag.explain.progress import WENT_ON, step_of, steps_in
from gpudiag.explain.rank_facts import RankFacts
from gpudiag.explain.unknown_lines import UnknownLines
from gpudiag.model.explanation import MAX_LINE_NUMBERS, Explanation, Role
from gpudiag.model.job_state import FlightRecord
from gpudiag.reference.failures import Failure

CUT = "a traceback without its end"
_SAME_REPORT = 20  # lines from a failure's first, within which one that names a host or a reason is quoted


@dataclass(slots=True)
class Shown:
    """The first line by which one speaker shows a failure."""

    number: int
    at: datetime | None
    excerpt: str
    where: str = ""
    count: int = 1
    last: int = 0
    weak: bool = False
    before_at: datetime | None = None  # the last time that stood before it, where it has none
    names: bool = False  # its line names a host, a pod or a reason


@dataclass(slots=True)
class Found:
    """One failure in one log, and the lines that show it."""

    explanation: Explanation
    role: Role
    failure: Failure | None = None  # None: an Xid or SXid
    numbers: list[int] = field(default_factory=list)
    count: int = 0
    last: int = 0  # number of the last line
    last_at: datetime | None = None
    excerpt: str = ""
    at: datetime | None = None  # of the first line
    where: str = ""
    weak: bool = True  # False once a line that is no mere warning shows it
    speakers: dict[Speaker, Shown] = field(default_factory=dict)

    def add(
        self, line: LogLine, weak: bool, where: str = "", speaker: Speaker = NOBODY, words: str = "",
        *, names: bool = False,
    ) -> Shown | None:  # fmt: skip
        """Note one more line, and the words in it that matter; what comes back is new to its speaker."""
        if line.number == self.last:
            return None
        speaker = join_speakers(speaker, line.speaker)
        new = None
        shown = self.speakers.get(speaker)
        if shown is None:
            excerpt = cut_around(line.whole.strip(), words)
            new = Shown(line.number, line.at, excerpt, where, last=line.number, weak=weak, names=names)
            self.speakers[speaker] = new
        else:
            shown.count, shown.last = shown.count + 1, line.number
            shown.where = prefer_own(shown.where, where)
            if names and not shown.names and line.number - shown.number <= _SAME_REPORT:
                shown.number, shown.excerpt = line.number, cut_around(line.whole.strip(), words)
                shown.names = True
        if not self.count:
            self.excerpt, self.at = cut_around(line.whole.strip(), words), line.at
        if len(self.numbers) < MAX_LINE_NUMBERS:
            self.numbers.append(line.number)
        self.count += 1
        self.last, self.last_at = line.number, line.at
        self.weak = self.weak and weak
        return new


@dataclass(slots=True)
class Raised:
    """One exception that no failure explains."""

    text: str
    number: int
    stream: str
    where: str
    speaker: Speaker = NOBODY
    at: datetime | None = None
    is_cut: bool = False
    before_at: datetime | None = None  # the last time that stood before it, where it has none
    inner_text: str = ""  # of the exception from which it was raised
    follows_known: bool = False  # that one is a known failure, and its direct cause
    is_of_peers: bool = False  # raised where processes speak to one another, and not in the job's own code
    quote: str = ""  # the line of the log, where the text is not it


@dataclass(slots=True)
class LogFacts:
    """What one log shows."""

    found: dict[str, Found] = field(default_factory=dict)
    raised: list[Raised] = field(default_factory=list)
    inner: list[Raised] = field(default_factory=list)  # exceptions from which others were raised
    last_error: LogLine | None = None
    lately: tuple[tuple[int, bytes], ...] = ()  # the last lines that may show progress
    done_at: int = 0  # the last line that reports the run as complete
    of_ranks: RankFacts = field(default_factory=RankFacts)
    last_lines: list[LogLine] = field(default_factory=list)  # of progress, the last of each rank; by place
    first_at: datetime | None = None
    last_at: datetime | None = None
    lines: int = 0
    has_text: bool = True  # a line that is not blank
    is_cut: bool = False  # it ends in the middle of a line
    last_words: bytes = b""  # its last line
    unknown: UnknownLines = field(default_factory=UnknownLines)
    record: FlightRecord | None = None  # where the file is a dump of torch's flight recorder

    _steps: list[LogLine] | None = None

    @property
    def progress(self) -> list[LogLine]:
        """The last lines that show progress, taken apart when first asked for: few logs need them."""
        if self._steps is None:
            self._steps = [line for number, raw in self.lately for line in steps_in(number, raw)]
        return self._steps

    @property
    def last_step(self) -> LogLine | None:
        """The last line that shows progress."""
        found = (line for number, raw in reversed(self.lately) for line in reversed(steps_in(number, raw)))
        return next(found, None)

    def moved_after(self, number: int) -> bool:
        """Whether a line after this one shows progress."""
        return any(later > number for later, _ in self.lately) and any(
            step.number > number for step in self.progress
        )

    @property
    def not_known(self) -> tuple[int, tuple[int, bytes] | None]:
        """How many lines report a failure that nothing known explains, and the first of them."""
        last = self.unknown.last_doubtful
        return self.unknown.counted(moved_on=self.done_at > last or self.moved_after(last))

    def went_on(self, number: int, at: datetime | None = None, speaker: Speaker = NOBODY) -> bool:
        """Whether the run went on after that line, printed then: other steps, or lines of the same rank."""
        if self.done_at > number:
            return True
        if sum(later > number for later, _ in self.lately) == 0:
            return False
        later = [line for line in self.progress if line.number > number and _is_later(line, at)]
        if len(later) < WENT_ON:
            return False
        steps = {step for line in later if (step := step_of(line.body)) is not None}
        if (
            steps
            and speaker.rank is not None
            and all(line.speaker.rank not in (None, speaker.rank) for line in later)
        ):
            return len(steps) > WENT_ON  # others print what they had done
        return len(steps) >= WENT_ON or not steps


def _is_later(line: LogLine, at: datetime | None) -> bool:
    """Whether a later line was also printed later: rank logs may be concatenated."""
    return at is None or line.at is None or line.at >= at


def prefer_own(known: str, later: str) -> str:
    """The place of a failure: the first one, but a line of the user's own before a library's.

    An exception that was raised within a library's `try` shows the library's frames alone; the one that
    follows from it shows the line that called the library.
    """
    return later if not known or (later and LIBRARY.search(known) and not LIBRARY.search(later)) else known
