"""Known failures and the texts by which they are recognised: failures.toml."""

import re
from dataclasses import dataclass
from functools import cache

from gpudiag.model.explanation import Role
from gpudiag.reference.tables import read_table


@dataclass(frozen=True, slots=True)
class Failure:
    """One known failure: how it shows in a text, what causes it, how to mend it, what proves it."""

    id: str
    title: str
    role: Role
    patterns: tuple[re.Pattern[str], ...]
    generic: bool  # counts only on lines that no other failure explains
    follows: tuple[str, ...]  # a consequence where one of these is in the same text
    cause: str
    mend: str
    proof: str
    source: str


@cache
def failures() -> dict[str, Failure]:
    """Every known failure, by id."""
    return {
        entry["id"]: Failure(
            id=entry["id"],
            title=entry["title"],
            role=Role(entry["role"]),
            patterns=tuple(re.compile(pattern, re.MULTILINE) for pattern in entry["patterns"]),
            generic=entry.get("generic", False),
            follows=tuple(entry.get("follows", ())),
            cause=entry["cause"],
            mend=entry["mend"],
            proof=entry["proof"],
            source=entry["source"],
        )
        for entry in read_table("failures.toml")["failure"]
    }
