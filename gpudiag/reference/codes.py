"""More about each finding code than its check says: codes.toml."""

from dataclasses import dataclass
from functools import cache

from gpudiag.reference.tables import read_table


@dataclass(frozen=True, slots=True)
class CodeEntry:
    """What is read for a code, what it is held against (each empty: see its check), where to look next."""

    code: str
    reads: str
    limit: str
    look_also: tuple[str, ...]


@cache
def code_entries() -> dict[str, CodeEntry]:
    """Every entry, by code."""
    return {
        code: CodeEntry(code, entry.get("reads", ""), entry.get("limit", ""), tuple(entry["look_also"]))
        for entry in read_table("codes.toml")["code"]
        for code in entry["codes"]
    }
