"""An `nhc.conf` of LBNL NHC or AzNHC by lines: which checks look at the same, and what stays with NHC."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from gpudiag.errors import UsageError
from gpudiag.reference.tables import read_table

_LINE = re.compile(r"^(?P<target>.*?)\s*\|\|\s*(?P<check>.*)$")
_NO_CHECK = re.compile(r"(?:export\s+)?[A-Za-z_]\w*=|export\b")  # a setting of NHC itself
_LEVELS = ("instant", "quick", "standard", "long")


@dataclass(frozen=True, slots=True)
class NhcCheck:
    """A check of NHC, and gpudiag's that look at the same; none where it stays with NHC."""

    name: str
    checks: tuple[str, ...]
    level: str
    flag: str  # for `gpudiag preflight`, with {1} for the first argument
    needs_good_report: bool
    words: str


NHC_HINT = "give NHC's own file, /etc/nhc/nhc.conf"


@dataclass(frozen=True, slots=True)
class NhcLine:
    """A line of the file that names a check: its number, its hosts, the check, and the check's arguments."""

    number: int
    target: str
    name: str
    arguments: tuple[str, ...]
    known: NhcCheck | None  # None for one that gpudiag has never met

    @property
    def text(self) -> str:
        """The check with its arguments, as the file has it."""
        return " ".join((self.name, *self.arguments))

    @property
    def flag(self) -> str:
        """What `gpudiag preflight` is given for it.

        It is nothing where it needs nothing, or the argument is not a number.
        """
        if (
            self.known is None
            or not self.known.flag
            or not (self.arguments and self.arguments[0].isdecimal())
        ):
            return ""
        return self.known.flag.replace("{1}", self.arguments[0])


@cache
def nhc_checks() -> dict[str, NhcCheck]:
    """The checks of the table, by name."""
    return {
        row["name"]: NhcCheck(
            row["name"],
            tuple(row.get("checks", ())),
            row.get("level", _LEVELS[0]),
            row.get("flag", ""),
            row.get("good", False),
            row.get("words", ""),
        )
        for row in read_table("nhc.toml")["check"]
    }


def parse_nhc(text: str, name: str) -> list[NhcLine]:
    """The lines of the file that name a check, in their order; comments and settings of NHC are left out.

    Raises:
        UsageError: no line has the form `TARGET || CHECK`.
    """
    lines = list(_lines(text))
    if not lines:
        raise UsageError(
            f"{name} has no line of the form `TARGET || check_...`",
            hint=NHC_HINT,
        )
    return lines


def _lines(text: str) -> Iterator[NhcLine]:
    for number, whole in enumerate(text.splitlines(), 1):
        found = _LINE.match(whole.strip())
        if found is None or whole.lstrip().startswith("#") or _NO_CHECK.match(found["check"]):
            continue
        words = _words(found["check"])
        if words:
            yield NhcLine(number, found["target"], words[0], tuple(words[1:]), nhc_checks().get(words[0]))


def _words(check: str) -> list[str]:
    try:
        return shlex.split(check, comments=True)
    except ValueError:  # a quote that is not closed
        return check.split()


def gate_command(lines: list[NhcLine]) -> str:
    """The `gpudiag preflight` that looks at what these lines look at: the readings, for a prolog."""
    flags = dict.fromkeys(line.flag for line in lines if line.flag)
    good = ["--expect good.json"] * any(
        line.known is not None and line.known.needs_good_report for line in lines
    )
    return " ".join(("gpudiag preflight --level instant --fail-on machine --reason", *flags, *good))


def measuring_command(lines: list[NhcLine]) -> str | None:
    """The `gpudiag preflight` with the measurements that some of these lines ask for.

    It is None where none does.
    """
    levels = [_LEVELS.index(line.known.level) for line in lines if line.known is not None]
    highest = max(levels, default=0)
    if not highest:
        return None
    flags = dict.fromkeys(line.flag for line in lines if line.flag)
    return " ".join((f"gpudiag preflight --level {_LEVELS[highest]}", *flags))
