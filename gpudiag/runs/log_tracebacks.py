"""Python's tracebacks in a log, also where several ranks print theirs at once."""

import re
from dataclasses import dataclass, field

from gpudiag.runs.log_lines import LogLine

HEADER = "Traceback (most recent call last)"

_MAX_LINES = 400  # of one traceback
_GROUP_EDGE = re.compile(r"^\s*[|+] ?(?!-)")
_FRAME = re.compile(r'^\s*File "(?P<path>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>\S+))?')
_DIGITS = re.compile(r"\d")
_CHAINED = re.compile(r"^(?:The above exception was the direct cause|During handling of the above exception)")
_RAISED = re.compile(
    r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Timeout|Expired|Group|Refused|Invalid|Warning)(?::|$| \()"
)
_ANY_RAISED = re.compile(r"^[A-Za-z_][\w.]*(?::\s|:?$)")
_LIBRARY = re.compile(
    r"site-packages|dist-packages|/lib/python3|/lib64/python3|^<frozen|/torch/|/torchrun$|/bin/|^<__array"
)


@dataclass(slots=True)
class Traceback:
    """One exception that came out of Python: what it says, and the frames that it came through."""

    stream: str
    number: int  # of its first line
    frames: list[str] = field(default_factory=list)
    own_line: str = ""  # the last frame that is no library's
    last_line: str = ""
    is_done: bool = False
    text: str = ""  # of the exception
    raised_at: int = 0  # number of the line of the exception
    lines: int = 0
    is_group: bool = False  # its lines stand behind `|`
    is_ignored: bool = False  # Python says that nobody saw it: while a process ended
    stem: str = ""  # what stands before the header on its line: a prefix that is not known by itself

    def take(self, line: LogLine) -> bool:
        """Read the next line; whether it is a frame of the traceback."""
        self.lines += 1
        is_frame = True
        body = self._without_stem(line.body)
        if self.is_group:
            body = _GROUP_EDGE.sub("", body)
        frame = _FRAME.match(body)
        if frame:
            place = f"{frame['path']}:{frame['line']}"
            where = f"{place} in {frame['function']}" if frame["function"] else place
            self.frames.append(where)
            self.last_line = where
            if not _LIBRARY.search(frame["path"]):
                self.own_line = where
        elif body.startswith((" ", "\t", "|", "+")) or not body.strip():
            code = body.strip(" \t|^~+-")
            if code and self.frames:
                self.frames[-1] += f": {code}" if ": " not in self.frames[-1] else ""
                if self.own_line and self.frames[-1].startswith(self.own_line):
                    self.own_line = self.frames[-1]
                self.last_line = self.frames[-1]
        elif _ANY_RAISED.match(body) and (self.frames or _RAISED.match(body)):
            self.text, self.raised_at, self.is_done = body.strip(), line.number, True
        else:
            is_frame = False  # another process wrote it in between
        if self.lines > _MAX_LINES:
            self.is_done = True
        return is_frame

    def _without_stem(self, body: str) -> str:
        """A line without the prefix that the header has, whatever its digits are."""
        length = len(self.stem)
        same = _DIGITS.sub("0", body[:length]) == _DIGITS.sub("0", self.stem)
        return body[length:] if length and same else body

    @property
    def where(self) -> str:
        """The user's own line; the last of any where there is none of the user's."""
        return self.own_line or self.last_line


@dataclass(slots=True)
class TracebackReader:
    """Follows the tracebacks of all streams of one log."""

    open: dict[str, Traceback] = field(default_factory=dict)
    done: list[Traceback] = field(default_factory=list)
    _ignored: dict[str, int] = field(default_factory=dict)  # number of the line that says so

    def take(self, line: LogLine) -> tuple[Traceback | None, bool]:
        """The traceback that this line ends, if any; and whether the line is part of one that goes on."""
        if line.body.startswith("Exception ignored in"):
            self._ignored[line.stream] = line.number
            return None, True
        if HEADER in line.body:
            known = self.open.get(line.stream)
            if known is None or known.frames:
                is_group = "Exception Group" in line.body
                stem = "" if is_group else line.body[: line.body.index(HEADER)].removesuffix("Original ")
                is_ignored = line.number - self._ignored.pop(line.stream, -_MAX_LINES) <= 2
                self.open[line.stream] = Traceback(
                    line.stream, line.number, is_group=is_group, is_ignored=is_ignored, stem=stem
                )
            return None, True
        current = self.open.get(line.stream)
        if current is None:
            if _CHAINED.match(line.body):
                self._forget_last(line.stream)
                return None, True
            return None, False
        is_frame = current.take(line)
        if not current.is_done:
            return None, is_frame
        del self.open[line.stream]
        if current.is_ignored:
            return None, True
        if current.text:
            self.done.append(current)
            return current, False
        return None, False

    def _forget_last(self, stream: str) -> None:
        """An exception that another one followed from is told by the other."""
        for place in range(len(self.done) - 1, -1, -1):
            if self.done[place].stream == stream:
                del self.done[place]
                return


def is_raised(body: str) -> bool:
    """Whether a line is the last line of a traceback by its looks."""
    return _RAISED.match(body) is not None
