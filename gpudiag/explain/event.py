"""One thing that went wrong at one rank, by the logs, and what it can be to what failed first."""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum

from gpudiag.explain.log_facts import CUT

SKEW = timedelta(seconds=5)  # by which the clocks of two hosts may differ
NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")


class Standing(IntEnum):
    """What an event can be to what failed first; the earlier ones weigh more."""

    MACHINE = 0
    CAUSE = 1
    ENDED = 2  # a rank was ended, and no line gives the reason
    LINK = 3
    OUTSIDE = 4  # a scheduler or a person
    # An error of a library that the catalogue does not know: the answer where it is alone or first.
    UNKNOWN = 5
    ABSENT = 6  # somebody was waited for
    ECHO = 7
    OUTLIVED = 8


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that went wrong, at one rank."""

    standing: Standing
    topic: str  # of a known failure; empty for an exception or an exit
    text: str
    log: str
    log_number: int
    line: int
    rank: int | None
    host: str
    pod: str
    at: datetime | None
    is_exact: bool  # the line has its own time
    attempt: int
    where: str = ""
    count: int = 1
    quality: int = 0  # 0 names what is wrong; 1 less clearly; 2 only that something is wrong
    is_driver: bool = False  # an Xid or SXid
    code: int | None = None  # of an exit
    quote: str = ""  # the words of the log, where the text is not them
    note: str = ""  # how its time was found
    last_line: int = 0  # that shows it, where several do
    origin: str = ""  # the exception from which this one was raised

    @property
    def excerpt(self) -> str:
        """The words of the log."""
        return self.quote or self.text

    @property
    def is_cut(self) -> bool:
        """Whether it is a traceback without its end."""
        return not self.topic and self.text == CUT

    @property
    def shape(self) -> str:
        """What equal events of several ranks have in common."""
        return self.topic or NUMBERS.sub("#", self.text)[:200]
