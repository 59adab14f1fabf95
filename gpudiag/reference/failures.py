"""Known failures and the texts by which they are recognised: the files in known_failures, by topic.

Keys of an entry there:

    role          hardware  the machine is at fault: named before everything else
                  cause     a cause by itself
                  symptom   what a fault elsewhere looks like from here
    program       who writes the line
    owner         who must act: hardware, host (its administrators), software (what is installed) or job
    patterns      regular expressions over one line, without the prefixes that launchers add; no
                  alternatives outside of a group, and each holds at least one of `TRIGGERS`
    in_tracebacks the same for the last line of a Python traceback whose frames match `frames`: who raised it
    cuda_errors   numbers of CUDA's errors: names, numbers and texts of cuda_errors.toml are patterns too
    details       a sentence with {fields} for the verdict, from the named groups of the pattern that matches;
                  the first one counts whose fields the line has
    weak          a warning that runs may outlive: counts only where the run does not go on after it
    at_info       counts on lines of the levels info and debug too
    continues     expressions of lines after which their program goes on by itself, without what failed
    in_kernel_log the kernel writes it: looked for in the kernel log of a machine too
                  (reference/kernel_words.py)
    why_in_kernel_log  the findings that its lines there give the reason for (the driver is not loaded): it is
                  evidence of them, and no finding of its own
    until_restart it is about a GPU, and settled where the GPU or the driver was restarted after it
    remedy        how to fix it; of what the kernel writes, with its steps marked as model/remedy.py describes
    harmless      no failure: named as a note where nothing else is wrong, and what follows from it is none
                  either
    generic       counts only on lines that no other failure explains
    origin        where the reason lies, if not in a rank or its machine: outside (a scheduler or a person
                  ended the job), absence (a wait for a rank timed out), link (between two hosts), end (a
                  rank was ended, and no line gives the reason)
    follows       the failure is a consequence where one of these is in the same text; `*` is any other cause
    proof         the command that shows it, or rules it out
    source        where the text comes from: measured (torch 2.13.0, gloo, in November 2026), a public issue
                  or page (read in November 2026), or the documentation of the program
"""

import re
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from gpudiag.compat import StrEnum
from gpudiag.model.explanation import Role
from gpudiag.model.finding import Owner
from gpudiag.model.remedy import fit_remedy
from gpudiag.reference.cuda_errors import expressions_of
from gpudiag.reference.tables import read_table

ANY_CAUSE = "*"  # in `follows`

_FOLDER = Path(__file__).with_name("known_failures")
_SPECIAL = set("[({.^$|")
_CLASSES = "dDwWsSbBAZ"


class Origin(StrEnum):
    """Where the reason of a failure lies, if not in a rank or its machine."""

    OUTSIDE = "outside"
    ABSENCE = "absence"
    LINK = "link"
    END = "end"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression, and a part of every text that it matches; compiled when that part is seen."""

    expression: str
    part: str
    frames: str = ""  # of the traceback whose last line it matches; empty: any line

    def search(self, line: str) -> re.Match[str] | None:
        """Where the line matches."""
        return _compiled(self.expression).search(line) if self.part in line else None

    def is_raised_by(self, frames: str) -> bool:
        """Whether the frames of a traceback are those of the expected program."""
        return not self.frames or _compiled(self.frames).search(frames) is not None


@dataclass(frozen=True, slots=True)
class Failure:
    """One known failure: how it shows in a text, its cause, how to fix it, what proves it."""

    id: str
    title: str
    role: Role
    program: str  # who writes the line
    owner: Owner
    patterns: tuple[Pattern, ...]
    weak: bool  # counts only where the run does not go on after it
    at_info: bool  # counts on lines of the levels info and debug too
    harmless: bool  # a note, and no failure
    generic: bool  # counts only on lines that no other failure explains
    origin: Origin | None
    follows: tuple[str, ...]  # a consequence where one of these is in the same text
    cause: str
    remedy: str
    proof: str
    source: str
    cuda_errors: tuple[int, ...] = ()
    details: tuple[str, ...] = ()
    continues: tuple[str, ...] = ()  # expressions of lines after which the program does without

    def does_without(self, line: str) -> bool:
        """Whether the line shows that its program goes on by itself."""
        return any(_compiled(expression).search(line) for expression in self.continues)

    def values_in(self, line: str) -> dict[str, str]:
        """The named groups of the pattern that the line matches: a node, a version, a count."""
        matches = (pattern.search(line) for pattern in self.patterns if "(?P<" in pattern.expression)
        groups = next((match.groupdict() for match in matches if match), {})
        return {name: value for name, value in groups.items() if value}

    def detail_of(self, line: str) -> str:
        """The numbers or names in the line, as a sentence; empty where it has none."""
        values = self.values_in(line) if self.details else {}
        fits = (detail for detail in self.details if set(re.findall(r"\{(\w+)\}", detail)) <= set(values))
        return next(fits, "").format_map(values)

    def remedy_for(self, line: str) -> str:
        """How to fix it, with the names in the line in place of NODE, POD and the like."""
        named = {name.upper(): value for name, value in self.values_in(line).items()}
        return re.sub(r"\b[A-Z]{3,}\b", lambda match: named.get(match[0], match[0]), self.remedy)


@cache
def failures() -> dict[str, Failure]:
    """Every known failure, by id."""
    return {
        entry["id"]: Failure(
            id=entry["id"],
            title=entry["title"],
            role=Role(entry["role"]),
            program=entry["program"],
            owner=Owner(entry["owner"]),
            patterns=(
                *(
                    Pattern(text, longest_part(text))
                    for text in (*entry.get("patterns", ()), *_of_cuda(entry))
                ),
                *(
                    Pattern(text, longest_part(text), raised["frames"])
                    for raised in entry.get("in_tracebacks", ())
                    for text in raised["texts"]
                ),
            ),
            weak=entry.get("weak", False),
            at_info=entry.get("at_info", False),
            harmless=entry.get("harmless", False),
            generic=entry.get("generic", False),
            origin=Origin(entry["origin"]) if "origin" in entry else None,
            follows=tuple(entry.get("follows", ())),
            cause=entry["cause"],
            remedy=fit_remedy(entry["remedy"]),
            proof=entry["proof"],
            source=entry["source"],
            cuda_errors=tuple(entry.get("cuda_errors", ())),
            details=tuple(entry.get("details", ())),
            continues=tuple(entry.get("continues", ())),
        )
        for table in failure_tables()
        for entry in read_table(table)["failure"]
    }


def _of_cuda(entry: dict[str, Any]) -> tuple[str, ...]:
    numbers = tuple(entry.get("cuda_errors", ()))
    return expressions_of(numbers, in_nccl=not entry.get("generic", False)) if numbers else ()


def failure_tables() -> tuple[str, ...]:
    """The names of the files of known failures, as `read_table` takes them."""
    return tuple(f"{_FOLDER.name}/{path.name}" for path in sorted(_FOLDER.glob("*.toml")))


def longest_part(expression: str) -> str:
    """The longest text that every match of a regular expression holds, outside of its groups and classes."""
    runs = groupby(_atoms(expression), key=lambda atom: atom is None)
    parts = ["".join(atom or "" for atom in run) for is_break, run in runs if not is_break]
    return max(parts, key=len, default="")


def _atoms(expression: str) -> list[str | None]:
    """The literal characters, one each, and None where anything else may stand."""
    atoms: list[str | None] = []
    place = 0
    while place < len(expression):
        character = expression[place]
        if character == "\\":
            escaped = expression[place + 1]
            atoms.append(None if escaped in _CLASSES else escaped)
            place += 2
        elif character in "?*":
            atoms[-1:] = [None]
            place += 1
        elif character == "{":
            atoms[-1:] = [None]
            place = expression.index("}", place) + 1
        elif character == "+":
            atoms.append(None)
            place += 1
        elif character in "([":
            atoms.append(None)
            place = _end_of(expression, place)
        else:
            atoms.append(None if character in _SPECIAL else character)
            place += 1
    return atoms


def _end_of(expression: str, place: int) -> int:
    """The place after the group or the class that begins at `place`."""
    if expression[place] == "[":
        place += 2  # a bracket in first place is a character
        while expression[place] != "]":
            place += 2 if expression[place] == "\\" else 1
        return place + 1
    place += 1
    while expression[place] != ")":
        if expression[place] in "([":
            place = _end_of(expression, place)
        else:
            place += 2 if expression[place] == "\\" else 1
    return place + 1


@cache
def _compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression)
