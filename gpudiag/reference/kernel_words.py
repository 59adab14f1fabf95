"""The kernel's own words for faults of the machine: the known failures that are looked for in its log.

`gpudiag explain`, preflight, the bare command and the service know them from one table,
known_failures/kernel.toml, and from those entries of storage.toml and driver.toml that the kernel writes.
"""

import re
from dataclasses import dataclass
from functools import cache

from gpudiag.reference.failures import longest_part
from gpudiag.reference.tables import read_table

_TABLES = ("known_failures/kernel.toml", "known_failures/storage.toml", "known_failures/driver.toml")


@dataclass(frozen=True, slots=True)
class KernelWords:
    """One fault as the kernel words it: `parts` are texts of which each of its lines holds one.

    `reason_of` are the findings that it gives the reason for, where it is none by itself. `until_restart`: it
    is settled where the GPU or the driver was restarted after it.
    """

    id: str
    title: str
    owner: str
    cause: str
    written_remedy: str  # as `model/remedy.py` describes
    source: str
    reason_of: tuple[str, ...]
    until_restart: bool
    patterns: tuple[re.Pattern[str], ...]
    parts: tuple[str, ...]

    def matches(self, line: str) -> bool:
        """Whether the line reports this fault."""
        return any(
            part in line and pattern.search(line)
            for part, pattern in zip(self.parts, self.patterns, strict=True)
        )


@cache
def kernel_words() -> tuple[KernelWords, ...]:
    """Every fault that is looked for in a kernel log, in the order of the tables."""
    return tuple(
        KernelWords(
            id=entry["id"],
            title=entry["title"],
            owner=entry["owner"],
            cause=entry["cause"],
            written_remedy=entry["remedy"],
            source=entry["source"],
            reason_of=tuple(entry.get("why_in_kernel_log", ())),
            until_restart=entry.get("until_restart", False),
            patterns=tuple(map(re.compile, entry["patterns"])),
            parts=tuple(map(longest_part, entry["patterns"])),
        )
        for table in _TABLES
        for entry in read_table(table)["failure"]
        if entry.get("in_kernel_log") or entry.get("why_in_kernel_log")
    )


def find_kernel_words(line: str) -> str | None:
    """The fault that a line of the kernel log reports, by its id; None for any other line."""
    return next((words.id for words in kernel_words() if words.matches(line)), None)


@cache
def faults_until_restart() -> frozenset[str]:
    """The faults of a GPU that are settled where it, or the driver, was restarted, by their ids."""
    return frozenset(words.id for words in kernel_words() if words.until_restart)
